// Parts of sandbox-broker by themselves: bodies that are moved, credentials, names, tokens, which addresses may be dialled.
#include "base/clock.h"
#include "broker/credentials.h"
#include "broker/dial.h"
#include "broker/names.h"
#include "broker/token.h"
#include "http/body.h"
#include "http/head.h"
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

// ---- bodies ----

static struct evbuffer *in, *out;

static int buffers(void **state)
{
    (void)state;
    in = evbuffer_new();
    out = evbuffer_new();
    return in != NULL && out != NULL ? 0 : -1;
}

static int no_buffers(void **state)
{
    (void)state;
    evbuffer_free(in);
    evbuffer_free(out);
    return 0;
}

static void assert_out(const char *text)
{
    size_t n = evbuffer_get_length(out);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(evbuffer_pullup(out, -1), text, n);
}

static void a_body_by_length_leaves_what_follows(void **state)
{
    (void)state;
    struct http_mover m;
    http_mover_init(&m, &(struct http_body){HTTP_BODY_LENGTH, 5}, false, 100);
    evbuffer_add_printf(in, "hel");
    assert_int_equal(http_move(&m, in, out, 64), 0);
    evbuffer_add_printf(in, "loNEXT");
    assert_int_equal(http_move(&m, in, out, 64), 1);
    assert_out("hello");
    assert_int_equal(evbuffer_get_length(in), 4);
    assert_int_equal(http_move(&m, in, out, 64), 1);
    assert_int_equal(evbuffer_get_length(in), 4);
}

static void a_chunked_body_byte_by_byte(void **state)
{
    (void)state;
    static const char text[] = "3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: dropped\r\n\r\n";
    struct http_mover m;
    http_mover_init(&m, &(struct http_body){.kind = HTTP_BODY_CHUNKED}, false, 100);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        evbuffer_add(in, text + i, 1);
        assert_int_equal(http_move(&m, in, out, 64), i == sizeof text - 2);
    }
    assert_out("abc0123456789");
    assert_int_equal(m.moved, 13);
}

static void what_is_chunked_anew_can_be_read_again(void **state)
{
    (void)state;
    struct http_mover m, back;
    struct evbuffer *end = evbuffer_new();
    http_mover_init(&m, &(struct http_body){HTTP_BODY_LENGTH, 3000}, true, 3000);
    http_mover_init(&back, &(struct http_body){.kind = HTTP_BODY_CHUNKED}, false, 3000);
    char block[100];
    memset(block, 'y', sizeof block);
    for (int i = 0; i < 30; i++)
        evbuffer_add(in, block, sizeof block);
    while (http_move(&m, in, out, 700) == 0)
        assert_int_equal(http_move(&back, out, end, 4000), 0);
    assert_int_equal(http_move(&back, out, end, 4000), 1);
    assert_int_equal(evbuffer_get_length(end), 3000);
    evbuffer_free(end);
}

// Exactly the limit is fine; a byte more is not, and no end is written behind it.
static void bodies_have_a_limit(void **state)
{
    (void)state;
    for (unsigned limit = 9; limit <= 10; limit++) {
        struct http_mover m;
        http_mover_init(&m, &(struct http_body){.kind = HTTP_BODY_CHUNKED}, true, limit);
        evbuffer_add_printf(in, "5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n");
        assert_int_equal(http_move(&m, in, out, 640), limit == 10 ? 1 : -EMSGSIZE);
        evbuffer_drain(in, evbuffer_get_length(in));
        assert_out(limit == 10 ? "5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n" : "5\r\nhello\r\n");
        evbuffer_drain(out, evbuffer_get_length(out));
        http_mover_init(&m, &(struct http_body){.kind = HTTP_BODY_UNTIL_CLOSE}, false, limit);
        evbuffer_add_printf(in, "helloworld");
        assert_int_equal(http_move(&m, in, out, 640), limit == 10 ? 0 : -EMSGSIZE);
        evbuffer_drain(in, evbuffer_get_length(in));
        evbuffer_drain(out, evbuffer_get_length(out));
    }
}

static void a_window_is_not_passed(void **state)
{
    (void)state;
    struct http_mover m;
    http_mover_init(&m, &(struct http_body){HTTP_BODY_LENGTH, 1000}, false, 1000);
    char block[1000] = {0};
    evbuffer_add(in, block, sizeof block);
    assert_int_equal(http_move(&m, in, out, 300), 0);
    assert_int_equal(evbuffer_get_length(out), 300);
    assert_int_equal(http_move(&m, in, out, 300), 0);
    assert_int_equal(evbuffer_get_length(out), 300);
    evbuffer_drain(out, 300);
    assert_int_equal(http_move(&m, in, out, 1000), 1);
    assert_int_equal(evbuffer_get_length(out), 700);
}

