#include "engine/pool.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/create.h"
#include "engine/engine.h"
#include "engine/sandbox.h"
#include "engine/template.h"
#include "sys/jail.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

enum {
    SHAPES_MAX = 8,  // kept because they were asked for; those of the settings come on top
    REFILL_DELAY_MS = 3,
    REFILL_PATIENCE_MS = 25,
    REFILLS_MAX = 2,
    RETRY_MS = 1000,
    QUICK_WINDOW_MS = 10000,
    RETRY_DOUBLINGS = 5,
    IDLE_CHECK_MS = 1000,
};

#define IDLE "nobody asked for its shape for pool_idle_s"

struct warm {
    TAILQ_ENTRY(warm) link;  // in shelf->ready or shelf->filling
    struct shelf *shelf;
    struct sandbox *sandbox;
    bool ready;
    uint64_t begun_ns;
    struct timer patience;  // while it is filling
};

TAILQ_HEAD(warm_list, warm);

// One shape and what is warm of it.
struct shelf {
    TAILQ_ENTRY(shelf) link;
    struct pool *pool;
    struct shape shape;
    char template[TEMPLATE_NAME_MAX + 1];
    struct warm_list ready;
    struct warm_list filling;
    unsigned ready_count;
    unsigned filling_count;
    unsigned asked;        // by the settings
    uint64_t used_ns;      // last create
    uint64_t not_before;   // after a failed start
    unsigned failures;     // since the last start that succeeded
    uint64_t quick_since;  // failures that cost no wait: since when they are counted, and how many
    unsigned quick;
};

TAILQ_HEAD(shelf_list, shelf);

// A shape of the settings, whose template must be found before it is a shelf.
struct preset {
    struct pool *pool;
    const struct pool_setting *setting;
    struct template_waiter waiter;
    struct tier *tier;
    bool asking;
    bool refused;  // the last answer was no: the log has it
};

struct pool {
    struct engine *engine;
    struct shelf_list shelves;
    unsigned total;  // warm, ready or not
    bool stopped;
    struct timer refill;
    uint64_t put_off_since;  // 0: a refill is not being put off
    struct timer upkeep;
    struct preset presets[POOL_SETTINGS_MAX];
    unsigned preset_count;
};

bool shape_equal(const struct shape *a, const struct shape *b)
{
    return a->tier == b->tier && a->template_handle == b->template_handle && a->memory_mib == b->memory_mib &&
           a->disk_mib == b->disk_mib && a->vcpus == b->vcpus && a->network == b->network;
}

// ---- shelves ----

static bool in_use(const struct pool *pool, const struct shelf *shelf)
{
    return shelf->used_ns != 0 && mono_ns() - shelf->used_ns < pool->engine->config->pool_idle_s * NS_PER_S;
}

static unsigned target(const struct shelf *shelf)
{
    const struct pool *pool = shelf->pool;
    unsigned wanted = in_use(pool, shelf) ? (unsigned)pool->engine->config->pool_auto : 0;
    return wanted > shelf->asked ? wanted : shelf->asked;
}

static struct shelf *find_shelf(struct pool *pool, const struct shape *shape)
{
    struct shelf *shelf;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    if (shape_equal(&shelf->shape, shape))
        return shelf;
    return NULL;
}

// Takes a warm sandbox off its shelf; the sandbox is nobody's then.
static struct sandbox *unshelve(struct warm *w)
{
    struct shelf *shelf = w->shelf;
    struct sandbox *sb = w->sandbox;
    if (w->ready) {
        TAILQ_REMOVE(&shelf->ready, w, link);
        shelf->ready_count--;
    } else {
        TAILQ_REMOVE(&shelf->filling, w, link);
        shelf->filling_count--;
    }
    shelf->pool->total--;
    timer_cancel(sb->engine->loop, &w->patience);
    sb->warm = NULL;
    free(w);
    return sb;
}

static void close_all(struct warm_list *list, const char *why)
{
    struct warm *w;
    while ((w = TAILQ_FIRST(list)) != NULL)
        sandbox_close(unshelve(w), why);
}

static void free_shelf(struct shelf *shelf, const char *why)
{
    close_all(&shelf->ready, why);
    close_all(&shelf->filling, why);
    TAILQ_REMOVE(&shelf->pool->shelves, shelf, link);
    free(shelf);
}

// At most SHAPES_MAX shelves are there only because their shape was asked for.
static void make_room_for_shelf(struct pool *pool)
{
    unsigned count = 0;
    struct shelf *shelf, *oldest = NULL;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    {
        if (shelf->asked > 0)
            continue;
        count++;
        if (oldest == NULL || shelf->used_ns < oldest->used_ns)
            oldest = shelf;
    }
    if (count >= SHAPES_MAX)
        free_shelf(oldest, "its shape gave way to one used more recently");
}

