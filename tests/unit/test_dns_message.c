// wire/dns_message: queries as they may come, and the bytes of the answers.
#include "unit.h"
#include "wire/dns_message.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HEAD "\x12\x34\x01\x00\0\x01\0\0\0\0\0\0"
#define HEAD_OPT "\x12\x34\x01\x00\0\x01\0\0\0\0\0\x01"
#define NAME "\1a\7Example\0"
#define A_IN "\0\1\0\1"
#define OPT(size) "\0\0\x29" size "\0\0\0\0\0\0"
#define TEXT(literal) (literal), sizeof(literal) - 1

static void queries(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        int result;
        const char *name;  // NULL: not text
        unsigned type, udp_size;
        bool edns;
    } cases[] = {
        {TEXT(HEAD NAME A_IN), 0, "a.example", 1, 512, false},
        {TEXT(HEAD NAME "\0\x1c\0\1"), 0, "a.example", 28, 512, false},
        {TEXT(HEAD NAME "\0\x10\0\1"), 0, "a.example", 16, 512, false},
        {TEXT(HEAD "\0\0\2\0\1"), 0, "", 2, 512, false},
        {TEXT(HEAD "\4_sip\4_tcp\1x\0" A_IN), 0, "_sip._tcp.x", 1, 512, false},
        {TEXT(HEAD "\3a.b\1c\0" A_IN), 0, NULL, 1, 512, false},
        {TEXT(HEAD "\3a\0b\1c\0" A_IN), 0, NULL, 1, 512, false},
        {TEXT(HEAD "\2\xc3\xa9\1c\0" A_IN), 0, NULL, 1, 512, false},
        {TEXT(HEAD_OPT NAME A_IN OPT("\x10\0")), 0, "a.example", 1, DNS_UDP_MAX, true},
        {TEXT(HEAD_OPT NAME A_IN OPT("\4\0")), 0, "a.example", 1, 1024, true},
        {TEXT(HEAD_OPT NAME A_IN OPT("\0\x10")), 0, "a.example", 1, 512, true},
        {TEXT(HEAD_OPT NAME A_IN "\0\0\x29\4\0\0\0\0\0\0\4\0\x0a\0\0"), 0, "a.example", 1, 1024, true},
        {TEXT(HEAD_OPT NAME A_IN "\xc0\x0c\0\1\0\1\0\0\0\0\0\0"), 0, "a.example", 1, 512, false},
        // Answered with an error.
        {TEXT(HEAD_OPT NAME A_IN "\0\0\x29\4\0\0\1\0\0\0\0"), DNS_BADVERS, "a.example", 1, 1024, true},
        {TEXT("\x12\x34\x08\x00\0\x01\0\0\0\0\0\0" NAME A_IN), DNS_NOTIMP},
        {TEXT("\x12\x34\x28\x00\0\x01\0\0\0\0\0\0" NAME A_IN), DNS_NOTIMP},
        {TEXT("\x12\x34\x01\x00\0\0\0\0\0\0\0\0"), DNS_FORMERR},
        {TEXT("\x12\x34\x01\x00\0\x02\0\0\0\0\0\0" NAME A_IN NAME A_IN), DNS_FORMERR},
        {TEXT("\x12\x34\x01\x00\0\x01\0\x01\0\0\0\0" NAME A_IN), DNS_FORMERR},
        {TEXT("\x12\x34\x01\x00\0\x01\0\0\0\x01\0\0" NAME A_IN), DNS_FORMERR},
        {TEXT(HEAD), DNS_FORMERR},
        {TEXT(HEAD NAME), DNS_FORMERR},
        {TEXT(HEAD NAME "\0\1\0"), DNS_FORMERR},
        {TEXT(HEAD "\1a"), DNS_FORMERR},
        {TEXT(HEAD "\5abc\0" A_IN), DNS_FORMERR},
        {TEXT(HEAD "\xc0\x0c" A_IN), DNS_FORMERR},     // a pointer to itself
        {TEXT(HEAD "\1a\xc0\x0c" A_IN), DNS_FORMERR},  // a loop
        {TEXT(HEAD "\1a\xc0\x00" A_IN), DNS_FORMERR},  // into the head
        {TEXT(HEAD "\1a\xc0\xff" A_IN), DNS_FORMERR},  // beyond the end
        {TEXT(HEAD "\1a\xc0"), DNS_FORMERR},
        {TEXT(HEAD "\x41"
                   "a\0" A_IN),
         DNS_FORMERR},  // labels of no known kind
        {TEXT(HEAD "\x81"
                   "a\0" A_IN),
         DNS_FORMERR},
        {TEXT(HEAD NAME A_IN "x"), DNS_FORMERR},  // more behind it
        {TEXT(HEAD_OPT NAME A_IN), DNS_FORMERR},  // less than it says
        {TEXT(HEAD_OPT NAME A_IN "\0\0\x29\4\0\0\0\0\0\0\1"), DNS_FORMERR},
        {TEXT(HEAD_OPT NAME A_IN "\1x\0\0\x29\4\0\0\0\0\0\0\0"), DNS_FORMERR},  // an OPT with a name
        {TEXT("\x12\x34\x01\x00\0\x01\0\0\0\0\0\2" NAME A_IN OPT("\4\0") OPT("\4\0")), DNS_FORMERR},
        {TEXT(HEAD_OPT NAME A_IN "\xc0\x1b\0\1\0\1\0\0\0\0\0\0"), DNS_FORMERR},  // an owner that points at itself
        {TEXT(HEAD_OPT NAME A_IN "\xc0"), DNS_FORMERR},
        {TEXT(HEAD_OPT NAME A_IN "\x40\0\1\0\1\0\0\0\0\0\0"), DNS_FORMERR},
        // Not answered at all.
        {TEXT("\x12\x34\x81\x80\0\x01\0\0\0\0\0\0" NAME A_IN), -EBADMSG},
        {TEXT("\x12\x34\x01\x00\0\x01\0\0\0\0\0"), -EBADMSG},
        {TEXT(""), -EBADMSG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dns_query q;
        int r = dns_query_parse((const uint8_t *)cases[i].bytes, cases[i].n, &q);
        if (r != cases[i].result)
            fail_msg("case %zu: %d instead of %d", i, r, cases[i].result);
        if (r < 0)
            continue;
        assert_int_equal(q.id, 0x1234);
        if (r == 0 || r == DNS_BADVERS) {
            assert_int_equal(q.is_text, cases[i].name != NULL);
            assert_string_equal(q.name, cases[i].name != NULL ? cases[i].name : "");
            assert_int_equal(q.type, cases[i].type);
            assert_int_equal(q.udp_size, cases[i].udp_size);
            assert_int_equal(q.edns, cases[i].edns);
        }
        // Whatever came, it can be answered.
        uint8_t out[DNS_ANSWER_MAX];
        int n = dns_answer_write((const uint8_t *)cases[i].bytes, &q, (unsigned)r, NULL, 0, 0, out, sizeof out);
        assert_true(n >= DNS_HEAD);
        assert_memory_equal(out, "\x12\x34", 2);
        assert_int_equal(out[2] & 0x80, 0x80);
        assert_int_equal(out[3] & 15, r & 15);
    }
}

