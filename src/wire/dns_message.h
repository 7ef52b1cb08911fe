// DNS queries read and answers written (RFC 1035, RFC 6891), for the resolver that guests are given.  Pure.
//
// The guest is hostile.  One question, no records but an OPT; names are at most 255 bytes of labels of at most 63; a
// compression pointer is refused in a question (there is nothing before it that it could point to) and followed nowhere, so
// there are no loops.  An answer is made of numbers of our own: no byte of it comes from anywhere but the question it repeats.
#ifndef WIRE_DNS_MESSAGE_H
#define WIRE_DNS_MESSAGE_H

#include "wire/ip_class.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DNS_HEAD = 12,
    DNS_NAME_BYTES_MAX = 255,  // as it stands in a message
    DNS_NAME_TEXT_MAX = 253,   // with dots, without the root's
    DNS_LABEL_BYTES_MAX = 63,
    DNS_QUERY_MAX = 4096,    // bytes of a query; DNS_FORMERR
    DNS_ADDITIONAL_MAX = 4,  // records behind the question; DNS_FORMERR
    DNS_UDP_MIN = 512,       // an answer over UDP may always have so many bytes
    DNS_UDP_MAX = 1232,      // and never more, whatever the guest offers
    DNS_ANSWERS_MAX = 16,
    DNS_ANSWER_MAX = DNS_HEAD + DNS_NAME_BYTES_MAX + 4 + DNS_ANSWERS_MAX * 28 + 11,  // bytes: no answer is longer
};

enum {
    DNS_NOERROR = 0,
    DNS_FORMERR = 1,
    DNS_SERVFAIL = 2,
    DNS_NXDOMAIN = 3,
    DNS_NOTIMP = 4,
    DNS_REFUSED = 5,
    DNS_BADVERS = 16,
};

enum { DNS_TYPE_A = 1, DNS_TYPE_AAAA = 28, DNS_TYPE_OPT = 41, DNS_CLASS_IN = 1 };

struct dns_query {
    uint16_t id;
    bool recursion_desired;
    uint16_t type, class;
    // Lower case, with dots, terminated; "" for the root.  Only if `is_text`: else a label has a byte that is no letter, digit,
    // '-' or '_', and the name is no host's.
    bool is_text;
    char name[DNS_NAME_TEXT_MAX + 1];
    size_t question;  // bytes of the question; 0 if it could not be read
    bool edns;
    uint16_t udp_size;  // what an answer over UDP may have: DNS_UDP_MIN to DNS_UDP_MAX
};

// 0: *ret is a query.  A DNS_ code above 0 (FORMERR, NOTIMP, BADVERS): to be answered with that; *ret is good for
// dns_answer_write. -EBADMSG: no query (too short, or itself an answer): not to be answered.
int dns_query_parse(const uint8_t *message, size_t n, struct dns_query *ret);

// Writes the answer to `query`, which was read from `message`, into `out`: `code`, and those of the addresses that the
// question's type asks for, each with `ttl` seconds.  Addresses are for DNS_NOERROR only.  What does not fit `size` bytes is
// left out, and the answer says that it is cut (the guest then asks over TCP, where `size` is DNS_ANSWER_MAX). Its length;
// -ENOSPC: not even the question fits; -E2BIG: more than DNS_ANSWERS_MAX addresses.
int dns_answer_write(const uint8_t *message, const struct dns_query *query, unsigned code, const struct ip_addr *addrs,
                     size_t n_addrs, uint32_t ttl, uint8_t *out, size_t size);

#endif
