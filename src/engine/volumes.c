#include "engine/volumes.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "libsandbox.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    REAPED_AT_ONCE = 64,
    REAP_LONGEST_MS = 60000,  // between two looks, whatever is due: the wall clock may be set
    REAP_RETRY_MS = 1000,
};

TAILQ_HEAD(waiter_list, volume_waiter);

// One key that somebody has or wants.
struct volume_lease {
    TAILQ_ENTRY(volume_lease) link;
    struct volumes *volumes;
    struct volume_key key;
    struct volume_row row;
    struct volume_waiter *current;  // for whom it is being got; NULL: nobody any more, or it is held
    struct waiter_list waiters;
    bool held;
};

TAILQ_HEAD(lease_list, volume_lease);

struct volumes {
    struct engine *engine;
    struct workers *workers;  // one thread: the database's
    struct state_db *db;      // that thread's alone
    int dir;
    bool usable;
    struct err trouble;
    struct lease_list leases;
    unsigned held;

    struct volume_facts facts;
    bool counting, count_again;

    struct timer reaper;
    uint64_t reap_ns;  // when it is set for
    bool reaping;
    unsigned deleting;  // answers of the jailer that are due
    bool more, failed;  // of this round
    int64_t due_ms;     // what has become due meanwhile

    // While it starts.
    void (*ready)(void *arg);
    void *arg;
    uint8_t (*known)[JAIL_VOLUME_ID];  // those that should have a file, in order
    bool *seen;
    size_t known_count;
    size_t files;
    bool is_new;
};

// ---- work for the database's thread ----

struct task {
    struct job job;
    struct volumes *volumes;
    int (*work)(struct task *t);   // on the thread; a code, with err
    void (*done)(struct task *t);  // on the loop; `code` and `err` say how it went.  Frees nothing of the task.
    int code;
    struct err err;

    struct volume_lease *lease;
    struct request *request;
    struct volume_key key;
    struct volume_want want;
    struct volume_row row;
    uint8_t id[JAIL_VOLUME_ID];
    uint32_t extra_s;
    int64_t time_ms;  // in or out
    struct volume_facts facts;
    uint8_t ids[REAPED_AT_ONCE][JAIL_VOLUME_ID];
    size_t count;
};

static int64_t wall_ms(void)
{
    return (int64_t)(wall_ns() / NS_PER_MS);
}

static void run_task(struct job *job)
{
    struct task *t = (struct task *)((char *)job - offsetof(struct task, job));
    t->code = t->work(t);
}

static void finish_task(struct job *job, bool ran)
{
    struct task *t = (struct task *)((char *)job - offsetof(struct task, job));
    if (ran)
        t->done(t);
    else if (t->request != NULL)
        request_fail(t->request, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine is stopping");
    free(t);
}

static struct task *new_task(struct volumes *v, int (*work)(struct task *t), void (*done)(struct task *t))
{
    struct task *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->job = (struct job){.run = run_task, .finish = finish_task};
        t->volumes = v;
        t->work = work;
        t->done = done;
    }
    return t;
}

static void submit(struct task *t)
{
    workers_submit(t->volumes->workers, &t->job);
}

static void log_id(enum log_level level, const char *event, const uint8_t id[static JAIL_VOLUME_ID], const char *reason)
{
    char text[2 * JAIL_VOLUME_ID + 1];
    hex_encode(id, JAIL_VOLUME_ID, text);
    log_emit(level, event, LOG_FIELDS(log_str("volume", text), log_str("reason", reason)));
}

// ---- the facts ----

static void count(struct volumes *v);

static int work_count(struct task *t)
{
    return volume_table_facts(t->volumes->db, &t->facts, &t->err);
}

static void done_count(struct task *t)
{
    struct volumes *v = t->volumes;
    v->counting = false;
    if (t->code == 0)
        v->facts = t->facts;
    if (v->count_again)
        count(v);
}

// Something has changed: the figures are read anew behind what the database has to do already, so that no create waits for it.
static void count(struct volumes *v)
{
    v->count_again = v->counting;
    struct task *t = v->counting ? NULL : new_task(v, work_count, done_count);
    if (t == NULL)
        return;
    v->counting = true;
    submit(t);
}

// For what nobody waits for.
static void done_quietly(struct task *t)
{
    if (t->code != 0)
        log_id(LOG_LEVEL_ERROR, "volume_record_failed", t->id, t->err.text);
}

static void done_record(struct task *t)
{
    done_quietly(t);
    count(t->volumes);
}

static int work_unmake(struct task *t)
{
    return volume_table_unmake(t->volumes->db, t->id, &t->err);
}

