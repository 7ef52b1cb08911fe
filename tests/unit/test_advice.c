// wire/advice.h: what is found in a trace, and how it is said.
#include "unit.h"
#include "wire/advice.h"

#include <stdio.h>
#include <string.h>

static struct grant_trace_head head;
static struct grant_row rows[GRANT_ROWS_MAX];
static struct advice_finding found[ADVICE_FINDINGS_MAX];
static struct route_list allow, catalog;
static struct advice_batch batch;
static struct advice_routes routes = {&allow, &catalog, &batch, 0};

static void forget(void)
{
    memset(&head, 0, sizeof head);
    memset(rows, 0, sizeof rows);
    memset(&allow, 0, sizeof allow);
    memset(&catalog, 0, sizeof catalog);
    routes.batches = 0;
}

static struct grant_row *add(const char *method, const char *route, unsigned status, uint32_t bytes)
{
    struct grant_row *r = &rows[head.rows];
    *r = (struct grant_row){
        .sequence = ++head.rows, .status = status, .delivered = 1, .response_bytes = bytes, .latency_us = head.rows * 1000};
    strcpy(r->method, method);
    strcpy(r->route, route);
    return r;
}

static void add_many(unsigned n, const char *method, const char *route)
{
    for (unsigned i = 0; i < n; i++)
        add(method, route, 200, 10 + i);
}

static void put(struct route_list *list, const char *text)
{
    enum route_problem why;
    assert_int_equal(route_list_add(list, text, strlen(text), &why), 0);
}

static void assert_sentence(unsigned i, const char *wanted)
{
    char text[ADVICE_TEXT_MAX];
    advice_sentence(&found[i], text);
    assert_string_equal(text, wanted);
}

static void a_loop_over_items(void **state)
{
    (void)state;
    forget();
    add_many(ADVICE_FAN_OUT - 1, "GET", "/items/*");
    add("GET", "/items/*", 404, 3);
    add("GET", "/items/*", 200, 3)->delivered = 0;
    assert_int_equal(advise(&head, rows, &routes, found), 0);
    add("GET", "/items/*", 299, 15);
    assert_int_equal(advise(&head, rows, &routes, found), 1);
    assert_int_equal(found[0].pattern, ADVICE_PATTERN_FAN_OUT);
    assert_int_equal(found[0].severity, ADVICE_SEVERITY_LOW);
    assert_int_equal(found[0].route, ADVICE_ROUTE_NONE);
    assert_int_equal(found[0].calls, 6);
    assert_int_equal(found[0].failed, 2);
    assert_int_equal(found[0].extra_calls, 5);
    assert_int_equal(found[0].bytes_moved, 10 + 11 + 12 + 13 + 14 + 15);
    assert_int_equal(found[0].added_latency_us, (1 + 2 + 3 + 4 + 5) * 1000);  // all but the slowest, the eighth
    assert_sentence(0, "GET /items/* was called 6 times (2 more failed); 5 calls could be saved.");
    head.dropped = 1;
    assert_int_equal(advise(&head, rows, &routes, found), 1);
    assert_sentence(0, "GET /items/* was called at least 6 times (2 more failed); at least 5 calls could be saved.");
}

static void the_same_read_again(void **state)
{
    (void)state;
    forget();
    for (unsigned i = 0; i < ADVICE_REPEATED - 1; i++)
        add("GET", "/list", 200, 77);
    add("GET", "/list", 200, 78);
    add("GET", "/list", 200, 77)->request_bytes = 1;
    assert_int_equal(advise(&head, rows, &routes, found), 0);
    add("GET", "/list", 200, 77);
    for (unsigned i = 0; i < ADVICE_REPEATED; i++)
        add("GET", "/list", 200, 99);
    for (unsigned i = 0; i < 10; i++)
        add("POST", "/list", 200, 77);
    assert_int_equal(advise(&head, rows, &routes, found), 2);  // one for each size, none for writes
    assert_int_equal(found[0].pattern, ADVICE_PATTERN_REPEATED_READ);
    assert_int_equal(found[0].calls, 4);
    assert_sentence(0, "GET /list was called 4 times for an answer of the same size; 3 calls could be saved.");
    assert_string_equal(advice_remedy_name(found[0].pattern), "cache");
}

