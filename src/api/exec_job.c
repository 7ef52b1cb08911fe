#include "api/exec_job.h"

#include "api/metrics.h"
#include "api/replay.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void on_ready(struct use *use, sandbox_error_t error, const char *text);
static void on_cancel(struct use *use);

static struct exec_job *job_of(struct use *use)
{
    return (struct exec_job *)((char *)use - offsetof(struct exec_job, use));
}

// ---- life ----

struct exec_job *exec_job_new(struct api *api, struct session *s, struct exec_request *request, bool keyed)
{
    struct exec_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    memcpy(job->id, "exc_", 4);
    if (random_hex(job->id + 4, EXEC_ID_HEX) < 0) {
        free(job);
        return NULL;
    }
    job->api = api;
    job->session = s;
    job->keyed = keyed;
    job->request = *request;
    job->events = request->stream || request->detach;
    // The listener that asks for nothing knows nobody.
    if (job->request.spec.grant_profile != NULL)
        job->request.spec.principal = strcmp(s->owner, PRINCIPAL_OF_NOBODY) == 0 ? "" : s->owner;
    *request = (struct exec_request){0};
    job->use = (struct use){.ready = on_ready, .cancel = on_cancel};
    job->head[0] = job->head[1] = BUF_INIT(HEAD_BYTES_MAX);
    TAILQ_INIT(&job->followers);
    TAILQ_INIT(&job->ring);
    TAILQ_INSERT_TAIL(&s->execs, job, link);
    return job;
}

bool exec_job_kept(const struct exec_job *job)
{
    return job->request.detach || job->keyed;
}

static void stop_reading(struct exec_job *job)
{
    if (job->readable != NULL)
        event_free(job->readable);
    job->readable = NULL;
    if (job->stream != NULL) {
        job->api->metrics->execs_running--;
        sandbox_stream_free(job->stream);
    }
    job->stream = NULL;
}

static void drop_heads(struct exec_job *job)
{
    for (int i = 0; i < 2; i++) {
        job->api->metrics->output_held -= job->head[i].len;
        buf_free(&job->head[i]);
    }
}

void exec_job_free(struct exec_job *job)
{
    struct follower *f;
    stop_reading(job);
    while ((f = TAILQ_FIRST(&job->followers)) != NULL) {
        struct http_exchange *x = f->call->x;
        follower_free(f);
        http_abort(x);
    }
    replay_forget(job->replay);
    use_end(&job->use);
    events_free(job);
    drop_heads(job);
    TAILQ_REMOVE(&job->session->execs, job, link);
    exec_request_free(&job->request);
    sandbox_grant_trace_free(job->trace);
    free(job);
}

struct exec_job *exec_job_find(struct session *s, struct http_text id)
{
    struct exec_job *job;
    TAILQ_FOREACH(job, &s->execs, link)
    if (job->events && !job->abandoned && id.n == EXEC_ID_MAX && memcmp(job->id, id.at, id.n) == 0)
        return job;
    return NULL;
}

// ---- the end ----

// The oldest that have ended make room.
static void limit_ended(struct session *s)
{
    unsigned n = 0;
    struct exec_job *job, *next;
    TAILQ_FOREACH(job, &s->execs, link)
    n += job->state == JOB_ENDED && job->replay == NULL;
    for (job = TAILQ_FIRST(&s->execs); job != NULL && n > ENDED_MAX; job = next) {
        next = TAILQ_NEXT(job, link);
        if (job->state != JOB_ENDED || job->replay != NULL || !TAILQ_EMPTY(&job->followers))
            continue;
        exec_job_free(job);
        n--;
    }
}

