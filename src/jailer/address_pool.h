// The /30s of sandboxes' lines, from a range that root configured; no two lines of any instance on this host have the same at
// once (jailer/slots.h).
//
// Of 169.254.0.0/16 three parts are left out that mean something elsewhere: its first and last 256 addresses, which are
// reserved, and 169.254.169.0/24, where clouds answer with secrets.
#ifndef JAILER_ADDRESS_POOL_H
#define JAILER_ADDRESS_POOL_H

#include "sys/jail.h"

#include <stdint.h>

enum {
    ADDRESS_POOL_PREFIX_MIN = 16,
    ADDRESS_POOL_PREFIX_MAX = 30,
    ADDRESS_POOL_SLOTS_MAX = 1 << (ADDRESS_POOL_PREFIX_MAX - ADDRESS_POOL_PREFIX_MIN),
    LINE_PREFIX = 30,
};

struct address_range {
    uint32_t first;   // host order, aligned to the prefix
    uint32_t prefix;  // bits; 0: there is no range
};

// "A.B.C.D/BITS", ADDRESS_POOL_PREFIX_MIN to _MAX bits, unicast, aligned; or "none".  0 or -EINVAL.
int address_range_parse(const char *text, struct address_range *ret_range);
bool address_ranges_meet(const struct address_range *a, const struct address_range *b);

struct address_pool;

int address_pool_open(const struct address_range *range, struct address_pool **ret_pool);
// NULL is fine; returns NULL.
struct address_pool *address_pool_close(struct address_pool *pool);

// *ret_slot: a number below ADDRESS_POOL_SLOTS_MAX to give it back, and which of this instance's lines it is.  0,
// -EADDRNOTAVAIL when all are taken, or another negative errno.
int address_pool_take(struct address_pool *pool, unsigned *ret_slot, struct jail_line *ret_line);
void address_pool_give(struct address_pool *pool, unsigned slot);

#endif
