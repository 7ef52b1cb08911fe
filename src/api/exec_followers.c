// Who waits for a command, and what they are told.
#include "api/exec_job.h"
#include "api/metrics.h"
#include "api/replay.h"
#include "base/base64.h"
#include "base/json_out.h"

#include <stdlib.h>
#include <string.h>

enum { ANSWER_MAX = 16 * 1024 * 1024 };  // two heads, each byte of which may be six characters

// ---- coming and going ----

void follower_free(struct follower *f)
{
    struct exec_job *job = f->job;
    f->call->x->ops = NULL;
    TAILQ_REMOVE(&job->followers, f, link);
    if (f->events)
        job->api->metrics->event_streams--;
    free(f);
}

// Nobody is left to have the command for.
static void kill_if_unwanted(struct exec_job *job)
{
    if (!TAILQ_EMPTY(&job->followers) || exec_job_kept(job))
        return;
    if (job->state == JOB_RUNNING)
        job->api->metrics->execs_killed++;
    if (job->state == JOB_STARTING || job->state == JOB_TRACING)
        job->abandoned = true;  // its end frees it
    else
        exec_job_free(job);  // the end of its stream kills the command
}

static void leave(struct follower *f)
{
    struct exec_job *job = f->job;
    follower_free(f);
    if (job->readable != NULL && job->paused && !events_must_wait(job)) {
        job->paused = false;
        event_add(job->readable, NULL);
        event_active(job->readable, EV_READ, 0);
    }
    kill_if_unwanted(job);
}

static void on_gone(void *arg)
{
    leave(arg);
}

static void on_eof(void *arg)
{
    struct follower *f = arg;
    struct http_exchange *x = f->call->x;
    leave(f);
    http_abort(x);
}

// The command goes on when its slowest follower has taken something.
static void go_on(struct exec_job *job)
{
    events_trim(job);
    if (job->readable == NULL || !job->paused || events_must_wait(job))
        return;
    job->paused = false;
    event_add(job->readable, NULL);
    event_active(job->readable, EV_READ, 0);
}

// A job that has ended and is kept for nobody goes with its last follower.
static void free_if_done(struct exec_job *job)
{
    if (job->state == JOB_ENDED && TAILQ_EMPTY(&job->followers) && !exec_job_kept(job))
        exec_job_free(job);
}

static void on_room(void *arg)
{
    struct follower *f = arg;
    struct exec_job *job = f->job;
    if (!f->events)
        return;
    follower_send(f);
    go_on(job);
    free_if_done(job);
}

bool exec_job_follow(struct exec_job *job, struct call *call, bool events, uint64_t after)
{
    static const struct http_exchange_ops ops = {.on_room = on_room, .on_eof = on_eof, .on_gone = on_gone};
    struct follower *f = calloc(1, sizeof *f);
    if (f == NULL)
        return false;
    *f = (struct follower){.job = job, .call = call, .events = events, .next_seq = after + 1};
    struct exec_event *e;
    if (events) {
        TAILQ_FOREACH(e, &job->ring, link)
        if (e->seq > after) {
            f->at = e;
            break;
        }
        job->api->metrics->event_streams++;
    }
    call->x->ops = &ops;
    call->x->arg = f;
    TAILQ_INSERT_TAIL(&job->followers, f, link);
    return true;
}

void followers_send(struct exec_job *job)
{
    struct follower *f, *next;
    for (f = TAILQ_FIRST(&job->followers); f != NULL; f = next) {
        next = TAILQ_NEXT(f, link);
        if (f->events)
            follower_send(f);
    }
    go_on(job);
}

// ---- answers in one piece ----

static void put_text(struct json_out *j, const char *name, const struct buf *head, bool base64)
{
    if (!base64) {
        json_bytes(j, name, head->data, head->len);
        return;
    }
    size_t n = base64_length(head->len);
    char *text = malloc(n + 1);
    if (text != NULL)
        base64_encode(head->data, head->len, text);
    json_bytes(j, name, text, text != NULL ? n : 0);
    free(text);
}

static void put_result(struct buf *body, const struct exec_job *job)
{
    struct json_out j = JSON_OUT_INIT(body);
    json_open(&j, NULL, '{');
    json_str(&j, "exec_id", job->id);
    result_put(&j, job);
    put_text(&j, "stdout", &job->head[0], job->request.base64);
    put_text(&j, "stderr", &job->head[1], job->request.base64);
    json_u64(&j, "stdout_bytes", job->total[0]);
    json_u64(&j, "stderr_bytes", job->total[1]);
    json_close(&j, '}');
    buf_append_text(body, "\n");
}

static void put_running(struct buf *body, const struct exec_job *job)
{
    struct json_out j = JSON_OUT_INIT(body);
    json_open(&j, NULL, '{');
    json_str(&j, "exec_id", job->id);
    json_str(&j, "session_id", job->session->id);
    json_str(&j, "state", "running");  // also to who asks again when it has ended: it is the first answer
    json_i64(&j, "started_at", job->started_at);
    json_close(&j, '}');
    buf_append_text(body, "\n");
}

// It failed before there was anything to be answered but that.
static bool never_began(const struct exec_job *job)
{
    return job->failed && !(job->events && job->last_seq > 0);
}

// The body of an answer; its status.
static unsigned make_answer(struct exec_job *job, struct call *any, struct buf *body)
{
    if (never_began(job)) {
        any->dialect->put_error(body, job->status, job->code, job->message);
        buf_append_text(body, "\n");
        return job->status;
    }
    if (job->events)
        put_running(body, job);
    else
        put_result(body, job);
    return job->events ? 202 : 200;
}

void followers_answer(struct exec_job *job)
{
    cleanup_buf struct buf body = BUF_INIT(ANSWER_MAX);
    struct follower *f = TAILQ_FIRST(&job->followers), *next;
    if (f == NULL && job->replay == NULL)
        return;
    // Without a follower it is made for those who come later, in the dialect that has the key.
    static struct call nobody;
    nobody.dialect = replay_dialect();
    unsigned status = make_answer(job, f != NULL ? f->call : &nobody, &body);
    if (buf_error(&body) < 0)
        status = 500;
    // One of events stays, and answers itself.
    if (job->state == JOB_ENDED && job->replay != NULL && (!job->events || never_began(job)))
        replay_store(&job->replay, status, body.data, body.len);
    for (; f != NULL; f = next) {
        next = TAILQ_NEXT(f, link);
        // Of a command that runs, those who follow its events have theirs.
        if (f->events && !(job->failed && !f->begun))
            continue;
        struct http_exchange *x = f->call->x;
        follower_free(f);
        if (status_is_retryable(status))
            http_add_header(x, "Retry-After", "1");
        if (buf_error(&body) < 0)
            http_abort(x);
        else
            http_reply(x, status, "application/json", body.data, body.len);
    }
}
