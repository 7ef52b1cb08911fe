// Request smuggling and its relatives: raw bytes of a connection, and what is to be made of them.  Where llhttp is installed it
// reads them too: what we take it must take in the same way.
#include "http_streams.h"
#include "unit.h"
#include "wire/http_head.h"

#include <stdio.h>
#include <string.h>

#define H "Host: a.example\r\n"
#define POST "POST / HTTP/1.1\r\n" H
#define EVIL "GET /evil HTTP/1.1\r\n" H "\r\n"
#define TEXT(literal) (literal), sizeof(literal) - 1

struct probe {
    const char *name;
    const char *bytes;
    size_t n;
    int refused, broker_refused;  // 0 or the status; strictly, and with HTTP_CHUNKED_WINS
    unsigned whole;               // messages that are whole, for the broker
    size_t first_body;
};

static const struct probe probes[] = {
    {"two requests", TEXT(POST "Content-Length: 5\r\n\r\nhello" EVIL), 0, 0, 2, 5},
    {"two chunked ones", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" EVIL), 0, 0, 2, 5},
    {"CL.TE", TEXT(POST "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG" EVIL), 400, 0, 1, 0},
    {"TE.CL", TEXT(POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n8\r\nSMUGGLED\r\n0\r\n\r\n" EVIL), 400, 0, 1,
     8},
    {"CL.CL", TEXT(POST "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" EVIL), 400, 400, 0, 0},
    {"CL twice, the same", TEXT(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 0, 0, 1, 5},
    {"CL list", TEXT(POST "Content-Length: 0, 44\r\n\r\n" EVIL), 400, 400, 0, 0},
    {"CL with a sign", TEXT(POST "Content-Length: +5\r\n\r\nhello"), 400, 400, 0, 0},
    {"CL in hexadecimal", TEXT(POST "Content-Length: 0x5\r\n\r\nhello"), 400, 400, 0, 0},
    {"CL that overflows", TEXT(POST "Content-Length: 18446744073709551621\r\n\r\nhello"), 400, 400, 0, 0},
    {"CL without a value", TEXT(POST "Content-Length: \r\n\r\n" EVIL), 400, 400, 0, 0},
    {"CL with a space before its colon", TEXT(POST "Content-Length : 5\r\n\r\nhello"), 400, 400, 0, 0},
    {"TE with a space before its colon", TEXT(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE with a tab before its colon", TEXT(POST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE behind a space", TEXT(POST " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE folded", TEXT(POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE after a folded line", TEXT(POST "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE with a vertical tab",
     TEXT(POST "Transfer-Encoding: \x0b"
               "chunked\r\n\r\n0\r\n\r\n"),
     400, 400, 0, 0},
    {"TE with a NUL", TEXT(POST "Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE of another kind", TEXT(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE identity", TEXT(POST "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello"), 400, 400, 0, 0},
    {"TE list", TEXT(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE twice", TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE with a tab behind it", TEXT(POST "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE quoted", TEXT(POST "Transfer-Encoding: 'chunked'\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE in HTTP/1.0", TEXT("POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE hidden by a CR", TEXT(POST "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"TE hidden by a LF", TEXT(POST "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"CR without LF, before another header", TEXT(POST "X-Abc:\rxTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"lines that end with LF", TEXT("GET / HTTP/1.1\nHost: a\n\n" EVIL), 400, 400, 0, 0},
    {"lines that end with CR", TEXT("GET / HTTP/1.1\rHost: a\r\r" EVIL), 400, 400, 0, 0},
    {"an end of LF LF", TEXT(POST "X: y\r\n\n" EVIL), 400, 400, 0, 0},
    {"a NUL in a value", TEXT(POST "X: a\0b\r\n\r\n"), 400, 400, 0, 0},
    {"a NUL in a name", TEXT(POST "X\0: b\r\n\r\n"), 400, 400, 0, 0},
    {"a name that is empty", TEXT(POST ": b\r\n\r\n"), 400, 400, 0, 0},
    {"a line without a colon", TEXT(POST "GET /evil HTTP/1.1\r\n\r\n"), 400, 400, 0, 0},
    {"two Hosts", TEXT("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, 400, 0, 0},
    {"no Host", TEXT("GET / HTTP/1.1\r\n\r\n"), 400, 400, 0, 0},
    {"a Host with a user name", TEXT("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n"), 400, 400, 0, 0},
    {"a target with a user name", TEXT("GET http://a@b/ HTTP/1.1\r\n" H "\r\n"), 400, 400, 0, 0},
    {"a target with a space", TEXT("GET /a b HTTP/1.1\r\n" H "\r\n"), 400, 400, 0, 0},
    {"a target with a tab", TEXT("GET /a\tb HTTP/1.1\r\n" H "\r\n"), 400, 400, 0, 0},
    {"two spaces", TEXT("GET  / HTTP/1.1\r\n" H "\r\n"), 400, 400, 0, 0},
    {"no version", TEXT("GET /\r\n\r\n" EVIL), 400, 400, 0, 0},
    {"HTTP/1.2", TEXT("GET / HTTP/1.2\r\n" H "\r\n"), 505, 505, 0, 0},
    {"HTTP/2's preface", TEXT("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505, 505, 0, 0},
    {"a chunk size with a prefix", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"a chunk size with a sign", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"a chunk size that overflows", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"), 400,
     400, 0, 0},
    {"a chunk size with a space", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"a chunk size that ends with LF", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"a chunk without its end", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n"), 400, 400, 0, 0},
    {"a chunk that ends with LF", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n"), 400, 400, 0, 0},
    {"an extension with a LF", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n"), 400, 400, 0, 0},
    {"an extension", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n" EVIL), 0, 0, 2, 5},
    {"trailers", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nX-Checksum: 44\r\n\r\n" EVIL), 0, 0, 2, 0},
    {"a length as a trailer", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 44\r\n\r\n" EVIL), 400, 400, 0,
     0},
    {"a coding as a trailer",
     TEXT(POST "Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" EVIL), 400, 400, 0, 0},
    {"a request as a trailer", TEXT(POST "Transfer-Encoding: chunked\r\n\r\n0\r\n" EVIL), 400, 400, 0, 0},
    {"a CONNECT with a body", TEXT("CONNECT a:1 HTTP/1.1\r\n" H "Content-Length: 44\r\n\r\n" EVIL), 400, 400, 0, 0},
    {"what follows a CONNECT is not HTTP", TEXT("CONNECT a:1 HTTP/1.1\r\n" H "\r\n" EVIL), 0, 0, 1, 0},
    {"what follows an upgrade is not HTTP", TEXT("GET / HTTP/1.1\r\n" H "Connection: upgrade\r\nUpgrade: x\r\n\r\n" EVIL), 0, 0,
     1, 0},
    {"nothing follows a close", TEXT("GET / HTTP/1.1\r\n" H "Connection: close\r\n\r\n" EVIL), 0, 0, 1, 0},
    {"nothing follows HTTP/1.0", TEXT("GET / HTTP/1.0\r\n\r\n" EVIL), 0, 0, 1, 0},
    {"a body of a GET", TEXT("GET / HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello" EVIL), 0, 0, 2, 5},
    {"Content-Length named by Connection", TEXT(POST "Connection: content-length\r\nContent-Length: 5\r\n\r\nhello" EVIL), 0, 0,
     2, 5},
    {"an empty line in between", TEXT("GET / HTTP/1.1\r\n" H "\r\n\r\n" EVIL), 0, 0, 2, 0},
    {"two empty lines in between", TEXT("GET / HTTP/1.1\r\n" H "\r\n\r\n\r\n" EVIL), 400, 400, 1, 0},
};

static unsigned count_whole(const struct stream *s)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->n; i++)
        n += s->message[i].whole;
    return n;
}

#ifdef HAVE_LLHTTP
// As a whole and byte by byte.
static void compare(const struct probe *p, unsigned policy, const struct stream *ours)
{
    static struct stream theirs;
    for (size_t step = 1; step <= p->n; step += p->n - 1) {
        stream_read_llhttp((const uint8_t *)p->bytes, p->n, policy, NULL, step, &theirs);
        const char *difference = stream_difference(ours, &theirs);
        if (difference != NULL)
            fail_msg("%s, policy %u: %s (llhttp: %u messages, error %d)", p->name, policy, difference, theirs.n,
                     theirs.refused);
        // What only the broker takes, llhttp did not simply refuse.
        if (policy != 0 && p->refused != p->broker_refused && (theirs.n == 0 || !theirs.message[0].whole))
            fail_msg("%s: there is nothing to compare with", p->name);
    }
}
#endif

static void requests(void **state)
{
    assert_true(sizeof probes / sizeof probes[0] >= 25);
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        const struct probe *p = &probes[i];
        static struct stream strict, broker;
        stream_read((const uint8_t *)p->bytes, p->n, 0, NULL, &strict);
        stream_read((const uint8_t *)p->bytes, p->n, HTTP_CHUNKED_WINS, NULL, &broker);
        if (strict.refused != p->refused || broker.refused != p->broker_refused || count_whole(&broker) != p->whole)
            fail_msg("%s: %d, broker %d, %u whole", p->name, strict.refused, broker.refused, count_whole(&broker));
        if (p->whole > 0)
            assert_int_equal(broker.message[0].n_body, p->first_body);
#ifdef HAVE_LLHTTP
        compare(p, 0, &strict);
        compare(p, HTTP_CHUNKED_WINS, &broker);
#endif
    }
}

static void responses(void **state)
{
    static const struct {
        const char *name, *method, *bytes;
        int refused;
        unsigned whole;
        size_t first_body;
    } cases[] = {
        {"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 0, 1, 5},
        {"chunked", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n", 0, 1, 5},
        {"until the end", "GET", "HTTP/1.1 200 OK\r\n\r\nhello", 0, 1, 5},
        {"until the end, HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\n\r\nhello", 0, 1, 5},
        {"cut off", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 0, 0, 3},
        {"no body, whatever is said", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 0, 1, 0},
        {"100, then 200", "POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, 2, 0},
        {"204, then 200", "POST", "HTTP/1.1 204 No\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, 2, 0},
        {"304 with a length", "GET", "HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", 0, 1, 0},
        {"two lengths", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 502, 0, 0},
        {"length and chunked", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
         502, 0, 0},
        {"LF", "GET", "HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 400, 0, 0},
        {"folded", "GET", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", 502, 0, 0},
        {"split by a CR", "GET", "HTTP/1.1 200 OK\r\nLocation: /\rSet-Cookie: x\r\n\r\n", 400, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct stream ours;
        size_t n = strlen(cases[i].bytes);
        stream_read((const uint8_t *)cases[i].bytes, n, 0, cases[i].method, &ours);
        if (ours.refused != cases[i].refused || count_whole(&ours) != cases[i].whole)
            fail_msg("%s: %d, %u whole", cases[i].name, ours.refused, count_whole(&ours));
        if (ours.n > 0)
            assert_int_equal(ours.message[0].n_body, cases[i].first_body);
#ifdef HAVE_LLHTTP
        static struct stream theirs;
        stream_read_llhttp((const uint8_t *)cases[i].bytes, n, 0, cases[i].method, n, &theirs);
        const char *difference = stream_difference(&ours, &theirs);
        if (difference != NULL)
            fail_msg("%s: %s (llhttp: %u messages, error %d)", cases[i].name, difference, theirs.n, theirs.refused);
#endif
    }
}

#ifdef HAVE_LLHTTP
// The comparison itself can fail: streams that differ in one thing each.
static void differences_are_seen(void **state)
{
    static const struct {
        const char *ours, *theirs, *difference;
    } cases[] = {
        {POST "\r\n", POST "\r\n", NULL},
        {POST "\r\n", "PUT / HTTP/1.1\r\n" H "\r\n", "the first line differs"},
        {POST "\r\n", "POST /x HTTP/1.1\r\n" H "\r\n", "the first line differs"},
        {POST "X: y\r\n\r\n", POST "\r\n", "the fields differ"},
        {POST "X: y\r\n\r\n", POST "X: z\r\n\r\n", "the fields differ"},
        {POST "Content-Length: 1\r\n\r\na", POST "Content-Length: 1\r\n\r\nb", "the body differs"},
        {POST "Content-Length: 1\r\n\r\na", POST "Content-Length: 1\r\n\r\n", "the message is not over for llhttp"},
        {POST "\r\n" EVIL, POST "\r\n", "llhttp sees fewer messages"},
        {POST "\r\n", POST "\r\n" EVIL, "llhttp sees more messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct stream ours, theirs;
        stream_read((const uint8_t *)cases[i].ours, strlen(cases[i].ours), 0, NULL, &ours);
        stream_read_llhttp((const uint8_t *)cases[i].theirs, strlen(cases[i].theirs), 0, NULL, 1000, &theirs);
        const char *difference = stream_difference(&ours, &theirs);
        if (cases[i].difference == NULL)
            assert_null(difference);
        else
            assert_string_equal(difference, cases[i].difference);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests),
        cmocka_unit_test(responses),
#ifdef HAVE_LLHTTP
        cmocka_unit_test(differences_are_seen),
#endif
    };
    return cmocka_run_group_tests_name("http_probes", tests, NULL, NULL);
}
