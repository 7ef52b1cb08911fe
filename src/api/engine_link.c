#include "api/engine_link.h"

#include "api/metrics.h"
#include "api/session.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct slot {
    struct engine_conn *conn;  // NULL: not open, or lost
    unsigned sandboxes;        // on it, or on their way
};

struct probe {
    struct job job;  // first
    struct engine_link *link;
    struct engine_conn *conn;  // NULL: to be opened
    sandbox_conn_t *opened;
    char *status;
    sandbox_error_t error;
    char text[256];
};

struct engine_link {
    struct api *api;
    struct slot *slots;
    unsigned n_slots;
    struct engine_conn *control;
    bool reachable, probing, again;
    int64_t engine_pid;               // 0: not known yet
    uint64_t failures[FAILURES_MAX];  // when, the latest first
    struct event *timer;
};

// ---- shares ----

struct closing {
    struct job job;  // first
    sandbox_conn_t *conn;
};

static void run_close(struct job *job)
{
    struct closing *c = (struct closing *)job;
    sandbox_conn_close(c->conn);
    c->conn = NULL;
}

static void end_close(struct job *job, bool ran)
{
    (void)ran;
    sandbox_conn_close(((struct closing *)job)->conn);  // only when its turn never came
    free(job);
}

static void close_conn(struct engine_link *l, sandbox_conn_t *conn)
{
    struct closing *c = l->api->lanes[LANE_SANDBOXES] != NULL ? malloc(sizeof *c) : NULL;
    if (c == NULL) {
        sandbox_conn_close(conn);
        return;
    }
    *c = (struct closing){.job = {.run = run_close, .finish = end_close}, .conn = conn};
    workers_submit(l->api->lanes[LANE_SANDBOXES], &c->job);
}

static struct engine_conn *share_of(struct engine_conn *c)
{
    if (c != NULL)
        c->refs++;
    return c;
}

static void unref(struct engine_link *l, struct engine_conn *c)
{
    if (c == NULL || --c->refs > 0)
        return;
    close_conn(l, c->conn);
    free(c);
}

void engine_conn_unref(struct engine_link *l, struct engine_conn *c, bool sandbox)
{
    if (sandbox && c->slot >= 0)
        l->slots[c->slot].sandboxes--;
    unref(l, c);
}

static struct engine_conn *conn_new(sandbox_conn_t *conn, int slot)
{
    struct engine_conn *c = malloc(sizeof *c);
    if (c != NULL)
        *c = (struct engine_conn){.conn = conn, .refs = 1, .slot = slot};
    return c;
}

// ---- places ----

int engine_link_pick(struct engine_link *l, struct engine_conn **ret_conn)
{
    unsigned best = 0;
    for (unsigned i = 1; i < l->n_slots; i++)
        if (l->slots[i].sandboxes < l->slots[best].sandboxes)
            best = i;
    l->slots[best].sandboxes++;
    *ret_conn = share_of(l->slots[best].conn);
    return (int)best;
}

struct engine_conn *engine_link_settle(struct engine_link *l, int slot, struct engine_conn *share, sandbox_conn_t *opened)
{
    struct slot *s = &l->slots[slot];
    if (share != NULL)
        return share;
    if (opened == NULL) {
        s->sandboxes--;
        return NULL;
    }
    struct engine_conn *c = conn_new(opened, slot);
    if (c == NULL) {
        s->sandboxes--;
        close_conn(l, opened);
        return NULL;
    }
    if (s->conn == NULL)  // else another one was opened meanwhile; this one is its sandbox's alone
        s->conn = share_of(c);
    return c;
}

void engine_link_broken(struct engine_link *l, struct engine_conn *c)
{
    if (c->slot < 0 || l->slots[c->slot].conn != c)
        return;
    l->slots[c->slot].conn = NULL;
    unref(l, c);
}

// ---- the engine's health ----

static void arm(struct engine_link *l, uint64_t ms)
{
    struct timeval t = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    evtimer_add(l->timer, &t);
}

static void forget_connections(struct engine_link *l)
{
    for (unsigned i = 0; i < l->n_slots; i++) {
        unref(l, l->slots[i].conn);
        l->slots[i].conn = NULL;
    }
    unref(l, l->control);
    l->control = NULL;
}

static void note_failure(struct engine_link *l, const char *text)
{
    struct api *api = l->api;
    uint64_t now = mono_ns();
    memmove(l->failures + 1, l->failures, sizeof l->failures - sizeof l->failures[0]);
    l->failures[0] = now;
    api->metrics->engine_failures++;
    log_warn("engine_unreachable", log_str("engine", api->options.engine), log_str("error", text));
    l->reachable = false;
    forget_connections(l);
    sessions_engine_gone(api->sessions);
    uint64_t oldest = l->failures[FAILURES_MAX - 1];
    if (oldest != 0 && now - oldest < FAILURES_S * NS_PER_S && !api->stopping) {
        log_error("engine_gone", log_u64("failures", FAILURES_MAX), log_u64("seconds", FAILURES_S));
        api_stop(api, EXIT_ENGINE_GONE);
    }
}

