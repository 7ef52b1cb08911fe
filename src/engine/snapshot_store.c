#include "engine/snapshot_store.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/snapshot_files.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

TAILQ_HEAD(snapshot_list, snapshot);

// One that somebody stands on, or was seen at the start.
struct layer {
    LIST_ENTRY(layer) link;
    uint8_t id[SNAPSHOT_LAYER_ID];
    unsigned holders;
    bool seen;  // the jailer has it
};

LIST_HEAD(layer_list, layer);

struct snapshot_store {
    struct engine *engine;
    int state_dir;
    int dir;
    struct snapshot_list all;  // in the order of ids
    struct layer_list layers;
    void (*ready)(void *arg);
    void *arg;
    struct err trouble;  // code 0: none
    bool keep_all;       // something is damaged
};

// Work on files, on a worker thread.
struct task {
    struct job job;
    struct snapshot_store *store;
    void (*work)(struct task *t);
    void (*done)(struct task *t);
    int error;
    struct snapshot *snapshot;
    char id[SNAPSHOT_ID_LEN + 1];  // of a folder
    struct buf body;
    snapshot_added_fn *added;
    void (*removed)(void *arg, int error);
    void *arg;
    struct snapshot_list found;  // at start
    bool damaged;
};

static void run_task(struct job *job)
{
    struct task *t = (struct task *)((char *)job - offsetof(struct task, job));
    t->work(t);
}

static void free_snapshot(struct snapshot *s)
{
    if (s == NULL)
        return;
    free(s->body);
    free(s);
}

static void finish_task(struct job *job, bool ran)
{
    struct task *t = (struct task *)((char *)job - offsetof(struct task, job));
    if (!ran)
        t->error = -ECANCELED;
    t->done(t);
    buf_free(&t->body);
    free(t);
}

static struct task *new_task(struct snapshot_store *store, void (*work)(struct task *t), void (*done)(struct task *t))
{
    struct task *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    *t = (struct task){.job = {.run = run_task, .finish = finish_task},
                       .store = store,
                       .work = work,
                       .done = done,
                       .body = BUF_INIT(SNAPSHOT_META_MAX)};
    TAILQ_INIT(&t->found);
    return t;
}

// ---- layers ----

static struct layer *find_layer(struct snapshot_store *store, const uint8_t id[static SNAPSHOT_LAYER_ID])
{
    struct layer *l;
    LIST_FOREACH(l, &store->layers, link)
    if (memcmp(l->id, id, SNAPSHOT_LAYER_ID) == 0)
        return l;
    return NULL;
}

static struct layer *layer_of(struct snapshot_store *store, const uint8_t id[static SNAPSHOT_LAYER_ID])
{
    struct layer *l = find_layer(store, id);
    if (l != NULL)
        return l;
    l = calloc(1, sizeof *l);
    if (l == NULL)
        return NULL;
    memcpy(l->id, id, SNAPSHOT_LAYER_ID);
    LIST_INSERT_HEAD(&store->layers, l, link);
    return l;
}

static void forget_layer(struct layer *l)
{
    LIST_REMOVE(l, link);
    free(l);
}

static void log_layer(enum log_level level, const char *event, const uint8_t id[static SNAPSHOT_LAYER_ID], int error)
{
    char text[2 * SNAPSHOT_LAYER_ID + 1];
    hex_encode(id, SNAPSHOT_LAYER_ID, text);
    log_emit(level, event, LOG_FIELDS(log_str("layer", text), log_errno(error)));
}

static void on_layer_deleted(void *arg, const struct driver_answer *answer)
{
    (void)arg;
    if (answer->error < 0 && answer->error != -ENOENT && answer->error != -ECANCELED)
        log_error("layer_not_deleted", log_errno(answer->error));  // the next start tries again
}

static void delete_layer(struct snapshot_store *store, const uint8_t id[static SNAPSHOT_LAYER_ID])
{
    if (store->engine->container == NULL)  // at the end: the next start deletes it
        return;
    int r = container_layer_delete(store->engine->container, id, on_layer_deleted, NULL);
    if (r < 0 && r != -EPIPE)
        log_layer(LOG_LEVEL_WARN, "layer_not_deleted", id, r);
}

