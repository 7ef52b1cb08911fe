// The sandbox's line to route grants: the socket HOST_API_SOCKET_PATH, and what is placed beside it.
//
// Actors: any process of the sandbox may connect; what it says is not read here.  Each connection is passed on, over the feed,
// to whoever serves it: on the container tier the broker itself holds the feed's other end, on the vm tier this machine's init,
// which makes a connection to the host for it (machine_host_api.c).  The socket may be unlinked or replaced by the sandbox, to
// nobody's harm but its own.
//
// States: closed -> (host_api_open) open; open again: connections go to the new feed from then on.  A feed that takes no more,
// because the sandbox has too many connections, is waited for, with one accepted connection held and the others in the socket's
// backlog.  A feed that ends closes the socket: nothing answers there any more.
#ifndef AGENT_HOST_API_H
#define AGENT_HOST_API_H

#include "agent/agent.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct host_api;

// Listens, places the clients in HOST_API_DIR, and adds the variables by which they are found to `agent->env`, unless the
// sandbox has those already.  Takes over `feed`, in any case.  0, or a negative errno with a sentence.
int host_api_open(struct agent *agent, int feed, struct err *err);
// Takes a part of the JavaScript file; the last one puts it in place.  0 or a negative errno.
int host_api_preload(struct agent *agent, const uint8_t *part, size_t n, bool more);

#endif