static struct shelf *new_shelf(struct pool *pool, const struct shape *shape, const char *template)
{
    struct shelf *shelf = calloc(1, sizeof *shelf);
    if (shelf == NULL)
        return NULL;
    *shelf = (struct shelf){.pool = pool, .shape = *shape};
    snprintf(shelf->template, sizeof shelf->template, "%s", template);
    TAILQ_INIT(&shelf->ready);
    TAILQ_INIT(&shelf->filling);
    TAILQ_INSERT_TAIL(&pool->shelves, shelf, link);
    return shelf;
}

// ---- giving way ----

static struct shelf *least_recently_used(struct pool *pool)
{
    struct shelf *shelf, *oldest = NULL;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    if (shelf->ready_count + shelf->filling_count > 0 && (oldest == NULL || shelf->used_ns < oldest->used_ns))
        oldest = shelf;
    return oldest;
}

void pool_give_way(struct pool *pool)
{
    const struct engine *e = pool->engine;
    while (pool->total > 0 && e->owned_count + e->bare_creates + pool->total > e->config->max_sandboxes) {
        struct shelf *shelf = least_recently_used(pool);
        struct warm *w = TAILQ_FIRST(&shelf->ready);
        if (w == NULL)
            w = TAILQ_FIRST(&shelf->filling);
        sandbox_close(unshelve(w), "it gave way to one that was asked for");
    }
}

// ---- filling ----

static bool quick_retry(struct shelf *shelf, uint64_t now)
{
    if (shelf->quick_since == 0 || now - shelf->quick_since > QUICK_WINDOW_MS * NS_PER_MS) {
        shelf->quick_since = now;
        shelf->quick = 0;
    }
    return shelf->quick++ < target(shelf);
}

// Each that could be warm may fail once at no cost: somebody has killed them, or the host was short of something for a moment.
// What goes on failing has to wait, and longer each time.  How long, in ms.
static uint64_t retry_later(struct shelf *shelf)
{
    uint64_t now = mono_ns();
    if (now < shelf->not_before)  // one failure of several at once
        return (shelf->not_before - now) / NS_PER_MS;
    if (quick_retry(shelf, now))
        return 0;
    unsigned doublings = shelf->failures < RETRY_DOUBLINGS ? shelf->failures : RETRY_DOUBLINGS;
    shelf->not_before = now + (RETRY_MS * NS_PER_MS << doublings);
    shelf->failures++;
    return (uint64_t)RETRY_MS << doublings;
}

static void on_patience(void *arg)
{
    pool_started(arg, -ETIMEDOUT, "its agent was not ready within start_deadline_ms");
}

static void fill(struct shelf *shelf)
{
    struct pool *pool = shelf->pool;
    struct engine *e = pool->engine;
    struct warm *w = calloc(1, sizeof *w);
    struct sandbox *sb = w != NULL ? sandbox_new(e, NULL, shelf->shape.tier) : NULL;
    if (sb == NULL) {
        free(w);
        retry_later(shelf);
        return;
    }
    *w = (struct warm){.shelf = shelf, .sandbox = sb, .begun_ns = mono_ns()};
    timer_init(&w->patience, on_patience, w);
    sb->warm = w;
    TAILQ_INSERT_TAIL(&shelf->filling, w, link);
    shelf->filling_count++;
    pool->total++;
    struct driver_start start = {.template_handle = shelf->shape.template_handle,
                                 .memory_mib = shelf->shape.memory_mib,
                                 .disk_mib = shelf->shape.disk_mib,
                                 .vcpus = shelf->shape.vcpus,
                                 .pids_max = (uint32_t)e->config->pids_max,
                                 .disk_mib_s = (uint32_t)e->config->disk_mib_s,
                                 .disk_iops = (uint32_t)e->config->disk_iops,
                                 .hostname = sb->hostname,
                                 .network = shelf->shape.network,
                                 .waits = true};
    int r = timer_set(e->loop, &w->patience, mono_ns() + e->config->start_deadline_ms * NS_PER_MS);
    if (r == 0)
        r = sandbox_start(sb, &start);
    if (r < 0)
        pool_started(w, r, "the driver could not be asked");
}

static bool wants(const struct shelf *shelf)
{
    return shelf->ready_count + shelf->filling_count < target(shelf) && mono_ns() >= shelf->not_before;
}