void snapshot_layers_hold(struct snapshot_store *store, const uint8_t (*layers)[SNAPSHOT_LAYER_ID], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct layer *l = layer_of(store, layers[i]);
        if (l == NULL)
            abort();  // an uncounted one would be deleted under its sandboxes
        l->holders++;
    }
}

void snapshot_layers_drop(struct snapshot_store *store, const uint8_t (*layers)[SNAPSHOT_LAYER_ID], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct layer *l = find_layer(store, layers[i]);
        if (l == NULL || --l->holders > 0)
            continue;
        delete_layer(store, l->id);
        forget_layer(l);
    }
}

// ---- the table ----

static void insert(struct snapshot_store *store, struct snapshot *s)
{
    struct snapshot *at;
    s->store = store;
    TAILQ_FOREACH(at, &store->all, link)
    if (strcmp(at->meta.id, s->meta.id) > 0) {
        TAILQ_INSERT_BEFORE(at, s, link);
        return;
    }
    TAILQ_INSERT_TAIL(&store->all, s, link);
}

struct snapshot *snapshot_store_next(struct snapshot_store *store, const char *owner, const char *after)
{
    struct snapshot *s;
    TAILQ_FOREACH(s, &store->all, link)
    if (!s->deleted && strcmp(s->meta.id, after) > 0 && strcmp(s->meta.owner, owner) == 0)
        return s;
    return NULL;
}

struct snapshot *snapshot_store_find(struct snapshot_store *store, const char *owner, const char *id)
{
    struct snapshot *s;
    TAILQ_FOREACH(s, &store->all, link)
    if (!s->deleted && strcmp(s->meta.id, id) == 0)
        return strcmp(s->meta.owner, owner) == 0 ? s : NULL;
    return NULL;
}

unsigned snapshot_store_count(const struct snapshot_store *store, const char *owner)
{
    unsigned n = 0;
    const struct snapshot *s;
    TAILQ_FOREACH(s, &store->all, link)
    n += !s->deleted && strcmp(s->meta.owner, owner) == 0;
    return n;
}

unsigned snapshot_store_total(const struct snapshot_store *store, uint64_t *ret_bytes)
{
    unsigned n = 0;
    uint64_t bytes = 0;
    const struct snapshot *s;
    TAILQ_FOREACH(s, &store->all, link)
    if (!s->deleted) {
        n++;
        bytes += s->meta.bytes;
    }
    *ret_bytes = bytes;
    return n;
}

const char *snapshot_store_trouble(const struct snapshot_store *store)
{
    return store->trouble.code != 0 ? store->trouble.text : NULL;
}

static void done_nothing(struct task *t)
{
    (void)t;
}

// On a worker, with nobody waiting for it: what cannot be done, the next start does.
static void submit_for(struct snapshot_store *store, const char *id, void (*work)(struct task *t))
{
    struct task *t = new_task(store, work, done_nothing);
    if (t == NULL)
        return;
    memcpy(t->id, id, strlen(id) + 1);
    workers_submit(store->engine->workers, &t->job);
}

static void work_clear(struct task *t)
{
    snapshot_files_clear(t->store->dir, t->id);
}

static void work_abandon(struct task *t)
{
    snapshot_files_abandon(t->store->dir, t->id);
}

// What its tier holds of it; at the end that goes with the tier.
static void unload(struct snapshot *s)
{
    const struct tier *tier = tiers_at(&s->store->engine->tiers, s->meta.isolation);
    if (tier->driver != NULL && tier->self != NULL && tier->driver->unload != NULL)
        tier->driver->unload(tier->self, s->meta.id);
}

static void drop(struct snapshot *s)
{
    if (s->meta.memory && !s->store->engine->stopping) {
        unload(s);
        submit_for(s->store, s->meta.id, work_clear);
    }
    TAILQ_REMOVE(&s->store->all, s, link);
    snapshot_layers_drop(s->store, s->meta.layer, s->meta.layers);
    free_snapshot(s);
}

void snapshot_pin(struct snapshot *s)
{
    s->pins++;
}

void snapshot_unpin(struct snapshot *s)
{
    if (--s->pins == 0 && s->deleted)
        drop(s);
}

// ---- adding and removing ----