static void end(struct exec_job *job)
{
    struct session *s = job->session;
    stop_reading(job);
    job->state = JOB_ENDED;
    job->ended_ns = mono_ns();
    log_info("exec_ended", log_str("session", s->id), log_str("exec_id", job->id), log_bool("failed", job->failed),
             log_i64("exit_code", job->result.exit_code), log_i64("term_signal", job->result.term_signal),
             log_bool("timed_out", job->result.timed_out));
    bool never_ran = job->failed && job->last_seq == 0;
    if (job->events && !never_ran) {
        events_end(job);
        followers_send(job);
    } else {
        followers_answer(job);
        drop_heads(job);
    }
    use_end(&job->use);
    // A failure to start is no result to come back to.
    if (never_ran)
        replay_forget(job->replay);
    bool wanted = !TAILQ_EMPTY(&job->followers) || (job->events && !never_ran && exec_job_kept(job));
    if (!wanted)
        exec_job_free(job);
    limit_ended(s);
}

static void set_failure(struct exec_job *job, unsigned status, const char *code, const char *message)
{
    job->failed = true;
    job->status = status;
    snprintf(job->code, sizeof job->code, "%s", code);
    snprintf(job->message, sizeof job->message, "%s", message);
}

static void end_failed(struct exec_job *job, unsigned status, const char *code, const char *message)
{
    set_failure(job, status, code, message);
    end(job);
}

static void end_with_error(struct exec_job *job, sandbox_error_t error, const char *text)
{
    end_failed(job, engine_error_status(error), engine_error_code(error), text);
}

static void on_cancel(struct use *use)
{
    struct exec_job *job = job_of(use);
    if (job->state == JOB_TRACING)
        return;  // a worker has it, and it ends next
    struct session_end why = session_end_of(job->session);
    if (job->state == JOB_STARTING) {
        // A worker has it, whose end frees it; who waits for it is told now.
        job->abandoned = true;
        set_failure(job, 503, why.code, why.text);
        followers_answer(job);
        replay_forget(job->replay);
    } else if (job->state != JOB_ENDED) {
        end_failed(job, 503, why.code, why.text);
    }
}

// ---- what its grant was used for ----

struct tracing {
    struct job job;  // first
    struct exec_job *exec;
    sandbox_handle_t *handle;
    uint32_t grant_id;
    sandbox_grant_trace_t *trace;
};

static void run_tracing(struct job *job)
{
    struct tracing *t = (struct tracing *)job;
    sandbox_grant_trace(t->handle, t->grant_id, &t->trace);
}

static void end_tracing(struct job *done, bool ran)
{
    struct tracing *t = (struct tracing *)done;
    struct exec_job *job = t->exec;
    if (!ran) {
        sandbox_grant_trace_free(t->trace);
    } else {
        job->trace = t->trace;
        if (job->abandoned)
            exec_job_free(job);
        else
            end(job);
    }
    free(t);
}

static void end_with_trace(struct exec_job *job)
{
    struct tracing *t = job->result.grant_id != 0 ? malloc(sizeof *t) : NULL;
    if (t == NULL) {
        end(job);
        return;
    }
    *t = (struct tracing){.job = {.run = run_tracing, .finish = end_tracing},
                          .exec = job,
                          .handle = job->use.guest->handle,
                          .grant_id = job->result.grant_id};
    stop_reading(job);
    job->state = JOB_TRACING;
    workers_submit(job->api->lanes[LANE_CALLS], &t->job);
}

// ---- output ----

static void take_head(struct exec_job *job, unsigned which, const uint8_t *bytes, size_t n)
{
    struct buf *head = &job->head[which];
    size_t room = HEAD_BYTES_MAX - head->len;
    job->total[which] += n;
    if (job->api->metrics->output_held >= OUTPUT_HELD_MAX)
        room = 0;
    if (n > room) {
        n = room;
        job->cut = true;
    }
    if (buf_append(head, bytes, n) < 0)
        job->cut = true;
    else
        job->api->metrics->output_held += n;
}

static void take_output(struct exec_job *job, unsigned which, const uint8_t *bytes, size_t n)
{
    if (job->events) {
        events_output(job, which, bytes, n);
        followers_send(job);
    } else {
        take_head(job, which, bytes, n);
    }
}

