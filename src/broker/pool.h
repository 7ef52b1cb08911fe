// Idle connections to upstreams, kept for the next request.
//
// One is used again only for the same sandbox, host and port, and with the same credential of the same reading of the file.  It
// is never shared between sandboxes, whatever their credentials: if a guest and an upstream could be brought to disagree about
// where an answer ends, the answer that is left over is that guest's own.
#ifndef BROKER_POOL_H
#define BROKER_POOL_H

#include "broker/broker.h"
#include "wire/host_name.h"

enum {
    POOL_MAX = 512,         // idle connections
    POOL_SANDBOX_MAX = 16,  // of them, those of one sandbox; the oldest makes room
};

// For requests that may not be sent twice: a connection that has been idle for longer is not used, as its upstream may be
// closing it at this moment.
enum { POOL_FRESH_MS = 2000 };

struct pool_key {
    uint32_t sandbox_id;
    uint16_t port;
    uint64_t serial;  // of the credential, of the grant; 0: none
    struct host host;
};

int pool_new(struct broker *b, struct pool **ret);
struct pool *pool_free(struct pool *p);

// An idle connection that was put with this key, no longer than `idle_ms` ago; NULL if there is none.
struct bufferevent *pool_take(struct pool *p, const struct pool_key *key, uint64_t idle_ms);
// Takes over a connection with nothing under way.
void pool_put(struct pool *p, const struct pool_key *key, struct bufferevent *bev);
// Closes a sandbox's; those of one serial.
void pool_drop(struct pool *p, uint32_t sandbox_id);
void pool_drop_serial(struct pool *p, uint64_t serial);

#endif