int snapshot_store_begin(struct snapshot_store *store, const char *id)
{
    int folder = snapshot_files_begin(store->dir, id);
    if (folder < 0)
        snapshot_files_abandon(store->dir, id);
    return folder;
}

void snapshot_store_abandon(struct snapshot_store *store, const char *id)
{
    if (!store->engine->stopping)
        submit_for(store, id, work_abandon);
}

int snapshot_store_folder(const struct snapshot *s)
{
    return snapshot_files_folder(s->store->dir, s->meta.id);
}

static void work_add(struct task *t)
{
    t->error = snapshot_files_write(t->store->dir, t->snapshot->meta.id, t->body.data, t->body.len);
}

static void done_add(struct task *t)
{
    struct snapshot *s = take_ptr(&t->snapshot);
    if (t->error < 0) {
        free_snapshot(s);
        s = NULL;
    } else {
        insert(t->store, s);
        snapshot_layers_hold(t->store, s->meta.layer, s->meta.layers);
    }
    t->added(t->arg, t->error, s);
}

int snapshot_store_add(struct snapshot_store *store, const struct snapshot_meta *meta, snapshot_added_fn *done, void *arg)
{
    struct task *t = new_task(store, work_add, done_add);
    struct snapshot *s = calloc(1, sizeof *s);
    int r = t == NULL || s == NULL ? -ENOMEM : snapshot_meta_write(meta, &t->body);
    // The copy's variables point into a body of its own.
    if (r == 0)
        r = (s->body = malloc(t->body.len)) == NULL ? -ENOMEM : 0;
    if (r == 0) {
        memcpy(s->body, t->body.data, t->body.len);
        r = snapshot_meta_parse(s->body, t->body.len, &s->meta);
    }
    if (r < 0) {
        if (t != NULL)
            buf_free(&t->body);
        free(t);
        free_snapshot(s);
        return r;
    }
    t->snapshot = s;
    t->added = done;
    t->arg = arg;
    workers_submit(store->engine->workers, &t->job);
    return 0;
}

// Files that forks are still to be made from stay until it is dropped.
static void work_remove(struct task *t)
{
    const struct snapshot_meta *m = &t->snapshot->meta;
    t->error = m->memory ? snapshot_files_hide(t->store->dir, m->id) : snapshot_files_remove(t->store->dir, m->id);
}

static void done_remove(struct task *t)
{
    if (t->error < 0)
        log_error("snapshot_not_removed", log_str("snapshot", t->snapshot->meta.id), log_errno(t->error));
    // On the disk it may still stand on its layers.
    if (t->error < 0 && t->error != -ENOENT)
        t->snapshot->deleted = false;
    snapshot_unpin(t->snapshot);
    if (t->removed != NULL)
        t->removed(t->arg, t->error);
}

int snapshot_store_remove(struct snapshot *s, void (*done)(void *arg, int error), void *arg)
{
    struct task *t = new_task(s->store, work_remove, done_remove);
    if (t == NULL)
        return -ENOMEM;
    t->snapshot = s;
    t->removed = done;
    t->arg = arg;
    s->deleted = true;
    snapshot_pin(s);
    workers_submit(s->store->engine->workers, &t->job);
    return 0;
}

// ---- the start ----

static bool whole(struct snapshot_store *store, const struct snapshot *s)
{
    for (uint32_t i = 0; i < s->meta.layers; i++) {
        struct layer *l = find_layer(store, s->meta.layer[i]);
        if (l == NULL || !l->seen)
            return false;
    }
    return true;
}

// What belongs together is known.
static void reconcile(struct snapshot_store *store)
{
    struct snapshot *s, *next;
    for (s = TAILQ_FIRST(&store->all); s != NULL; s = next) {
        next = TAILQ_NEXT(s, link);
        if (whole(store, s))
            continue;
        log_error("snapshot_lost", log_str("snapshot", s->meta.id), log_str("reason", "a part of its disk is gone"));
        snapshot_store_remove(s, NULL, NULL);
    }
    struct layer *l, *after;
    for (l = LIST_FIRST(&store->layers); l != NULL; l = after) {
        after = LIST_NEXT(l, link);
        if (l->holders > 0 || store->keep_all)
            continue;
        log_layer(LOG_LEVEL_WARN, "layer_removed", l->id, 0);
        delete_layer(store, l->id);
        forget_layer(l);
    }
    store->ready(store->arg);
}

