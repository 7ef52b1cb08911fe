#include "api/session.h"

#include "api/exec_job.h"
#include "api/metrics.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "sys/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 4096, TICK_MS = 1000 };

LIST_HEAD(bucket, session);
TAILQ_HEAD(session_list, session);

struct sessions {
    struct api *api;
    struct bucket buckets[BUCKETS];
    struct session_list list;
    struct session_list ready;  // those used longest ago first
    struct session_list queue;  // for a place below max_running
    unsigned n, running, stopping;
    struct event *tick;
};

static void pump(struct sessions *all);
static void stop_guest(struct session *s);

// ---- names ----

static void digest_hex(const char *domain, const char *owner, const char *key, char hex[2 * DIGEST_LEN + 1])
{
    char text[32 + PRINCIPAL_NAME_MAX + SESSION_KEY_BYTES_MAX + 3];
    // No part has a NUL in it: no two pairs give the same bytes.
    size_t n = (size_t)snprintf(text, sizeof text, "%s%c%s%c%s", domain, 0, owner, 0, key);
    uint8_t digest[DIGEST_LEN];
    if (digest_bytes(text, n, digest) < 0)
        abort();  // it can only be short of memory, and two names must never be one
    hex_encode(digest, sizeof digest, hex);
}

void session_id_of(const char *owner, const char *key, char id[SESSION_ID_MAX + 1])
{
    char hex[2 * DIGEST_LEN + 1];
    digest_hex("session", owner, key, hex);
    memcpy(id, "ses_", 4);
    memcpy(id + 4, hex, SESSION_ID_HEX);
    id[SESSION_ID_MAX] = '\0';
}

static void workspace_of(const char *owner, const char *key, char workspace[WORKSPACE_KEY_MAX + 1])
{
    char hex[2 * DIGEST_LEN + 1];
    digest_hex("workspace", owner, key, hex);
    snprintf(workspace, WORKSPACE_KEY_MAX + 1, "wks_%s", hex);
}

const char *session_state_name(const struct session *s)
{
    if (s->closing)
        return "closing";
    return s->state == SESSION_READY ? "ready" : "idle";
}

// ---- the table ----

static struct bucket *bucket_of(struct sessions *all, const char *id)
{
    // Its digits are a digest's: any three are as good as any others.
    return &all->buckets[strtoul((char[]){id[4], id[5], id[6], '\0'}, NULL, 16) % BUCKETS];
}

struct session *session_find(struct sessions *all, const char *owner, const char *id, size_t n)
{
    struct session *s;
    if (n != SESSION_ID_MAX)
        return NULL;
    LIST_FOREACH(s, bucket_of(all, id), bucket)
    if (memcmp(s->id, id, n) == 0 && strcmp(s->owner, owner) == 0)
        return s;
    return NULL;
}

struct session_counts sessions_count(const struct sessions *all)
{
    struct session_counts c = {.sessions = all->n, .running = all->running};
    const struct session *s;
    TAILQ_FOREACH(s, &all->list, link)
    c.busy += s->n_uses > 0;
    return c;
}

struct session *sessions_first(const struct sessions *all)
{
    return TAILQ_FIRST(&all->list);
}

struct session *sessions_next(const struct session *s)
{
    return TAILQ_NEXT(s, link);
}

unsigned sessions_of(const struct sessions *all, const char *owner)
{
    unsigned n = 0;
    const struct session *s;
    TAILQ_FOREACH(s, &all->list, link)
    n += strcmp(s->owner, owner) == 0;
    return n;
}

void session_spec_free(struct session_spec *spec)
{
    free(spec->template_name);
    free(spec->env);
    free(spec->egress_allow);
    *spec = (struct session_spec){0};
}