static int work_lost(struct task *t)
{
    return volume_table_lost(t->volumes->db, t->id, &t->err);
}

static int work_gone(struct task *t)
{
    return volume_table_gone(t->volumes->db, t->id, wall_ms(), t->want.max_ttl_s, &t->err);
}

static void record(struct volumes *v, int (*work)(struct task *t), const uint8_t id[static JAIL_VOLUME_ID])
{
    struct task *t = new_task(v, work, done_record);
    if (t == NULL) {
        log_id(LOG_LEVEL_ERROR, "volume_record_failed", id, "out of memory");
        return;
    }
    memcpy(t->id, id, sizeof t->id);
    t->want.max_ttl_s = v->engine->config->workspace_max_ttl_s;
    submit(t);
}

// ---- the reaper ----

static void reap_at(struct volumes *v, int64_t when_ms)
{
    int64_t now = wall_ms();
    int64_t wait = when_ms <= now ? 0 : when_ms - now;
    if (wait > REAP_LONGEST_MS)
        wait = REAP_LONGEST_MS;
    uint64_t at = mono_ns() + (uint64_t)wait * NS_PER_MS;
    if (v->reaping && when_ms < v->due_ms)
        v->due_ms = when_ms;
    if (!v->usable || v->reaping || (v->reap_ns != 0 && v->reap_ns <= at))
        return;
    v->reap_ns = at;
    timer_set(v->engine->loop, &v->reaper, at);
}

static void end_round(struct volumes *v, int64_t next_ms)
{
    v->reaping = false;
    if (v->failed)
        next_ms = wall_ms() + REAP_RETRY_MS;
    else if (v->more)
        next_ms = 0;
    reap_at(v, next_ms < v->due_ms ? next_ms : v->due_ms);
}

struct deletion {
    struct volumes *volumes;
    uint8_t id[JAIL_VOLUME_ID];
    int64_t next_ms;
};

static void on_deleted(void *arg, const struct driver_answer *answer)
{
    struct deletion *d = arg;
    struct volumes *v = d->volumes;
    if (answer->error == 0 || answer->error == -ENOENT) {
        log_id(LOG_LEVEL_INFO, "volume_expired", d->id, "its time has passed");
        v->engine->metrics.volumes_expired++;
        record(v, work_gone, d->id);
    } else if (answer->error != -ECANCELED) {
        log_id(LOG_LEVEL_WARN, "volume_not_deleted", d->id, strerror(-answer->error));
        v->failed = true;
    }
    int64_t next = d->next_ms;
    free(d);
    if (--v->deleting == 0 && answer->error != -ECANCELED)
        end_round(v, next);
}

static void delete_one(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], int64_t next_ms)
{
    struct deletion *d = malloc(sizeof *d);
    if (d != NULL) {
        *d = (struct deletion){.volumes = v, .next_ms = next_ms};
        memcpy(d->id, id, sizeof d->id);
    }
    if (d == NULL || container_volume_delete(v->engine->container, id, on_deleted, d) < 0) {
        free(d);
        v->failed = true;
        return;
    }
    v->deleting++;
}

static int work_expire(struct task *t)
{
    return volume_table_expire(t->volumes->db, wall_ms(), REAPED_AT_ONCE, t->ids, &t->count, &t->time_ms, &t->err);
}

static void done_expire(struct task *t)
{
    struct volumes *v = t->volumes;
    v->failed = t->code != 0;
    v->more = t->count == REAPED_AT_ONCE;
    if (t->count > 0)
        count(v);
    if (t->code != 0)
        log_error("volumes_not_reaped", log_str("reason", t->err.text));
    for (size_t i = 0; i < t->count && t->code == 0; i++)
        delete_one(v, t->ids[i], t->time_ms);
    if (v->deleting == 0)
        end_round(v, t->time_ms);
}

static void on_reaper(void *arg)
{
    struct volumes *v = arg;
    v->reap_ns = 0;
    struct task *t = new_task(v, work_expire, done_expire);
    if (t == NULL) {
        reap_at(v, wall_ms() + REAP_RETRY_MS);
        return;
    }
    v->reaping = true;
    v->due_ms = INT64_MAX;
    submit(t);
}

// ---- getting a volume ----

static void ask_for(struct volume_lease *lease, struct volume_waiter *waiter);

static void free_lease(struct volume_lease *lease)
{
    TAILQ_REMOVE(&lease->volumes->leases, lease, link);
    free(lease);
}

// The key is free: the next one in line has it.
static void next_in_line(struct volume_lease *lease)
{
    struct volume_waiter *w = TAILQ_FIRST(&lease->waiters);
    if (w == NULL) {
        free_lease(lease);
        return;
    }
    TAILQ_REMOVE(&lease->waiters, w, link);
    ask_for(lease, w);
}

