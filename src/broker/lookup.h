// Names of upstreams, resolved by c-ares on the event loop, and remembered as long as the answer's TTL says (LOOKUP_TTL_MAX at
// most).  The addresses are not judged here: dial.c judges those it is about to use, remembered or not.
#ifndef BROKER_LOOKUP_H
#define BROKER_LOOKUP_H

#include "broker/broker.h"
#include "wire/ip_class.h"

enum {
    LOOKUP_ADDRESSES_MAX = 16,
    LOOKUPS_MAX = 1024,       // names being resolved at once
    LOOKUP_CACHE_MAX = 1024,  // names remembered
    LOOKUP_TTL_MAX = 300,     // seconds
};

struct waiter;

// `n` addresses, IPv4 first; or n == 0 and what was wrong: -ENOENT (there is no such name), -ETIMEDOUT, -EIO.
typedef void lookup_fn(void *arg, int error, const struct ip_addr *addrs, unsigned n);

// Uses config.resolver; everything the resolver needs is read from files now.  0, or a negative errno with a sentence.
int lookups_new(struct broker *b, struct lookups **ret, struct err *err);
struct lookups *lookups_free(struct lookups *l);

// Calls fn(arg, ...) once, later or before this returns.  *slot, which must stay where it is, is what lookup_cancel takes, and
// NULL from before fn is called.  0; -EAGAIN: too many names at once; -ENOMEM.
int lookup_start(struct broker *b, const char *name, lookup_fn *fn, void *arg, struct waiter **slot);
// fn will not be called.  NULL is fine; returns NULL.
struct waiter *lookup_cancel(struct waiter *w);

#endif
