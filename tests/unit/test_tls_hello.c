// wire/tls_hello: the name of a hello, however it is cut up, and what is no hello.
#include "unit.h"
#include "wire/tls_hello.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct bytes {
    uint8_t at[64 * 1024];
    size_t n;
};

static void put(struct bytes *b, const void *from, size_t n)
{
    assert_true(b->n + n <= sizeof b->at);
    if (n > 0)
        memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_u8(struct bytes *b, unsigned v)
{
    uint8_t byte = (uint8_t)v;
    put(b, &byte, 1);
}

static void put_u16(struct bytes *b, unsigned v)
{
    put_u8(b, v >> 8);
    put_u8(b, v & 255);
}

static void put_extension(struct bytes *b, unsigned type, const void *data, size_t n)
{
    put_u16(b, type);
    put_u16(b, (unsigned)n);
    put(b, data, n);
}

static void put_name(struct bytes *b, const char *name)
{
    struct bytes list = {.n = 0};
    size_t n = strlen(name);
    put_u16(&list, (unsigned)n + 3);
    put_u8(&list, 0);
    put_u16(&list, (unsigned)n);
    put(&list, name, n);
    put_extension(b, 0, list.at, list.n);
}

// A hello's body: all before its extensions, and these, with their length unless `extensions` is NULL.
static void put_body(struct bytes *b, const struct bytes *extensions)
{
    uint8_t random[32] = {7};
    put_u16(b, 0x0303);
    put(b, random, sizeof random);
    put_u8(b, 32);
    put(b, random, 32);
    put_u16(b, 4);
    put_u16(b, 0x1301);
    put_u16(b, 0x1302);
    put_u8(b, 1);
    put_u8(b, 0);
    if (extensions != NULL) {
        put_u16(b, (unsigned)extensions->n);
        put(b, extensions->at, extensions->n);
    }
}

// The handshake message `body` in records of at most `step` bytes.
static void put_records(struct bytes *b, const struct bytes *body, size_t step)
{
    static struct bytes message;
    message.n = 0;
    put_u8(&message, 1);
    put_u8(&message, (unsigned)(body->n >> 16));
    put_u16(&message, (unsigned)body->n & 0xFFFF);
    put(&message, body->at, body->n);
    for (size_t at = 0; at < message.n; at += step) {
        size_t n = message.n - at < step ? message.n - at : step;
        put_u8(b, 22);
        put_u16(b, 0x0301);
        put_u16(b, (unsigned)n);
        put(b, message.at + at, n);
    }
}

static void usual_extensions(struct bytes *e, const char *name)
{
    uint8_t data[64] = {1, 2, 3};
    put_extension(e, 0x0A0A, data, 0);  // GREASE
    put_extension(e, 10, data, 8);
    if (name != NULL)
        put_name(e, name);
    put_extension(e, 16, data, 14);
    put_extension(e, 51, data, 64);
}

static void hello(struct bytes *b, const struct bytes *extensions, size_t step)
{
    static struct bytes body;
    body.n = b->n = 0;
    put_body(&body, extensions);
    put_records(b, &body, step);
}

static struct bytes input, extensions;

static void names(void **state)
{
    static const char *const cases[] = {"a.example", "A.Example.", "xn--caf-dma.example", "127.0.0.1", "x", NULL};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 300; step >= 16; step /= 2) {
            struct tls_hello h = {.n = 77};
            extensions.n = 0;
            usual_extensions(&extensions, cases[i]);
            hello(&input, &extensions, step);
            size_t whole = input.n;
            for (size_t n = 0; n < whole; n++)
                assert_int_equal(tls_hello_parse(input.at, n, &h), 0);
            assert_int_equal(h.n, 77);
            put(&input, "\x14\x03\x03\x00\x01\x01", 6);  // what comes behind it
            assert_int_equal(tls_hello_parse(input.at, input.n, &h), 1);
            assert_int_equal(h.len, whole);
            assert_int_equal(h.has_name, cases[i] != NULL);
            assert_string_equal(h.name, cases[i] != NULL ? cases[i] : "");
            assert_int_equal(h.n, strlen(h.name));
            assert_false(h.ech);
        }
}

