// Bytes both ways between two plain sockets, as fast as they come: what a tunnel becomes once its first bytes were looked at
// and nothing is in its buffers.  (libevent's buffers read 4 KiB at a time; a tunnel is read in pieces of PAGES_PIECE,
// base/pages.h.)
//
// What was read and cannot be written yet is kept, at most one piece for each direction, and its reader stopped meanwhile; an
// idle pair holds nothing.
#ifndef BROKER_SPLICE_H
#define BROKER_SPLICE_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPLICE_TURN = 4,  // pieces of one direction in one turn of the loop
};

struct splice;

// What happened: bytes of a direction (0: from the first socket to the second), or the end of all: 0 when both directions have
// ended, a negative errno when one failed.  In splice_end_fn the splice may be freed.
typedef void splice_bytes_fn(void *arg, unsigned direction, size_t n);
typedef void splice_end_fn(void *arg, int error);

// Non-blocking sockets, which stay the caller's.  `ended[d]`: direction d has ended already, and that was passed on.  0 or
// -ENOMEM.
int splice_new(struct event_base *base, const int fds[2], const bool ended[2], splice_bytes_fn *bytes, splice_end_fn *end,
               void *arg, struct splice **ret);
// NULL is fine; returns NULL.
struct splice *splice_free(struct splice *s);

#endif
