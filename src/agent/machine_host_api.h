// The machine's part of a sandbox's line to route grants (agent/host_api.h).
//
// Actors: the agent in the sandbox, which is not trusted, passes connections of the sandbox's processes over a SOCK_SEQPACKET
// pair; the host has a listener at HOST_API_VSOCK_PORT.  For each connection this process makes one to the host and copies
// bytes both ways, reading none of them.  Only it can: no filter of the sandbox's lets anybody have a vsock socket.
//
// States of a connection: calling -> open -> each direction ends by itself -> gone, when both have, or one side failed.
// Limits: MACHINE_HOST_API_RELAYS_MAX connections at once, beyond which no more are taken from the agent; RELAY_BYTES held of
// each direction.
#ifndef AGENT_MACHINE_HOST_API_H
#define AGENT_MACHINE_HOST_API_H

#include "sys/loop.h"

enum { MACHINE_HOST_API_RELAYS_MAX = 32 };

struct machine_host_api;

// *ret_agent_end, for the agent, is the caller's.  0 or a negative errno.
int machine_host_api_new(struct loop *loop, struct machine_host_api **ret, int *ret_agent_end);
// Ends every connection.  NULL is fine; returns NULL.
struct machine_host_api *machine_host_api_free(struct machine_host_api *h);

#endif