static struct ip_addr addr(const char *text)
{
    struct ip_addr a = {.v6 = strchr(text, ':') != NULL};
    assert_int_equal(inet_pton(a.v6 ? AF_INET6 : AF_INET, text, a.bytes), 1);
    return a;
}

static void expect_bytes(const uint8_t *got, int n, const char *expected, size_t expected_n)
{
    assert_int_equal(n, expected_n);
    assert_memory_equal(got, expected, expected_n);
}

static void answers(void **state)
{
    static const char query[] = HEAD NAME A_IN, query6[] = HEAD NAME "\0\x1c\0\1", with_opt[] = HEAD_OPT NAME A_IN OPT("\4\0"),
                      chaos[] = HEAD NAME "\0\1\0\3", bad[] = HEAD "\xc0\x0c" A_IN;
    struct ip_addr addrs[] = {addr("192.0.2.1"), addr("2001:db8::1"), addr("192.0.2.2")};
    struct dns_query q;
    uint8_t out[DNS_ANSWER_MAX];
#define ASK(message) assert_true(dns_query_parse((const uint8_t *)(message), sizeof(message) - 1, &q) >= 0)
#define ANSWER(message, code, n_addrs)                                                                                         \
    dns_answer_write((const uint8_t *)(message), &q, code, addrs, n_addrs, 60, out, sizeof out)
    ASK(query);
    expect_bytes(out, ANSWER(query, DNS_NOERROR, 3),
                 TEXT("\x12\x34\x81\x80\0\1\0\2\0\0\0\0" NAME A_IN "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
                      "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\2"));
    expect_bytes(out, ANSWER(query, DNS_NXDOMAIN, 3), TEXT("\x12\x34\x81\x83\0\1\0\0\0\0\0\0" NAME A_IN));
    expect_bytes(out, ANSWER(query, DNS_REFUSED, 0), TEXT("\x12\x34\x81\x85\0\1\0\0\0\0\0\0" NAME A_IN));
    ASK(query6);
    expect_bytes(out, ANSWER(query6, DNS_NOERROR, 3),
                 TEXT("\x12\x34\x81\x80\0\1\0\1\0\0\0\0" NAME "\0\x1c\0\1\xc0\x0c\0\x1c\0\1\0\0\0\x3c\0\x10"
                      "\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\1"));
    ASK(with_opt);
    expect_bytes(out, ANSWER(with_opt, DNS_NOERROR, 1),
                 TEXT("\x12\x34\x81\x80\0\1\0\1\0\0\0\1" NAME A_IN "\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xc0\0\2\1"
                      "\0\0\x29\x04\xd0\0\0\0\0\0\0"));
    expect_bytes(out, ANSWER(with_opt, DNS_BADVERS, 0),
                 TEXT("\x12\x34\x81\x80\0\1\0\0\0\0\0\1" NAME A_IN "\0\0\x29\x04\xd0\1\0\0\0\0\0"));
    ASK(chaos);
    expect_bytes(out, ANSWER(chaos, DNS_NOERROR, 3), TEXT("\x12\x34\x81\x80\0\1\0\0\0\0\0\0" NAME "\0\1\0\3"));
    ASK(bad);
    expect_bytes(out, ANSWER(bad, DNS_FORMERR, 0), TEXT("\x12\x34\x81\x81\0\0\0\0\0\0\0\0"));
}

