// wire/http_head: which heads are taken, what is understood of them, and with which status the others are refused.
#include "base/cleanup.h"
#include "unit.h"
#include "wire/http_head.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Finds and parses a whole request that may have bytes behind it.  The status to answer: 200 when it is fine.
static int read_request(const char *bytes, size_t n, unsigned policy, struct http_request *r)
{
    struct http_scan scan = {.at = 0};
    enum http_refusal why = HTTP_FINE;
    size_t len = 0;
    int found = http_head_find(&scan, bytes, n, &len, &why);
    if (found == 0)
        return 0;
    if (found == 1) {
        assert_true(len <= n);
        if (http_request_parse(bytes, len, policy, r, &why) == 0)
            return 200;
    }
    assert_int_not_equal(why, HTTP_FINE);
    assert_true(http_refusal_text(why)[0] != '\0');
    return http_refusal_status(why);
}

static int read_text(const char *text, unsigned policy, struct http_request *r)
{
    return read_request(text, strlen(text), policy, r);
}

static int read_response(const char *text, const char *method, struct http_response *r)
{
    struct http_scan scan = {.response = true};
    enum http_refusal why;
    size_t len;
    if (http_head_find(&scan, text, strlen(text), &len, &why) != 1)
        return -1;
    return http_response_parse(text, len, (struct http_text){method, strlen(method)}, r, &why);
}

static void expect_text(struct http_text t, const char *expected)
{
    if (t.n != strlen(expected) || memcmp(t.at, expected, t.n) != 0)
        fail_msg("\"%.*s\" instead of \"%s\"", (int)t.n, t.at, expected);
}

// ---- requests ----

#define H "Host: a.example\r\n"
#define GET "GET / HTTP/1.1\r\n" H
#define POST "POST / HTTP/1.1\r\n" H

static void a_request_is_taken_apart(void **state)
{
    struct http_request r;
    assert_int_equal(read_text("POST /v1/x?y=1 HTTP/1.1\r\nHost: a.example:8443\r\nX-Empty:\r\nx-two: \t a b \t\r\n"
                               "Content-Length: 12\r\n\r\nbody",
                               0, &r),
                     200);
    expect_text(r.method, "POST");
    expect_text(r.target, "/v1/x?y=1");
    expect_text(r.path, "/v1/x?y=1");
    expect_text(r.host, "a.example:8443");
    assert_int_equal(r.form, HTTP_ORIGIN_FORM);
    assert_int_equal(r.minor, 1);
    assert_int_equal(r.fields.n, 4);
    expect_text(r.fields.field[1].name, "X-Empty");
    expect_text(r.fields.field[1].value, "");
    expect_text(r.fields.field[2].value, "a b");
    assert_ptr_equal(http_field_find(&r.fields, 0, HTTP_TEXT("X-TWO")), &r.fields.field[2]);
    assert_null(http_field_find(&r.fields, 3, HTTP_TEXT("X-TWO")));
    assert_int_equal(r.body.kind, HTTP_BODY_LENGTH);
    assert_int_equal(r.body.length, 12);
    assert_true(r.keep_alive);
    assert_false(r.expects_continue);
    assert_int_equal(r.upgrade.n, 0);
}

