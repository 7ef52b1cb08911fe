// One sandbox: its state, its owner, and its end.
//
// States and what moves between them:
//
//     provisioning --started--> ready --agent configured--> running <--pause/resume--> paused
//     running or paused --suspend--> suspended --resume--> running
//     any of them --destroy, owner gone, own death--> closing --driver says exited--> gone
//
// A legal step is one of the table in sandbox.c; any other is refused and logged.  A sandbox that died by itself stays with its
// owner, closing or gone, until it is destroyed: operations on it give GUEST_UNAVAILABLE, the destroy succeeds.  One that is
// being destroyed cannot be found any more.
//
// Memory: freed when it is gone, has no owner, and no answer of the driver is due.
#ifndef ENGINE_SANDBOX_H
#define ENGINE_SANDBOX_H

#include "engine/agent_line.h"
#include "engine/broker_line.h"
#include "engine/client.h"
#include "engine/engine.h"
#include "engine/isolation/driver.h"

// The answer about a sandbox of another connection, and about one that does not exist.
#define SANDBOX_NOT_YOURS "this connection owns no such sandbox"

enum { SANDBOX_HOSTNAME_ROOM = sizeof "sbx-" + 8 };

enum sandbox_state {
    SANDBOX_PROVISIONING,
    SANDBOX_READY,
    SANDBOX_RUNNING,
    SANDBOX_PAUSED,
    SANDBOX_SUSPENDED,
    SANDBOX_CLOSING,
    SANDBOX_GONE,
    SANDBOX_STATES,
};

TAILQ_HEAD(guestop_list, guestop);
TAILQ_HEAD(stream_op_list, stream_op);
TAILQ_HEAD(power_list, power);

struct sandbox {
    TAILQ_ENTRY(sandbox) all;    // in engine->sandboxes
    TAILQ_ENTRY(sandbox) owned;  // in owner->owned
    struct engine *engine;
    struct client *owner;  // NULL: it is in the pool, or nobody waits for it any more
    uid_t uid;
    uint32_t id;
    enum sandbox_state state;
    struct tier *tier;

    char hostname[SANDBOX_HOSTNAME_ROOM];
    struct create *create;  // until it is answered
    struct warm *warm;      // while it is in the pool
    bool restored;          // it is a clone of a booted template
    bool inherits;          // it is a clone of a machine that had streams
    bool from_pool;         // it was warm before it had an owner
    bool starting;          // the driver's answer to start is due
    bool started;           // `handle` means something
    uint32_t handle;
    unsigned refs;  // answers of the driver that are due, and functions on the stack that still use it
    struct agent_line *line;
    struct origin *origin;  // once it was made for somebody
    struct fork *fork;      // until all of that run: nobody finds it
    bool forked;
    struct taking *taking;          // the snapshot that is being taken
    struct suspension *suspending;  // it is on its way to the disk, or back
    struct driver_suspended *kept;  // suspended: what it comes back from
    struct volume_lease *lease;     // the session's volume, until it is gone; NULL: none

    struct network network;
    struct egress *egress;                // what it may reach; NULL: nothing
    char token[BROKER_TOKEN_DIGITS + 1];  // its session's; "" before it is taken
    struct broker_member member;          // its place in the broker, while it has one
    unsigned revoking;                    // words of the broker's that are due: that it serves it, or its line, no longer
    struct grant_book *grants;            // NULL: it never had one
    struct timer grants_due;
    uint32_t grant_id;  // of its own, which was opened as it was made; 0: none

    bool died;  // it ended by itself
    enum metric_death death;
    bool unresponsive;  // a ping is out after an operation that timed out
    bool destroying;
    struct request *destroy_request;
    struct timer destroy_deadline;

    struct guestop_list guestops;
    struct stream_op_list streams;
    struct power_list powers;  // pauses and resumes: the first is being done, the others wait
    uint64_t since_ns;         // last resume (or the start)
    uint64_t ran_ns;           // while paused: how long it had run since then
    uint64_t suspended_ns;     // when the agent was told of the pause
    uint64_t faults_before;    // page faults up to the last resume
};

const char *sandbox_state_name(enum sandbox_state state);
// Takes a legal step; false for one that is not.
bool sandbox_step(struct sandbox *sb, enum sandbox_state to);

// A new sandbox in provisioning, with an id and a host name of its own.  `owner` NULL: for the pool.  NULL: no memory.
struct sandbox *sandbox_new(struct engine *e, struct client *owner, struct tier *tier);
// Gives it to its owner.
void sandbox_adopt(struct sandbox *sb, struct client *owner);
// The sandbox `id` of this client, or NULL when it has none.
struct sandbox *sandbox_find(struct client *c, uint32_t id);
// The sandbox `id` of this client if it is running; otherwise answers the request and returns NULL.
struct sandbox *sandbox_find_running(struct request *r, uint32_t id);

// Whether it is at least as strong as `floor` (sandbox_isolation_t); otherwise answers the request.
bool sandbox_meets_floor(const struct sandbox *sb, uint32_t floor, struct request *r);

// A create's policy is its from here on, with a reference of its own, and a session token.  0 or a negative errno.
int sandbox_entitle(struct sandbox *sb, struct egress *egress);
// Has the broker serve it: create_served follows, unless it is closed meanwhile.  -ENOTCONN: there is no broker.
int sandbox_open_line(struct sandbox *sb);

// One of the revocations that are due is done.
void sandbox_revoked(struct sandbox *sb);

// Asks the driver to start it; create_started or pool_started follows, unless it was closed meanwhile.  0 or a negative errno.
int sandbox_start(struct sandbox *sb, struct driver_start *what);
// The sandbox ended by itself, or broke the protocol.
void sandbox_died(struct sandbox *sb, enum metric_death kind, const char *why);
// Kills it, if it is not dying already.
void sandbox_close(struct sandbox *sb, const char *why);
// Kills it, takes it from its owner, and frees it as soon as that can be.
void sandbox_disown(struct sandbox *sb, const char *why);
// Answers `r` when it is gone.
void sandbox_destroy_for(struct sandbox *sb, struct request *r);
// Memory: it is not freed while there is a reference.
void sandbox_ref(struct sandbox *sb);
void sandbox_unref(struct sandbox *sb);
// driver_exited_fn
void sandbox_exited(void *sandbox, const struct driver_exit *how);

// How it was started, as the wire says it: "pool", "restored", "cold" or "fork".
const char *sandbox_start_name(const struct sandbox *sb);
// How long it has run since the last resume.
uint64_t sandbox_uptime_ns(const struct sandbox *sb);
void sandboxes_count(const struct engine *e, unsigned count[SANDBOX_STATES]);

#endif
