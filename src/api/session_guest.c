// The sandboxes of sessions: their starts and ends, as jobs of LANE_SANDBOXES.
#include "api/metrics.h"
#include "api/route.h"
#include "api/session_inner.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

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
        session_enqueue(s);
    sessions_pump(all);
}

void guest_unref(struct guest *g)
{
    if (--g->refs > 0)
        return;
    struct api *api = g->session->all->api;
    if (api->lanes[LANE_SANDBOXES] == NULL) {  // the last of all goes, and has the time
        sandbox_destroy(g->handle);
        engine_conn_unref(api->engine, g->conn, true);
        free(g);
        return;
    }
    struct ending *e = malloc(sizeof *e);
    if (e == NULL)
        abort();  // a sandbox that nobody could end any more
    *e = (struct ending){
        .job = {.run = run_ending, .finish = end_ending}, .handle = g->handle, .conn = g->conn, .session = g->session};
    free(g);
    workers_submit(api->lanes[LANE_SANDBOXES], &e->job);
}

void session_stop(struct session *s)
{
    struct guest *g = s->guest;
    s->guest = NULL;
    s->state = SESSION_STOPPING;
    s->all->stopping++;
    TAILQ_REMOVE(&s->all->ready, s, ready_link);
    guest_unref(g);
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
    struct failure why;  // without a handle
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
                                 .egress_deny_all = s->spec.egress_deny_all,
                                 .min_isolation = s->spec.min_isolation};
    sandbox_error_t error = SANDBOX_OK;
    if (b->share == NULL)
        error = sandbox_conn_open(b->engine, &b->opened);
    sandbox_conn_t *conn = b->share != NULL ? b->share->conn : b->opened;
    if (error == SANDBOX_OK)
        error = sandbox_conn_create(conn, &spec, &b->handle);
    if (error != SANDBOX_OK)
        b->why = failure_of_library(error);
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
    session_touch(s);
}

static void note_failed(struct session *s, const struct starting *b)
{
    struct sessions *all = s->all;
    s->state = SESSION_IDLE;
    all->running--;
    all->api->metrics->sandboxes_failed++;
    if (b->why.error == SANDBOX_ERR_DAEMON_UNREACHABLE)
        engine_link_suspect(all->api->engine);
    log_warn("sandbox_failed", log_str("session", s->id), log_str("principal", s->owner), log_str("error", b->why.text));
    session_fail_all(s, &b->why);
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
            b->why = failure_of(SANDBOX_ERR_INTERNAL, SANDBOX_NOT_RUN_ENVIRONMENT, "no memory");
        sandbox_destroy(b->handle);
        if (conn != NULL && ran && b->why.error == SANDBOX_ERR_DAEMON_UNREACHABLE)
            engine_link_broken(all->api->engine, conn);
        if (conn != NULL)
            engine_conn_unref(all->api->engine, conn, true);
        if (ran)
            note_failed(s, b);
    } else {
        note_started(s, b, conn);
        if (s->closing)
            session_stop(s);
        else
            session_give_all(s);
    }
    free(b);
    if (ran)
        sessions_pump(all);
}

void session_start(struct session *s)
{
    struct sessions *all = s->all;
    struct starting *b = calloc(1, sizeof *b);
    if (b == NULL) {
        s->state = SESSION_IDLE;
        const struct failure why = failure_of(SANDBOX_ERR_INTERNAL, SANDBOX_NOT_RUN_ENVIRONMENT, "no memory");
        session_fail_all(s, &why);
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
