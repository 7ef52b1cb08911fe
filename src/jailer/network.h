// Lines: the one way out of a sandbox that has one (sys/jail.h, "Networks").
//
// Actors.  Guests are hostile, and on the vm tier their monitor may be theirs.  The host's ends of all lines are in a network
// namespace of their own, kept by a helper process (network_helper.h), in which there is nothing else: no other device, no
// route out, no service, no IPv6.  So a packet of a guest can reach nothing of the host's and no other sandbox, whatever the
// host's own packet filter, routes and services are, and none of those is touched or looked at.  What is in that namespace is
// filtered besides (network_rules.h).  Connections leave it as sockets: listeners are made there, bound to one line's device
// and address, and passed to whoever accepts on them, in the host's own namespace.  Which listener it is, is who is calling.
//
// The jailer is asked by the engine, gives each line a /30 (address_pool.h), and orders the helper, which may wait for the
// kernel; the answers come over the loop.
//
// States of a line: asked for -> ready -> removed (its sandbox is gone) -> its device is gone, which the helper says; only then
// is its number free again.  On the container tier the pair of devices goes with the sandbox's network namespace, on the vm
// tier the tap with its last descriptor; what is still there after two seconds is deleted.
//
// When the helper dies, START with a line and NETWORK fail with -ENETDOWN until the jailer is started anew; what has a line
// keeps it, as its listeners are elsewhere.
#ifndef JAILER_NETWORK_H
#define JAILER_NETWORK_H

#include "jailer/address_pool.h"
#include "sys/jail.h"
#include "sys/loop.h"

struct network;
struct line;

// Starts the helper; before the capabilities it needs are dropped.  `instance` must outlive it.  0 or a negative errno.
int network_new(struct loop *loop, const struct address_range *range, const char *instance, struct network **ret_network);
// All lines must have been freed.  NULL is fine; returns NULL.
struct network *network_free(struct network *network);

// `fd`: of network_dial, a socket that the callee takes over; else -1.  `detail`: a sentence part, with an error.
typedef void network_done_fn(void *arg, int error, const char *detail, int fd);

// What lines are like from here on (JAIL_OP_NETWORK).  0: `done` is called once, later.  Else a negative errno, with a sentence
// part in `detail`: -EBUSY while there are lines.
int network_set_up(struct network *network, const struct jail_network *how, network_done_fn *done, void *arg,
                   char detail[JAIL_DETAIL_MAX]);

typedef void line_ready_fn(void *arg, int error, const char *detail);

// Asks for a line of this kind (JAIL_LINE_*), to the sandbox whose network namespace `netns` is, which stays the caller's; or
// with -1 to a machine.  0: `ready` is called once, later, unless the line is freed before.  Else a negative errno, with a
// sentence part in `detail`.
int line_new(struct network *network, uint32_t kind, int netns, line_ready_fn *ready, void *arg, struct line **ret_line,
             char detail[JAIL_DETAIL_MAX]);
// The sandbox is gone, or never came to be.  Closes what line_listeners and line_tap say.  NULL is fine; returns NULL.
struct line *line_free(struct line *line);

uint32_t line_kind(const struct line *line);
const struct jail_line *line_address(const struct line *line);
// Of a line that is ready: descriptors in the order of enum broker_fd, which stay the line's.
const int *line_listeners(const struct line *line, size_t *ret_count);
// They have been passed on.
void line_close_listeners(struct line *line);
// The machine's end, taken over by the caller; -1 if it was taken, or there is none.
int line_take_tap(struct line *line);

// A socket that can be connected to the guest of a line with JAIL_LINE_PUBLISH.  As network_set_up; -EPERM for other lines.
int network_dial(struct network *network, const struct line *line, network_done_fn *done, void *arg,
                 char detail[JAIL_DETAIL_MAX]);

#endif
