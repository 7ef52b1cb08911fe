// wire/route_check: lists of routes, and what they cannot be tricked into.  The vectors and random targets are
// test_route_check.py's.
#include "unit.h"
#include "wire/route_check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct route_list list;

static enum route_problem add(const char *text)
{
    enum route_problem why = ROUTE_FINE;
    unsigned before = list.n;
    int r = route_list_add(&list, text, strlen(text), &why);
    assert_int_equal(r, why == ROUTE_FINE ? 0 : -EINVAL);
    assert_int_equal(list.n, before + (r == 0));
    return why;
}

static enum route_reason ask(const char *method, const char *target, size_t n)
{
    struct route_verdict v = route_check(&list, (struct http_text){method, strlen(method)}, (struct http_text){target, n});
    assert_int_equal(v.approved.n, v.reason == ROUTE_FORWARD ? n : 0);
    if (v.reason == ROUTE_FORWARD)
        assert_ptr_equal(v.approved.at, target);
    return v.reason;
}

static void routes_of_a_list(void **state)
{
    static const struct {
        const char *text;
        enum route_problem why;
    } cases[] = {
        {"GET /", ROUTE_FINE},
        {"GET /*", ROUTE_FINE},
        {"GET /*/*", ROUTE_FINE},
        {"GET /v1/a:list", ROUTE_FINE},
        {"GET /v1/.well-known/k", ROUTE_FINE},
        {"GET /v1/a..b", ROUTE_FINE},
        {"GET /v1/~me/$&+,=@", ROUTE_FINE},
        {"get /v1/x", ROUTE_FINE},
        {" \tPaTcH \t /v1/x ", ROUTE_FINE},
        {"PUT /v1/x", ROUTE_FINE},
        {"POST /v1/x", ROUTE_FINE},
        {"DELETE /v1/x", ROUTE_FINE},
        {"GET v1/x", ROUTE_NOT_ABSOLUTE},
        {"GET *", ROUTE_NOT_ABSOLUTE},
        {"GET https://a/v1", ROUTE_NOT_ABSOLUTE},
        {"GET /v1/x/", ROUTE_UNCLEAN},
        {"GET //", ROUTE_UNCLEAN},
        {"GET /v1//x", ROUTE_UNCLEAN},
        {"GET /v1/./x", ROUTE_UNCLEAN},
        {"GET /v1/../x", ROUTE_UNCLEAN},
        {"GET /v1/.../x", ROUTE_DOTS},
        {"GET /v1/x;v=1", ROUTE_PARAMETER},
        {"GET /v1/a*b", ROUTE_PARTIAL_STAR},
        {"GET /v1/**", ROUTE_PARTIAL_STAR},
        {"GET /v1/%61", ROUTE_ENCODED},
        {"GET /v1/%", ROUTE_ENCODED},
        {"GET /v1/x?y", ROUTE_FORBIDDEN},
        {"GET /v1/x#y", ROUTE_FORBIDDEN},
        {"GET /v1\\x", ROUTE_FORBIDDEN},
        {"GET /v1/\x01", ROUTE_FORBIDDEN},
        {"GET /v1/x\n", ROUTE_FORBIDDEN},
        {"GET /v1/a b", ROUTE_NOT_TWO},
        {"GET", ROUTE_NOT_TWO},
        {"", ROUTE_NOT_TWO},
        {"/v1/x", ROUTE_NOT_TWO},
        {"GET /v1/caf\xc3\xa9", ROUTE_UNSAFE},
        {"GET /v1/\xff", ROUTE_UNSAFE},
        {"GET /v1/a!b", ROUTE_UNSAFE},
        {"TRACE /x", ROUTE_BAD_METHOD},
        {"HEAD /x", ROUTE_BAD_METHOD},
        {"OPTIONS /x", ROUTE_BAD_METHOD},
        {"GETT /x", ROUTE_BAD_METHOD},
        {"* /x", ROUTE_BAD_METHOD},
        {"GET /v1/x", ROUTE_DUPLICATE},
        {"gEt /v1/x", ROUTE_DUPLICATE},
    };
    list.n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum route_problem why = add(cases[i].text);
        if (why != cases[i].why)
            fail_msg("%s: %s", cases[i].text, route_problem_text(why));
    }
    assert_string_equal(list.route[7].method, "GET");
    assert_string_equal(list.route[8].method, "PATCH");
    for (int i = 0; i < ROUTE_PROBLEMS; i++)
        assert_true(strlen(route_problem_text((enum route_problem)i)) > 5);
}

