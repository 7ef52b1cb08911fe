// The guard: where sandboxes on other hosts call the routes of their grants, over HTTPS and over nothing else.
//
// Actors.  A platform runs a sandbox of ours on its own host, denies it every connection but one, to the guard, and puts the
// run's token into what goes there (or the sandbox has it: it is good here, for this run, and nowhere else).  Anybody at all
// may connect.
//
// A token is made when a grant is opened with BROKER_GRANT_REMOTE, and is not kept: only its SHA-256 is.  It ends with the
// grant.
//
// A request, POST to the path of guard_url, is looked at in this order:
//
//     1  not POST, another path, a query                       404
//     2  no grant has this token                               401   before a byte of the body is read
//     3  announced to be over 2 MiB                            413
//     4  16 requests of this grant are here                    429
//     5  two of this grant's bodies are being read: it waits,  503   with Retry-After
//        after guard_wait_ms
//     6  64 bodies are being read, of all                      503   with Retry-After
//     7  not whole after guard_wait_ms, or over 2 MiB          413
//     8  not {"method", "path"} (guard_envelope.h)             400
//     9  what api_call.h checks
//
// Refusals before the body was read close the connection instead of reading it.
//
// States of a connection: HEAD -> (WAIT ->) BODY -> CALL -> WRITE -> HEAD ...; any -> LINGER -> gone.
#ifndef BROKER_GUARD_H
#define BROKER_GUARD_H

#include "broker/broker.h"
#include "broker/grant.h"
#include "broker/guard_url.h"

enum {
    GUARD_CONNECTIONS_MAX = 1024,
    GUARD_BODY_MAX = 2 * 1024 * 1024,
    GUARD_REQUESTS_MAX = 16,  // of a grant
    GUARD_READING_GRANT_MAX = 2,
    GUARD_READING_MAX = 64,
    GUARD_LINGER_MS = 2000,
};

#define GUARD_HEADER "x-sandbox-guard"

struct guard_conn;

struct guard {
    struct broker *broker;
    struct guard_url url;
    SSL_CTX *tls;
    int fd;
    struct event *event;
    LIST_HEAD(guard_conns, guard_conn) conns;
    unsigned connections, reading;
};

// Listens as the configuration says.  0, or a negative errno with a sentence.
int guard_new(struct broker *b, struct guard **ret, struct err *err);
// Its certificate and key, as the configuration names them.  *ret is for guard_use or SSL_CTX_free.  0, or a negative errno
// with a sentence.
int guard_read_tls(const struct config *config, SSL_CTX **ret, struct err *err);
// For connections from now on; takes over `tls`.
void guard_use(struct guard *g, SSL_CTX *tls);
// NULL is fine; returns NULL.
struct guard *guard_free(struct guard *g);

// For grant.c: what waits for its body, or reads one, is answered and closed.
void guard_grant_ended(struct guard *g, const struct grant *grant);

// ---- guard.c's and guard_conn.c's ----

// Takes over `fd`.
void guard_conn_new(struct guard *g, int fd);
void guard_conn_free(struct guard_conn *c);
void guard_conn_listed(struct guard *g, struct guard_conn *c);
void guard_conn_unlisted(struct guard *g, struct guard_conn *c);

#endif
