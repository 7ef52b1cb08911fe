// wire/ip_class: the first and the last address of every special range, and their neighbours.
#include "unit.h"
#include "wire/ip_class.h"

#include <arpa/inet.h>
#include <string.h>

static struct ip_addr addr(const char *text)
{
    struct ip_addr a = {.v6 = strchr(text, ':') != NULL};
    if (inet_pton(a.v6 ? AF_INET6 : AF_INET, text, a.bytes) != 1)
        fail_msg("bad test address %s", text);
    return a;
}

static const struct {
    const char *text;
    enum ip_class class;
} cases[] = {
    {"0.0.0.0", IP_UNSPECIFIED},
    {"0.255.255.255", IP_UNSPECIFIED},
    {"1.0.0.0", IP_PUBLIC},
    {"9.255.255.255", IP_PUBLIC},
    {"10.0.0.0", IP_PRIVATE},
    {"10.255.255.255", IP_PRIVATE},
    {"11.0.0.0", IP_PUBLIC},
    {"100.63.255.255", IP_PUBLIC},
    {"100.64.0.0", IP_SHARED},
    {"100.127.255.255", IP_SHARED},
    {"100.128.0.0", IP_PUBLIC},
    {"126.255.255.255", IP_PUBLIC},
    {"127.0.0.0", IP_LOOPBACK},
    {"127.0.0.1", IP_LOOPBACK},
    {"127.255.255.255", IP_LOOPBACK},
    {"128.0.0.0", IP_PUBLIC},
    {"169.253.255.255", IP_PUBLIC},
    {"169.254.0.0", IP_LINK_LOCAL},
    {"169.254.169.254", IP_LINK_LOCAL},
    {"169.254.255.255", IP_LINK_LOCAL},
    {"169.255.0.0", IP_PUBLIC},
    {"172.15.255.255", IP_PUBLIC},
    {"172.16.0.0", IP_PRIVATE},
    {"172.31.255.255", IP_PRIVATE},
    {"172.32.0.0", IP_PUBLIC},
    {"191.255.255.255", IP_PUBLIC},
    {"192.0.0.0", IP_SPECIAL},
    {"192.0.0.255", IP_SPECIAL},
    {"192.0.1.0", IP_PUBLIC},
    {"192.0.2.0", IP_DOCUMENTATION},
    {"192.0.2.255", IP_DOCUMENTATION},
    {"192.0.3.0", IP_PUBLIC},
    {"192.88.99.0", IP_EMBEDDING},
    {"192.88.99.255", IP_EMBEDDING},
    {"192.88.100.0", IP_PUBLIC},
    {"192.167.255.255", IP_PUBLIC},
    {"192.168.0.0", IP_PRIVATE},
    {"192.168.255.255", IP_PRIVATE},
    {"192.169.0.0", IP_PUBLIC},
    {"198.17.255.255", IP_PUBLIC},
    {"198.18.0.0", IP_BENCHMARK},
    {"198.19.255.255", IP_BENCHMARK},
    {"198.20.0.0", IP_PUBLIC},
    {"198.51.100.0", IP_DOCUMENTATION},
    {"198.51.100.255", IP_DOCUMENTATION},
    {"198.51.101.0", IP_PUBLIC},
    {"203.0.113.0", IP_DOCUMENTATION},
    {"203.0.113.255", IP_DOCUMENTATION},
    {"203.0.114.0", IP_PUBLIC},
    {"223.255.255.255", IP_PUBLIC},
    {"224.0.0.0", IP_MULTICAST},
    {"239.255.255.255", IP_MULTICAST},
    {"240.0.0.0", IP_RESERVED},
    {"255.255.255.254", IP_RESERVED},
    {"255.255.255.255", IP_BROADCAST},
    {"::", IP_UNSPECIFIED},
    {"::1", IP_LOOPBACK},
    {"::2", IP_EMBEDDING},
    {"::127.0.0.1", IP_EMBEDDING},
    {"::8.8.8.8", IP_EMBEDDING},
    {"::1:0:0:0", IP_RESERVED},
    {"::ffff:127.0.0.1", IP_LOOPBACK},
    {"::ffff:169.254.169.254", IP_LINK_LOCAL},
    {"::ffff:8.8.8.8", IP_PUBLIC},
    {"::ffff:0:8.8.8.8", IP_EMBEDDING},
    {"64:ff9b::169.254.169.254", IP_LINK_LOCAL},
    {"64:ff9b::a9fe:a9fe", IP_LINK_LOCAL},
    {"64:ff9b::10.1.2.3", IP_PRIVATE},
    {"64:ff9b::8.8.8.8", IP_PUBLIC},
    {"64:ff9b::1:0:0", IP_RESERVED},
    {"64:ff9b:1::a9fe:a9fe", IP_EMBEDDING},
    {"64:ff9b:1::8.8.8.8", IP_EMBEDDING},
    {"64:ff9b:2::1", IP_RESERVED},
    {"100::", IP_SPECIAL},
    {"100::ffff:ffff:ffff:ffff", IP_SPECIAL},
    {"100:0:0:1::", IP_RESERVED},
    {"1fff:ffff::", IP_RESERVED},
    {"2000::", IP_PUBLIC},
    {"2001::1", IP_EMBEDDING},
    {"2001:0:53aa:64c:0:7b55:80ff:fffe", IP_EMBEDDING},
    {"2001:1::1", IP_SPECIAL},
    {"2001:2::", IP_BENCHMARK},
    {"2001:2:0:ffff:ffff:ffff:ffff:ffff", IP_BENCHMARK},
    {"2001:2:1::", IP_SPECIAL},
    {"2001:10::", IP_SPECIAL},
    {"2001:20::", IP_SPECIAL},
    {"2001:1ff:ffff::", IP_SPECIAL},
    {"2001:200::", IP_PUBLIC},
    {"2001:db7:ffff::", IP_PUBLIC},
    {"2001:db8::", IP_DOCUMENTATION},
    {"2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", IP_DOCUMENTATION},
    {"2001:db9::", IP_PUBLIC},
    {"2001:4860:4860::8888", IP_PUBLIC},
    {"2002:a9fe:a9fe::", IP_EMBEDDING},
    {"2002:808:808::1", IP_EMBEDDING},
    {"2003::", IP_PUBLIC},
    {"2a00:1450::1", IP_PUBLIC},
    {"3ffe:ffff::", IP_PUBLIC},
    {"3fff::", IP_DOCUMENTATION},
    {"3fff:fff:ffff::", IP_DOCUMENTATION},
    {"3fff:1000::", IP_PUBLIC},
    {"4000::", IP_RESERVED},
    {"5f00::1", IP_SPECIAL},
    {"fbff::1", IP_RESERVED},
    {"fc00::", IP_UNIQUE_LOCAL},
    {"fdff:ffff::1", IP_UNIQUE_LOCAL},
    {"fd00:ec2::254", IP_UNIQUE_LOCAL},
    {"fe00::", IP_RESERVED},
    {"fe80::1", IP_LINK_LOCAL},
    {"febf:ffff::1", IP_LINK_LOCAL},
    {"fec0::1", IP_SITE_LOCAL},
    {"feff:ffff::1", IP_SITE_LOCAL},
    {"ff00::", IP_MULTICAST},
    {"ff02::1", IP_MULTICAST},
    {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", IP_MULTICAST},
};

static void classes(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ip_addr a = addr(cases[i].text);
        enum ip_class class = ip_classify(&a);
        if (class != cases[i].class)
            fail_msg("%s: %s instead of %s", cases[i].text, ip_class_name(class), ip_class_name(cases[i].class));
    }
}

