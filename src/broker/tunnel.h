// Bytes both ways between a guest and an upstream: behind CONNECT, behind a 101, and redirected TCP.
//
// What a guest sends first is looked at before it is passed on (but not behind a 101): if it is a TLS hello, its server name
// must be the host that the tunnel is for, so that a policy's name is not the cover of another.  A hello without a name, and on
// redirected port 443 anything that is no hello, is denied.  A host that is an address has no name to compare.
//
// The end of one direction is passed on as such; the tunnel ends when both have, or without a byte for config.tunnel_ms.
#ifndef BROKER_TUNNEL_H
#define BROKER_TUNNEL_H

#include "broker/decide.h"

enum {
    TUNNEL_LOOK = 1,      // look at what the guest sends first
    TUNNEL_TLS_ONLY = 2,  // it must be TLS
};

// Joins both, and takes them over with `record` (whose decision has been logged if the guest was told it).  `guest_eof`: the
// guest has sent its last byte.
void tunnel_start(struct record *record, struct bufferevent *guest, struct bufferevent *upstream, unsigned flags,
                  bool guest_eof);
// The same, where the upstream is yet to be connected to: with TUNNEL_TLS_ONLY once the hello was looked at, else at once.
void tunnel_open(struct record *record, struct bufferevent *guest, unsigned flags);

#endif