struct session *session_new(struct sessions *all, const char *owner, const char *key, struct session_spec *spec)
{
    struct session *s = all->n < SESSIONS_MAX ? calloc(1, sizeof *s) : NULL;
    if (s == NULL)
        return NULL;
    s->all = all;
    session_id_of(owner, key, s->id);
    workspace_of(owner, key, s->workspace);
    snprintf(s->owner, sizeof s->owner, "%s", owner);
    snprintf(s->key, sizeof s->key, "%s", key);
    s->spec = *spec;
    *spec = (struct session_spec){0};
    TAILQ_INIT(&s->uses);
    TAILQ_INIT(&s->waiting);
    TAILQ_INIT(&s->gone_waiters);
    TAILQ_INIT(&s->execs);
    s->created_at = s->last_used_at = time(NULL);
    LIST_INSERT_HEAD(bucket_of(all, s->id), s, bucket);
    TAILQ_INSERT_TAIL(&all->list, s, link);
    all->n++;
    return s;
}

// Nobody uses it, and it has no sandbox.
static void session_remove(struct session *s)
{
    struct sessions *all = s->all;
    struct gone_waiter *w;
    exec_jobs_forget(s);
    LIST_REMOVE(s, bucket);
    TAILQ_REMOVE(&all->list, s, link);
    all->n--;
    struct gone_waiters waiters = TAILQ_HEAD_INITIALIZER(waiters);
    TAILQ_CONCAT(&waiters, &s->gone_waiters, link);
    log_info("session_gone", log_str("session", s->id), log_str("principal", s->owner));
    session_spec_free(&s->spec);
    free(s);
    while ((w = TAILQ_FIRST(&waiters)) != NULL) {
        TAILQ_REMOVE(&waiters, w, link);
        w->gone(w);
    }
}

// ---- uses ----

static void touch(struct session *s)
{
    s->last_used_ns = mono_ns();
    s->last_used_at = time(NULL);
    if (s->state == SESSION_READY) {
        TAILQ_REMOVE(&s->all->ready, s, ready_link);
        TAILQ_INSERT_TAIL(&s->all->ready, s, ready_link);
    }
}

static void give(struct session *s, struct use *use)
{
    TAILQ_INSERT_TAIL(&s->uses, use, link);
    s->n_uses++;
    use->guest = s->guest;
    s->guest->refs++;
    touch(s);
    use->ready(use, SANDBOX_OK, "");
}

static void give_all(struct session *s)
{
    struct use *use;
    while (s->state == SESSION_READY && (use = TAILQ_FIRST(&s->waiting)) != NULL) {
        TAILQ_REMOVE(&s->waiting, use, link);
        give(s, use);
    }
}

static void fail_all(struct session *s, sandbox_error_t error, const char *text)
{
    struct uses failed = TAILQ_HEAD_INITIALIZER(failed);
    struct use *use;
    TAILQ_CONCAT(&failed, &s->waiting, link);
    while ((use = TAILQ_FIRST(&failed)) != NULL) {
        TAILQ_REMOVE(&failed, use, link);
        use->session = NULL;
        use->ready(use, error, text);
    }
}

static void enqueue(struct session *s)
{
    s->state = SESSION_QUEUED;
    TAILQ_INSERT_TAIL(&s->all->queue, s, queue_link);
    pump(s->all);
}

void session_use(struct session *s, struct use *use)
{
    use->session = s;
    use->guest = NULL;
    if (s->closing) {
        use->session = NULL;
        use->ready(use, SANDBOX_ERR_NOT_FOUND, "the session is being deleted");
    } else if (s->state == SESSION_READY) {
        give(s, use);
    } else {
        TAILQ_INSERT_TAIL(&s->waiting, use, link);
        if (s->state == SESSION_IDLE)
            enqueue(s);
    }
}

// ---- sandboxes that end ----

struct ending {
    struct job job;  // first
    sandbox_handle_t *handle;
    struct engine_conn *conn;
    struct session *session;
};

static void run_ending(struct job *job)
{
    struct ending *e = (struct ending *)job;
    sandbox_destroy(e->handle);
    e->handle = NULL;
}

