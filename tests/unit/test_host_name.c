// wire/host_name: one form for each host, whatever its spelling.
#include "unit.h"
#include "wire/host_name.h"

#include <errno.h>
#include <string.h>

// Stands in for libidn2: a few names, and what a mapping does to digits and dots of other scripts.
static int idna(void *arg, const char *utf8, size_t n, char *ascii, size_t size)
{
    static const struct {
        const char *from, *to;
    } known[] = {
        {"caf\xc3\xa9.example", "xn--caf-dma.example"},
        {"a\xe3\x80\x82"
         "example",
         "a.example"},                                        // U+3002
        {"\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.1", "127.1"},  // fullwidth digits
        {"\xe2\x93\x94xample.org", "EXAMPLE.org"},            // circled letter
        {"bad\xc2\xad", "a..b"},                              // what must still be refused
        {"still\xc3\xa9", "still\xc3\xa9"},
    };
    int *calls = arg;
    (*calls)++;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].from) == n && memcmp(known[i].from, utf8, n) == 0 && strlen(known[i].to) < size) {
            strcpy(ascii, known[i].to);
            return 0;
        }
    return -EINVAL;
}

#define TEXT(literal) literal, sizeof(literal) - 1

static void hosts(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *form;  // NULL: refused because of `why`
        enum host_problem why;
    } cases[] = {
        {TEXT("a.example"), "a.example"},
        {TEXT("A.Example.ORG"), "a.example.org"},
        {TEXT("a.example."), "a.example"},
        {TEXT("localhost"), "localhost"},
        {TEXT("a-b.c_d.xn--caf-dma"), "a-b.c_d.xn--caf-dma"},
        {TEXT("_srv.example"), "_srv.example"},
        {TEXT("1.example"), "1.example"},
        {TEXT("0x7f.example"), "0x7f.example"},
        {TEXT("12ab"), "12ab"},
        {TEXT("0xg"), "0xg"},
        {TEXT("caf\xc3\xa9.example"), "xn--caf-dma.example"},
        {TEXT("a\xe3\x80\x82"
              "example"),
         "a.example"},
        {TEXT("\xe2\x93\x94xample.org"), "example.org"},
        // IPv4 in every notation.
        {TEXT("169.254.169.254"), "169.254.169.254"},
        {TEXT("169.254.169.254."), "169.254.169.254"},
        {TEXT("2852039166"), "169.254.169.254"},
        {TEXT("0251.0376.0251.0376"), "169.254.169.254"},
        {TEXT("0xa9.0xFE.0xa9.0xfe"), "169.254.169.254"},
        {TEXT("0xa9fea9fe"), "169.254.169.254"},
        {TEXT("025177524776"), "169.254.169.254"},
        {TEXT("169.254.43518"), "169.254.169.254"},
        {TEXT("169.16689662"), "169.254.169.254"},
        {TEXT("127.1"), "127.0.0.1"},
        {TEXT("127.0.1"), "127.0.0.1"},
        {TEXT("0x7f.1"), "127.0.0.1"},
        {TEXT("017700000001"), "127.0.0.1"},
        {TEXT("0"), "0.0.0.0"},
        {TEXT("0x"), "0.0.0.0"},
        {TEXT("00"), "0.0.0.0"},
        {TEXT("4294967295"), "255.255.255.255"},
        {TEXT("\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.1"), "127.0.0.1"},
        {TEXT("4294967296"), NULL, HOST_BAD_ADDRESS},
        {TEXT("0x1a9fea9fe"), NULL, HOST_BAD_ADDRESS},
        {TEXT("99999999999999999999999999"), NULL, HOST_BAD_ADDRESS},
        {TEXT("256.1.1.1"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1.1.1.256"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1.1.65536"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1.16777216"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1.2.3.4.5"), NULL, HOST_BAD_ADDRESS},
        {TEXT("08.1.1.1"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1.1.1.08"), NULL, HOST_BAD_ADDRESS},
        {TEXT("a.example.1"), NULL, HOST_BAD_ADDRESS},
        {TEXT("a.0x1"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1..1"), NULL, HOST_EMPTY_LABEL},
        // IPv6.
        {TEXT("::1"), "[::1]"},
        {TEXT("[::1]"), "[::1]"},
        {TEXT("[0:0:0:0:0:0:0:1]"), "[::1]"},
        {TEXT("[2001:DB8::00a]"), "[2001:db8::a]"},
        {TEXT("[::ffff:10.0.0.1]"), "10.0.0.1"},
        {TEXT("::FFFF:a00:1"), "10.0.0.1"},
        {TEXT("[fe80::1%25eth0]"), NULL, HOST_ZONE},
        {TEXT("fe80::1%1"), NULL, HOST_ZONE},
        {TEXT("[::1"), NULL, HOST_BAD_ADDRESS},
        {TEXT("["), NULL, HOST_BAD_ADDRESS},
        {TEXT("[]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[[::1]]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[::1]x"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[::g]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[::1\0]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[1.2.3.4]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[a.example]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("[::127.1]"), NULL, HOST_BAD_ADDRESS},
        {TEXT("1:2:3:4:5:6:7:8:9"), NULL, HOST_BAD_ADDRESS},
        {TEXT("fdcb::/16"), NULL, HOST_BAD_ADDRESS},
        // Names that are none.
        {TEXT(""), NULL, HOST_EMPTY},
        {TEXT("."), NULL, HOST_EMPTY},
        {TEXT(".."), NULL, HOST_EMPTY_LABEL},
        {TEXT("a.example.."), NULL, HOST_EMPTY_LABEL},
        {TEXT(".a"), NULL, HOST_EMPTY_LABEL},
        {TEXT("a..b"), NULL, HOST_EMPTY_LABEL},
        {TEXT("-a"), NULL, HOST_DASH},
        {TEXT("a-.b"), NULL, HOST_DASH},
        {TEXT("a b"), NULL, HOST_BAD_BYTE},
        {TEXT("a\0b"), NULL, HOST_BAD_BYTE},
        {TEXT("a\0\xc3\xa9"), NULL, HOST_BAD_BYTE},
        {TEXT("a\n"), NULL, HOST_BAD_BYTE},
        {TEXT("a\x7f"), NULL, HOST_BAD_BYTE},
        {TEXT("a\t"), NULL, HOST_BAD_BYTE},
        {TEXT("a/b"), NULL, HOST_BAD_BYTE},
        {TEXT("u@a"), NULL, HOST_BAD_BYTE},
        {TEXT("%61.example"), NULL, HOST_BAD_BYTE},
        {TEXT("*"), NULL, HOST_STAR},
        {TEXT("a.*.b"), NULL, HOST_STAR},
        {TEXT("caf\xc3"), NULL, HOST_NOT_ASCII},
        {TEXT("bad\xc2\xad"), NULL, HOST_EMPTY_LABEL},
        {TEXT("still\xc3\xa9"), NULL, HOST_NOT_ASCII},
    };
    int calls = 0;
    struct host_idna with_idna = {idna, &calls};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host host = {.n = 77}, again;
        enum host_problem why = HOST_FINE;
        int r = host_parse(cases[i].text, cases[i].n, &with_idna, &host, &why);
        if ((r == 0) != (cases[i].form != NULL) || why != cases[i].why)
            fail_msg("%s: %d, %s", cases[i].text, r, host_problem_text(why));
        if (r < 0) {
            assert_int_equal(r, -EINVAL);
            assert_int_equal(host.n, 77);
            continue;
        }
        char text[HOST_FORMAT_MAX];
        host_format(&host, text);
        assert_string_equal(text, cases[i].form);
        assert_int_equal(host_parse(text, strlen(text), NULL, &again, &why), 0);
        assert_true(host_equal(&host, &again));
    }
    assert_true(calls > 0);
    struct host host;
    enum host_problem why;
    assert_int_equal(host_parse(TEXT("caf\xc3\xa9.example"), NULL, &host, &why), -EINVAL);
    assert_int_equal(why, HOST_NOT_ASCII);
    assert_int_equal(host_parse(TEXT("caf\xc3\xa9.example"), &(struct host_idna){NULL, NULL}, &host, &why), -EINVAL);
}

static void ports(void **state)
{
    static const struct {
        const char *text, *form;
        unsigned port;
    } cases[] = {
        {"a.example", "a.example", 0},
        {"a.example:443", "a.example", 443},
        {"A.:1", "a", 1},
        {"a:65535", "a", 65535},
        {"[::1]:80", "[::1]", 80},
        {"[::1]", "[::1]", 0},
        {"127.1:80", "127.0.0.1", 80},
        {"a:", NULL, 0},
        {"a:0", NULL, 0},
        {"a:01", NULL, 0},
        {"a:65536", NULL, 0},
        {"a:99999", NULL, 0},
        {"a:123456", NULL, 0},
        {"a:b", NULL, 0},
        {"a:+1", NULL, 0},
        {"a:1:2", NULL, 0},
        {"a:443:443", NULL, 0},
        {"::1", NULL, 0},
        {":80", NULL, 0},
        {"[::1]:", NULL, 0},
        {"[::1]80", NULL, 0},
        {"[::1:80", NULL, 0},
        {"", NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct host host;
        uint16_t port = 7;
        enum host_problem why;
        char text[HOST_FORMAT_MAX];
        int r = host_port_parse(cases[i].text, strlen(cases[i].text), NULL, &host, &port, &why);
        if ((r == 0) != (cases[i].form != NULL))
            fail_msg("%s: %d", cases[i].text, r);
        assert_int_equal(port, r == 0 ? cases[i].port : 7);
        if (r < 0)
            continue;
        host_format(&host, text);
        assert_string_equal(text, cases[i].form);
    }
}

static void ceilings(void **state)
{
    char label[HOST_LABEL_MAX + 1], name[HOST_NAME_BYTES_MAX + 2], text[HOST_TEXT_MAX + 1];
    struct host host;
    enum host_problem why;
    memset(label, 'l', sizeof label);
    assert_int_equal(host_parse(label, HOST_LABEL_MAX, NULL, &host, &why), 0);
    assert_int_equal(host_parse(label, HOST_LABEL_MAX + 1, NULL, &host, &why), -EINVAL);
    assert_int_equal(why, HOST_LONG_LABEL);
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = i % 2 == 0 ? 'h' : '.';
    assert_int_equal(host_parse(name, HOST_NAME_BYTES_MAX, NULL, &host, &why), 0);
    assert_int_equal(host.n, HOST_NAME_BYTES_MAX);
    assert_int_equal(host_parse(name, HOST_NAME_BYTES_MAX + 1, NULL, &host, &why), 0);  // the root dot
    assert_int_equal(host.n, HOST_NAME_BYTES_MAX);
    assert_int_equal(host_parse(name, HOST_NAME_BYTES_MAX + 2, NULL, &host, &why), -EINVAL);
    assert_int_equal(why, HOST_TOO_LONG);
    int calls = 0;
    struct host_idna with_idna = {idna, &calls};
    memset(text, 0xC3, sizeof text);
    assert_int_equal(host_parse(text, HOST_TEXT_MAX, &with_idna, &host, &why), -EINVAL);
    assert_int_equal(calls, 1);
    assert_int_equal(why, HOST_NOT_ASCII);
    assert_int_equal(host_parse(text, HOST_TEXT_MAX + 1, &with_idna, &host, &why), -EINVAL);
    assert_int_equal(calls, 1);
    assert_int_equal(why, HOST_TOO_LONG);
}

static void sentences(void **state)
{
    for (int i = 1; i < HOST_PROBLEMS; i++)
        assert_true(strlen(host_problem_text((enum host_problem)i)) > 10);
    assert_true(strlen(host_problem_text(HOST_PROBLEMS)) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts),
        cmocka_unit_test(ports),
        cmocka_unit_test(ceilings),
        cmocka_unit_test(sentences),
    };
    return cmocka_run_group_tests_name("host_name", tests, NULL, NULL);
}
