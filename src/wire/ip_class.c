#include "wire/ip_class.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

struct prefix {
    uint8_t bytes[16];
    uint8_t bits;
    enum ip_class class;
};

// Longer prefixes before the shorter ones around them.
static const struct prefix v4_prefixes[] = {
    {{255, 255, 255, 255}, 32, IP_BROADCAST},
    {{192, 0, 2}, 24, IP_DOCUMENTATION},
    {{198, 51, 100}, 24, IP_DOCUMENTATION},
    {{203, 0, 113}, 24, IP_DOCUMENTATION},
    {{192, 88, 99}, 24, IP_EMBEDDING},
    {{192, 0, 0}, 24, IP_SPECIAL},
    {{169, 254}, 16, IP_LINK_LOCAL},
    {{192, 168}, 16, IP_PRIVATE},
    {{198, 18}, 15, IP_BENCHMARK},
    {{172, 16}, 12, IP_PRIVATE},
    {{100, 64}, 10, IP_SHARED},
    {{0}, 8, IP_UNSPECIFIED},
    {{10}, 8, IP_PRIVATE},
    {{127}, 8, IP_LOOPBACK},
    {{224}, 4, IP_MULTICAST},
    {{240}, 4, IP_RESERVED},
};

static const struct prefix v6_prefixes[] = {
    {{0}, 128, IP_UNSPECIFIED},
    {{[15] = 1}, 128, IP_LOOPBACK},
    {{[8] = 0xFF, 0xFF}, 96, IP_EMBEDDING},                    // ::ffff:0:a.b.c.d, translated
    {{0}, 96, IP_EMBEDDING},                                   // ::a.b.c.d, compatible
    {{0x01}, 64, IP_SPECIAL},                                  // 100::, discard
    {{0x00, 0x64, 0xFF, 0x9B, 0x00, 0x01}, 48, IP_EMBEDDING},  // 64:ff9b:1::, a network's own NAT64
    {{0x20, 0x01, 0x00, 0x02, 0x00, 0x00}, 48, IP_BENCHMARK},  // 2001:2::
    {{0x20, 0x01, 0x00, 0x00}, 32, IP_EMBEDDING},              // 2001::, Teredo
    {{0x20, 0x01, 0x0D, 0xB8}, 32, IP_DOCUMENTATION},          // 2001:db8::
    {{0x20, 0x01, 0x00}, 23, IP_SPECIAL},                      // the rest of the protocol assignments
    {{0x3F, 0xFF, 0x00}, 20, IP_DOCUMENTATION},                // 3fff::
    {{0x20, 0x02}, 16, IP_EMBEDDING},                          // 2002::, 6to4
    {{0x5F, 0x00}, 16, IP_SPECIAL},                            // 5f00::, segment routing
    {{0xFE, 0x80}, 10, IP_LINK_LOCAL},
    {{0xFE, 0xC0}, 10, IP_SITE_LOCAL},
    {{0xFF}, 8, IP_MULTICAST},
    {{0xFC}, 7, IP_UNIQUE_LOCAL},
    {{0x20}, 3, IP_PUBLIC},
};

static const uint8_t mapped_prefix[12] = {[10] = 0xFF, 0xFF};
static const uint8_t nat64_prefix[12] = {0x00, 0x64, 0xFF, 0x9B};  // RFC 6052, well-known

static bool in_prefix(const uint8_t *bytes, const struct prefix *p)
{
    unsigned whole = p->bits / 8, rest = p->bits % 8;
    if (memcmp(bytes, p->bytes, whole) != 0)
        return false;
    return rest == 0 || ((bytes[whole] ^ p->bytes[whole]) >> (8 - rest)) == 0;
}

static enum ip_class look_up(const uint8_t *bytes, const struct prefix *prefixes, size_t n, enum ip_class otherwise)
{
    for (size_t i = 0; i < n; i++)
        if (in_prefix(bytes, &prefixes[i]))
            return prefixes[i].class;
    return otherwise;
}

static enum ip_class classify_v4(const uint8_t *bytes)
{
    return look_up(bytes, v4_prefixes, sizeof v4_prefixes / sizeof v4_prefixes[0], IP_PUBLIC);
}

enum ip_class ip_classify(const struct ip_addr *addr)
{
    const uint8_t *bytes = addr->bytes;
    if (!addr->v6)
        return classify_v4(bytes);
    if (memcmp(bytes, mapped_prefix, sizeof mapped_prefix) == 0 || memcmp(bytes, nat64_prefix, sizeof nat64_prefix) == 0)
        return classify_v4(bytes + 12);
    return look_up(bytes, v6_prefixes, sizeof v6_prefixes / sizeof v6_prefixes[0], IP_RESERVED);
}

const char *ip_class_name(enum ip_class c)
{
    static const char *const names[IP_CLASSES] = {
        [IP_PUBLIC] = "public",
        [IP_UNSPECIFIED] = "unspecified",
        [IP_LOOPBACK] = "loopback",
        [IP_PRIVATE] = "private",
        [IP_LINK_LOCAL] = "link-local",
        [IP_SHARED] = "shared (CGNAT)",
        [IP_UNIQUE_LOCAL] = "unique local",
        [IP_SITE_LOCAL] = "site-local",
        [IP_MULTICAST] = "multicast",
        [IP_BROADCAST] = "broadcast",
        [IP_DOCUMENTATION] = "documentation",
        [IP_BENCHMARK] = "benchmark",
        [IP_SPECIAL] = "special purpose",
        [IP_EMBEDDING] = "IPv4 inside IPv6",
        [IP_RESERVED] = "reserved",
    };
    return (unsigned)c < IP_CLASSES ? names[c] : "reserved";
}

struct ip_addr ip_unmap(struct ip_addr addr)
{
    if (!addr.v6 || memcmp(addr.bytes, mapped_prefix, sizeof mapped_prefix) != 0)
        return addr;
    struct ip_addr v4 = {.v6 = false};
    memcpy(v4.bytes, addr.bytes + 12, 4);
    return v4;
}

bool ip_equal(const struct ip_addr *a, const struct ip_addr *b)
{
    struct ip_addr x = ip_unmap(*a), y = ip_unmap(*b);
    return x.v6 == y.v6 && memcmp(x.bytes, y.bytes, x.v6 ? 16 : 4) == 0;
}

void ip_format(const struct ip_addr *addr, char text[IP_TEXT_MAX])
{
    if (inet_ntop(addr->v6 ? AF_INET6 : AF_INET, addr->bytes, text, IP_TEXT_MAX) == NULL)
        text[0] = '\0';  // cannot be: both families are known and the text is long enough
}
