// A connection to an upstream: the name resolved, every address judged, one of the judged ones connected to, and TLS.
//
// The address that was judged is the one in connect(2): a name is resolved once for a connection, so there is nothing in
// between that could change.  One address that is not public spoils the name (denied), whatever stands beside it: nobody's name
// leads both to the world and to this host's neighbours by accident.
#ifndef BROKER_DIAL_H
#define BROKER_DIAL_H

#include "broker/broker.h"
#include "wire/host_name.h"

enum dial_end {
    DIAL_DONE,
    DIAL_DENIED,  // an address is not public
    DIAL_NO_NAME,
    DIAL_UNRESOLVED,
    DIAL_UNREACHABLE,
    DIAL_UNTRUSTED,  // TLS failed
    DIAL_SLOW,       // config.connect_ms are over
    DIAL_BUSY,       // too much at once, or no memory
};

enum { DIAL_TRIES_MAX = 6 };  // addresses

struct dial;

struct dial_result {
    enum dial_end end;
    struct bufferevent *bev;    // DIAL_DONE: connected, now the callee's
    char address[IP_TEXT_MAX];  // the last one looked at, or ""
    const char *why;            // else: a few words, for the log; static
};

typedef void dial_fn(void *arg, const struct dial_result *result);

// Calls fn(arg, ...) once, after this has returned.  NULL without memory.  The dial is over when fn is called.
struct dial *dial_start(struct broker *b, const struct host *host, uint16_t port, bool tls, dial_fn *fn, void *arg);
// The same for an origin that the operator has named (grants.json), whose addresses are not judged: they may be private.
struct dial *dial_origin(struct broker *b, const struct host *host, uint16_t port, bool tls, dial_fn *fn, void *arg);
// fn will not be called.  NULL is fine; returns NULL.
struct dial *dial_cancel(struct dial *d);

// Whether an upstream's address may be connected to under this configuration.
bool dial_address_ok(const struct config *config, const struct ip_addr *addr);

#endif