static void only_a_body_until_close_is_ended_by_it(void **state)
{
    (void)state;
    struct http_mover m;
    http_mover_init(&m, &(struct http_body){HTTP_BODY_LENGTH, 5}, false, 100);
    assert_int_equal(http_mover_close(&m, out), -EBADMSG);
    http_mover_init(&m, &(struct http_body){.kind = HTTP_BODY_CHUNKED}, false, 100);
    assert_int_equal(http_mover_close(&m, out), -EBADMSG);
    http_mover_init(&m, &(struct http_body){.kind = HTTP_BODY_UNTIL_CLOSE}, true, 100);
    assert_int_equal(http_mover_close(&m, out), 0);
    assert_out("0\r\n\r\n");
}

static void heads_are_taken_whole(void **state)
{
    (void)state;
    struct http_head head = {0};
    enum http_refusal why;
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\nbody";
    for (size_t i = 0; i < sizeof text - 1; i++) {
        evbuffer_add(in, text + i, 1);
        if (head.bytes == NULL)
            assert_int_equal(http_head_take(&head, in, &why), i == 26);
    }
    assert_int_equal(head.n, 27);
    assert_int_equal(evbuffer_get_length(in), 4);
    http_head_reset(&head, false);
    evbuffer_drain(in, 4);
    for (int i = 0; i < HTTP_HEAD_MAX / 8; i++)
        evbuffer_add_printf(in, "X: 34\r\n.");
    assert_int_equal(http_head_take(&head, in, &why), -EBADMSG);
    http_head_reset(&head, false);
}

// ---- credentials ----

static int parse(const char *text, struct credentials **ret)
{
    struct err err;
    int r = credentials_parse(text, strlen(text), ret, &err);
    if (r < 0)
        assert_true(strlen(err.text) > 10);
    return r;
}

static struct host host_of(const char *text)
{
    struct host host;
    enum host_problem why;
    assert_int_equal(host_parse(text, strlen(text), &(struct host_idna){0}, &host, &why), 0);
    return host;
}

static void credentials_are_for_one_host_and_port(void **state)
{
    (void)state;
    struct credentials *c;
    assert_int_equal(parse("A.example.org. = Bearer x\n[b.example.org]\nheader = X-Key\nvalue = y z\nport = 8443\n"
                           "[long]\nhost = c.example.org\nauthorization = w\n",
                           &c),
                     0);
    assert_int_equal(credentials_count(c), 3);
    struct host a = host_of("a.example.org"), b = host_of("b.example.org"), other = host_of("x.a.example.org");
    const struct credential *found = credentials_find(c, &a, 443);
    assert_string_equal(found->header, "Authorization");
    assert_string_equal(found->value, "Bearer x");
    assert_null(credentials_find(c, &a, 80));
    assert_null(credentials_find(c, &other, 443));
    assert_null(credentials_find(c, &b, 443));
    assert_string_equal(credentials_find(c, &b, 8443)->value, "y z");
    struct credentials *again;
    assert_int_equal(parse("a.example.org = Bearer x\n", &again), 0);
    assert_true(credentials_find(again, &a, 443)->serial != found->serial);
    credentials_unref(again);
    credentials_unref(c);
}

