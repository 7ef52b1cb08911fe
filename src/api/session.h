// Sessions: a name of a caller's for a workspace, and a sandbox that is there when it is needed.
//
// States: idle (no sandbox) -> queued (one is wanted, and max_running is reached) -> starting -> ready -> stopping -> idle;
// and from any of them closing -> gone.  What is seen from outside is ready, idle or closing (spec 000).
//
// Who needs the sandbox holds a use of it: the start of a command, a command that runs, a transfer, an operation on files.  A
// session with a use is neither reclaimed when idle nor evicted for another one; a command that was detached is a use too.
//
// Ids and workspaces come from the owner and the key alone, so they are the same after a reclaim, a DELETE and a restart.
//
// Everything here is the loop's.  Creates and destroys are jobs of LANE_SANDBOXES.
#ifndef API_SESSION_H
#define API_SESSION_H

#include "api/api.h"
#include "api/engine_link.h"
#include "api/tokens.h"

#include <sys/queue.h>

enum {
    SESSION_ID_HEX = 24,
    SESSION_ID_MAX = 4 + SESSION_ID_HEX,
    SESSION_KEY_BYTES_MAX = 256,
    WORKSPACE_KEY_MAX = 4 + 64,
    SESSIONS_MAX = 16384,
    EGRESS_HOSTS_MAX = 16,  // of a session
};

// What a use of a session that is being deleted gets; no engine's error has this number.
enum { SESSION_CLOSED = -1000 };

enum session_state { SESSION_IDLE, SESSION_QUEUED, SESSION_STARTING, SESSION_READY, SESSION_STOPPING };

// What a session is made of; the strings are its own.
struct session_spec {
    char *template_name;
    uint64_t memory_mib;
    uint32_t vcpus;
    uint32_t ttl_seconds;  // 0: the engine's default
    char **env;            // NULL-terminated, or NULL
    char **egress_allow;   // likewise
    bool egress_deny_all;
    uint32_t min_isolation;  // sandbox_isolation_t
};

void session_spec_free(struct session_spec *spec);

// A sandbox and those who use it.  Destroyed behind the last.
struct guest {
    sandbox_handle_t *handle;
    struct engine_conn *conn;
    struct session *session;
    unsigned refs;
};

struct failure;

struct use {
    TAILQ_ENTRY(use) link;  // in session->uses or session->waiting
    struct session *session;
    struct guest *guest;  // NULL while it waits
    // The sandbox is there (NULL), or will not be, and this is why: then the use is over.  Nothing ran in it because of the
    // use.
    void (*ready)(struct use *use, const struct failure *why);
    // The session is being deleted: to be ended soon.  May be NULL for what ends by itself.
    void (*cancel)(struct use *use);
};

TAILQ_HEAD(uses, use);

// Who waits for a session to be gone.
struct gone_waiter {
    TAILQ_ENTRY(gone_waiter) link;
    void (*gone)(struct gone_waiter *w);
};

TAILQ_HEAD(gone_waiters, gone_waiter);

struct exec_job;
TAILQ_HEAD(exec_jobs, exec_job);

struct session {
    LIST_ENTRY(session) bucket;
    TAILQ_ENTRY(session) link, ready_link, queue_link;
    struct sessions *all;
    char id[SESSION_ID_MAX + 1];
    char owner[PRINCIPAL_NAME_MAX + 1];
    char key[SESSION_KEY_BYTES_MAX + 1];
    char workspace[WORKSPACE_KEY_MAX + 1];
    struct session_spec spec;
    enum session_state state;
    bool closing;
    bool ever_started;
    struct guest *guest;  // while ready
    unsigned n_uses;
    struct uses uses, waiting;
    struct gone_waiters gone_waiters;
    struct exec_jobs execs;            // exec_job.h
    int64_t created_at, last_used_at;  // seconds since 1970
    uint64_t last_used_ns;
    uint64_t expires_at;  // of the workspace; 0: not known
    // Of the latest sandbox.
    uint32_t sandbox_id;
    sandbox_isolation_t isolation;
    char start[16];
};

struct session_counts {
    unsigned sessions, running, busy;
};

struct sessions;

int sessions_new(struct api *api, struct sessions **ret);
// Lets go of all; sandboxes end with their connections.
struct sessions *sessions_free(struct sessions *all);
struct session_counts sessions_count(const struct sessions *all);
struct session *sessions_first(const struct sessions *all);
struct session *sessions_next(const struct session *s);
unsigned sessions_of(const struct sessions *all, const char *owner);

void session_id_of(const char *owner, const char *key, char id[SESSION_ID_MAX + 1]);
// The owner's session of that id, or NULL: there is none, or it is somebody else's.
struct session *session_find(struct sessions *all, const char *owner, const char *id, size_t n);
// A new one, which takes over what is in *spec.  NULL without memory, or beyond SESSIONS_MAX.  It goes by itself when its first
// sandbox cannot be started.
struct session *session_new(struct sessions *all, const char *owner, const char *key, struct session_spec *spec);
const char *session_state_name(const struct session *s);

// Asks for the sandbox; use->ready is called from here or later.
void session_use(struct session *s, struct use *use);
// The end of a use, or of the wait for one.
void use_end(struct use *use);
// It is used now: neither idle nor the one used longest ago.  Uses do it by themselves.
void session_touch(struct session *s);
// While using it, the sandbox was found to be gone: the next use gets another one.
void use_lost(struct use *use);

// Ends its commands and sandbox, and forgets it.  w->gone is called from here or later, when it has gone.
void session_close(struct session *s, struct gone_waiter *w);
// The server is stopping: whatever uses a sandbox, or waits for one, is told so and ends, and nothing new begins.
void sessions_end_uses(struct sessions *all);
// Why its uses are ended: the code and the sentence for their callers.
struct session_end {
    const char *code, *text;
};
struct session_end session_end_of(const struct session *s);
// The engine has lost every sandbox.
void sessions_engine_gone(struct sessions *all);

#endif