static void without_a_name(void **state)
{
    struct tls_hello h;
    hello(&input, NULL, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), 1);
    assert_false(h.has_name);
    extensions.n = 0;
    hello(&input, &extensions, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), 1);
    assert_false(h.has_name);
    put_extension(&extensions, 0xFE0D, "abc", 3);
    put_name(&extensions, "public.example");
    hello(&input, &extensions, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), 1);
    assert_true(h.ech && h.has_name);
}

// server_name extensions that are not one host name.
static void bad_names(void **state)
{
#define CASE(text)                                                                                                             \
    {                                                                                                                          \
        text, sizeof(text) - 1                                                                                                 \
    }
    static const struct {
        const char *data;
        size_t n;
    } cases[] = {
        CASE(""),
        CASE("\x00"),
        CASE("\x00\x00"),
        CASE("\x00\x03\x00\x00\x00"),                // an empty name
        CASE("\x00\x04\x01\x00\x01x"),               // another type
        CASE("\x00\x05\x00\x00\x01x"),               // list too long
        CASE("\x00\x03\x00\x00\x01x"),               // list too short
        CASE("\x00\x04\x00\x00\x02x"),               // name too long
        CASE("\x00\x05\x00\x00\x01xy"),              // something behind it
        CASE("\x00\x08\x00\x00\x01x\x00\x00\x01y"),  // two names
        CASE("\x00\x06\x00\x00\x03x\0y"),
        CASE("\x00\x06\x00\x00\x03x y"),
        CASE("\x00\x06\x00\x00\x03x\ny"),
        CASE("\x00\x06\x00\x00\x03x\x7fy"),
        CASE("\x00\x05\x00\x00\x02\xc3\xa9"),
    };
#undef CASE
    struct tls_hello h;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        extensions.n = 0;
        put_extension(&extensions, 0, cases[i].data, cases[i].n);
        put_extension(&extensions, 10, "abcd", 4);
        hello(&input, &extensions, TLS_RECORD_MAX);
        if (tls_hello_parse(input.at, input.n, &h) != -EBADMSG)
            fail_msg("case %zu", i);
    }
    extensions.n = 0;
    put_name(&extensions, "a.example");
    put_name(&extensions, "b.example");
    hello(&input, &extensions, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), -EBADMSG);
}

static void other_protocols(void **state)
{
    static const char *const cases[] = {"GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n", "\x80\x2e\x01\x03\x01",
                                        "\x16\x02\x00",       "\x15\x03\x01",  "\x17\x03\x03"};
    struct tls_hello h;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tls_hello_parse((const uint8_t *)cases[i], strlen(cases[i]), &h), -EPROTO);
    assert_int_equal(tls_hello_parse((const uint8_t *)"", 0, &h), 0);
    assert_int_equal(tls_hello_parse((const uint8_t *)"\x16", 1, &h), 0);
}

// Every byte of a good hello, set to other values: never a crash, and the name stays inside its ceiling.
static void changed_bytes(void **state)
{
    extensions.n = 0;
    usual_extensions(&extensions, "a.example");
    hello(&input, &extensions, 100);
    for (size_t i = 0; i < input.n; i++)
        for (unsigned v = 0; v < 256; v += 5) {
            uint8_t before = input.at[i];
            struct tls_hello h;
            input.at[i] = (uint8_t)v;
            if (tls_hello_parse(input.at, input.n, &h) == 1)
                assert_true(h.len <= input.n && strlen(h.name) == h.n);
            input.at[i] = before;
        }
}