static void refuse(struct volume_lease *lease, const struct err *err)
{
    struct volume_waiter *w = take_ptr(&lease->current);
    if (w != NULL) {
        w->lease = NULL;
        w->done(w->arg, &(struct volume_answer){.err = err});
    }
    next_in_line(lease);
}

static void give(struct volume_lease *lease)
{
    struct volume_waiter *w = take_ptr(&lease->current);
    lease->held = true;
    lease->volumes->held++;
    if (w == NULL) {  // its create has gone
        volume_release(lease);
        return;
    }
    w->lease = NULL;
    w->done(w->arg, &(struct volume_answer){.lease = lease});
}

static int work_made(struct task *t)
{
    return volume_table_made(t->volumes->db, t->id, &t->err);
}

static void done_made(struct task *t)
{
    if (t->code !=
        0) {  // its row stays as it is, and the file is deleted with it when the key is next asked for, or at a start
        refuse(t->lease, &t->err);
        return;
    }
    log_id(LOG_LEVEL_INFO, "volume_made", t->id, t->lease->key.owner);
    t->volumes->engine->metrics.volumes_made++;
    count(t->volumes);
    reap_at(t->volumes, t->lease->row.expires_ms);
    give(t->lease);
}

static void refuse_memory(struct volume_lease *lease)
{
    struct err err;
    err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    refuse(lease, &err);
}

static void on_created(void *arg, const struct driver_answer *answer)
{
    struct volume_lease *lease = arg;
    struct volumes *v = lease->volumes;
    if (answer->error == -ECANCELED)
        return;
    if (answer->error < 0) {
        struct err err;
        log_error("volume_not_made", log_errno(answer->error), log_str("detail", answer->detail));
        err_set(&err, SANDBOX_ERR_INTERNAL, "the session's volume could not be made: %s",
                answer->detail[0] != '\0' ? answer->detail : strerror(-answer->error));
        record(v, work_unmake, lease->row.id);
        refuse(lease, &err);
        return;
    }
    struct task *t = new_task(v, work_made, done_made);
    if (t == NULL) {
        refuse_memory(lease);
        return;
    }
    t->lease = lease;
    memcpy(t->id, lease->row.id, sizeof t->id);
    submit(t);
}

static int work_acquire(struct task *t)
{
    return volume_table_acquire(t->volumes->db, &t->key, &t->want, wall_ms(), &t->row, &t->err);
}

static void done_acquire(struct task *t)
{
    struct volume_lease *lease = t->lease;
    struct volumes *v = t->volumes;
    if (t->row.replaces) {
        reap_at(v, 0);
        count(v);
    }
    if (t->code != 0) {
        refuse(lease, &t->err);
        return;
    }
    lease->row = t->row;
    if (!t->row.fresh) {
        give(lease);
        return;
    }
    int r = container_volume_create(v->engine->container, lease->row.id, lease->row.size_mib,
                                    lease->row.tier == SANDBOX_ISOLATION_VM, on_created, lease);
    if (r < 0)
        on_created(lease, &(struct driver_answer){.error = r, .detail = "the jailer could not be asked"});
}

static void ask_for(struct volume_lease *lease, struct volume_waiter *waiter)
{
    lease->current = waiter;
    struct task *t = new_task(lease->volumes, work_acquire, done_acquire);
    if (t == NULL) {
        refuse_memory(lease);
        return;
    }
    t->lease = lease;
    t->key = lease->key;
    t->want = waiter->want;
    submit(t);
}

static struct volume_lease *find(const struct volumes *v, const struct volume_key *key)
{
    struct volume_lease *lease;
    TAILQ_FOREACH(lease, &v->leases, link)
    if (lease->key.key_len == key->key_len && memcmp(lease->key.key, key->key, key->key_len) == 0 &&
        strcmp(lease->key.owner, key->owner) == 0)
        return lease;
    return NULL;
}

int volume_acquire(struct volumes *v, const struct volume_key *key, struct volume_waiter *waiter)
{
    struct volume_lease *lease = find(v, key);
    if (lease != NULL) {
        waiter->lease = lease;
        TAILQ_INSERT_TAIL(&lease->waiters, waiter, link);
        return 0;
    }
    lease = calloc(1, sizeof *lease);
    if (lease == NULL)
        return -ENOMEM;
    lease->volumes = v;
    lease->key = *key;
    TAILQ_INIT(&lease->waiters);
    TAILQ_INSERT_TAIL(&v->leases, lease, link);
    waiter->lease = lease;
    struct task *t = new_task(v, work_acquire, done_acquire);
    if (t == NULL) {
        waiter->lease = NULL;
        free_lease(lease);
        return -ENOMEM;
    }
    lease->current = waiter;
    t->lease = lease;
    t->key = *key;
    t->want = waiter->want;
    submit(t);
    return 0;
}

