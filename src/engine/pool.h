// Sandboxes that are started before anybody asks for them.
//
// A warm sandbox is started from a template in a certain shape and has told nobody anything yet: no owner, no variables, no
// identity.  It belongs to a tenant only when it is taken, is configured then, and is never put back: what a tenant has had is
// thrown away.  So the key of the pool is what was fixed at the start: tier, template as loaded, memory, processors, disk, and
// which network it has.  Not what it may reach: until it is taken the broker does not know it, and nothing accepts on its line.
//
// Which shapes are kept warm, and how many of each:
//  - those of the setting `pool` ("debian:512:1=4"), always;
//  - with `pool_auto` N, N of each shape that was asked for within `pool_idle_s`, at most SHAPES_MAX shapes, the least recently
//    used giving way.
// Refilling is background work: it begins REFILL_DELAY_MS after the last create, or when that has been put off for
// REFILL_PATIENCE_MS, at most REFILLS_MAX at once, the shape that has the fewest first, and never beyond pool_max in all or
// what max_sandboxes leaves over; where a create needs that place, a warm one gives way.  Where a start
// fails or a warm sandbox dies, another is started at once, as many times within QUICK_WINDOW_MS as there are to be of the
// shape; then the shape is left alone for RETRY_MS, twice that the next time, and so on up to RETRY_DOUBLINGS times.
//
// States of a warm sandbox: filling -> (driver started it, and its agent is up: within start_deadline_ms) -> ready -> taken; a
// death, a template that changed or an idle shape closes it.
#ifndef ENGINE_POOL_H
#define ENGINE_POOL_H

#include "base/json_out.h"
#include "engine/isolation/tiers.h"
#include "wire/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct pool;
struct sandbox;
struct warm;

struct shape {
    struct tier *tier;
    uint32_t template_handle;
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint32_t vcpus;
    enum network_kind network;
};

struct pool_counts {
    unsigned ready;
    unsigned filling;
};

// Begins to fill the shapes of the settings.  0 or -ENOMEM.
int pool_new(struct engine *e, struct pool **ret_pool);
// Closes what is warm, which then goes as any sandbox does; nothing is filled any more.
void pool_stop(struct pool *pool);
// NULL is fine; returns NULL.
struct pool *pool_free(struct pool *pool);

// A create wants this shape.  A ready sandbox, which is the caller's now, or NULL.  Either way the shape counts as used, and
// will be refilled; a hit or a miss is counted.  `template` is the name the shape was asked for by.
struct sandbox *pool_take(struct pool *pool, const struct shape *shape, const char *template);

// A create is about to start one of its own: if that is one too many for max_sandboxes with what is warm, as many warm ones as
// it takes are closed, of the shape used longest ago first.
void pool_give_way(struct pool *pool);

// The template behind the handle is no longer what is in the store: what is warm of it goes.
void pool_forget_template(struct pool *pool, const struct tier *tier, uint32_t handle);

// From a sandbox in the pool: it was started and its agent is up (or `error`), or it has died.
void pool_started(struct warm *warm, int error, const char *detail);
void pool_lost(struct warm *warm);

bool shape_equal(const struct shape *a, const struct shape *b);
struct pool_counts pool_count(const struct pool *pool);
// The shapes as elements of an array: template, sizes, ready, filling, target.
void pool_list(const struct pool *pool, struct json_out *json);

#endif
