// Parts of sandbox-api and what it is built on, without a loop: base64, targets and queries, JSON bodies, exec requests,
// options, names of sessions.
#include "api/exec_job.h"
#include "api/exec_request.h"
#include "api/json_in.h"
#include "api/options.h"
#include "api/replay.h"
#include "api/route.h"
#include "api/session.h"
#include "api/tokens.h"
#include "base/base64.h"
#include "unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void base64_goes_both_ways(void **state)
{
    static const struct {
        const char *plain, *text;
    } cases[] = {{"", ""},
                 {"f", "Zg=="},
                 {"fo", "Zm8="},
                 {"foo", "Zm9v"},
                 {"foob", "Zm9vYg=="},
                 {"fooba", "Zm9vYmE="},
                 {"foobar", "Zm9vYmFy"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[16] = "";
        uint8_t plain[16];
        size_t n = strlen(cases[i].plain), got = 99;
        base64_encode(cases[i].plain, n, text);
        assert_string_equal(text, cases[i].text);
        assert_int_equal(base64_length(n), strlen(cases[i].text));
        assert_int_equal(base64_decode(cases[i].text, strlen(cases[i].text), plain, &got), 0);
        assert_int_equal(got, n);
        assert_memory_equal(plain, cases[i].plain, n);
    }
    uint8_t every[256], back[258];
    char text[400];
    size_t n;
    for (int i = 0; i < 256; i++)
        every[i] = (uint8_t)i;
    base64_encode(every, sizeof every, text);
    assert_int_equal(base64_decode(text, base64_length(sizeof every), back, &n), 0);
    assert_int_equal(n, 256);
    assert_memory_equal(back, every, 256);
}

static void base64_is_read_strictly(void **state)
{
    static const char *const bad[] = {"Z",    "Zg",     "Zg=",  "Zg===", "=Zg=", "Z===",     "====", "Zh==",
                                      "Zm9=", "Zm9v\n", "Zm 9", "Zm9-",  "Zm9_", "Zg==Zg==", "Zm=v", "\xff\xff\xff\xff"};
    uint8_t out[16];
    size_t n = 7;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (base64_decode(bad[i], strlen(bad[i]), out, &n) != -EINVAL)
            fail_msg("\"%s\" was read", bad[i]);
    assert_int_equal(n, 7);
}

#define T(literal) HTTP_TEXT(literal)

static void targets_are_cut_before_they_are_decoded(void **state)
{
    struct http_text path, query, name, value;
    (void)state;
    http_target_split(T("/a?b=c?d&&e&=f&g=h=i"), &path, &query);
    assert_true(http_text_equal(path, T("/a")));
    static const char *const parts[][2] = {{"b", "c?d"}, {"e", ""}, {"", "f"}, {"g", "h=i"}};
    for (size_t i = 0; i < 4; i++) {
        assert_true(http_query_next(&query, &name, &value));
        assert_true(http_text_equal(name, (struct http_text){parts[i][0], strlen(parts[i][0])}));
        assert_true(http_text_equal(value, (struct http_text){parts[i][1], strlen(parts[i][1])}));
    }
    assert_false(http_query_next(&query, &name, &value));
    http_target_split(T("/a"), &path, &query);
    assert_int_equal(query.n, 0);
}

static void escapes_are_decoded_once(void **state)
{
    static const struct {
        const char *in, *out;
        bool form;
        int r;
    } cases[] = {{"a%20b", "a b", true, 0},
                 {"a+b", "a b", true, 0},
                 {"a+b", "a+b", false, 0},
                 {"a%2Bb", "a+b", true, 0},
                 {"%2520", "%20", true, 0},
                 {"%41%4a%4A", "AJJ", true, 0},
                 {"%", NULL, true, -EBADMSG},
                 {"%2", NULL, true, -EBADMSG},
                 {"%zz", NULL, true, -EBADMSG},
                 {"%2g", NULL, true, -EBADMSG},
                 {"%00", NULL, true, -EINVAL},
                 {"", "", true, 0},
                 {"1234567", "1234567", true, 0},
                 {"12345678", NULL, true, -ENAMETOOLONG},
                 {"%e2%82%ac", "\xe2\x82\xac", true, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[8];
        size_t n;
        int r = http_percent_decode((struct http_text){cases[i].in, strlen(cases[i].in)}, cases[i].form, out, sizeof out, &n);
        if (r != cases[i].r)
            fail_msg("%s: %d", cases[i].in, r);
        if (r == 0)
            assert_string_equal(out, cases[i].out);
    }
}

static void routes_are_matched_as_they_came(void **state)
{
    struct http_text p[HTTP_ROUTE_PARAMS_MAX];
    static const char route[] = "/v1/sessions/{id}/exec/{exec_id}";
    (void)state;
    assert_true(http_route_match(route, T("/v1/sessions/a%2fb/exec/c"), p));
    assert_true(http_text_equal(p[0], T("a%2fb")));
    assert_true(http_text_equal(p[1], T("c")));
    assert_true(http_route_match("/a/{x}", T("/a/b"), p));
    static const char *const others[] = {
        "/v1/sessions//exec/c",    "/v1/sessions/a/exec/",  "/v1/sessions/a/exec",     "/v1/sessions/a/exec/c/", "",
        "/v1/sessions/a/exec/c/d", "/v1/sessions/a/EXEC/c", "/v1/sessions/a/%65xec/c", "v1/sessions/a/exec/c"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (http_route_match(route, (struct http_text){others[i], strlen(others[i])}, p))
            fail_msg("%s", others[i]);
}

static int read_exec(const char *text, struct exec_request *r, struct err *err)
{
    return exec_request_read(r, text, strlen(text), err);
}

static void exec_requests_have_defaults(void **state)
{
    struct exec_request r;
    struct err err;
    (void)state;
    assert_int_equal(read_exec("{\"command\":\"true\"}", &r, &err), 0);
    assert_int_equal(r.spec.max_output, EXEC_OUTPUT_DEFAULT_BYTES);
    assert_int_equal(r.spec.timeout_ms, 0);
    assert_null(r.spec.cwd);
    exec_request_free(&r);
    // Nothing that was not asked for ends a command that is followed, or stays.
    assert_int_equal(read_exec("{\"command\":\"true\",\"stream\":true}", &r, &err), 0);
    assert_int_equal(r.spec.max_output, 0);
    exec_request_free(&r);
    assert_int_equal(
        read_exec("{\"argv\":[\"a\",\"\"],\"detach\":true,\"max_output\":9999999999,\"env\":{\"A\":\"b\",\"C\":\"=\"}}", &r,
                  &err),
        0);
    assert_int_equal(r.spec.max_output, 9999999999);
    assert_string_equal(r.argv[1], "");
    assert_null(r.argv[2]);
    assert_string_equal(r.env[0], "A=b");
    assert_string_equal(r.env[1], "C==");
    assert_null(r.env[2]);
    exec_request_free(&r);
}

static void lists_have_ceilings(void **state)
{
    struct err err;
    struct exec_request r;
    (void)state;
    for (int over = 0; over < 2; over++) {
        cleanup_buf struct buf text = BUF_INIT(JSON_BODY_MAX);
        buf_append_text(&text, "{\"argv\":[\"a\"");
        for (int i = 1; i < EXEC_ARGUMENTS_MAX + over; i++)
            buf_append_text(&text, ",\"\"");
        buf_append_text(&text, "]}");
        assert_int_equal(read_exec(buf_text(&text), &r, &err), over ? -EINVAL : 0);
        if (!over)
            exec_request_free(&r);
        buf_clear(&text);
        buf_append_text(&text, "{\"command\":\"a\",\"env\":{\"N\":\"\"");
        for (int i = 1; i < EXEC_ENV_MAX + over; i++)
            buf_printf(&text, ",\"N%d\":\"\"", i);
        buf_append_text(&text, "}}");
        assert_int_equal(read_exec(buf_text(&text), &r, &err), over ? -EINVAL : 0);
        if (!over)
            exec_request_free(&r);
        buf_clear(&text);
        buf_append_text(&text, "{\"command\":\"a\",\"cwd\":\"/");
        for (int i = 1; i < EXEC_CWD_MAX + over; i++)
            buf_append_text(&text, "x");
        buf_append_text(&text, "\"}");
        assert_int_equal(read_exec(buf_text(&text), &r, &err), over ? -EINVAL : 0);
        if (!over)
            exec_request_free(&r);
    }
}

static void names_of_sessions_are_their_owners(void **state)
{
    char id[4][SESSION_ID_MAX + 1];
    (void)state;
    session_id_of("alice", "key", id[0]);
    session_id_of("alice", "key", id[1]);
    session_id_of("alic", "ekey", id[2]);
    session_id_of("alice", "key2", id[3]);
    assert_string_equal(id[0], id[1]);
    assert_string_not_equal(id[0], id[2]);
    assert_string_not_equal(id[0], id[3]);
    assert_int_equal(strlen(id[0]), 28);
    assert_memory_equal(id[0], "ses_", 4);
    // What clients have seen stays so from one version to the next.
    session_id_of("uid:1000", "project", id[0]);
    assert_string_equal(id[0], "ses_5b42840f3b129b675b2a3d82");
}

static void errors_have_the_statuses_of_the_spec(void **state)
{
    static const unsigned statuses[] = {
        [1] = 429, [2] = 400,  [3] = 503,  [4] = 500,  [5] = 500,  [6] = 404,  [7] = 400, [8] = 404,
        [9] = 503, [10] = 400, [11] = 404, [12] = 409, [13] = 413, [14] = 500, [15] = 504};
    (void)state;
    for (int i = 1; i <= 15; i++)
        assert_int_equal(engine_error_status((sandbox_error_t)-i), statuses[i]);
    assert_int_equal(engine_error_status((sandbox_error_t)-99), 500);
    assert_true(status_is_retryable(429) && status_is_retryable(503) && !status_is_retryable(500) && !status_is_retryable(404));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_goes_both_ways),
        cmocka_unit_test(base64_is_read_strictly),
        cmocka_unit_test(targets_are_cut_before_they_are_decoded),
        cmocka_unit_test(escapes_are_decoded_once),
        cmocka_unit_test(routes_are_matched_as_they_came),
        cmocka_unit_test(exec_requests_have_defaults),
        cmocka_unit_test(lists_have_ceilings),
        cmocka_unit_test(names_of_sessions_are_their_owners),
        cmocka_unit_test(errors_have_the_statuses_of_the_spec),
    };
    return cmocka_run_group_tests_name("api_parts", tests, NULL, NULL);
}
