// What kind of place an address is: public, or one that untrusted code must not be led to.  Pure.
//
// Asked of the address that is about to be dialled, after a name was resolved: what the name looks like says nothing.  The
// tables are those of RFC 6890 and its successors (IANA's special-purpose registries).  What is not clearly public is not: of
// IPv6 only 2000::/3 is, less its special parts.  An IPv6 address that carries an IPv4 one and is delivered there (mapped,
// NAT64's well-known prefix) is what that one is; the other ways of carrying one (6to4, Teredo, IPv4-compatible, a network's
// own NAT64) are refused altogether.
#ifndef WIRE_IP_CLASS_H
#define WIRE_IP_CLASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ip_addr {
    bool v6;
    uint8_t bytes[16];  // network order; the first four of IPv4, the rest zero
};

enum ip_class {
    IP_PUBLIC,
    IP_UNSPECIFIED,  // 0.0.0.0/8, ::
    IP_LOOPBACK,
    IP_PRIVATE,  // RFC 1918
    IP_LINK_LOCAL,
    IP_SHARED,        // RFC 6598, carrier-grade NAT
    IP_UNIQUE_LOCAL,  // fc00::/7
    IP_SITE_LOCAL,    // fec0::/10
    IP_MULTICAST,
    IP_BROADCAST,
    IP_DOCUMENTATION,
    IP_BENCHMARK,
    IP_SPECIAL,    // protocol assignments, discard, segment routing
    IP_EMBEDDING,  // 6to4 and its relays, Teredo, IPv4-compatible and -translated, a network's own NAT64
    IP_RESERVED,
    IP_CLASSES,
};

// The class of what a packet to `addr` reaches.
enum ip_class ip_classify(const struct ip_addr *addr);

// One or two words for a log: "public", "loopback", "link-local".
const char *ip_class_name(enum ip_class c);

// An IPv4-mapped address as the IPv4 one that it is; any other unchanged.
struct ip_addr ip_unmap(struct ip_addr addr);
// Whether both are the same address, mapped or not.
bool ip_equal(const struct ip_addr *a, const struct ip_addr *b);

enum { IP_TEXT_MAX = 46 };  // with its NUL

// The usual text: dotted decimal; lower case with the longest run of zeros left out.
void ip_format(const struct ip_addr *addr, char text[IP_TEXT_MAX]);

#endif
