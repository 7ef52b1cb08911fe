// The engine as a whole: what its parts share, its start and its end.
//
// Start:  jailer greeted -> tiers probed -> volumes and snapshots settled -> socket bound -> READY=1 -> serving
// End:    SIGTERM: stopping (no new connections, all clients closed, sandboxes destroyed; bounded) -> exit 0
//         jailer lost: exit 70, at once; whatever it held is dead
// One thread runs everything but the hashing of templates and the database (sys/workers.h).
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/broker_line.h"
#include "engine/config.h"
#include "engine/isolation/container.h"
#include "engine/isolation/tiers.h"
#include "engine/isolation/vm.h"
#include "engine/metrics.h"
#include "sys/loop.h"
#include "sys/workers.h"

#include <sys/queue.h>

enum {
    EXIT_CONFIG = 78,       // sysexits.h: EX_CONFIG
    EXIT_JAILER_LOST = 70,  // EX_SOFTWARE
};

TAILQ_HEAD(sandbox_list, sandbox);
TAILQ_HEAD(client_list, client);
TAILQ_HEAD(create_list, create);

struct engine {
    const struct config *config;
    struct loop *loop;
    struct workers *workers;
    struct container *container;
    struct vm_driver *vm;
    struct tiers tiers;
    struct broker_line *broker;
    char network_trouble[JAIL_DETAIL_MAX + 64];  // why the jailer can make no sandbox a line; "": it can
    struct templates *templates;
    struct pool *pool;
    struct volumes *volumes;
    struct snapshot_store *snapshots;
    unsigned snapshots_taken;  // that are being taken
    struct listener *listener;
    struct metrics_server *metrics_server;
    struct metrics metrics;
    uint64_t started_ns;
    bool stopping;
    bool vm_asked;          // the vm tier has been probed, or is being
    struct timer deadline;  // of the start, then of the stop
    struct timer reprobe;   // while no tier works

    struct client_list clients;
    unsigned client_count;   // all connections
    unsigned refused_count;  // of those, the ones that only linger: they take nobody's place
    struct sandbox_list sandboxes;
    unsigned sandbox_count;  // all of them, warm ones too
    unsigned owned_count;    // those that have an owner
    unsigned bare_creates;   // creates that have no sandbox yet
    uint32_t last_sandbox_id;
    struct create_list waiting_creates;  // for one of max_creates slots
    unsigned running_creates;
    bool started_for_fork;  // the last that got a slot is a fork's
};

// Takes over the descriptors of sys/jail.h, whatever it returns, and begins to start.  `config` and `loop` outlive the
// engine.  0 or a negative errno.
int engine_new(struct loop *loop, const struct config *config, struct engine **ret_engine);
// Closes everything without waiting.  NULL is fine; returns NULL.
struct engine *engine_free(struct engine *e);

// Begins the orderly end; loop_stop(0) follows when no sandbox is left, or when stop_deadline_ms have passed.
void engine_stop(struct engine *e);
// NULL, or why no sandbox can be given a network now: a sentence part, valid until the next call.
const char *engine_network_trouble(struct engine *e);
// Tells the engine that a sandbox is gone.
void engine_sandbox_gone(struct engine *e);

#endif