static void end_ending(struct job *job, bool ran)
{
    struct ending *e = (struct ending *)job;
    struct session *s = e->session;
    struct sessions *all = s->all;
    sandbox_destroy(e->handle);  // only when its turn never came
    engine_conn_unref(all->api->engine, e->conn, true);
    free(e);
    if (!ran)
        return;
    s->state = SESSION_IDLE;
    all->running--;
    all->stopping--;
    if (s->closing)
        session_remove(s);
    else if (!TAILQ_EMPTY(&s->waiting))
        enqueue(s);
    pump(all);
}

static void guest_unref(struct guest *g)
{
    if (--g->refs > 0)
        return;
    struct api *api = g->session->all->api;
    struct ending *e = malloc(sizeof *e);
    if (e == NULL)
        abort();  // a sandbox that nobody could end any more
    *e = (struct ending){
        .job = {.run = run_ending, .finish = end_ending}, .handle = g->handle, .conn = g->conn, .session = g->session};
    free(g);
    workers_submit(api->lanes[LANE_SANDBOXES], &e->job);
}

// From ready; who uses the sandbox keeps it until they are done.
static void stop_guest(struct session *s)
{
    struct guest *g = s->guest;
    s->guest = NULL;
    s->state = SESSION_STOPPING;
    s->all->stopping++;
    TAILQ_REMOVE(&s->all->ready, s, ready_link);
    guest_unref(g);
}

void use_end(struct use *use)
{
    struct session *s = use->session;
    if (s == NULL)
        return;
    use->session = NULL;
    if (use->guest == NULL) {
        TAILQ_REMOVE(&s->waiting, use, link);
        return;
    }
    struct sessions *all = s->all;
    struct guest *g = use->guest;
    use->guest = NULL;
    TAILQ_REMOVE(&s->uses, use, link);
    s->n_uses--;
    touch(s);
    guest_unref(g);
    pump(all);  // it may be one that can give way now
}

void use_lost(struct use *use)
{
    struct session *s = use->session;
    if (s->state != SESSION_READY || s->guest != use->guest)
        return;  // known already
    s->all->api->metrics->sandboxes_lost++;
    log_warn("sandbox_lost", log_str("session", s->id), log_u64("sandbox_id", s->sandbox_id));
    stop_guest(s);
}

void sessions_engine_gone(struct sessions *all)
{
    struct session *s;
    while ((s = TAILQ_FIRST(&all->ready)) != NULL) {
        all->api->metrics->sandboxes_lost++;
        stop_guest(s);
    }
}

// ---- sandboxes that start ----

struct starting {
    struct job job;  // first
    struct session *session;
    const char *engine;
    uint32_t wait_ms;
    int slot;
    struct engine_conn *share;
    sandbox_conn_t *opened;
    sandbox_handle_t *handle;
    uint64_t expires_at;
    sandbox_error_t error;
    char text[384];
};

static void run_starting(struct job *job)
{
    struct starting *b = (struct starting *)job;
    const struct session *s = b->session;
    const sandbox_spec_t spec = {.memory_mib = s->spec.memory_mib,
                                 .vcpu_count = s->spec.vcpus,
                                 .template_name = s->spec.template_name,
                                 .env_vars = (const char **)s->spec.env,
                                 .pool_wait_ms = b->wait_ms,
                                 .session_key = s->workspace,
                                 .ttl_seconds = s->spec.ttl_seconds,
                                 .egress_allow = (const char **)s->spec.egress_allow,
                                 .egress_deny_all = s->spec.egress_deny_all};
    b->error = SANDBOX_OK;
    if (b->share == NULL)
        b->error = sandbox_conn_open(b->engine, &b->opened);
    sandbox_conn_t *conn = b->share != NULL ? b->share->conn : b->opened;
    if (b->error == SANDBOX_OK)
        b->error = sandbox_conn_create(conn, &spec, &b->handle);
    if (b->error != SANDBOX_OK)
        snprintf(b->text, sizeof b->text, "%s", sandbox_last_error());
    else
        sandbox_conn_session_renew(conn, s->workspace, 0, &b->expires_at);
}