// Every IPv4 address is of the same class inside ::ffff:0:0/96 and 64:ff9b::/96, and never public inside the others.
static void carried_addresses(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ip_addr v4 = addr(cases[i].text);
        if (v4.v6)
            continue;
        struct ip_addr mapped = addr("::ffff:0.0.0.0"), nat64 = addr("64:ff9b::"), six = addr("2002::");
        memcpy(mapped.bytes + 12, v4.bytes, 4);
        memcpy(nat64.bytes + 12, v4.bytes, 4);
        memcpy(six.bytes + 2, v4.bytes, 4);
        assert_int_equal(ip_classify(&mapped), cases[i].class);
        assert_int_equal(ip_classify(&nat64), cases[i].class);
        assert_int_not_equal(ip_classify(&six), IP_PUBLIC);
        assert_true(ip_equal(&v4, &mapped));
        assert_false(ip_equal(&v4, &nat64));
        struct ip_addr back = ip_unmap(mapped);
        assert_false(back.v6);
        assert_memory_equal(&back, &v4, sizeof v4);
    }
}

static void texts(void **state)
{
    static const char *const same[] = {
        "1.2.3.4", "2001:db8::1", "::", "::1", "fe80::1:0:0:1", "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        char text[IP_TEXT_MAX];
        struct ip_addr a = addr(same[i]);
        ip_format(&a, text);
        struct ip_addr again = addr(text);
        assert_memory_equal(&again, &a, sizeof a);
        if (strchr(same[i] + 2, '.') == NULL || !a.v6)
            assert_string_equal(text, same[i]);
    }
    for (int c = 0; c < IP_CLASSES; c++)
        for (int d = 0; d < c; d++)
            assert_string_not_equal(ip_class_name((enum ip_class)c), ip_class_name((enum ip_class)d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes),
        cmocka_unit_test(carried_addresses),
        cmocka_unit_test(texts),
    };
    return cmocka_run_group_tests_name("ip_class", tests, NULL, NULL);
}
