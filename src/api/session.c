#include "api/exec_job.h"
#include "api/metrics.h"
#include "api/session_inner.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "sys/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 1000 };

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
    return &all->buckets[strtoul((char[]){id[4], id[5], id[6], '\0'}, NULL, 16) % SESSION_BUCKETS];
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

static void tell_gone(struct gone_waiters *waiters)
{
    struct gone_waiter *w;
    while ((w = TAILQ_FIRST(waiters)) != NULL) {
        TAILQ_REMOVE(waiters, w, link);
        w->gone(w);
    }
}

void session_remove(struct session *s)
{
    struct sessions *all = s->all;
    exec_jobs_forget(s);
    LIST_REMOVE(s, bucket);
    TAILQ_REMOVE(&all->list, s, link);
    all->n--;
    struct gone_waiters waiters = TAILQ_HEAD_INITIALIZER(waiters);
    TAILQ_CONCAT(&waiters, &s->gone_waiters, link);
    log_info("session_gone", log_str("session", s->id), log_str("principal", s->owner));
    session_spec_free(&s->spec);
    free(s);
    tell_gone(&waiters);
}

// ---- uses ----

void session_touch(struct session *s)
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
    session_touch(s);
    use->ready(use, SANDBOX_OK, "");
}

void session_give_all(struct session *s)
{
    struct use *use;
    while (s->state == SESSION_READY && (use = TAILQ_FIRST(&s->waiting)) != NULL) {
        TAILQ_REMOVE(&s->waiting, use, link);
        give(s, use);
    }
}

void session_fail_all(struct session *s, sandbox_error_t error, const char *text)
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

void session_enqueue(struct session *s)
{
    s->state = SESSION_QUEUED;
    TAILQ_INSERT_TAIL(&s->all->queue, s, queue_link);
    sessions_pump(s->all);
}

void session_use(struct session *s, struct use *use)
{
    use->session = s;
    use->guest = NULL;
    if (s->closing || s->all->ending) {
        use->session = NULL;
        use->ready(use, s->all->ending ? SANDBOX_ERR_GUEST_UNAVAILABLE : (sandbox_error_t)SESSION_CLOSED,
                   session_end_of(s).text);
    } else if (s->state == SESSION_READY) {
        give(s, use);
    } else {
        TAILQ_INSERT_TAIL(&s->waiting, use, link);
        if (s->state == SESSION_IDLE)
            session_enqueue(s);
    }
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
    session_touch(s);
    guest_unref(g);
    sessions_pump(all);  // it may be one that can give way now
}

void use_lost(struct use *use)
{
    struct session *s = use->session;
    if (s->state != SESSION_READY || s->guest != use->guest)
        return;  // known already
    s->all->api->metrics->sandboxes_lost++;
    log_warn("sandbox_lost", log_str("session", s->id), log_u64("sandbox_id", s->sandbox_id));
    session_stop(s);
}

void sessions_engine_gone(struct sessions *all)
{
    struct session *s;
    while ((s = TAILQ_FIRST(&all->ready)) != NULL) {
        all->api->metrics->sandboxes_lost++;
        session_stop(s);
    }
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

void sessions_pump(struct sessions *all)
{
    struct session *s;
    unsigned waiting = 0;
    while (all->running < all->api->options.max_running && (s = TAILQ_FIRST(&all->queue)) != NULL) {
        TAILQ_REMOVE(&all->queue, s, queue_link);
        session_start(s);
    }
    TAILQ_FOREACH(s, &all->queue, queue_link)
    waiting++;
    while (waiting > all->stopping && (s = longest_unused(all)) != NULL) {
        all->api->metrics->sandboxes_evicted++;
        log_info("sandbox_evicted", log_str("session", s->id), log_u64("sandbox_id", s->sandbox_id));
        session_stop(s);
    }
    while (waiting > all->stopping && (s = TAILQ_LAST(&all->queue, session_list)) != NULL) {
        TAILQ_REMOVE(&all->queue, s, queue_link);
        waiting--;
        s->state = SESSION_IDLE;
        session_fail_all(s, SANDBOX_ERR_POOL_EXHAUSTED,
                         "as many sandboxes run as may (max_running), and all are in use; try again");
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
        session_stop(s);
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

struct session_end session_end_of(const struct session *s)
{
    return s->all->ending ? (struct session_end){"unavailable", "the server is stopping"}
                          : (struct session_end){"session_closed", "the session was deleted"};
}

static void cancel_uses(struct session *s)
{
    struct use *use, *next;
    for (use = TAILQ_FIRST(&s->uses); use != NULL; use = next) {
        next = TAILQ_NEXT(use, link);
        if (use->cancel != NULL)
            use->cancel(use);
    }
}

void sessions_end_uses(struct sessions *all)
{
    struct session *s, *next;
    all->ending = true;
    for (s = TAILQ_FIRST(&all->list); s != NULL; s = next) {
        next = TAILQ_NEXT(s, link);
        session_fail_all(s, SANDBOX_ERR_GUEST_UNAVAILABLE, session_end_of(s).text);
        cancel_uses(s);
    }
}

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
    session_fail_all(s, (sandbox_error_t)SESSION_CLOSED, session_end_of(s).text);
    cancel_uses(s);
    if (s->state == SESSION_READY)
        session_stop(s);
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
    all->ending = true;
    while ((s = TAILQ_FIRST(&all->list)) != NULL) {
        TAILQ_REMOVE(&all->list, s, link);
        // Whoever still waits is told, though nobody hears it any more: what waits is theirs to free.
        session_fail_all(s, SANDBOX_ERR_GUEST_UNAVAILABLE, session_end_of(s).text);
        tell_gone(&s->gone_waiters);
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