// The one of those that want a sandbox which has the fewest: a busy shape does not keep the others from theirs.
static struct shelf *neediest(struct pool *pool)
{
    struct shelf *shelf, *found = NULL;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    if (wants(shelf) &&
        (found == NULL || shelf->ready_count + shelf->filling_count < found->ready_count + found->filling_count))
        found = shelf;
    return found;
}

// Warm ones take no place from those that are asked for: neither of max_sandboxes nor, while a few are being started, of the
// jailer's.
static bool may_fill(const struct pool *pool)
{
    const struct engine *e = pool->engine;
    unsigned count = e->sandbox_count + e->bare_creates;
    return !pool->stopped && pool_count(pool).filling < REFILLS_MAX && pool->total < e->config->pool_max &&
           count < e->config->max_sandboxes && count + e->config->max_creates < JAIL_SANDBOXES_MAX &&
           TAILQ_EMPTY(&e->waiting_creates);
}

static void on_refill(void *arg)
{
    struct pool *pool = arg;
    pool->put_off_since = 0;
    struct shelf *shelf;
    while (may_fill(pool) && (shelf = neediest(pool)) != NULL)
        fill(shelf);
}

static void refill_now(struct pool *pool)
{
    if (!pool->stopped)
        timer_set(pool->engine->loop, &pool->refill, mono_ns());
}

// A create is going on: what comes right after it (an exec, a destroy) should not have to wait behind a refill.
static void put_off_refill(struct pool *pool)
{
    uint64_t now = mono_ns();
    if (pool->put_off_since == 0)
        pool->put_off_since = now;
    if (!pool->stopped && now - pool->put_off_since < REFILL_PATIENCE_MS * NS_PER_MS)
        timer_set(pool->engine->loop, &pool->refill, now + REFILL_DELAY_MS * NS_PER_MS);
}

void pool_started(struct warm *w, int error, const char *detail)
{
    struct shelf *shelf = w->shelf;
    struct pool *pool = shelf->pool;
    if (error < 0) {
        log_warn("pool_fill_failed", log_str("template", shelf->template), log_errno(error), log_str("detail", detail),
                 log_u64("retry_ms", retry_later(shelf)));
        sandbox_close(unshelve(w), "it could not be started for the pool");
        refill_now(pool);
        return;
    }
    timer_cancel(pool->engine->loop, &w->patience);
    shelf->failures = 0;
    struct metrics *m = &pool->engine->metrics;
    m->pool_fills++;
    m->pool_fill_ns += mono_ns() - w->begun_ns;
    sandbox_step(w->sandbox, SANDBOX_READY);
    TAILQ_REMOVE(&shelf->filling, w, link);
    shelf->filling_count--;
    TAILQ_INSERT_TAIL(&shelf->ready, w, link);
    shelf->ready_count++;
    w->ready = true;
    creates_offer(pool->engine, &shelf->shape);
    refill_now(pool);
}

void pool_lost(struct warm *w)
{
    struct pool *pool = w->shelf->pool;
    log_warn("pool_lost", log_str("template", w->shelf->template), log_u64("retry_ms", retry_later(w->shelf)));
    unshelve(w);
    refill_now(pool);
}

// ---- taking ----

struct sandbox *pool_take(struct pool *pool, const struct shape *shape, const char *template)
{
    struct metrics *m = &pool->engine->metrics;
    struct shelf *shelf = find_shelf(pool, shape);
    if (shelf == NULL && pool->engine->config->pool_auto > 0 && !pool->stopped) {
        make_room_for_shelf(pool);
        shelf = new_shelf(pool, shape, template);
    }
    if (shelf != NULL)
        shelf->used_ns = mono_ns();
    put_off_refill(pool);
    struct warm *w = shelf != NULL ? TAILQ_FIRST(&shelf->ready) : NULL;
    if (w == NULL) {
        m->pool_misses++;
        return NULL;
    }
    m->pool_hits++;
    return unshelve(w);
}

void pool_forget_template(struct pool *pool, const struct tier *tier, uint32_t handle)
{
    if (pool == NULL)
        return;
    struct shelf *shelf, *next;
    for (shelf = TAILQ_FIRST(&pool->shelves); shelf != NULL; shelf = next) {
        next = TAILQ_NEXT(shelf, link);
        if (shelf->shape.tier == tier && shelf->shape.template_handle == handle)
            free_shelf(shelf, "its template is no longer loaded");
    }
}

// ---- the shapes of the settings ----

