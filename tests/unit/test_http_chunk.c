// wire/http_chunk: chunked bodies, whole and in pieces, and what is not one.
#include "base/cleanup.h"
#include "unit.h"
#include "wire/http_chunk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Decodes `bytes`, given in pieces of `step`.  CHUNK_END, CHUNK_MORE (not over) or the error; *ret_used, *ret_n: bytes used up
// and data in `data`.
static int decode(const char *bytes, size_t n, size_t step, char *data, size_t *ret_n, size_t *ret_used)
{
    struct chunk_decoder decoder = {.state = 0};
    size_t used = 0, got = 0;
    int r = CHUNK_MORE;
    while (used < n && r != CHUNK_END) {
        size_t piece = n - used < step ? n - used : step, took = 0, len = 0;
        cleanup_free uint8_t *copy = malloc(piece);
        memcpy(copy, bytes + used, piece);
        const uint8_t *at;
        r = chunk_decode(&decoder, copy, piece, &took, &at, &len);
        if (r < 0)
            return r;
        assert_true(took <= piece && (took > 0 || r == CHUNK_END));
        if (r == CHUNK_DATA) {
            memcpy(data + got, at, len);
            got += len;
        }
        used += took;
    }
    *ret_n = got;
    *ret_used = used;
    return r == CHUNK_END ? CHUNK_END : CHUNK_MORE;
}