static void note_started(struct session *s, const struct starting *b, struct engine_conn *conn)
{
    struct guest *g = malloc(sizeof *g);
    if (g == NULL)
        abort();
    *g = (struct guest){.handle = b->handle, .conn = conn, .session = s, .refs = 1};
    s->guest = g;
    s->state = SESSION_READY;
    s->ever_started = true;
    if (b->expires_at != 0)
        s->expires_at = b->expires_at;
    s->sandbox_id = sandbox_id(b->handle);
    s->isolation = sandbox_isolation(b->handle);
    snprintf(s->start, sizeof s->start, "%s", sandbox_start_kind(b->handle));
    TAILQ_INSERT_TAIL(&s->all->ready, s, ready_link);
    s->all->api->metrics->sandboxes_started++;
    log_info("sandbox_started", log_str("session", s->id), log_str("principal", s->owner), log_u64("sandbox_id", s->sandbox_id),
             log_str("start", s->start));
    touch(s);
}

static void note_failed(struct session *s, const struct starting *b)
{
    struct sessions *all = s->all;
    s->state = SESSION_IDLE;
    all->running--;
    all->api->metrics->sandboxes_failed++;
    if (b->error == SANDBOX_ERR_DAEMON_UNREACHABLE)
        engine_link_suspect(all->api->engine);
    log_warn("sandbox_failed", log_str("session", s->id), log_str("principal", s->owner), log_str("error", b->text));
    fail_all(s, b->error, b->text);
    if (s->closing || !s->ever_started)
        session_remove(s);
}

static void end_starting(struct job *job, bool ran)
{
    struct starting *b = (struct starting *)job;
    struct session *s = b->session;
    struct sessions *all = s->all;
    struct engine_conn *conn = engine_link_settle(all->api->engine, b->slot, b->share, b->opened);
    if (!ran || b->handle == NULL || conn == NULL) {
        if (b->handle != NULL)
            b->error = SANDBOX_ERR_INTERNAL;
        sandbox_destroy(b->handle);
        if (conn != NULL)
            engine_conn_unref(all->api->engine, conn, true);
        if (ran)
            note_failed(s, b);
    } else {
        note_started(s, b, conn);
        if (s->closing)
            stop_guest(s);
        else
            give_all(s);
    }
    free(b);
    if (ran)
        pump(all);
}

static void start(struct session *s)
{
    struct sessions *all = s->all;
    struct starting *b = calloc(1, sizeof *b);
    if (b == NULL) {
        s->state = SESSION_IDLE;
        fail_all(s, SANDBOX_ERR_INTERNAL, "no memory");
        return;
    }
    *b = (struct starting){.job = {.run = run_starting, .finish = end_starting},
                           .session = s,
                           .engine = all->api->options.engine,
                           .wait_ms = (uint32_t)all->api->options.pool_wait_ms};
    b->slot = engine_link_pick(all->api->engine, &b->share);
    s->state = SESSION_STARTING;
    all->running++;
    workers_submit(all->api->lanes[LANE_SANDBOXES], &b->job);
}

// ---- places below max_running ----

static struct session *longest_unused(struct sessions *all)
{
    struct session *s;
    TAILQ_FOREACH(s, &all->ready, ready_link)
    if (s->n_uses == 0)
        return s;
    return NULL;
}

