// Parts of the broker's grants by themselves: the breaker, capped routes, heads of calls, lives of tokens, counters.
#include "base/clock.h"
#include "broker/api_call.h"
#include "broker/api_send.h"
#include "broker/breaker.h"
#include "broker/grant_metrics.h"
#include "broker/mint.h"
#include "broker/route_caps.h"
#include "broker/secret_file.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// ---- the breaker ----

enum { WALL = 784111777 };  // Sun, 06 Nov 1994 08:49:37 GMT

static void retry_after_is_read_and_bounded(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned wait;
    } table[] = {
        {"", 1},
        {"10", 10},
        {"0", 1},
        {"1", 1},
        {"30", 30},
        {"31", 30},
        {"3600", 30},
        {"99999999999", 30},
        {"99999999999999999999999999999999999999", 30},
        {"0000000000000000000000000000000005", 5},
        {"-5", 1},
        {"+5", 1},
        {"5 s", 1},
        {"5.5", 1},
        {"soon", 1},
        {"Sun, 06 Nov 1994 08:49:42 GMT", 5},
        {"Sun, 06 Nov 1994 08:49:37 GMT", 1},
        {"Sun, 06 Nov 1994 08:49:00 GMT", 1},
        {"Sun, 06 Nov 1994 10:00:00 GMT", 30},
        {"Sunday, 06-Nov-94 08:49:47 GMT", 10},
        {"Sun Nov  6 08:49:47 1994", 10},
        {"Sun, 06 Nov 9999 08:49:42 GMT", 30},
        {"Sun, 06 Nov 1994 08:49:42 GMT and more", 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_int_equal(breaker_wait_s(table[i].text, WALL), table[i].wait);
}

static const uint64_t S = NS_PER_S;

static void only_429_and_503_open_it(void **state)
{
    (void)state;
    for (unsigned status = 100; status < 600; status++) {
        struct breaker b = {0};
        assert_int_equal(breaker_ask(&b, true, 100 * S), BREAKER_SEND);
        breaker_saw(&b, status, "10", 100 * S, WALL);
        assert_int_equal(breaker_ask(&b, false, 101 * S), status == 429 || status == 503 ? BREAKER_SHED : BREAKER_SEND);
        assert_int_equal(breaker_ask(&b, false, 110 * S), BREAKER_SEND);
    }
}

static void a_window_grows_and_never_shrinks(void **state)
{
    (void)state;
    struct breaker b = {0};
    breaker_saw(&b, 503, "10", 100 * S, WALL);
    breaker_saw(&b, 503, "2", 101 * S, WALL);
    assert_int_equal(breaker_ask(&b, false, 109 * S), BREAKER_SHED);
    breaker_saw(&b, 503, "10", 105 * S, WALL);
    assert_int_equal(breaker_ask(&b, false, 114 * S), BREAKER_SHED);
    assert_int_equal(breaker_ask(&b, false, 115 * S), BREAKER_SEND);
}

static void one_caller_a_second_probes(void **state)
{
    (void)state;
    struct breaker b = {0};
    breaker_saw(&b, 503, "20", 100 * S, WALL);
    assert_int_equal(breaker_ask(&b, false, 100 * S), BREAKER_SHED);  // nowhere to ask
    assert_int_equal(breaker_ask(&b, true, 100 * S), BREAKER_PROBE);
    assert_int_equal(breaker_ask(&b, true, 100 * S), BREAKER_SHED);
    assert_int_equal(breaker_ask(&b, true, 102 * S), BREAKER_SHED);  // while one asks
    assert_false(breaker_probed(&b, 500, "", 102 * S, WALL));
    assert_int_equal(breaker_ask(&b, true, 102 * S), BREAKER_PROBE);
    assert_false(breaker_probed(&b, 0, "", 102 * S, WALL));
    assert_int_equal(breaker_ask(&b, true, 102 * S), BREAKER_SHED);  // one a second
    assert_int_equal(breaker_ask(&b, true, 103 * S), BREAKER_PROBE);
    assert_true(breaker_probed(&b, 204, "", 103 * S, WALL));
    assert_int_equal(breaker_ask(&b, true, 103 * S), BREAKER_SEND);
    // What the probe says prolongs the window.
    breaker_saw(&b, 503, "1", 200 * S, WALL);
    assert_int_equal(breaker_ask(&b, true, 200 * S), BREAKER_PROBE);
    assert_false(breaker_probed(&b, 503, "25", 200 * S, WALL));
    assert_int_equal(breaker_ask(&b, false, 224 * S), BREAKER_SHED);
    assert_int_equal(breaker_ask(&b, true, 225 * S), BREAKER_SEND);
}

static void a_limiters_window_is_waited_out(void **state)
{
    (void)state;
    struct breaker b = {0};
    breaker_saw(&b, 429, "5", 100 * S, WALL);
    assert_int_equal(breaker_ask(&b, true, 101 * S), BREAKER_SHED);
    breaker_saw(&b, 503, "10", 101 * S, WALL);  // grows it, and does not make it one that is probed
    assert_int_equal(breaker_ask(&b, true, 110 * S), BREAKER_SHED);
    assert_int_equal(breaker_ask(&b, true, 111 * S), BREAKER_SEND);
    breaker_saw(&b, 503, "10", 200 * S, WALL);
    breaker_saw(&b, 429, "10", 200 * S, WALL);  // a limiter within a 503's window
    assert_int_equal(breaker_ask(&b, true, 201 * S), BREAKER_SHED);
    struct breaker probed = {0};
    breaker_saw(&probed, 503, "10", 100 * S, WALL);
    assert_int_equal(breaker_ask(&probed, true, 100 * S), BREAKER_PROBE);
    assert_false(breaker_probed(&probed, 429, "10", 100 * S, WALL));
    assert_int_equal(breaker_ask(&probed, true, 105 * S), BREAKER_SHED);
}

// ---- a profile to work with ----

static struct grants *grants;

static const struct profile *profile(const char *name)
{
    return grants_find(grants, name);
}

static int read_profiles(void **state)
{
    (void)state;
    static const char text[] =
        "{\"profiles\": {"
        "\"p\": {\"base_url\": \"https://a.example.org\", \"allowed_callers\": [\"*\"], \"allow\": [\"GET /a/*\", \"GET "
        "/a/x\", "
        "\"PUT /a/*\"], \"route_max_calls\": {\"GET /a/*\": 3, \"GET /a/x\": 1}},"
        "\"q\": {\"base_url\": \"https://a.example.org\", \"allowed_callers\": [\"*\"], \"allow\": [\"GET /A/*\"], "
        "\"route_max_calls\": {\"GET /A/*\": 5}},"
        "\"other\": {\"base_url\": \"https://b.example.org\", \"allowed_callers\": [\"*\"], \"allow\": [\"GET /a/*\"], "
        "\"route_max_calls\": {\"GET /a/*\": 1}}}}";
    struct err err;
    return grants_parse(text, sizeof text - 1, -1, &grants, &err);
}

static int forget_profiles(void **state)
{
    (void)state;
    grants = grants_unref(grants);
    return 0;
}

static bool charge(struct route_caps *c, const char *name, const unsigned *counter, const char *target)
{
    return route_caps_charge(c, profile(name), counter, HTTP_TEXT("GET"), (struct http_text){target, strlen(target)});
}

static void caps_are_counted_together(void **state)
{
    (void)state;
    struct route_caps *c;
    unsigned p[2], q[1], other[1];
    assert_int_equal(route_caps_new(&c), 0);
    assert_int_equal(route_caps_map(c, profile("p"), p), 0);
    assert_int_equal(route_caps_map(c, profile("q"), q), 0);
    assert_int_equal(route_caps_map(c, profile("other"), other), 0);
    assert_int_equal(p[0], q[0]);  // the same route of the same origin, whatever its letters
    assert_int_not_equal(p[0], other[0]);
    assert_true(charge(c, "p", p, "/a/x"));
    assert_false(charge(c, "p", p, "/A/X"));  // all or nothing: /a/* is not charged
    assert_true(charge(c, "p", p, "/a/y"));
    assert_true(charge(c, "q", q, "/A/z"));
    assert_false(charge(c, "p", p, "/a/z"));  // 3 of 3
    assert_true(charge(c, "q", q, "/A/z"));   // 4 of 5
    assert_true(charge(c, "other", other, "/a/x"));
    assert_false(charge(c, "other", other, "/a/x"));
    assert_true(charge(c, "p", p, "/b"));  // capped by nothing
    route_caps_free(c);
}

static void caps_of_a_line_are_bounded(void **state)
{
    (void)state;
    struct route_caps *c;
    assert_int_equal(route_caps_new(&c), 0);
    struct route route = {.method = "GET"};
    struct profile p = {.n_caps = 1, .cap = (struct profile_cap[]){{0, 1}}};
    char path[16];
    p.allow.n = 1;
    for (unsigned i = 0; i <= ROUTE_CAPS_MAX; i++) {
        unsigned counter;
        snprintf(path, sizeof path, "/%u", i);
        route.path = (struct http_text){path, strlen(path)};
        p.allow.route[0] = route;
        assert_int_equal(route_caps_map(c, &p, &counter), i < ROUTE_CAPS_MAX ? 0 : -ENOSPC);
    }
    unsigned first;
    p.allow.route[0].path = HTTP_TEXT("/0");
    assert_int_equal(route_caps_map(c, &p, &first), 0);  // one that is there already
    assert_int_equal(first, 0);
    route_caps_free(c);
}

// ---- heads ----

static void the_target_in_a_head_is_looked_at_again(void **state)
{
    (void)state;
    static const struct {
        const char *head, *approved;
        bool good;
    } table[] = {
        {"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "/a", true},
        {"GET /ab HTTP/1.1\r\n\r\n", "/a", false},
        {"GET /a HTTP/1.1\r\n\r\n", "/ab", false},
        {"GET /a  HTTP/1.1\r\n\r\n", "/a", false},
        {"GET /a b HTTP/1.1\r\n\r\n", "/a", false},
        {"GET  /a HTTP/1.1\r\n\r\n", "/a", false},
        {"GET /a\r\n\r\n", "/a", false},
        {"GET\r\n/a HTTP/1.1\r\n\r\n", "/a", false},
        {"GET /A HTTP/1.1\r\n\r\n", "/a", false},
        {"", "/a", false},
        {"GET /a HTTP/1.1", "/a", false},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        cleanup_buf struct buf head = BUF_INIT(1000);
        buf_append_text(&head, table[i].head);
        struct http_text approved = {table[i].approved, strlen(table[i].approved)};
        assert_int_equal(api_send_head_is(&head, approved), table[i].good);
    }
}

static void every_refusal_has_its_answer(void **state)
{
    (void)state;
    static const unsigned statuses[API_REFUSALS] = {200, 503, 503, 429, 429, 413, 403, 429, 503, 502};
    for (unsigned i = 1; i < API_REFUSALS; i++) {
        const char *text = api_refusal_text((enum api_refusal)i);
        assert_int_equal(api_refusal_status((enum api_refusal)i), statuses[i]);
        assert_int_equal(text[strlen(text) - 1], '\n');
        for (unsigned k = 1; k < i; k++)
            assert_string_not_equal(text, api_refusal_text((enum api_refusal)k));
    }
}

// ---- tokens ----

static void tokens_end_soon_after_the_run(void **state)
{
    (void)state;
    struct token t = {.ttl_s = 60};
    assert_int_equal(mint_life_s(&t, 0), 60);
    assert_int_equal(mint_life_s(&t, 1), 6);
    assert_int_equal(mint_life_s(&t, 1000), 6);
    assert_int_equal(mint_life_s(&t, 1001), 7);
    assert_int_equal(mint_life_s(&t, 54000), 59);
    assert_int_equal(mint_life_s(&t, 55000), 60);
    assert_int_equal(mint_life_s(&t, UINT32_MAX), 60);
}

static void subjects(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "alice@example.org", "uid:1000", "two words", "caf\xc3\xa9", "\xc2\xa0"};
    static const char *const bad[] = {"", "*", " a", "a ", "a\nb", "a\x7f", "\xff", "a\xc2\x85", "\x1f"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(mint_subject_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(mint_subject_ok(bad[i]));
}

// ---- counters ----

static void series_are_bounded(void **state)
{
    (void)state;
    struct grant_metrics *m;
    assert_int_equal(grant_metrics_new(&m), 0);
    char name[16];
    struct profile p = {.name = name};
    for (unsigned i = 0; i < GRANT_SERIES_MAX + 50; i++) {
        snprintf(name, sizeof name, "p%u", i);
        grant_metrics_count(m, &p, GRANT_COUNT_OPENED);
    }
    strcpy(name, "p0");
    grant_metrics_count(m, &p, GRANT_COUNT_OPENED);
    cleanup_buf struct buf text = BUF_INIT(GRANT_METRICS_TEXT_MAX);
    grant_metrics_write(m, &text);
    assert_non_null(strstr(buf_text(&text), "broker_grants_opened_total{profile=\"p0\"} 2\n"));
    assert_non_null(strstr(buf_text(&text), "{profile=\"p1023\"} 1\n"));
    assert_null(strstr(buf_text(&text), "p1024"));
    grant_metrics_free(m);
}

// As long as labels can be, and as many of them: the text has room.
static void the_longest_text_fits(void **state)
{
    (void)state;
    struct grant_metrics *m;
    assert_int_equal(grant_metrics_new(&m), 0);
    char name[BROKER_PROFILE_MAX + 1], path[ROUTE_TEMPLATE_MAX + 1];
    memset(name, 'p', sizeof name - 1);
    memset(path, 'x', sizeof path - 1);
    name[sizeof name - 1] = path[sizeof path - 1] = '\0';
    struct profile p = {.name = name};
    struct route route = {.method = "DELETE", .path = {path, ROUTE_TEMPLATE_MAX}};
    for (unsigned i = 0; i < GRANT_SERIES_MAX; i++) {
        snprintf(path, 8, "/%06u", i);
        path[7] = 'x';
        grant_metrics_call(m, &p, &route, UINT64_C(60000000));
    }
    cleanup_buf struct buf text = BUF_INIT(GRANT_METRICS_TEXT_MAX);
    grant_metrics_write(m, &text);
    assert_int_equal(buf_error(&text), 0);
    assert_non_null(strstr(buf_text(&text), "le=\"10\"} 0\n"));
    assert_non_null(strstr(buf_text(&text), "le=\"+Inf\"} 1\n"));
    grant_metrics_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retry_after_is_read_and_bounded),
        cmocka_unit_test(only_429_and_503_open_it),
        cmocka_unit_test(a_window_grows_and_never_shrinks),
        cmocka_unit_test(one_caller_a_second_probes),
        cmocka_unit_test(a_limiters_window_is_waited_out),
        cmocka_unit_test(caps_are_counted_together),
        cmocka_unit_test(caps_of_a_line_are_bounded),
        cmocka_unit_test(the_target_in_a_head_is_looked_at_again),
        cmocka_unit_test(every_refusal_has_its_answer),
        cmocka_unit_test(tokens_end_soon_after_the_run),
        cmocka_unit_test(subjects),
        cmocka_unit_test(series_are_bounded),
        cmocka_unit_test(the_longest_text_fits),
    };
    return cmocka_run_group_tests(tests, read_profiles, forget_profiles);
}