// One event; false when there is no more for now, or the job is over.
static bool take_event(struct exec_job *job)
{
    sandbox_event_t e = {0};
    sandbox_error_t r = sandbox_stream_read(job->stream, 0, &e);
    if (r != SANDBOX_OK) {
        char text[384];
        snprintf(text, sizeof text, "%s", sandbox_last_error());
        if (r == SANDBOX_ERR_GUEST_UNAVAILABLE)
            engine_link_suspect(job->api->engine);
        end_with_error(job, r, text);
        return false;
    }
    switch (e.type) {
    case SANDBOX_EVENT_STDOUT:
    case SANDBOX_EVENT_STDERR:
        take_output(job, e.type == SANDBOX_EVENT_STDERR, e.data, e.len);
        return true;
    case SANDBOX_EVENT_DROPPED:
        events_dropped(job, e.dropped);
        return true;
    case SANDBOX_EVENT_EXIT:
        job->result = *e.result;
        job->result.out = job->result.err = NULL;  // the stream's
        job->result.grant_id = sandbox_stream_grant_id(job->stream);
        end_with_trace(job);
        return false;
    default:
        return e.type != SANDBOX_EVENT_NONE;
    }
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct exec_job *job = arg;
    (void)fd;
    (void)what;
    for (int i = 0; i < EVENTS_IN_A_TURN; i++) {
        if (job->events && events_must_wait(job)) {
            event_del(job->readable);
            job->paused = true;
            return;
        }
        if (!take_event(job))
            return;
    }
    // There may be more in the stream's own memory, which its descriptor does not show.
    event_active(job->readable, EV_READ, 0);
}

// ---- the beginning ----

struct launch {
    struct job job;  // first
    struct exec_job *exec;
    sandbox_handle_t *handle;
    sandbox_stream_t *stream;
    uint32_t process_id;
    bool has_room;  // the sandbox has fewer uses than operations
    bool gone;      // it is not there any more
    sandbox_error_t error;
    char text[384];
};

static void launch(struct launch *l)
{
    const struct exec_request *r = &l->exec->request;
    if (!r->detach) {
        l->error = sandbox_exec_stream(l->handle, &r->spec, NULL, &l->stream);
        return;
    }
    l->error = l->process_id == 0 ? sandbox_spawn(l->handle, &r->spec, NULL, &l->process_id) : SANDBOX_OK;
    if (l->error == SANDBOX_OK)
        l->error = sandbox_attach(l->handle, l->process_id, 0, &l->stream);
}

static void run_launch(struct job *job)
{
    struct launch *l = (struct launch *)job;
    unsigned tries = 0;
    do
        launch(l);
    while (engine_lags(l->error, l->has_room, &tries));
    if (l->error == SANDBOX_OK)
        return;
    snprintf(l->text, sizeof l->text, "%s", sandbox_last_error());
    // Nothing has run of it.  Whether that is because the sandbox has ended decides if another one is worth a try.
    sandbox_status_t status;
    l->gone = l->error != SANDBOX_ERR_INVALID_SPEC && l->process_id == 0 && sandbox_inspect(l->handle, &status) != SANDBOX_OK;
}

static void begin_reading(struct exec_job *job, struct launch *l)
{
    job->stream = l->stream;
    job->process_id = l->process_id;
    job->state = JOB_RUNNING;
    job->started_at = time(NULL);
    job->api->metrics->execs++;
    job->api->metrics->execs_running++;
    job->readable = event_new(job->api->base, sandbox_stream_fd(l->stream), EV_READ | EV_PERSIST, on_readable, job);
    if (job->events)
        events_started(job);
    if (job->readable == NULL || event_add(job->readable, NULL) < 0) {
        end_failed(job, 500, "internal", "no memory");
        return;
    }
    if (job->request.detach)
        followers_answer(job);
    followers_send(job);
}

