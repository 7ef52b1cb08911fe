// A listening socket on libevent: connections are handed over as they come, and when there are no descriptors left they wait.
#ifndef HTTP_ACCEPTOR_H
#define HTTP_ACCEPTOR_H

#include <event2/event.h>
#include <sys/socket.h>

struct acceptor;

// `fd` is a connection, non-blocking and close-on-exec, and the callee's.
typedef void acceptor_fn(void *arg, int fd, const struct sockaddr *from, socklen_t n);

// Takes over the listening socket `fd`.  0, or -ENOMEM with it closed.
int acceptor_new(struct event_base *base, int fd, acceptor_fn *fn, void *arg, struct acceptor **ret);
// Closes it.  NULL is fine; returns NULL.
struct acceptor *acceptor_free(struct acceptor *a);

#endif
