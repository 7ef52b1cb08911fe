// The resolver that a sandbox's guest asks: answers about names of its policy, and forwards nothing to anybody.
//
//   a name that an entry allows       A: the address that stands for it (names.h), for DNS_TTL_S
//                                     AAAA and any other type: no data; there is no IPv6 in a sandbox, and nothing else to say
//   any other name                    NXDOMAIN
//   a question that is not well       FORMERR, NOTIMP, BADVERS, REFUSED (a class that is not the Internet's)
//
// So nothing that a guest puts into a name leaves this host by asking.  (The names of hosts that it then connects to are looked
// up by the broker; with a policy of a suffix those may carry something to who runs that suffix, as a connection may.)
//
// Limits: config.dns_per_second questions, of a bucket of twice as many; UDP beyond that is not answered, TCP is closed.
// Over TCP, a connection's questions are answered in turn, with DNS_TCP_MS between them.
#ifndef BROKER_RESOLVER_H
#define BROKER_RESOLVER_H

#include "broker/sandbox.h"

enum {
    DNS_TTL_S = 60,
    DNS_TCP_MS = 10000,
    DNS_BURST = 64,  // datagrams in one turn of the loop
};

// Takes over both descriptors, also on failure.  0 or -ENOMEM.
int resolver_new(struct sandbox *s, int udp, int tcp, struct resolver **ret);
struct resolver *resolver_free(struct resolver *r);

#endif
