// Connections to the engine.
//
// A connection has ceilings of its own at the engine (sandboxes owned, guest operations in flight), so there are up to
// `engine_connections` of them: each new sandbox goes to the one that has the fewest, which until all are open is a new one.
// With no more sandboxes than connections each has all of a connection's operations for itself; so it is unless the setting
// says less than max_running (or that is above ENGINE_CONNECTIONS_MAX).
//
// One more, without sandboxes, asks the engine how it is: every PROBE_S, and at once when something failed.  What it learns
//   - the engine cannot be reached: a failure; after FAILURES_MAX of them within FAILURES_S the program ends with
//   EXIT_ENGINE_GONE,
//     so that a service manager starts it anew;
//   - the engine is another process than before: every sandbox is gone, and the sessions are told.
#ifndef API_ENGINE_LINK_H
#define API_ENGINE_LINK_H

#include "api/api.h"

#include <libsandbox.h>

enum { PROBE_S = 5, PROBE_AGAIN_MS = 500, FAILURES_MAX = 3, FAILURES_S = 10 };

struct engine_link;

// A connection that several own a share of; closed behind the last.
struct engine_conn {
    sandbox_conn_t *conn;
    unsigned refs;
    int slot;  // -1: none
};

int engine_link_new(struct api *api, struct engine_link **ret);
// All sandboxes must have been let go of.
struct engine_link *engine_link_free(struct engine_link *l);

// A place for one more sandbox: *ret_conn is a share of its connection, or NULL when the caller (on a worker) has to open one
// first.  Ends with engine_link_settle.
int engine_link_pick(struct engine_link *l, struct engine_conn **ret_conn);
// The sandbox that place `slot` was picked for is there, on `conn` (which was opened for it when pick gave none: NULL then
// makes a share of it), or it is not (NULL, NULL).  A share for the sandbox, or NULL.
struct engine_conn *engine_link_settle(struct engine_link *l, int slot, struct engine_conn *share, sandbox_conn_t *opened);
// The connection broke: its place gets another one.  The caller keeps its share.
void engine_link_broken(struct engine_link *l, struct engine_conn *c);
// The sandbox is gone.
void engine_conn_unref(struct engine_link *l, struct engine_conn *c, bool sandbox);

// A share of the connection without sandboxes; NULL while the engine cannot be reached.
struct engine_conn *engine_link_control(struct engine_link *l);
// An operation could not reach the engine.
void engine_link_suspect(struct engine_link *l);
bool engine_link_reachable(const struct engine_link *l);

// The engine learns that a stream has ended a moment after we do, and counts it as in flight until then.  So on a worker, where
// a sandbox has no more uses than operations, a refusal (GUEST_UNAVAILABLE) is waited out: true, after LAG_MS, LAG_TRIES times.
enum { LAG_MS = 5, LAG_TRIES = 50 };
bool engine_lags(sandbox_error_t error, bool has_room, unsigned *tries);

#endif