void volume_cancel(struct volume_waiter *waiter)
{
    struct volume_lease *lease = take_ptr(&waiter->lease);
    if (lease == NULL)
        return;
    if (lease->current == waiter)
        lease->current = NULL;
    else
        TAILQ_REMOVE(&lease->waiters, waiter, link);
}

uint32_t volume_tier(const struct volume_lease *lease)
{
    return lease->row.tier;
}

const uint8_t *volume_id(const struct volume_lease *lease)
{
    return lease->row.id;
}

static int work_release(struct task *t)
{
    return volume_table_release(t->volumes->db, t->id, &t->err);
}

static void done_release(struct task *t)
{
    done_quietly(t);
    if (t->lease->row.expires_ms <= wall_ms())
        reap_at(t->volumes, 0);
    next_in_line(t->lease);
}

void volume_release(struct volume_lease *lease)
{
    if (lease == NULL)
        return;
    lease->held = false;
    lease->volumes->held--;
    struct task *t = new_task(lease->volumes, work_release, done_release);
    if (t == NULL) {  // it only cannot expire before the next start
        log_id(LOG_LEVEL_ERROR, "volume_record_failed", lease->row.id, "out of memory");
        next_in_line(lease);
        return;
    }
    t->lease = lease;
    memcpy(t->id, lease->row.id, sizeof t->id);
    submit(t);
}

// ---- renewing ----

static int work_renew(struct task *t)
{
    return volume_table_renew(t->volumes->db, &t->key, t->extra_s, t->want.max_ttl_s, wall_ms(), &t->time_ms, &t->err);
}

static void done_renew(struct task *t)
{
    struct request *r = take_ptr(&t->request);
    count(t->volumes);
    if (t->code != 0) {
        request_fail_err(r, &t->err);
        reap_at(t->volumes, 0);
        return;
    }
    // One that is held may have been told an earlier time.
    struct volume_lease *lease = find(t->volumes, &t->key);
    if (lease != NULL)
        lease->row.expires_ms = t->time_ms;
    Sandbox__SessionRenewResponse response = SANDBOX__SESSION_RENEW_RESPONSE__INIT;
    response.expires_at = (uint64_t)t->time_ms / 1000;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SESSION_RENEW;
    message.session_renew = &response;
    request_reply(r, &message);
}

void volume_renew(struct volumes *v, struct request *r, const struct volume_key *key, uint32_t extra_s)
{
    if (!v->usable) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "there are no session volumes: %s", v->trouble.text);
        return;
    }
    struct task *t = new_task(v, work_renew, done_renew);
    if (t == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    t->request = r;
    t->key = *key;
    t->extra_s = extra_s;
    t->want.max_ttl_s = v->engine->config->workspace_max_ttl_s;
    submit(t);
}

// ---- the start ----

static void begin_life(struct volumes *v)
{
    free(take_ptr(&v->known));
    free(take_ptr(&v->seen));
    if (!v->usable)
        log_error("no_volumes", log_str("reason", v->trouble.text));
    else
        count(v);
    reap_at(v, 0);
    v->ready(v->arg);
}

static int work_settle(struct task *t)
{
    int r = state_db_settle(t->volumes->db);
    return r < 0 ? err_set(&t->err, SANDBOX_ERR_INTERNAL, "state.db: %s", strerror(-r)) : 0;
}

static void done_settle(struct task *t)
{
    struct volumes *v = t->volumes;
    v->usable = t->code == 0;
    v->trouble = t->err;
    begin_life(v);
}

// All files have been seen.
static void reconcile(struct volumes *v)
{
    if (v->is_new && v->files > 0) {
        err_set(&v->trouble, -EEXIST,
                "there are %zu volumes, but no database that knows them: put state.db back, or move the files away", v->files);
        begin_life(v);
        return;
    }
    for (size_t i = 0; i < v->known_count; i++)
        if (!v->seen[i]) {
            log_id(LOG_LEVEL_ERROR, "volume_lost", v->known[i], "its file is not there");
            record(v, work_lost, v->known[i]);
        }
    struct task *t = new_task(v, work_settle, done_settle);
    if (t == NULL) {
        err_set(&v->trouble, -ENOMEM, "out of memory");
        begin_life(v);
        return;
    }
    submit(t);
}

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, JAIL_VOLUME_ID);
}