// Every byte, as a segment of its own and within one: only the 75 safe ones pass, less those that a rule names.
static void every_byte(void **state)
{
    list.n = 0;
    assert_int_equal(add("GET /v1/*"), ROUTE_FINE);
    unsigned passed = 0;
    for (int c = 0; c < 256; c++) {
        char target[] = "/v1/aXb";
        target[5] = (char)c;
        enum route_reason reason = ask("GET", target, 7), want;
        if (c == '%')
            want = ROUTE_R2;
        else if (c == '\\')
            want = ROUTE_R3;
        else if (c == '?' || c == '#')
            want = ROUTE_R4;
        else if (c < 0x20 || c == 0x7F)
            want = ROUTE_R5;
        else if (c == ';')
            want = ROUTE_R8_PARAMETER;
        else if (c == '/' || c == ':')
            want = ROUTE_R9;
        else
            want = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("-_.~$&+,=@", c) != NULL
                       ? ROUTE_FORWARD
                       : ROUTE_R6;
        if (reason != want)
            fail_msg("byte 0x%02x: %s", (unsigned)c, route_reason_text(reason));
        passed += reason == ROUTE_FORWARD;
    }
    assert_int_equal(passed, 75 - 3);
}

static void order_and_caps(void **state)
{
    list.n = 0;
    assert_int_equal(add("POST /v2/*/run"), ROUTE_FINE);
    assert_int_equal(add("POST /v2/ep1/run"), ROUTE_FINE);
    struct http_text method = HTTP_TEXT("post"), target = HTTP_TEXT("/v2/ep1/run");
    struct route_verdict v = route_check(&list, method, target);
    assert_int_equal(v.reason, ROUTE_FORWARD);
    assert_int_equal(v.index, 0);
    // Charged to both.
    assert_true(route_matches(&list.route[0], method, target));
    assert_true(route_matches(&list.route[1], method, target));
    assert_false(route_matches(&list.route[1], method, HTTP_TEXT("/v2/EP1/run")));
    assert_false(route_matches(&list.route[1], HTTP_TEXT("PUT"), target));
    list.n = 0;
    assert_int_equal(ask("POST", "/v2/ep1/run", 11), ROUTE_R9);
}

static void ceilings(void **state)
{
    static char text[ROUTE_TEMPLATE_MAX + 16] = "GET /", many[ROUTES_MAX + 1][16];
    list.n = 0;
    memset(text + 5, 'x', ROUTE_TEMPLATE_MAX);
    text[4 + ROUTE_TEMPLATE_MAX] = '\0';
    assert_int_equal(add(text), ROUTE_FINE);
    text[4 + ROUTE_TEMPLATE_MAX] = 'x';
    assert_int_equal(add(text), ROUTE_LONG);
    assert_non_null(strstr(route_problem_text(ROUTE_LONG), "1024"));
    list.n = 0;
    for (unsigned i = 0; i <= ROUTES_MAX; i++) {
        snprintf(many[i], sizeof many[i], "GET /%u", i);
        assert_int_equal(add(many[i]), i < ROUTES_MAX ? ROUTE_FINE : ROUTE_TOO_MANY);
    }
    assert_non_null(strstr(route_problem_text(ROUTE_TOO_MANY), "512"));
    assert_int_equal(ask("GET", "/511", 4), ROUTE_FORWARD);
    assert_int_equal(ask("GET", "/512", 4), ROUTE_R9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_of_a_list),
        cmocka_unit_test(every_byte),
        cmocka_unit_test(order_and_caps),
        cmocka_unit_test(ceilings),
    };
    return cmocka_run_group_tests_name("route_check", tests, NULL, NULL);
}