static int64_t pid_in(const char *status)
{
    json_t *root = json_loads(status, 0, NULL);
    int64_t pid = json_integer_value(json_object_get(root, "pid"));
    json_decref(root);
    return pid;
}

static void note_success(struct engine_link *l, const char *status)
{
    int64_t pid = pid_in(status);
    if (l->engine_pid != 0 && pid != l->engine_pid) {
        log_warn("engine_restarted");
        for (unsigned i = 0; i < l->n_slots; i++) {
            unref(l, l->slots[i].conn);
            l->slots[i].conn = NULL;
        }
        sessions_engine_gone(l->api->sessions);
    }
    l->engine_pid = pid;
    if (!l->reachable)
        log_info("engine_reached", log_str("engine", l->api->options.engine));
    l->reachable = true;
}

static void run_probe(struct job *job)
{
    struct probe *p = (struct probe *)job;
    p->error = SANDBOX_OK;
    if (p->conn == NULL)
        p->error = sandbox_conn_open(p->link->api->options.engine, &p->opened);
    if (p->error == SANDBOX_OK)
        p->error = sandbox_conn_engine_status(p->conn != NULL ? p->conn->conn : p->opened, &p->status);
    if (p->error != SANDBOX_OK)
        snprintf(p->text, sizeof p->text, "%s", sandbox_last_error());
}

static void start_probe(struct engine_link *l);

static void end_probe(struct job *job, bool ran)
{
    struct probe *p = (struct probe *)job;
    struct engine_link *l = p->link;
    l->probing = false;
    if (p->opened != NULL) {
        struct engine_conn *c = ran && p->error == SANDBOX_OK ? conn_new(p->opened, -1) : NULL;
        if (c == NULL && ran)
            close_conn(l, p->opened);
        else if (c == NULL)
            sandbox_conn_close(p->opened);
        l->control = c;
    }
    unref(l, p->conn);
    if (ran && p->error == SANDBOX_OK)
        note_success(l, p->status);
    else if (ran && p->conn != NULL) {
        // That connection broke; whether the engine is gone is for a new one to find out.
        unref(l, l->control);
        l->control = NULL;
        l->again = true;
    } else if (ran) {
        note_failure(l, p->text);
    }
    free(p->status);
    free(p);
    if (!ran)
        return;
    if (l->again)
        start_probe(l);
    else
        arm(l, l->reachable ? PROBE_S * 1000 : PROBE_AGAIN_MS);
}

static void start_probe(struct engine_link *l)
{
    l->again = false;
    struct probe *p = calloc(1, sizeof *p);
    if (p == NULL) {
        arm(l, PROBE_AGAIN_MS);
        return;
    }
    p->job = (struct job){.run = run_probe, .finish = end_probe};
    p->link = l;
    p->conn = share_of(l->control);
    l->probing = true;
    workers_submit(l->api->lanes[LANE_CALLS], &p->job);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct engine_link *l = arg;
    (void)fd;
    (void)what;
    if (!l->probing && !l->api->stopping)
        start_probe(l);
}

void engine_link_suspect(struct engine_link *l)
{
    // Asked again even while asking: that answer may be from before.
    if (l->probing)
        l->again = true;
    else if (l->reachable && !l->api->stopping)
        start_probe(l);
}

struct engine_conn *engine_link_control(struct engine_link *l)
{
    return share_of(l->control);
}

bool engine_lags(sandbox_error_t error, bool has_room, unsigned *tries)
{
    if (error != SANDBOX_ERR_GUEST_UNAVAILABLE || !has_room || (*tries)++ >= LAG_TRIES)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = LAG_MS * 1000000L}, NULL);
    return true;
}

bool engine_link_reachable(const struct engine_link *l)
{
    return l->reachable;
}

int engine_link_new(struct api *api, struct engine_link **ret)
{
    struct engine_link *l = calloc(1, sizeof *l);
    if (l == NULL)
        return -ENOMEM;
    l->api = api;
    l->n_slots = (unsigned)api->options.engine_connections;
    l->slots = calloc(l->n_slots, sizeof *l->slots);
    l->timer = evtimer_new(api->base, on_timer, l);
    if (l->slots == NULL || l->timer == NULL) {
        engine_link_free(l);
        return -ENOMEM;
    }
    *ret = l;
    start_probe(l);
    return 0;
}

struct engine_link *engine_link_free(struct engine_link *l)
{
    if (l == NULL)
        return NULL;
    forget_connections(l);
    if (l->timer != NULL)
        event_free(l->timer);
    free(l->slots);
    free(l);
    return NULL;
}