static void on_orphan_deleted(void *arg, const struct driver_answer *answer)
{
    (void)arg;
    if (answer->error < 0 && answer->error != -ECANCELED)
        log_warn("volume_not_deleted", log_errno(answer->error));
}

static void see_file(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    v->files++;
    const void *found = v->known_count > 0 ? bsearch(id, v->known, v->known_count, sizeof v->known[0], compare_ids) : NULL;
    if (found != NULL) {
        v->seen[(const uint8_t(*)[JAIL_VOLUME_ID])found - (const uint8_t(*)[JAIL_VOLUME_ID])v->known] = true;
        return;
    }
    if (v->is_new)
        return;
    log_id(LOG_LEVEL_WARN, "volume_removed", id, "nobody was told of it before the engine ended");
    container_volume_delete(v->engine->container, id, on_orphan_deleted, NULL);
}

static void list_after(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID]);

static void on_listed(void *arg, const struct driver_answer *answer)
{
    struct volumes *v = arg;
    if (answer->error == -ECANCELED)
        return;
    if (answer->error < 0) {
        err_set(&v->trouble, answer->error, "the jailer cannot list them: %s", strerror(-answer->error));
        begin_life(v);
        return;
    }
    for (uint32_t i = 0; i < answer->volume_count; i++)
        see_file(v, answer->volumes[i]);
    if (answer->volume_count == JAIL_VOLUMES_LISTED)
        list_after(v, answer->volumes[JAIL_VOLUMES_LISTED - 1]);
    else
        reconcile(v);
}

static void list_after(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    int r = container_volume_list(v->engine->container, id, on_listed, v);
    if (r < 0)
        on_listed(v, &(struct driver_answer){.error = r});
}

static int work_open(struct task *t)
{
    struct volumes *v = t->volumes;
    if (state_db_open(v->dir, &v->db, &t->err) < 0)
        return SANDBOX_ERR_INTERNAL;
    v->is_new = state_db_is_new(v->db);
    return volume_table_recover(v->db, &v->known, &v->known_count, &t->err);
}

static void done_open(struct task *t)
{
    struct volumes *v = t->volumes;
    int code = t->code;
    v->trouble = t->err;
    if (code == 0 && (v->seen = calloc(v->known_count + 1, sizeof *v->seen)) == NULL)
        code = err_set(&v->trouble, -ENOMEM, "out of memory");
    static const uint8_t first[JAIL_VOLUME_ID];
    if (code == 0)
        list_after(v, first);
    else
        begin_life(v);
}

int volumes_new(struct engine *e, int state_dir, void (*ready)(void *arg), void *arg, struct volumes **ret_volumes)
{
    struct volumes *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    *v = (struct volumes){.engine = e, .dir = state_dir, .ready = ready, .arg = arg, .facts = {.next_ms = INT64_MAX}};
    TAILQ_INIT(&v->leases);
    timer_init(&v->reaper, on_reaper, v);
    int r = workers_new(e->loop, 1, &v->workers);
    struct task *t = r == 0 ? new_task(v, work_open, done_open) : NULL;
    if (t == NULL) {
        volumes_free(v);
        return r < 0 ? r : -ENOMEM;
    }
    submit(t);
    *ret_volumes = v;
    return 0;
}

struct volumes *volumes_free(struct volumes *v)
{
    if (v == NULL)
        return NULL;
    timer_cancel(v->engine->loop, &v->reaper);
    v->workers = workers_free(v->workers);
    v->db = state_db_close(v->db);
    while (!TAILQ_EMPTY(&v->leases))
        free_lease(TAILQ_FIRST(&v->leases));
    free(v->known);
    free(v->seen);
    free(v);
    return NULL;
}

// ---- facts ----

const char *volumes_trouble(const struct volumes *v)
{
    return v->usable ? NULL : v->trouble.text;
}

struct volume_key volume_key_of(uid_t uid, const uint8_t *key, size_t n)
{
    struct volume_key k = {.key_len = n < sizeof k.key ? n : sizeof k.key};
    snprintf(k.owner, sizeof k.owner, "uid:%u", (unsigned)uid);
    memcpy(k.key, key, k.key_len);
    return k;
}

bool volumes_busy(const struct volumes *v, const struct volume_key *key)
{
    const struct volume_lease *lease = find(v, key);
    return lease != NULL && (lease->held || lease->current != NULL || !TAILQ_EMPTY(&lease->waiters));
}

struct volume_facts volumes_facts(const struct volumes *v)
{
    return v->facts;
}

unsigned volumes_held(const struct volumes *v)
{
    return v->held;
}