static void bad_credentials_are_refused(void **state)
{
    (void)state;
    struct credentials *c = NULL;
    const char *const bad[] = {
        "a = \n",
        "* = x\n",
        "a = x\nA = y\n",
        "[a]\nvalue = x\n",
        "[a]\nheader = X\n",
        "[a]\nheader = Host\nvalue = x\n",
        "[a]\nheader = content-length\nvalue = x\n",
        "[a]\nheader = X Y\nvalue = x\n",
        "[a]\nheader = X\nheader = Y\nvalue = x\n",
        "[a]\nauthorization = x\nvalue = y\n",
        "[a]\nauthorization = x\nport = 0\n",
        "[a]\nauthorization = x\nwhat = 0\n",
        "[a]\nhost = b_\\\nauthorization = x\n",
        "junk\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_true(parse(bad[i], &c) < 0);
    assert_null(c);
}

static void credentials_are_bounded(void **state)
{
    (void)state;
    static char text[64 * 1024];
    size_t n = 0;
    for (int i = 0; i < CREDENTIALS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "h%d.org = x\n", i);
    struct credentials *c;
    assert_int_equal(parse(text, &c), 0);
    credentials_unref(c);
    snprintf(text + n, sizeof text - n, "more.org = x\n");
    assert_true(parse(text, &c) < 0);
}

// ---- names ----

static void names_run_out_and_come_back(void **state)
{
    (void)state;
    for (unsigned prefix = 16; prefix <= 24; prefix += 8) {
        struct names *n;
        struct ip_addr addr, first;
        char name[32], text[IP_TEXT_MAX];
        const uint8_t range[4] = {198, 18, 0, 0};
        assert_int_equal(names_new(range, prefix, &n), 0);
        unsigned room = prefix == 24 ? 254 : NAMES_MAX;
        for (unsigned i = 0; i < room; i++) {
            snprintf(name, sizeof name, "n%u.org", i);
            assert_int_equal(names_give(n, name, i + 1, &addr), 0);
            assert_string_equal(names_find(n, &addr, i + 1), name);
            if (i == 0)
                first = addr;
        }
        ip_format(&first, text);
        assert_string_equal(text, "198.18.0.1");
        assert_int_equal(names_give(n, "one-more.org", room, &addr), -ENOSPC);
        assert_int_equal(names_give(n, "n5.org", NAMES_KEEP_S * NS_PER_S, &addr), 0);
        // n0 was used at 1: an hour later it gives way, n5 does not.
        assert_int_equal(names_give(n, "one-more.org", NAMES_KEEP_S * NS_PER_S, &addr), -ENOSPC);
        assert_int_equal(names_give(n, "one-more.org", NAMES_KEEP_S * NS_PER_S + 1, &addr), 0);
        assert_true(ip_equal(&addr, &first));
        assert_string_equal(names_find(n, &addr, 1), "one-more.org");
        struct ip_addr outside = {.bytes = {198, 17, 255, 255}};
        assert_null(names_find(n, &outside, 1));
        outside = (struct ip_addr){.bytes = {198, 18, 0, 0}};
        assert_null(names_find(n, &outside, 1));
        names_free(n);
    }
}

// ---- tokens ----

static void put_field(struct http_fields *fields, const char *name, const char *value)
{
    fields->field[fields->n++] = (struct http_field){{name, strlen(name)}, {value, strlen(value)}, false};
}

static void tokens_are_found_and_compared(void **state)
{
    (void)state;
    struct sandbox s = {0};
    static struct http_fields fields;
    memset(s.token, 'a', sizeof s.token);
    char token[BROKER_TOKEN_DIGITS + 2] = {0};
    memset(token, 'a', BROKER_TOKEN_DIGITS);
    assert_int_equal(token_of_header(&s, &fields), TOKEN_BAD);
    put_field(&fields, "X-SANDBOX-token", token);
    assert_int_equal(token_of_header(&s, &fields), TOKEN_GOOD);
    token[BROKER_TOKEN_DIGITS - 1] = 'b';
    assert_int_equal(token_of_header(&s, &fields), TOKEN_BAD);
    token[BROKER_TOKEN_DIGITS - 1] = 'a';
    put_field(&fields, "X-Sandbox-Token", token);
    assert_int_equal(token_of_header(&s, &fields), TOKEN_MALFORMED);
    fields.n = 0;
    // "u:" and 64 times "a"
    put_field(&fields, "Proxy-Authorization",
              "Basic dTphYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh");
    assert_int_equal(token_of_proxy(&s, &fields), TOKEN_GOOD);
    fields.field[0].value.n -= 4;
    assert_int_equal(token_of_proxy(&s, &fields), TOKEN_BAD);
}

// ---- addresses ----

static struct ip_addr ip(const char *text)
{
    struct ip_addr a = {.v6 = strchr(text, ':') != NULL};
    assert_int_equal(inet_pton(a.v6 ? AF_INET6 : AF_INET, text, a.bytes), 1);
    return a;
}

static void only_public_addresses_are_dialled(void **state)
{
    (void)state;
    struct config config;
    config_init(&config);
    const char *const public[] = {"45.10.20.30", "2600::1"};
    const char *const private[] = {"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fd00::1", "fe80::1"};
    const char *const never[] = {"0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "ff02::1", "::", "2002:a00:1::"};
    for (int allow = 0; allow <= 1; allow++) {
        config.allow_private_upstream = (uint64_t)allow;
        for (size_t i = 0; i < sizeof public / sizeof public[0]; i++)
            assert_true(dial_address_ok(&config, &(struct ip_addr[]){ip(public[i])}[0]));
        for (size_t i = 0; i < sizeof private / sizeof private[0]; i++)
            assert_int_equal(dial_address_ok(&config, &(struct ip_addr[]){ip(private[i])}[0]), allow);
        for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
            assert_false(dial_address_ok(&config, &(struct ip_addr[]){ip(never[i])}[0]));
    }
}

int main(void)
{
#define WITH_BUFFERS(case) cmocka_unit_test_setup_teardown(case, buffers, no_buffers)
    const struct CMUnitTest tests[] = {
        WITH_BUFFERS(a_body_by_length_leaves_what_follows),
        WITH_BUFFERS(a_chunked_body_byte_by_byte),
        WITH_BUFFERS(what_is_chunked_anew_can_be_read_again),
        WITH_BUFFERS(bodies_have_a_limit),
        WITH_BUFFERS(a_window_is_not_passed),
        WITH_BUFFERS(only_a_body_until_close_is_ended_by_it),
        WITH_BUFFERS(heads_are_taken_whole),
        cmocka_unit_test(credentials_are_for_one_host_and_port),
        cmocka_unit_test(bad_credentials_are_refused),
        cmocka_unit_test(credentials_are_bounded),
        cmocka_unit_test(names_run_out_and_come_back),
        cmocka_unit_test(tokens_are_found_and_compared),
        cmocka_unit_test(only_public_addresses_are_dialled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
