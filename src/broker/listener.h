// A listening socket of a sandbox's: accepts what comes from its guest.
#ifndef BROKER_LISTENER_H
#define BROKER_LISTENER_H

#include "broker/sandbox.h"

struct listener;

// A connection from the guest; `fd` is non-blocking and the callee's.
typedef void accept_fn(struct sandbox *s, int fd);

// Whether the descriptor is an IPv4 socket of that type, bound to one address, listening if it is TCP.
bool listener_fd_ok(int fd, bool tcp);

// Takes over `fd`.  0 or -ENOMEM.
int listener_new(struct sandbox *s, int fd, accept_fn *fn, struct listener **ret);
struct listener *listener_free(struct listener *l);

#endif
