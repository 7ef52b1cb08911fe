// A grant: one run's permission to call the listed routes of one API.
//
// It is opened by the engine (wire/broker.h) from a profile of grants.json, and lent to the sandbox's line (api_line.h), or to
// the guard (guard.h) for a sandbox on another host.  It holds what the run has used up: attempts, calls in flight, capped
// routes, the breaker's window, the trace.  It keeps the reading of the file it was opened from.
//
// Its end is the end of its authority: calls under way are cut off and written into the trace, what comes later is answered
// with 503, and the credential is wiped.
#ifndef BROKER_GRANT_H
#define BROKER_GRANT_H

#include "broker/breaker.h"
#include "broker/broker.h"
#include "broker/grants.h"
#include "broker/route_caps.h"
#include "wire/broker.h"
#include "wire/grant_trace.h"

#include <sys/queue.h>

enum {
    GRANT_IN_FLIGHT_MAX = 16,              // calls at once; more are refused, not queued
    GRANT_REQUEST_MAX = 1024 * 1024,       // bytes of a request's body
    GRANT_RESPONSE_MAX = 4 * 1024 * 1024,  // bytes of a response's body, which is delivered whole or not at all
    GRANT_REFUSALS_LOGGED_MAX = 512,       // lines in the log about refused calls; the others are counted only
    GRANT_TOKEN_HASH = 32,
    GRANT_BEARER_SPARE_S = 5,  // a token with less left, or half its life if that is less, is made anew
};

struct api_call;
struct api_line;

// A row of the trace, before its texts are written out.
struct grant_note {
    uint16_t route;  // its place in the profile's list
    uint16_t status;
    bool delivered;
    uint32_t request_bytes, response_bytes, latency_us;
};

struct grant {
    LIST_ENTRY(grant) all;
    struct broker *broker;
    struct api_line *line;  // NULL: remote
    uint32_t sandbox_id, grant_id, flags, budget_ms;
    struct grants *file;
    const struct profile *profile;
    char principal[BROKER_PRINCIPAL_MAX + 1];
    char run[BROKER_RUN_MAX + 1];
    struct buf bearer;
    uint64_t bearer_until_s;  // time of day when it is made anew; 0: never
    uint64_t serial;          // of its upstream connections
    uint32_t attempts, denied, shed, dropped;
    unsigned in_flight, refusals_logged;
    unsigned rows;
    struct grant_note row[GRANT_ROWS_MAX];
    bool ended;  // its authority is over, and the engine does not know yet
    struct breaker breaker;
    struct route_caps *caps, *own_caps;  // own_caps: a remote one's
    unsigned *counter;                   // of each cap of the profile
    LIST_HEAD(api_calls, api_call) calls;
    // Of a remote one, what the guard knows it by: the token itself is not kept.
    uint8_t token_hash[GRANT_TOKEN_HASH];
    unsigned guard_requests, guard_decoding;
};

struct grant_list {
    LIST_HEAD(all_grants, grant) all;
    unsigned n;
};

// Opens one, and lends it to `line` (NULL with BROKER_GRANT_REMOTE).  *opened and *preload are what goes into the reply's
// memfd. 0, or what wire/broker.h says, with *ret_why for the engine's log.
int grant_open(struct broker *b, uint32_t sandbox_id, const struct broker_grant *order, struct api_line *line,
               struct broker_opened *opened, struct buf *preload, struct grant **ret, const char **ret_why);
// Ends it, and frees it.  The trace is appended to *trace, which may be NULL.
void grant_close(struct grant *g, struct buf *trace);

struct grant *grant_find(const struct broker *b, uint32_t sandbox_id, uint32_t grant_id);
// The remote grant of a guard token, whose hash this is; NULL if there is none.
struct grant *grant_find_token(const struct broker *b, const uint8_t hash[static GRANT_TOKEN_HASH]);
// Whether a grant of this sandbox's is on an origin that `policy` leads to with a credential on file.
bool grant_overlaps(const struct broker *b, uint32_t sandbox_id, const struct host_policy *policy);

// Credentials have been read anew: ends the authority of each grant whose sandbox now has a wide way to the same origin.  The
// engine closes it in its time, and gets the trace.
void grants_overtaken(struct broker *b);

// What stands behind "Authorization: Bearer", of a profile with a token.  One that is about to expire is made anew; NULL if
// that fails.
const char *grant_bearer(struct grant *g);

// An exchange with the API has ended.
void grant_note(struct grant *g, const struct grant_note *note);

#endif