static void targets(void **state)
{
    static const struct {
        const char *line;
        int status, raw_status;
        enum http_target_form form;
        const char *authority, *path;
    } cases[] = {
        {"GET /a/b?c=/d HTTP/1.1", 200, 200, HTTP_ORIGIN_FORM, "", "/a/b?c=/d"},
        {"GET //a HTTP/1.1", 200, 200, HTTP_ORIGIN_FORM, "", "//a"},
        {"GET /a\\b[x]|\"<> HTTP/1.1", 200, 200, HTTP_ORIGIN_FORM, "", "/a\\b[x]|\"<>"},
        {"GET http://b.example/x HTTP/1.1", 200, 200, HTTP_ABSOLUTE_FORM, "b.example", "/x"},
        {"GET HTTP://b.example:80 HTTP/1.1", 200, 200, HTTP_ABSOLUTE_FORM, "b.example:80", ""},
        {"GET https://[::1]?q HTTP/1.1", 200, 200, HTTP_ABSOLUTE_FORM, "[::1]", "?q"},
        {"CONNECT b.example:443 HTTP/1.1", 200, 200, HTTP_AUTHORITY_FORM, "b.example:443", ""},
        {"CONNECT [2001:db8::1]:443 HTTP/1.1", 200, 200, HTTP_AUTHORITY_FORM, "[2001:db8::1]:443", ""},
        {"OPTIONS * HTTP/1.1", 200, 200, HTTP_ASTERISK_FORM, "", ""},
        // Refused, or, where a check of its own follows, handed on as they are.
        {"GET * HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET v1/items HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET mailto:x HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET ftp://b.example/ HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET http:///x HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET http://u:p@b.example/ HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET http://b.example\\@c.example/ HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"CONNECT b.example HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"CONNECT /x HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"CONNECT http://b.example:443/ HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"CONNECT u@b.example:443 HTTP/1.1", 400, 200, HTTP_RAW_FORM, "", ""},
        {"GET /x#y HTTP/1.1", 400, 200, HTTP_ORIGIN_FORM, "", "/x#y"},
        {"GET /caf\xc3\xa9 HTTP/1.1", 400, 200, HTTP_ORIGIN_FORM, "", "/caf\xc3\xa9"},
        // Refused everywhere.
        {"GET  / HTTP/1.1", 400, 400, 0, "", ""},
        {"GET / HTTP/1.1 ", 400, 400, 0, "", ""},
        {" GET / HTTP/1.1", 400, 400, 0, "", ""},
        {"GET /a b HTTP/1.1", 400, 400, 0, "", ""},
        {"GET /\tHTTP/1.1", 400, 400, 0, "", ""},
        {"GET\t/ HTTP/1.1", 400, 400, 0, "", ""},
        {"GET /", 400, 400, 0, "", ""},
        {"GET", 400, 400, 0, "", ""},
        {"G@T / HTTP/1.1", 400, 400, 0, "", ""},
        {"GET: / HTTP/1.1", 400, 400, 0, "", ""},
        {"GET / http/1.1", 400, 400, 0, "", ""},
        {"GET / HTTP/1.1.1", 400, 400, 0, "", ""},
        {"GET / HTTP/11", 400, 400, 0, "", ""},
        {"GET / HTTP/1.x", 400, 400, 0, "", ""},
        {"GET / HTTQ/1.1", 400, 400, 0, "", ""},
        {"GET / HTTP/1.2", 505, 505, 0, "", ""},
        {"GET / HTTP/0.9", 505, 505, 0, "", ""},
        {"PRI * HTTP/2.0", 505, 505, 0, "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        struct http_request r;
        snprintf(text, sizeof text, "%s\r\n" H "\r\n", cases[i].line);
        int status = read_text(text, 0, &r), raw = read_text(text, HTTP_RAW_TARGET, &r);
        if (status != cases[i].status || raw != cases[i].raw_status)
            fail_msg("%s: %d, raw %d", cases[i].line, status, raw);
        if (raw != 200)
            continue;
        assert_int_equal(r.form, cases[i].form);
        expect_text(r.authority, cases[i].authority);
        expect_text(r.path, cases[i].path);
    }
}

static void hosts(void **state)
{
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\n\r\n", 200},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nHost: a\r\nhOsT: b\r\n\r\n", 400},
        {"GET http://b/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200},
        {"GET / HTTP/1.1\r\nHost: caf\xc3\xa9\r\n\r\n", 200},
    };
    struct http_request r;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (read_text(cases[i].text, 0, &r) != cases[i].status)
            fail_msg("%s", cases[i].text);
}

static void request_bodies(void **state)
{
    static const struct {
        const char *text;
        int status, broker_status;
        enum http_body_kind kind;
        uint64_t length;
        bool broker_keep_alive;
    } cases[] = {
        {GET "\r\n", 200, 200, HTTP_BODY_NONE, 0, true},
        {POST "Content-Length: 0\r\n\r\n", 200, 200, HTTP_BODY_LENGTH, 0, true},
        {POST "Content-Length: 007\r\n\r\n", 200, 200, HTTP_BODY_LENGTH, 7, true},
        {POST "Content-Length: 7\r\nContent-Length: 7\r\n\r\n", 200, 200, HTTP_BODY_LENGTH, 7, true},
        {POST "Content-Length: 9223372036854775807\r\n\r\n", 200, 200, HTTP_BODY_LENGTH, INT64_MAX, true},
        {POST "transfer-ENCODING: ChunKed\r\n\r\n", 200, 200, HTTP_BODY_CHUNKED, 0, true},
        {POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, 200, HTTP_BODY_CHUNKED, 0, false},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400, 200, HTTP_BODY_CHUNKED, 0, false},
        {POST "Transfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n", 400, 400},
        {POST "Content-Length: 0\r\nContent-Length: 38\r\n\r\n", 400, 400},
        {POST "Content-Length: 9223372036854775808\r\n\r\n", 400, 400},
        {POST "Content-Length: 18446744073709551621\r\n\r\n", 400, 400},
        {POST "Content-Length: 00000000000000000005\r\n\r\n", 400, 400},
        {POST "Content-Length:\r\n\r\n", 400, 400},
        {POST "Content-Length: +5\r\n\r\n", 400, 400},
        {POST "Content-Length: -5\r\n\r\n", 400, 400},
        {POST "Content-Length: 0x5\r\n\r\n", 400, 400},
        {POST "Content-Length: 5,5\r\n\r\n", 400, 400},
        {POST "Content-Length: 5 5\r\n\r\n", 400, 400},
        {POST "Content-Length: 5.0\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding:\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: \t chunked\r\n\r\n", 200, 200, HTTP_BODY_CHUNKED, 0, true},
        {POST "Transfer-Encoding: chunked \r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: chunked\t\r\n\r\n", 400, 400},
        {POST "Content-Length: 5 \r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: identity\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: xchunked\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: chunked, chunked\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: chunked;q=1\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: \"chunked\"\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400, 400},
        {POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n", 400, 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, 400},
        {"CONNECT a:1 HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 200, 200, HTTP_BODY_LENGTH, 0, true},
        {"CONNECT a:1 HTTP/1.1\r\n" H "Content-Length: 1\r\n\r\n", 400, 400},
        {"CONNECT a:1 HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n", 400, 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_request r;
        int strict = read_text(cases[i].text, 0, &r), broker = read_text(cases[i].text, HTTP_CHUNKED_WINS, &r);
        if (strict != cases[i].status || broker != cases[i].broker_status)
            fail_msg("%s: %d, broker %d", cases[i].text, strict, broker);
        if (broker != 200)
            continue;
        assert_int_equal(r.body.kind, cases[i].kind);
        assert_true(r.body.length == cases[i].length);
        assert_int_equal(r.keep_alive, cases[i].broker_keep_alive);
    }
}

static void connections(void **state)
{
    static const struct {
        const char *text;
        int status;
        bool keep_alive, expects;
        const char *upgrade;
    } cases[] = {
        {GET "Connection: close\r\n\r\n", 200, false, false, ""},
        {GET "Connection: keep-alive, CLOSE\r\n\r\n", 200, false, false, ""},
        {GET "Connection: x\r\nConnection: , ,close\r\n\r\n", 200, false, false, ""},
        {"GET / HTTP/1.0\r\n\r\n", 200, false, false, ""},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 200, true, false, ""},
        {"GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", 200, false, false, ""},
        {GET "Connection: a b\r\n\r\n", 400},
        {GET "Connection: \"close\"\r\n\r\n", 400},
        {GET "Connection: 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\r\n\r\n", 200, true, false, ""},
        {GET "Connection: 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16\r\nConnection: 17\r\n\r\n", 400},
        {GET "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200, true, false, "websocket"},
        {GET "Upgrade: websocket\r\n\r\n", 200, true, false, ""},
        {GET "Connection: upgrade\r\n\r\n", 200, true, false, ""},
        {GET "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n\r\n", 200, true, false, ""},
        {"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200, false, false, ""},
        {POST "Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n", 200, true, true, ""},
        {"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n", 200, false, false, ""},
        {POST "Expect: 200-ok\r\n\r\n", 417},
        {POST "Expect: 100-continue\r\nExpect: x\r\n\r\n", 417},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_request r;
        int status = read_text(cases[i].text, 0, &r);
        if (status != cases[i].status)
            fail_msg("%s: %d", cases[i].text, status);
        if (status != 200)
            continue;
        if (r.keep_alive != cases[i].keep_alive || r.expects_continue != cases[i].expects)
            fail_msg("%s: keep-alive %d, expects %d", cases[i].text, r.keep_alive, r.expects_continue);
        expect_text(r.upgrade, cases[i].upgrade);
    }
}

static void hop_by_hop_fields(void **state)
{
    struct http_request r;
    assert_int_equal(read_text(GET
                               "Connection: X-Mine, authorization\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTE: trailers\r\n"
                               "Trailer: x\r\nUpgrade: x\r\nProxy-Authorization: Basic eA==\r\nProxy-Authenticate: x\r\n"
                               "Transfer-Encoding: chunked\r\nAuthorization: x\r\nx-mine: 1\r\nX-Mine-Too: 1\r\n"
                               "Accept: */*\r\n\r\n",
                               0, &r),
                     200);
    assert_int_equal(r.fields.n, 14);
    for (unsigned i = 0; i < r.fields.n; i++)
        assert_int_equal(r.fields.field[i].hop, i != 0 && i < 12);
}

static void bytes_and_lines(void **state)
{
#define CASE(text, status)                                                                                                     \
    {                                                                                                                          \
        text, sizeof(text) - 1, status                                                                                         \
    }
    static const struct {
        const char *text;
        size_t n;
        int status;
    } cases[] = {
        CASE("\r\n" GET "\r\n", 200),
        CASE("\r\n\r\n" GET "\r\n", 400),
        CASE("\n" GET "\r\n", 400),
        CASE("\r" GET "\r\n", 400),
        CASE("GET / HTTP/1.1\n" H "\r\n", 400),
        CASE("GET / HTTP/1.1\r" H "\r\n", 400),
        CASE("GET / HTTP/1.1\r\r\n" H "\r\n", 400),
        CASE(GET "\n", 400),
        CASE(GET "A: b\nC: d\r\n\r\n", 400),
        CASE(GET "A: b\rC: d\r\n\r\n", 400),
        CASE(GET "A: b\0c\r\n\r\n", 400),
        CASE(GET "A\0: b\r\n\r\n", 400),
        CASE("GET /\0 HTTP/1.1\r\n" H "\r\n", 400),
        CASE(GET "A: b\x0b\r\n\r\n", 400),
        CASE(GET "A: b\x7f\r\n\r\n", 400),
        CASE(GET "A: \x80\xff\tb\r\n\r\n", 200),
        CASE(GET "A : b\r\n\r\n", 400),
        CASE(GET "A\t: b\r\n\r\n", 400),
        CASE(GET " A: b\r\n\r\n", 400),
        CASE(GET "A: b\r\n c\r\n\r\n", 400),
        CASE(GET "A: b\r\n\tc\r\n\r\n", 400),
        CASE(GET "A: b\r\n \r\n\r\n", 400),
        CASE("GET / HTTP/1.1\r\n " H "\r\n", 400),
        CASE(GET "A\r\n\r\n", 400),
        CASE(GET ": b\r\n\r\n", 400),
        CASE(GET "A(b): c\r\n\r\n", 400),
        CASE(GET "A\xc3: c\r\n\r\n", 400),
        CASE(GET "A:b:c\r\n\r\n", 200),
        // TLS, and an older protocol, on the wrong port.
        CASE("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        CASE("\x05\x01\x00", 400),
        CASE(GET "\r", 0),
        CASE(GET, 0),
        CASE("", 0),
    };
#undef CASE
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_request r;
        int status = read_request(cases[i].text, cases[i].n, 0, &r);
        if (status != cases[i].status)
            fail_msg("case %zu, %s: %d", i, cases[i].text, status);
    }
}

// However the bytes arrive, the same is found, and each byte is looked at once.
static void heads_come_in_pieces(void **state)
{
    static const char text[] = "\r\n" POST "A: b\r\nContent-Length: 3\r\n\r\nabcGET /";
    size_t whole = sizeof text - 1 - strlen("abcGET /"), len = 0;
    for (size_t step = 1; step < sizeof text; step++) {
        struct http_scan scan = {.at = 0};
        enum http_refusal why;
        int found = 0;
        for (size_t n = 0; found == 0 && n < sizeof text - 1;) {
            n = n + step < sizeof text - 1 ? n + step : sizeof text - 1;
            // In a place of its own each time: nothing may be remembered but numbers.
            cleanup_free char *copy = malloc(n);
            memcpy(copy, text, n);
            found = http_head_find(&scan, copy, n, &len, &why);
        }
        assert_int_equal(found, 1);
        assert_int_equal(len, whole);
    }
}

// ---- ceilings ----

static char big[2 * HTTP_HEAD_MAX + 256];

// A request with a target, a field line and extra fields of the given sizes.
static size_t build(size_t method, size_t target, size_t field, unsigned fields)
{
    size_t n = 0;
    memset(big, 'M', method);
    n += method;
    big[n++] = ' ';
    memset(big + n, '/', target);
    n += target;
    n += (size_t)sprintf(big + n, " HTTP/1.1\r\n" H);
    if (field > 0) {
        n += (size_t)sprintf(big + n, "A:");
        memset(big + n, 'v', field - 2);
        n += field - 2;
        n += (size_t)sprintf(big + n, "\r\n");
    }
    for (unsigned i = 0; i < fields; i++)
        n += (size_t)sprintf(big + n, "B: %u\r\n", i);
    n += (size_t)sprintf(big + n, "\r\n");
    return n;
}

static void ceilings(void **state)
{
    struct http_request r;
    assert_int_equal(read_request(big, build(HTTP_METHOD_MAX, 1, 0, 0), 0, &r), 200);
    assert_int_equal(read_request(big, build(HTTP_METHOD_MAX + 1, 1, 0, 0), 0, &r), 501);
    assert_int_equal(read_request(big, build(3, HTTP_TARGET_MAX, 0, 0), 0, &r), 200);
    assert_int_equal(read_request(big, build(3, HTTP_TARGET_MAX + 1, 0, 0), 0, &r), 414);
    assert_int_equal(read_request(big, build(3, 1, HTTP_FIELD_LINE_MAX, 0), 0, &r), 200);
    assert_int_equal(read_request(big, build(3, 1, HTTP_FIELD_LINE_MAX + 1, 0), 0, &r), 431);
    assert_int_equal(read_request(big, build(3, 1, 0, HTTP_FIELDS_MAX - 1), 0, &r), 200);
    assert_int_equal(read_request(big, build(3, 1, 0, HTTP_FIELDS_MAX), 0, &r), 431);
    // A first line that does not end is refused as soon as it is too long.
    memset(big, 'x', sizeof big);
    struct http_scan scan = {.at = 0};
    enum http_refusal why;
    size_t len;
    assert_int_equal(http_head_find(&scan, big, HTTP_START_LINE_MAX, &len, &why), 0);
    assert_int_equal(http_head_find(&scan, big, HTTP_START_LINE_MAX + 1, &len, &why), -EBADMSG);
    assert_int_equal(why, HTTP_TARGET_TOO_LONG);
    // A whole head, exactly as long as may be, and one byte more.
    size_t half = build(3, HTTP_TARGET_MAX, 2, 0);
    assert_int_equal(build(3, HTTP_TARGET_MAX, HTTP_HEAD_MAX - half + 2, 0), HTTP_HEAD_MAX);
    assert_int_equal(read_request(big, HTTP_HEAD_MAX, 0, &r), 200);
    assert_int_equal(build(3, HTTP_TARGET_MAX, HTTP_HEAD_MAX - half + 3, 0), HTTP_HEAD_MAX + 1);
    assert_int_equal(read_request(big, HTTP_HEAD_MAX + 1, 0, &r), 431);
    assert_int_equal(http_request_parse(big, HTTP_HEAD_MAX + 1, 0, &r, &why), -EBADMSG);
    assert_int_equal(why, HTTP_HEAD_TOO_LONG);
}

// A caller who did not look for the end first is refused, not believed.
static void parsing_alone_is_safe(void **state)
{
    static const char *const bad[] = {"",
                                      "\r\n",
                                      "GET / HTTP/1.1",
                                      "GET / HTTP/1.1\r\n",
                                      GET,
                                      GET "\r",
                                      GET "\r\nmore",
                                      "GET / HTTP/1.1\nHost: a\r\n\r\n",
                                      GET "A: b\nC: d\r\n\r\n"};
    struct http_request r;
    struct http_response s;
    enum http_refusal why;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(http_request_parse(bad[i], strlen(bad[i]), 0, &r, &why), -EBADMSG);
        assert_int_equal(http_response_parse(bad[i], strlen(bad[i]), HTTP_TEXT("GET"), &s, &why), -EBADMSG);
    }
}

static void every_refusal_has_a_status(void **state)
{
    for (int i = 1; i < HTTP_REFUSALS; i++) {
        assert_in_range(http_refusal_status((enum http_refusal)i), 400, 505);
        assert_true(strlen(http_refusal_text((enum http_refusal)i)) > 10);
    }
    assert_int_equal(http_refusal_status(HTTP_REFUSALS), 400);
    char number[16];
    snprintf(number, sizeof number, "%d", HTTP_HEAD_MAX);
    assert_non_null(strstr(http_refusal_text(HTTP_HEAD_TOO_LONG), number));
    snprintf(number, sizeof number, "%d", HTTP_TARGET_MAX);
    assert_non_null(strstr(http_refusal_text(HTTP_TARGET_TOO_LONG), number));
    snprintf(number, sizeof number, "%d", HTTP_FIELD_LINE_MAX);
    assert_non_null(strstr(http_refusal_text(HTTP_FIELD_TOO_LONG), number));
    snprintf(number, sizeof number, "%d", HTTP_FIELDS_MAX);
    assert_non_null(strstr(http_refusal_text(HTTP_TOO_MANY_FIELDS), number));
}

// ---- responses ----

static void responses(void **state)
{
    static const struct {
        const char *text, *method;
        unsigned status;  // 0: refused
        enum http_body_kind kind;
        uint64_t length;
        bool keep_alive, tunnel;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, true, false},
        {"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, true, false},
        {"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, true, false},
        {"HTTP/1.1 404 Not \xc3\xa9 Found\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 404, HTTP_BODY_CHUNKED, 0, true,
         false},
        {"HTTP/1.1 200 OK\r\n\r\n", "GET", 200, HTTP_BODY_UNTIL_CLOSE, 0, false, false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, false, false},
        {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, true,
         false},
        {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n", "GET", 200, HTTP_BODY_LENGTH, 5, false, false},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", 200, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HEAD", 200, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 200 OK\r\n\r\n", "HEAD", 200, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 200 OK\r\n\r\n", "head", 200, HTTP_BODY_UNTIL_CLOSE, 0, false, false},
        {"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "GET", 304, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 204 No Content\r\n\r\n", "GET", 204, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "GET", 204, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 100 Continue\r\n\r\n", "POST", 100, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", "GET", 103, HTTP_BODY_NONE, 0, true, false},
        {"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "GET", 101, HTTP_BODY_NONE, 0, true,
         true},
        {"HTTP/1.1 200 OK\r\n\r\n", "CONNECT", 200, HTTP_BODY_NONE, 0, true, true},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "CONNECT", 200, HTTP_BODY_NONE, 0, true, true},
        {"HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\n", "CONNECT", 403, HTTP_BODY_LENGTH, 2, true, false},
        // Refused.
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "GET", 0},
        {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0},
        {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", "GET", 0},
        {"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0},
        {"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n", "POST", 0},
        {"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", "GET", 0},
        {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", "GET", 0},
        {"HTTP/1.1 099 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1 600 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1 20 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1 2000 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1 +20 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1  200 OK\r\n\r\n", "GET", 0},
        {"HTTP/1.1\r\n\r\n", "GET", 0},
        {"HTTP/2.0 200 OK\r\n\r\n", "GET", 0},
        {"ICY 200 OK\r\n\r\n", "GET", 0},
        {"\r\nHTTP/1.1 200 OK\r\n\r\n", "GET", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_response r;
        int result = read_response(cases[i].text, cases[i].method, &r);
        if ((result == 0) != (cases[i].status != 0))
            fail_msg("%s: %d", cases[i].text, result);
        if (result != 0)
            continue;
        if (r.status != cases[i].status || r.body.kind != cases[i].kind || r.body.length != cases[i].length ||
            r.keep_alive != cases[i].keep_alive || r.tunnel != cases[i].tunnel)
            fail_msg("%s %s: %u, body %d of %ju, keep-alive %d, tunnel %d", cases[i].method, cases[i].text, r.status,
                     r.body.kind, (uintmax_t)r.body.length, r.keep_alive, r.tunnel);
    }
    struct http_response r;
    assert_int_equal(read_response("HTTP/1.1 304 Not it\r\nContent-Length: 5\r\n\r\n", "GET", &r), 0);
    assert_true(r.has_length && r.length == 5);
    expect_text(r.reason, "Not it");
    assert_int_equal(read_response("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "GET", &r), 0);
    expect_text(r.upgrade, "websocket");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_taken_apart),
        cmocka_unit_test(targets),
        cmocka_unit_test(hosts),
        cmocka_unit_test(request_bodies),
        cmocka_unit_test(connections),
        cmocka_unit_test(hop_by_hop_fields),
        cmocka_unit_test(bytes_and_lines),
        cmocka_unit_test(heads_come_in_pieces),
        cmocka_unit_test(ceilings),
        cmocka_unit_test(parsing_alone_is_safe),
        cmocka_unit_test(every_refusal_has_a_status),
        cmocka_unit_test(responses),
    };
    return cmocka_run_group_tests_name("http_head", tests, NULL, NULL);
}