static void bodies(void **state)
{
#define CASE(text, result, data, rest)                                                                                         \
    {                                                                                                                          \
        text, sizeof(text) - 1, result, data, rest                                                                             \
    }
    static const struct {
        const char *text;
        size_t n;
        int result;
        const char *data;
        size_t rest;  // bytes behind the end
    } cases[] = {
        CASE("0\r\n\r\n", CHUNK_END, "", 0),
        CASE("5\r\nhello\r\n0\r\n\r\nGET /", CHUNK_END, "hello", 5),
        CASE("5\r\nhello\r\n006\r\n world\r\n000\r\n\r\n", CHUNK_END, "hello world", 0),
        CASE("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", CHUNK_END, "01234567890123456789", 0),
        CASE("3;ext=1;b=\"x\"\r\na\r\n\r\n0;x\r\n\r\n", CHUNK_END, "a\r\n", 0),
        CASE("1;a=\"b;\\\" \x80\";c=d\r\na\r\n0\r\n\r\n", CHUNK_END, "a", 0),
        CASE("1\r\na\r\n0\r\nX-T: 1\r\nY:\r\n\r\n", CHUNK_END, "a", 0),
        CASE("5\r\nhel", CHUNK_MORE, "hel", 0),
        CASE("5\r\nhello\r\n0\r\n", CHUNK_MORE, "hello", 0),
        CASE("5\r\nhello\r\n0\r\nA: b\r\n", CHUNK_MORE, "hello", 0),
        CASE("", CHUNK_MORE, "", 0),
        // Not chunked.
        CASE("\r\n", -EBADMSG, "", 0),
        CASE("5\nhello\r\n0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\r\nhello\n0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\r\nhello0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\r\nhello!\r\n0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\rhello\r\n0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\r\rhello\r\n0\r\n\r\n", -EBADMSG, "", 0),
        CASE("5\r\nhello\r\n0\r\n\n", -EBADMSG, "", 0),
        CASE("0\r\n\rX", -EBADMSG, "", 0),
        CASE("0\n\n", -EBADMSG, "", 0),
        CASE(" 5\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5 \r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5 ;x\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("+5\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("-5\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("0x5\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5g\r\nhello\r\n", -EBADMSG, "", 0),
        CASE(";x\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a\nb\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;\0\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a b\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5; a\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=b c\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=\"b\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=\"b\"c\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=b\"c\"\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;a=\"\\\n\"\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("5;;a\r\nhello\r\n", -EBADMSG, "", 0),
        CASE("0\r\nContent-Length: 1\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nX: y\r\ntransfer-ENCODING: chunked\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nConnection:\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nUpgrade: x\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nHost: x\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nTransfer-Encodings: x\r\nHos: x\r\n\r\n", CHUNK_END, "", 0),
        CASE("0\r\nX T: 1\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nX-T\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\n: 1\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\n X: 1\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nX: 1\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nX: \0\r\n\r\n", -EBADMSG, "", 0),
        CASE("0\r\nGET / HTTP/1.1\r\n\r\n", -EBADMSG, "", 0),
        // Sizes that would overflow.
        CASE("7fffffffffffffff\r\n", -EMSGSIZE, "", 0),
        CASE("10000000000000005\r\nhello\r\n", -EMSGSIZE, "", 0),
        CASE("0000000000000005\r\nhello\r\n", -EMSGSIZE, "", 0),
        CASE("fffffffffffffff\r\nhello", CHUNK_MORE, "hello", 0),
    };
#undef CASE
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step <= cases[i].n + 1; step++) {
            char data[64];
            size_t n = 0, used = 0;
            int r = decode(cases[i].text, cases[i].n, step, data, &n, &used);
            if (r != cases[i].result)
                fail_msg("case %zu, step %zu, %s: %d", i, step, cases[i].text, r);
            if (r < 0)
                continue;
            assert_int_equal(n, strlen(cases[i].data));
            assert_memory_equal(data, cases[i].data, n);
            assert_int_equal(used, cases[i].n - cases[i].rest);
        }
}

static char big[64 * 1024];
static char out[64 * 1024];

// `n` times 'x' between two texts.
static int decode_padded(const char *before, size_t n, const char *after)
{
    size_t len = strlen(before), got, used;
    memcpy(big, before, len);
    memset(big + len, 'x', n);
    memcpy(big + len + n, after, strlen(after));
    return decode(big, len + n + strlen(after), sizeof big, out, &got, &used);
}

static int decode_extensions(unsigned chunks, size_t each)
{
    size_t at = 0, got, used;
    for (unsigned i = 0; i < chunks; i++) {
        at += (size_t)sprintf(big + at, "1;");
        memset(big + at, 'e', each);
        at += each;
        at += (size_t)sprintf(big + at, "\r\nd\r\n");
    }
    at += (size_t)sprintf(big + at, CHUNK_BODY_END);
    return decode(big, at, sizeof big, out, &got, &used);
}

static void ceilings(void **state)
{
    assert_int_equal(decode_padded("1;", CHUNK_EXTENSION_MAX, "\r\na\r\n0\r\n\r\n"), CHUNK_END);
    assert_int_equal(decode_padded("1;", CHUNK_EXTENSION_MAX + 1, "\r\na\r\n0\r\n\r\n"), -EMSGSIZE);
    assert_int_equal(decode_extensions(CHUNK_EXTENSIONS_MAX / 128, 128), CHUNK_END);
    assert_int_equal(decode_extensions(CHUNK_EXTENSIONS_MAX / 128 + 1, 128), -EMSGSIZE);
    // "A:" and the CR count; the LF does not.
    assert_int_equal(decode_padded("0\r\nA:", CHUNK_TRAILER_MAX - 3, "\r\n\r\n"), CHUNK_END);
    assert_int_equal(decode_padded("0\r\nA:", CHUNK_TRAILER_MAX - 2, "\r\n\r\n"), -EMSGSIZE);
    assert_int_equal(decode_padded("0\r\n", CHUNK_TRAILER_MAX + 1, ""), -EMSGSIZE);
}

static void heads_are_written(void **state)
{
    static const struct {
        uint64_t len;
        const char *text;
    } cases[] = {{1, "1\r\n"}, {15, "f\r\n"}, {16, "10\r\n"}, {0xABC0, "abc0\r\n"}, {UINT64_MAX, "ffffffffffffffff\r\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char head[CHUNK_HEAD_MAX];
        size_t n = chunk_put_head(head, cases[i].len);
        assert_int_equal(n, strlen(cases[i].text));
        assert_memory_equal(head, cases[i].text, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies),
        cmocka_unit_test(ceilings),
        cmocka_unit_test(heads_are_written),
    };
    return cmocka_run_group_tests_name("http_chunk", tests, NULL, NULL);
}
