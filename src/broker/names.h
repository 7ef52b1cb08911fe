// The addresses that stand for names in one sandbox: its resolver gives them out, and a connection to one says for which name
// it is, whatever the protocol.  They mean nothing to anybody else.
#ifndef BROKER_NAMES_H
#define BROKER_NAMES_H

#include "wire/host_name.h"

enum {
    NAMES_MAX = 4096,  // of one sandbox
    // A name that was neither looked up nor connected to for so long gives its address away when there are NAMES_MAX; without
    // such a one, a new name gets none.
    NAMES_KEEP_S = 3600,
};

struct names;

// Addresses of the range `first`/`prefix`, but for its first and last.  0 or -ENOMEM.
int names_new(const uint8_t first[4], unsigned prefix, struct names **ret);
struct names *names_free(struct names *n);

// The address of a normalised name, now given if it had none.  0; -ENOSPC; -ENOMEM.
int names_give(struct names *n, const char *name, uint64_t now_ns, struct ip_addr *ret);
// The name of an address; NULL if it has none.  Valid until the next names_give.
const char *names_find(struct names *n, const struct ip_addr *addr, uint64_t now_ns);

#endif
