// Connections of a guest that the host redirected here: to whom they were, and what becomes of them.
//
// The address that the guest dialled is one the sandbox's resolver gave out (names.h), or nothing: there is no other that leads
// anywhere.  Port 80 is read as HTTP (guest.h), 443 must begin with a TLS hello for that name, and any other port is passed
// through if an entry of the policy names host and port (tunnel.h).
#ifndef BROKER_TRANSPARENT_H
#define BROKER_TRANSPARENT_H

#include "broker/sandbox.h"

void transparent_accept(struct sandbox *s, int fd);

#endif