static void end_launch(struct job *done, bool ran)
{
    struct launch *l = (struct launch *)done;
    struct exec_job *job = l->exec;
    if (!ran || job->abandoned) {
        sandbox_stream_free(l->stream);
        if (ran)
            exec_job_free(job);
    } else if (l->error == SANDBOX_OK) {
        begin_reading(job, l);
    } else if (l->gone && !job->tried_again) {
        struct session *s = job->session;
        job->tried_again = true;
        job->state = JOB_WAITING;
        engine_link_suspect(job->api->engine);
        use_lost(&job->use);
        use_end(&job->use);
        session_use(s, &job->use);
    } else {
        if (l->error == SANDBOX_ERR_DAEMON_UNREACHABLE)
            engine_link_suspect(job->api->engine);
        // Of whom it is for, the caller; anything else of the kind would be this program's fault.
        if (l->error == SANDBOX_ERR_PERMISSION_DENIED && job->request.spec.grant_profile != NULL)
            end_failed(job, 403, "grant_denied", l->text);
        else
            end_with_error(job, l->error, l->text);
    }
    free(l);
}

static void on_ready(struct use *use, sandbox_error_t error, const char *text)
{
    struct exec_job *job = job_of(use);
    if (error != SANDBOX_OK) {
        end_with_error(job, error, text);
        return;
    }
    struct launch *l = calloc(1, sizeof *l);
    if (l == NULL) {
        end_failed(job, 500, "internal", "no memory");
        return;
    }
    *l = (struct launch){.job = {.run = run_launch, .finish = end_launch}, .exec = job, .handle = use->guest->handle};
    l->has_room = use->session->n_uses <= SANDBOX_MAX_GUEST_OPS;
    job->state = JOB_STARTING;
    workers_submit(job->api->lanes[LANE_CALLS], &l->job);
}

void exec_job_run(struct exec_job *job)
{
    session_use(job->session, &job->use);
}

// ---- killing ----

struct killing {
    struct job job;  // first
    struct use use;
    struct api *api;
    sandbox_handle_t *handle;
    uint32_t process_id;
};

static void run_killing(struct job *job)
{
    struct killing *k = (struct killing *)job;
    sandbox_process_signal(k->handle, k->process_id, SIGKILL, 0);
}

static void end_killing(struct job *job, bool ran)
{
    struct killing *k = (struct killing *)job;
    (void)ran;
    use_end(&k->use);
    free(k);
}

static void on_kill_ready(struct use *use, sandbox_error_t error, const char *text)
{
    struct killing *k = (struct killing *)((char *)use - offsetof(struct killing, use));
    (void)text;
    if (error != SANDBOX_OK) {
        free(k);
        return;
    }
    k->handle = use->guest->handle;
    workers_submit(k->api->lanes[LANE_CALLS], &k->job);
}

void exec_job_kill(struct exec_job *job)
{
    job->api->metrics->execs_killed++;
    if (job->state != JOB_RUNNING)
        return;
    if (!job->request.detach) {
        sandbox_stream_kill(job->stream);
        return;
    }
    struct killing *k = calloc(1, sizeof *k);
    if (k == NULL)
        return;
    *k = (struct killing){.job = {.run = run_killing, .finish = end_killing},
                          .use = {.ready = on_kill_ready},
                          .api = job->api,
                          .process_id = job->process_id};
    session_use(job->session, &k->use);
}

// ---- all of a session's ----

void exec_jobs_forget(struct session *s)
{
    struct exec_job *job;
    while ((job = TAILQ_FIRST(&s->execs)) != NULL)
        exec_job_free(job);
}

void exec_jobs_expire(struct session *s, uint64_t now)
{
    struct exec_job *job, *next;
    for (job = TAILQ_FIRST(&s->execs); job != NULL; job = next) {
        next = TAILQ_NEXT(job, link);
        struct follower *f;
        TAILQ_FOREACH(f, &job->followers, link)
        follower_keep_alive(f, now);
        if (job->state == JOB_ENDED && TAILQ_EMPTY(&job->followers) && now - job->ended_ns >= KEPT_S * NS_PER_S)
            exec_job_free(job);
    }
}
