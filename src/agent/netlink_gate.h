// The gate to netlink sockets: how many a sandbox has at once is limited here.
//
// Why: what a netlink socket holds for its reader is memory of the kernel's that no control group counts, up to the host's
// receive buffer each (hundreds of KiB).  The sockets themselves are limited by nothing but descriptors and processes, so a
// guest could take the host's whole memory by asking for its addresses on thousands of them and never reading the answers.
//
// Actors: every command runs under a filter (child_filter.h) that hands its socket(AF_NETLINK, ...) to the listener, which the
// command's first process sent here; guest processes are hostile, but all they control in a request are two numbers (type
// and protocol), which the kernel checks as it would have checked theirs.
//
// The socket is made by the agent, and put into the asking process by the kernel: so there is no moment between counting and
// making, and a request that is taken back leaves nothing.  The kernel does the counting (/proc/net/protocols of the
// sandbox's network namespace), so closing needs no gate.  A socket asked for beyond NETLINK_SOCKETS_MAX fails with ENOBUFS.
//
// A listener stays for as long as a process lives that runs under its filter.
#ifndef AGENT_NETLINK_GATE_H
#define AGENT_NETLINK_GATE_H

#include "sys/loop.h"

enum { NETLINK_SOCKETS_MAX = 64 };

struct netlink_gate;

// 0 or a negative errno.
int netlink_gate_new(struct loop *loop, struct netlink_gate **ret_gate);
struct netlink_gate *netlink_gate_free(struct netlink_gate *gate);

// Answers the requests of `listener`, which it takes over; without memory for that it is closed, and they fail with ENOSYS.
void netlink_gate_add(struct netlink_gate *gate, int listener);

#endif
