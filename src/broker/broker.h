// The broker: what its parts share.
//
// One process, one thread, one event loop (libevent).  Parts, and who calls whom:
//
//     control.c      the engine's line: which sandboxes are served                        -> sandbox.c
//     sandbox.c      a sandbox: its listeners, its policy, everything that is open for it -> guest.c, transparent.c, resolver.c
//     guest.c        a guest's connection: heads of requests, the three shapes, answers   -> decide.c, exchange.c, tunnel.c
//     transparent.c  a guest's connection that was redirected here                        -> decide.c, guest.c, tunnel.c
//     resolver.c     the resolver that guests ask; names.c, the addresses it gives out
//     decide.c       one function that every entrance meets, and the log line of its verdict
//     exchange.c     one request and its response, relayed
//     tunnel.c       bytes both ways
//     dial.c         a name resolved, its addresses checked, one connected to, TLS         -> lookup.c
//     pool.c         idle connections to upstreams
//
// and for route grants (docs/grants.md):
//
//     grants.c       grants.json; profile.c, profile_token.c: one profile of it; mint.c: a token made from one
//     grant.c        a grant that is open: its budgets, breaker, trace, credential; grant_report.c: what is left of it
//     api_line.c     a sandbox's line; api_conn.c: a connection over it      -> api_call.c
//     guard.c        the same for sandboxes on other hosts, over HTTPS        -> api_call.c
//     api_call.c     one call, checked in one order, whoever brought it       -> api_send.c
//     api_send.c     one request to the API and its answer                    -> dial.c, pool.c
//
// Trust.  Guests are hostile, and may do anything with their sockets; upstreams are not trusted either, less so those a policy
// names by a suffix.  What bounds both: heads (wire/http_head.h), windows of WINDOW bytes each way, a watch over every wait
// (struct broker's config), and ceilings of connections.  Nothing that a guest sends is forwarded but what was parsed.
//
// Lifetimes.  Callbacks of libevent's buffers are deferred, so no call into them comes back in the middle of ours; whoever owns
// a bufferevent frees it, in callbacks too.  A sandbox owns its guests, tunnels, resolver and idle upstreams through lists, and
// ends them all at once.
#ifndef BROKER_BROKER_H
#define BROKER_BROKER_H

#include "broker/config.h"
#include "broker/credentials.h"
#include "broker/metrics.h"
#include "wire/host_name.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <openssl/ssl.h>

enum {
    WINDOW = 64 * 1024,  // bytes held of each direction of a connection, in each of its two buffers
    SINGLE_MAX = 32 * 1024,
    PEER_PROBES = 3,  // unanswered, in the second half of peer_ms
};

struct api_lines;
struct grant_list;
struct grant_metrics;
struct grants;
struct guard;
struct lookups;
struct pool;
struct sandboxes;

struct broker {
    struct event_base *base;
    struct config config;
    struct credentials *credentials;
    struct metrics metrics;
    SSL_CTX *tls;
    struct lookups *lookups;
    struct pool *pool;
    struct sandboxes *sandboxes;
    struct grants *grants;  // as grants.json was read last
    struct grant_list *grant_list;
    struct grant_metrics *grant_metrics;
    struct api_lines *api_lines;
    struct guard *guard;    // NULL: none is set up
    uint64_t grant_calls;   // of all grants, in flight
    uint64_t grant_conns;   // over all lines
    uint64_t connections;   // of guests, now
    uint64_t last_request;  // number of the last decision, for the log
};

// The bufferevents of this program: deferred callbacks, WINDOW as the high watermark, large single reads.
void broker_tune(struct bufferevent *bev);
// Has the kernel ask a silent TCP peer whether it is there: one that has gone without a word is an error after peer_ms.  (With
// data under way the kernel sends that again instead, for about a quarter of an hour; a request's own limit is shorter.)
void broker_watch_peer(const struct broker *b, int fd);
// A bufferevent over a connected socket, which it will close; NULL without memory (the socket is closed then, too).
struct bufferevent *broker_wrap(struct broker *b, int fd);

#endif