static void ceilings(void **state)
{
    uint8_t message[DNS_QUERY_MAX + 1] = {0x12, 0x34, 1, 0, 0, 1}, out[DNS_ANSWER_MAX];
    struct dns_query q;
    // A label of 63 bytes, and of 64, whose length is no label's any more.
    message[DNS_HEAD] = DNS_LABEL_BYTES_MAX;
    memset(message + DNS_HEAD + 1, 'l', DNS_LABEL_BYTES_MAX);
    memcpy(message + DNS_HEAD + 65, A_IN, 4);
    assert_int_equal(dns_query_parse(message, DNS_HEAD + 65 + 4, &q), 0);
    assert_int_equal(strlen(q.name), DNS_LABEL_BYTES_MAX);
    message[DNS_HEAD]++;
    memset(message + DNS_HEAD + 1, 'l', 64);
    message[DNS_HEAD + 65] = 0;
    memcpy(message + DNS_HEAD + 66, A_IN, 4);
    assert_int_equal(dns_query_parse(message, DNS_HEAD + 66 + 4, &q), DNS_FORMERR);
    // A name of 255 bytes: 127 labels of one; and of 256.
    for (int i = 0; i < 127; i++)
        memcpy(message + DNS_HEAD + 2 * i, "\1x", 2);
    memcpy(message + DNS_HEAD + 254, "\0" A_IN, 5);
    assert_int_equal(dns_query_parse(message, DNS_HEAD + 255 + 4, &q), 0);
    assert_int_equal(strlen(q.name), DNS_NAME_TEXT_MAX);
    struct ip_addr addrs[DNS_ANSWERS_MAX + 1];
    for (size_t i = 0; i <= DNS_ANSWERS_MAX; i++)
        addrs[i] = addr("192.0.2.1");
    q.edns = true;
    int n = dns_answer_write(message, &q, 0, addrs, DNS_ANSWERS_MAX, 1, out, sizeof out);
    assert_int_equal(n, DNS_HEAD + 255 + 4 + DNS_ANSWERS_MAX * 16 + 11);
    assert_int_equal(dns_answer_write(message, &q, 0, addrs, DNS_ANSWERS_MAX + 1, 1, out, sizeof out), -E2BIG);
    // An answer that does not fit is cut between addresses, and says so.
    assert_int_equal(dns_answer_write(message, &q, 0, addrs, 2, 1, out, DNS_HEAD + 259 + 32 + 11), DNS_HEAD + 259 + 32 + 11);
    assert_int_equal(out[2] & 2, 0);
    assert_int_equal(dns_answer_write(message, &q, 0, addrs, 2, 1, out, DNS_HEAD + 259 + 31 + 11), DNS_HEAD + 259 + 16 + 11);
    assert_int_equal(out[2] & 2, 2);
    assert_int_equal(out[7], 1);
    assert_int_equal(dns_answer_write(message, &q, 0, addrs, 2, 1, out, DNS_HEAD + 259 + 11), DNS_HEAD + 259 + 11);
    assert_int_equal(dns_answer_write(message, &q, 0, addrs, 2, 1, out, DNS_HEAD + 259 + 10), -ENOSPC);
    memcpy(message + DNS_HEAD + 252, "\2xx\0" A_IN, 8);
    assert_int_equal(dns_query_parse(message, DNS_HEAD + 256 + 4, &q), DNS_FORMERR);
    // Records behind the question.
    for (unsigned records = DNS_ADDITIONAL_MAX; records <= DNS_ADDITIONAL_MAX + 1; records++) {
        size_t at = DNS_HEAD;
        message[11] = (uint8_t)records;
        memcpy(message + at, "\0" A_IN, 5);
        at += 5;
        for (unsigned i = 0; i < records; i++, at += 11)
            memcpy(message + at, "\0\0\1\0\1\0\0\0\0\0\0", 11);
        assert_int_equal(dns_query_parse(message, at, &q), records == DNS_ADDITIONAL_MAX ? 0 : DNS_FORMERR);
    }
    // The whole message: filled up with one record.
    message[11] = 1;
    size_t data = DNS_QUERY_MAX - DNS_HEAD - 5 - 11;
    memcpy(message + DNS_HEAD + 5, "\0\0\1\0\1\0\0\0\0", 9);
    message[DNS_HEAD + 14] = (uint8_t)(data >> 8);
    message[DNS_HEAD + 15] = (uint8_t)data;
    assert_int_equal(dns_query_parse(message, DNS_QUERY_MAX, &q), 0);
    message[DNS_HEAD + 14] = (uint8_t)((data + 1) >> 8);
    message[DNS_HEAD + 15] = (uint8_t)(data + 1);
    assert_int_equal(dns_query_parse(message, DNS_QUERY_MAX + 1, &q), DNS_FORMERR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries),
        cmocka_unit_test(answers),
        cmocka_unit_test(ceilings),
    };
    return cmocka_run_group_tests_name("dns_message", tests, NULL, NULL);
}