static void severities(void **state)
{
    (void)state;
    static const struct {
        unsigned calls;
        enum advice_severity fan_out, repeated;
    } table[] = {{6, ADVICE_SEVERITY_LOW, ADVICE_SEVERITY_LOW},
                 {24, ADVICE_SEVERITY_LOW, ADVICE_SEVERITY_LOW},
                 {25, ADVICE_SEVERITY_MEDIUM, ADVICE_SEVERITY_MEDIUM},
                 {99, ADVICE_SEVERITY_MEDIUM, ADVICE_SEVERITY_MEDIUM},
                 {100, ADVICE_SEVERITY_HIGH, ADVICE_SEVERITY_MEDIUM}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        forget();
        for (unsigned k = 0; k < table[i].calls; k++)
            add("GET", "/same", 200, 5);
        add_many(table[i].calls, "PUT", "/a/*");
        assert_int_equal(advise(&head, rows, &routes, found), 2);
        unsigned fan = found[0].pattern == ADVICE_PATTERN_FAN_OUT ? 0 : 1;
        assert_int_equal(fan, 0);  // the graver first, then by pattern
        assert_int_equal(found[0].severity, table[i].fan_out);
        assert_int_equal(found[1].severity, table[i].repeated);
    }
}

static void what_would_help(void **state)
{
    (void)state;
    forget();
    add_many(6, "GET", "/items/*");
    put(&allow, "GET /items/*");
    assert_int_equal(advise(&head, rows, &routes, found), 1);
    assert_int_equal(found[0].route, ADVICE_ROUTE_NONE);
    put(&catalog, "GET /items");
    advise(&head, rows, &routes, found);
    assert_int_equal(found[0].route, ADVICE_ROUTE_CANDIDATE);
    assert_sentence(0, "GET /items/* was called 6 times; 5 calls could be saved, if GET /items gives many at once.");
    struct route_list both = {0};
    put(&both, "GET /items:batch");
    put(&both, "GET /items/*");
    batch = (struct advice_batch){both.route[0], both.route[1]};
    routes.batches = 1;
    advise(&head, rows, &routes, found);
    assert_int_equal(found[0].route, ADVICE_ROUTE_GRANT);
    assert_sentence(0, "GET /items/* was called 6 times; 5 calls could be saved, if GET /items:batch were granted.");
    put(&allow, "GET /items:batch");
    advise(&head, rows, &routes, found);
    assert_int_equal(found[0].route, ADVICE_ROUTE_SUGGESTED);
    assert_sentence(0, "GET /items/* was called 6 times; 5 calls could be saved, with GET /items:batch.");
    // A write is not the same when it is one of many.
    forget();
    put(&catalog, "PUT /items");
    add_many(6, "PUT", "/items/*");
    assert_int_equal(advise(&head, rows, &routes, found), 1);
    assert_int_equal(found[0].route, ADVICE_ROUTE_NONE);
    // The parent of /* is not a route.
    forget();
    put(&catalog, "GET /");
    add_many(6, "GET", "/*");
    advise(&head, rows, &routes, found);
    assert_int_equal(found[0].route, ADVICE_ROUTE_NONE);
}

static void no_more_than_the_ceiling(void **state)
{
    (void)state;
    forget();
    char route[32];
    for (unsigned i = 0; i < GRANT_ROWS_MAX / ADVICE_REPEATED; i++)
        for (unsigned k = 0; k < ADVICE_REPEATED; k++) {
            snprintf(route, sizeof route, "/r%u", i);
            add("GET", route, 200, 1);
        }
    assert_int_equal(head.rows, GRANT_ROWS_MAX);
    // As many as a full trace can show: no finding is lost.
    assert_int_equal(advise(&head, rows, &routes, found), ADVICE_FINDINGS_MAX);
    assert_string_equal(found[0].called, "/r0");
}

static void the_longest_sentence_fits(void **state)
{
    (void)state;
    struct advice_finding f = {.pattern = ADVICE_PATTERN_REPEATED_READ,
                               .route = ADVICE_ROUTE_CANDIDATE,
                               .at_least = 1,
                               .calls = UINT32_MAX,
                               .failed = UINT32_MAX,
                               .extra_calls = UINT32_MAX};
    strcpy(f.method, "DELETE");
    strcpy(f.better_method, "DELETE");
    memset(f.called, 'x', ROUTE_TEMPLATE_MAX);
    memset(f.better, 'y', ROUTE_TEMPLATE_MAX);
    char text[ADVICE_TEXT_MAX];
    advice_sentence(&f, text);
    assert_int_equal(text[strlen(text) - 1], '.');
    assert_string_equal(advice_route_name(99), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_over_items),
        cmocka_unit_test(the_same_read_again),
        cmocka_unit_test(severities),
        cmocka_unit_test(what_would_help),
        cmocka_unit_test(no_more_than_the_ceiling),
        cmocka_unit_test(the_longest_sentence_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
