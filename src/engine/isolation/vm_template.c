#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/isolation/vm_template_inside.h"

#include <string.h>
#include <sys/stat.h>

void template_free(struct vm_template *t)
{
    t->line = agent_line_free(t->line);
    timer_cancel(vm_config_of(t->all->driver)->loop, &t->deadline);
    snapshot_files_close(&t->files);
    snapshot_files_close(&t->fresh);
    close_fd(&t->dir);
    TAILQ_REMOVE(&t->all->list, t, link);
    t->all->count--;
    free(t);
}

// ---- letting go of memory ----

static void unload(struct vm_template *t)
{
    snapshot_files_close(&t->files);
    t->state = WANTED;  // when it is asked for again
    t->retry_ns = UINT64_MAX;
    log_info("template_snapshot_unloaded", log_str("snapshot", t->name));
}

static void keep_within_limits(struct vm_templates *all, const struct vm_template *newest)
{
    for (;;) {
        struct vm_template *t, *oldest = NULL;
        uint64_t bytes = 0;
        unsigned loaded = 0;
        TAILQ_FOREACH(t, &all->list, link)
        {
            if (t->state != READY)
                continue;
            loaded++;
            bytes += t->bytes;
            if (t != newest && (oldest == NULL || t->used_ns < oldest->used_ns))
                oldest = t;
        }
        if (oldest == NULL || (loaded <= TEMPLATES_LOADED_MAX && bytes <= vm_config_of(all->driver)->template_memory_mib << 20))
            return;
        unload(oldest);
    }
}

void template_become_ready(struct vm_template *t)
{
    struct stat st;
    t->bytes = fstat(t->files.memory, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    t->state = READY;
    t->touched_ns = mono_ns();
    log_info("template_snapshot_ready", log_str("snapshot", t->name), log_u64("memory_mib", t->bytes >> 20));
    keep_within_limits(t->all, t);
}

void template_build_next(struct vm_templates *all)
{
    struct vm_template *t;
    if (all->building != NULL || all->stopping)
        return;
    TAILQ_FOREACH(t, &all->list, link)
    if (t->state == WANTED && t->retry_ns == 0 && !t->forgotten) {
        template_build(t);
        return;
    }
}

// ---- for the driver ----

static struct vm_template *find(struct vm_templates *all, const char *name)
{
    struct vm_template *t;
    TAILQ_FOREACH(t, &all->list, link)
    if (!t->forgotten && strcmp(t->name, name) == 0)
        return t;
    return NULL;
}

// Lets go of the one that was used longest ago.  False: something is under way in all of them.
static bool make_room(struct vm_templates *all)
{
    struct vm_template *t, *oldest = NULL;
    if (all->count < TEMPLATE_SHAPES_MAX)
        return true;
    TAILQ_FOREACH(t, &all->list, link)
    if (!template_is_busy(t) && t != all->building && (oldest == NULL || t->used_ns < oldest->used_ns))
        oldest = t;
    if (oldest != NULL)
        template_free(oldest);
    return oldest != NULL;
}

static struct vm_template *add(struct vm_templates *all, const char *name, const struct snapshot_key *key,
                               const struct jail_start *shape)
{
    struct vm_template *t = make_room(all) ? calloc(1, sizeof *t) : NULL;
    if (t == NULL)
        return NULL;
    *t = (struct vm_template){
        .all = all, .shape = *shape, .key = *key, .files = SNAPSHOT_FILES_INIT, .fresh = SNAPSHOT_FILES_INIT, .dir = -1};
    memset(t->shape.hostname, 0, sizeof t->shape.hostname);
    memcpy(t->shape.hostname, "template", sizeof "template");
    memcpy(t->name, name, sizeof t->name);
    timer_init(&t->deadline, template_on_deadline, t);
    TAILQ_INSERT_TAIL(&all->list, t, link);
    all->count++;
    return t;
}

const struct snapshot_files *vm_template_get(struct vm_templates *all, const struct snapshot_key *key,
                                             const struct jail_start *shape, char ret_name[SNAPSHOT_KEY_DIGITS + 1])
{
    if (snapshot_key_name(key, ret_name) < 0)
        return NULL;
    struct vm_template *t = find(all, ret_name);
    if (t == NULL && (t = add(all, ret_name, key, shape)) == NULL)
        return NULL;
    t->used_ns = mono_ns();
    t->shape.template_slot = shape->template_slot;
    if (t->state == READY && snapshot_files_unchanged(&t->files)) {
        if (t->used_ns - t->touched_ns >= TEMPLATE_TOUCH_S * NS_PER_S) {
            snapshot_touch(all->store, t->name);
            t->touched_ns = t->used_ns;
        }
        return &t->files;
    }
    if (t->state == READY)  // somebody was at its files: they are checked again
        unload(t);
    if (t->state == FAILED && t->used_ns >= t->retry_ns && !template_is_busy(t))
        t->state = WANTED;
    if (t->state == WANTED) {
        t->retry_ns = 0;
        template_build_next(all);
    }
    return NULL;
}

void vm_template_refused(struct vm_templates *all, const char *name, const char *reason)
{
    struct vm_template *t = find(all, name);
    if (t == NULL || t->state != READY)
        return;
    log_error("template_snapshot_refused", log_str("snapshot", t->name), log_str("reason", reason));
    unload(t);
    t->refused = true;
}

void vm_templates_forget(struct vm_templates *all, uint32_t template_slot)
{
    struct vm_template *t, *next;
    for (t = TAILQ_FIRST(&all->list); t != NULL; t = next) {
        next = TAILQ_NEXT(t, link);
        if (t->shape.template_slot != template_slot || t->forgotten)
            continue;
        t->forgotten = true;
        if (template_is_busy(t))
            continue;  // freed when what is under way has ended
        if (all->building == t)
            template_give_up(t);
        else
            template_free(t);
    }
}

int vm_templates_new(struct vm_driver *driver, int state_dir, struct vm_templates **ret_templates)
{
    struct vm_templates *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    *all = (struct vm_templates){.driver = driver, .store = snapshot_store_open(state_dir)};
    if (all->store < 0) {
        int r = all->store;
        free(all);
        return r;
    }
    TAILQ_INIT(&all->list);
    *ret_templates = all;
    return 0;
}

void vm_templates_stop(struct vm_templates *all)
{
    all->stopping = true;
}

struct vm_templates *vm_templates_free(struct vm_templates *all)
{
    if (all == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&all->list))
        template_free(TAILQ_FIRST(&all->list));
    close_fd(&all->store);
    free(all);
    return NULL;
}