static void on_preset(void *arg, const struct template_answer *answer)
{
    struct preset *p = arg;
    struct pool *pool = p->pool;
    p->asking = false;
    if (answer->code != 0) {
        if (!p->refused)
            log_warn("pool_template", log_str("template", p->setting->template), log_str("reason", answer->text));
        p->refused = true;
        return;
    }
    p->refused = false;
    uint64_t disk = p->setting->disk_mib != 0 ? p->setting->disk_mib : pool->engine->config->disk_mib_default;
    struct shape shape = {.tier = p->tier,
                          .template_handle = answer->handle,
                          .memory_mib = p->setting->memory_mib,
                          .disk_mib = disk,
                          .vcpus = p->setting->vcpus,
                          .network = egress_standing_network(pool->engine->config)};
    struct shelf *shelf = find_shelf(pool, &shape);
    if (shelf == NULL)
        shelf = new_shelf(pool, &shape, p->setting->template);
    if (shelf == NULL || shelf->asked >= p->setting->count)  // the larger of two settings for one shape holds
        return;
    shelf->asked = p->setting->count;
    refill_now(pool);
}

// Also finds out that a template has changed: then its shelf is gone, and the answer makes a new one.
static void ask_for(struct preset *p)
{
    struct engine *e = p->pool->engine;
    const struct tier_wants wants = {.network = egress_standing_network(e->config) != NETWORK_NONE};
    p->tier = tiers_choose(&e->tiers, 0, wants, NULL);
    if (p->asking || p->tier == NULL)
        return;
    p->waiter.done = on_preset;
    p->waiter.arg = p;
    p->asking = template_get(e->templates, p->tier, p->setting->template, &p->waiter) == 0;
}

// ---- the whole ----

static void on_upkeep(void *arg)
{
    struct pool *pool = arg;
    if (pool->stopped)
        return;
    struct shelf *shelf, *next;
    for (shelf = TAILQ_FIRST(&pool->shelves); shelf != NULL; shelf = next) {
        next = TAILQ_NEXT(shelf, link);
        if (shelf->asked == 0 && !in_use(pool, shelf))
            free_shelf(shelf, IDLE);
        else
            while (shelf->ready_count > target(shelf))
                sandbox_close(unshelve(TAILQ_FIRST(&shelf->ready)), IDLE);
    }
    for (unsigned i = 0; i < pool->preset_count; i++)
        ask_for(&pool->presets[i]);
    if (!timer_is_set(&pool->refill))
        refill_now(pool);
    timer_set(pool->engine->loop, &pool->upkeep, mono_ns() + IDLE_CHECK_MS * NS_PER_MS);
}

int pool_new(struct engine *e, struct pool **ret_pool)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return -ENOMEM;
    pool->engine = e;
    TAILQ_INIT(&pool->shelves);
    timer_init(&pool->refill, on_refill, pool);
    timer_init(&pool->upkeep, on_upkeep, pool);
    pool->preset_count = e->config->pool.count;
    for (unsigned i = 0; i < pool->preset_count; i++)
        pool->presets[i] = (struct preset){.pool = pool, .setting = &e->config->pool.setting[i]};
    *ret_pool = pool;
    on_upkeep(pool);
    return 0;
}

void pool_stop(struct pool *pool)
{
    if (pool == NULL || pool->stopped)
        return;
    pool->stopped = true;
    timer_cancel(pool->engine->loop, &pool->refill);
    timer_cancel(pool->engine->loop, &pool->upkeep);
    for (unsigned i = 0; i < pool->preset_count; i++)
        template_cancel(&pool->presets[i].waiter);
    while (!TAILQ_EMPTY(&pool->shelves))
        free_shelf(TAILQ_FIRST(&pool->shelves), "the engine is stopping");
}

struct pool *pool_free(struct pool *pool)
{
    pool_stop(pool);
    free(pool);
    return NULL;
}

// ---- facts ----

struct pool_counts pool_count(const struct pool *pool)
{
    struct pool_counts counts = {0};
    const struct shelf *shelf;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    {
        counts.ready += shelf->ready_count;
        counts.filling += shelf->filling_count;
    }
    return counts;
}

void pool_list(const struct pool *pool, struct json_out *j)
{
    const struct shelf *shelf;
    TAILQ_FOREACH(shelf, &pool->shelves, link)
    {
        json_open(j, NULL, '{');
        json_str(j, "template", shelf->template);
        json_str(j, "isolation", shelf->shape.tier->name);
        json_u64(j, "memory_mib", shelf->shape.memory_mib);
        json_u64(j, "vcpus", shelf->shape.vcpus);
        json_u64(j, "disk_mib", shelf->shape.disk_mib);
        json_str(j, "network", network_name(shelf->shape.network));
        json_u64(j, "ready", shelf->ready_count);
        json_u64(j, "filling", shelf->filling_count);
        json_u64(j, "target", target(shelf));
        json_close(j, '}');
    }
}