static void list_after(struct snapshot_store *store, const uint8_t id[static SNAPSHOT_LAYER_ID]);

static void on_listed(void *arg, const struct driver_answer *answer)
{
    struct snapshot_store *store = arg;
    if (answer->error == -ECANCELED)
        return;
    if (answer->error < 0) {
        err_set(&store->trouble, answer->error, "the jailer cannot list them: %s", strerror(-answer->error));
        store->ready(store->arg);
        return;
    }
    for (uint32_t i = 0; i < answer->volume_count; i++) {
        struct layer *l = layer_of(store, answer->volumes[i]);
        if (l != NULL)
            l->seen = true;
        else
            store->keep_all = true;
    }
    if (answer->volume_count == JAIL_VOLUMES_LISTED)
        list_after(store, answer->volumes[JAIL_VOLUMES_LISTED - 1]);
    else
        reconcile(store);
}

static void list_after(struct snapshot_store *store, const uint8_t id[static SNAPSHOT_LAYER_ID])
{
    int r = container_layer_list(store->engine->container, id, on_listed, store);
    if (r < 0)
        on_listed(store, &(struct driver_answer){.error = r});
}

static int load(struct task *t, const char *id)
{
    struct snapshot *s = calloc(1, sizeof *s);
    int r = s == NULL ? -ENOMEM : snapshot_files_read(t->store->dir, id, &s->meta, &s->body);
    if (r == 0) {
        TAILQ_INSERT_TAIL(&t->found, s, link);
        return 0;
    }
    free(s);
    log_error("snapshot_damaged", log_str("snapshot", id), log_errno(r));
    t->damaged = true;
    return r == -ENOMEM ? r : 0;
}

static void work_open(struct task *t)
{
    t->store->dir = snapshot_files_open(t->store->state_dir);
    t->error = t->store->dir < 0 ? t->store->dir : 0;
    char(*ids)[SNAPSHOT_ID_LEN + 1] = NULL;
    size_t n = 0;
    if (t->error == 0)
        t->error = snapshot_files_list(t->store->dir, &ids, &n);
    for (size_t i = 0; i < n && t->error == 0; i++)
        t->error = load(t, ids[i]);
    free(ids);
}

static void done_open(struct task *t)
{
    struct snapshot_store *store = t->store;
    struct snapshot *s;
    while ((s = TAILQ_FIRST(&t->found)) != NULL) {
        TAILQ_REMOVE(&t->found, s, link);
        if (t->error < 0) {
            free_snapshot(s);
            continue;
        }
        insert(store, s);
        snapshot_layers_hold(store, s->meta.layer, s->meta.layers);
    }
    if (t->error == -ECANCELED)
        return;
    store->keep_all = t->damaged;
    static const uint8_t first[SNAPSHOT_LAYER_ID];
    if (t->error == 0) {
        list_after(store, first);
        return;
    }
    err_set(&store->trouble, t->error, "the folder of snapshots cannot be read: %s", strerror(-t->error));
    log_error("no_snapshots", log_str("reason", store->trouble.text));
    store->ready(store->arg);
}

int snapshot_store_new(struct engine *e, int state_dir, void (*ready)(void *arg), void *arg, struct snapshot_store **ret_store)
{
    struct snapshot_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return -ENOMEM;
    *store = (struct snapshot_store){.engine = e, .state_dir = state_dir, .dir = -1, .ready = ready, .arg = arg};
    TAILQ_INIT(&store->all);
    LIST_INIT(&store->layers);
    struct task *t = new_task(store, work_open, done_open);
    if (t == NULL) {
        free(store);
        return -ENOMEM;
    }
    workers_submit(e->workers, &t->job);
    *ret_store = store;
    return 0;
}

struct snapshot_store *snapshot_store_free(struct snapshot_store *store)
{
    if (store == NULL)
        return NULL;
    struct snapshot *s;
    while ((s = TAILQ_FIRST(&store->all)) != NULL) {
        TAILQ_REMOVE(&store->all, s, link);
        free_snapshot(s);
    }
    while (!LIST_EMPTY(&store->layers))
        forget_layer(LIST_FIRST(&store->layers));
    close_fd(&store->dir);
    free(store);
    return NULL;
}