// Starts what can be started, and makes others give way for the rest.
static void pump(struct sessions *all)
{
    struct session *s;
    unsigned waiting = 0;
    while (all->running < all->api->options.max_running && (s = TAILQ_FIRST(&all->queue)) != NULL) {
        TAILQ_REMOVE(&all->queue, s, queue_link);
        start(s);
    }
    TAILQ_FOREACH(s, &all->queue, queue_link)
    waiting++;
    while (waiting > all->stopping && (s = longest_unused(all)) != NULL) {
        all->api->metrics->sandboxes_evicted++;
        log_info("sandbox_evicted", log_str("session", s->id), log_u64("sandbox_id", s->sandbox_id));
        stop_guest(s);
    }
    while (waiting > all->stopping && (s = TAILQ_LAST(&all->queue, session_list)) != NULL) {
        TAILQ_REMOVE(&all->queue, s, queue_link);
        waiting--;
        s->state = SESSION_IDLE;
        fail_all(s, SANDBOX_ERR_POOL_EXHAUSTED, "as many sandboxes run as may (max_running), and all are in use; try again");
        if (!s->ever_started)
            session_remove(s);
    }
}

// ---- time ----

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct sessions *all = arg;
    struct session *s, *next;
    uint64_t idle = all->api->options.idle_s * NS_PER_S, now = mono_ns();
    int64_t wall = time(NULL);
    (void)fd;
    (void)what;
    for (s = TAILQ_FIRST(&all->ready); s != NULL && now - s->last_used_ns >= idle; s = next) {
        next = TAILQ_NEXT(s, ready_link);
        if (s->n_uses > 0)
            continue;
        all->api->metrics->sandboxes_reclaimed++;
        log_info("sandbox_reclaimed", log_str("session", s->id), log_u64("sandbox_id", s->sandbox_id));
        stop_guest(s);
    }
    for (s = TAILQ_FIRST(&all->list); s != NULL; s = next) {
        next = TAILQ_NEXT(s, link);
        exec_jobs_expire(s, now);
        // Its workspace is gone: what would come back under its name is another one.
        if (s->state == SESSION_IDLE && !s->closing && TAILQ_EMPTY(&s->waiting) && s->expires_at != 0 &&
            (uint64_t)wall >= s->expires_at)
            session_remove(s);
    }
}

// ---- the end ----

void session_close(struct session *s, struct gone_waiter *w)
{
    if (w != NULL)
        TAILQ_INSERT_TAIL(&s->gone_waiters, w, link);
    if (s->closing)
        return;
    s->closing = true;
    struct sessions *all = s->all;
    if (s->state == SESSION_QUEUED) {
        TAILQ_REMOVE(&all->queue, s, queue_link);
        s->state = SESSION_IDLE;
    }
    fail_all(s, SANDBOX_ERR_NOT_FOUND, "the session is being deleted");
    struct use *use, *next;
    for (use = TAILQ_FIRST(&s->uses); use != NULL; use = next) {
        next = TAILQ_NEXT(use, link);
        if (use->cancel != NULL)
            use->cancel(use);
    }
    if (s->state == SESSION_READY)
        stop_guest(s);
    else if (s->state == SESSION_IDLE)
        session_remove(s);
}

int sessions_new(struct api *api, struct sessions **ret)
{
    struct sessions *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    all->api = api;
    TAILQ_INIT(&all->list);
    TAILQ_INIT(&all->ready);
    TAILQ_INIT(&all->queue);
    all->tick = event_new(api->base, -1, EV_PERSIST, on_tick, all);
    if (all->tick == NULL || event_add(all->tick, &(struct timeval){.tv_sec = TICK_MS / 1000}) < 0) {
        sessions_free(all);
        return -ENOMEM;
    }
    *ret = all;
    return 0;
}

struct sessions *sessions_free(struct sessions *all)
{
    if (all == NULL)
        return NULL;
    struct session *s;
    while ((s = TAILQ_FIRST(&all->list)) != NULL) {
        TAILQ_REMOVE(&all->list, s, link);
        exec_jobs_forget(s);
        if (s->guest != NULL) {
            sandbox_destroy(s->guest->handle);
            engine_conn_unref(all->api->engine, s->guest->conn, true);
            free(s->guest);
        }
        session_spec_free(&s->spec);
        free(s);
    }
    if (all->tick != NULL)
        event_free(all->tick);
    free(all);
    return NULL;
}