static void malformed_hellos(void **state)
{
    static struct bytes body, message;
    struct tls_hello h;
    extensions.n = 0;
    put_name(&extensions, "a.example");
    // Cut short inside, with the lengths around it put right: no cut is a hello but the one before the extensions.
    body.n = 0;
    put_body(&body, &extensions);
    size_t whole = body.n, without = whole - extensions.n - 2;
    for (size_t n = 0; n < whole; n++) {
        body.n = n;
        message.n = 0;
        put_records(&message, &body, TLS_RECORD_MAX);
        assert_int_equal(tls_hello_parse(message.at, message.n, &h), n == without ? 1 : -EBADMSG);
    }
    // One byte more behind the extensions; more behind the hello in the same record.
    body.n = whole;
    put_u8(&body, 0);
    message.n = 0;
    put_records(&message, &body, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(message.at, message.n, &h), -EBADMSG);
    hello(&input, &extensions, TLS_RECORD_MAX);
    put_u8(&input, 0);
    input.at[4]++;
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), -EBADMSG);
    // Another handshake message; an empty record; another type of record in between.
    hello(&input, &extensions, TLS_RECORD_MAX);
    input.at[5] = 2;
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), -EBADMSG);
    assert_int_equal(tls_hello_parse((const uint8_t *)"\x16\x03\x01\x00\x00", 5, &h), -EBADMSG);
    hello(&input, &extensions, 40);
    input.at[45] = 23;
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), -EBADMSG);
}

static void ceilings(void **state)
{
    static struct bytes body;
    static char name[TLS_NAME_MAX + 2];
    struct tls_hello h;
    // A name.
    memset(name, 'n', TLS_NAME_MAX);
    extensions.n = 0;
    put_name(&extensions, name);
    hello(&input, &extensions, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), 1);
    assert_int_equal(h.n, TLS_NAME_MAX);
    name[TLS_NAME_MAX] = 'n';
    extensions.n = 0;
    put_name(&extensions, name);
    hello(&input, &extensions, TLS_RECORD_MAX);
    assert_int_equal(tls_hello_parse(input.at, input.n, &h), -EBADMSG);
    // The hello: filled up with one extension.
    for (size_t more = 0; more <= 1; more++) {
        static uint8_t zeros[TLS_HELLO_MAX];
        extensions.n = body.n = input.n = 0;
        put_body(&body, &extensions);
        put_extension(&extensions, 21, zeros, TLS_HELLO_MAX - body.n - 4 + more);
        body.n = 0;
        put_body(&body, &extensions);
        assert_int_equal(body.n, TLS_HELLO_MAX + more);
        put_records(&input, &body, (TLS_HELLO_MAX + 4) / TLS_HELLO_RECORDS_MAX + 1);
        assert_int_equal(tls_hello_parse(input.at, input.n, &h), more == 0 ? 1 : -EMSGSIZE);
        assert_true(more == 1 || h.len <= TLS_HELLO_BYTES_MAX);
        // Too long a hello is refused as soon as it says so.
        assert_int_equal(tls_hello_parse(input.at, 600, &h), more == 0 ? 0 : -EMSGSIZE);
    }
    // Records.
    for (size_t more = 0; more <= 1; more++) {
        extensions.n = body.n = input.n = 0;
        put_body(&body, NULL);
        size_t n = body.n + 4, step = n / TLS_HELLO_RECORDS_MAX;
        uint8_t zeros[256] = {0};
        size_t fill = TLS_HELLO_RECORDS_MAX * (step + 8) + more - n - 2 - 4;
        assert_true(fill < sizeof zeros + 200);
        put_extension(&extensions, 21, zeros, fill < sizeof zeros ? fill : sizeof zeros);
        body.n = 0;
        put_body(&body, &extensions);
        n = body.n + 4;
        step = (n + TLS_HELLO_RECORDS_MAX - 1) / TLS_HELLO_RECORDS_MAX;
        put_records(&input, &body, more == 0 ? step : step - 1);
        assert_int_equal(tls_hello_parse(input.at, input.n, &h), more == 0 ? 1 : -EMSGSIZE);
    }
    // One record.
    assert_int_equal(tls_hello_parse((const uint8_t *)"\x16\x03\x01\x40\x00", 5, &h), 0);
    assert_int_equal(tls_hello_parse((const uint8_t *)"\x16\x03\x01\x40\x01", 5, &h), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),           cmocka_unit_test(without_a_name), cmocka_unit_test(bad_names),
        cmocka_unit_test(other_protocols), cmocka_unit_test(changed_bytes),  cmocka_unit_test(malformed_hellos),
        cmocka_unit_test(ceilings),
    };
    return cmocka_run_group_tests_name("tls_hello", tests, NULL, NULL);
}
