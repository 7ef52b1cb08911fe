// The operations on commands: exec, and coming back to one.
#include "api/exec_job.h"
#include "api/replay.h"
#include "api/session_ops.h"
#include "base/json_out.h"
#include "base/num.h"

#include <errno.h>
#include <string.h>

// The Idempotency-Key; false: there is a bad one, and an error has been replied.
static bool read_key(struct call *call, struct http_text *ret)
{
    const struct http_fields *fields = &call->x->request->fields;
    const struct http_field *f = http_field_find(fields, 0, HTTP_TEXT("idempotency-key"));
    *ret = (struct http_text){NULL, 0};
    if (f == NULL)
        return true;
    bool twice = http_field_find(fields, (unsigned)(f - fields->field) + 1, HTTP_TEXT("idempotency-key")) != NULL;
    if (twice || f->value.n == 0 || f->value.n > REPLAY_KEY_BYTES_MAX) {
        reply_error(call, 400, "invalid_argument", "Idempotency-Key must be given once, with 1 to %d bytes",
                    REPLAY_KEY_BYTES_MAX);
        return false;
    }
    *ret = f->value;
    return true;
}

// A request whose key belongs to a command already: it is answered with that.
static void answer_again(struct call *call, struct replay *r, bool events)
{
    struct exec_job *job = replay_job(r);
    bool follow_events = events && job->events;
    http_add_header(call->x, "Idempotency-Replayed", "true");
    if (!exec_job_follow(job, call, follow_events, 0)) {
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    if (follow_events)
        followers_send(job);
    else if (job->events && job->state >= JOB_RUNNING)
        followers_answer(job);
}

static void begin(struct call *call, struct session *s, struct exec_request *request, struct replay *r)
{
    bool events = request->stream;
    struct exec_job *job = exec_job_new(call->api, s, request, r != NULL);
    if (job == NULL) {
        exec_request_free(request);
        replay_forget(r);
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    if (r != NULL)
        replay_set_job(r, job);
    if (!exec_job_follow(job, call, events, 0)) {
        exec_job_free(job);
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    exec_job_run(job);
}

void op_exec(struct call *call, const char *body, size_t n)
{
    struct session *s = session_named(call);
    struct http_text key;
    struct exec_request request;
    struct err err;
    if (s == NULL || !query_read(call, NULL, 0) || !read_key(call, &key))
        return;
    int e = exec_request_read(&request, body, n, &err);
    if (e < 0) {
        reply_error(call, e == -EMSGSIZE ? 413 : 400, e == -EMSGSIZE ? "too_large" : "invalid_argument", "%s", err.text);
        return;
    }
    struct replay *r = NULL;
    enum replay_found found = key.n > 0 ? replay_find(call->api->replays, call, key, body, n, &r) : REPLAY_NEW;
    if (found == REPLAY_NEW) {
        begin(call, s, &request, r);
        return;
    }
    bool events = request.stream;
    exec_request_free(&request);
    if (found == REPLAY_RUNNING)
        answer_again(call, r, events);
    else if (found == REPLAY_ANSWERED)
        replay_reply(r, call);
    else if (found == REPLAY_OTHER)
        reply_error(call, 409, "idempotency_conflict", "this Idempotency-Key was used for another request");
    else
        reply_error(call, 429, "quota_exceeded", "%d commands with an Idempotency-Key run, the most allowed; try again",
                    REPLAYS_MAX);
}

// ---- commands that can be come back to ----

static struct exec_job *job_named(struct call *call)
{
    struct session *s = session_named(call);
    if (s == NULL)
        return NULL;
    struct exec_job *job = exec_job_find(s, call->params[1]);
    if (job == NULL)
        reply_error(call, 404, "not_found", "there is no such command");
    return job;
}

static void put_job(struct json_out *j, const struct exec_job *job)
{
    json_open(j, NULL, '{');
    json_str(j, "exec_id", job->id);
    json_str(j, "state", job->state == JOB_ENDED ? "ended" : "running");
    json_bool(j, "detached", job->request.detach);
    json_i64(j, "started_at", job->started_at);
    json_u64(j, "last_seq", job->last_seq);
    if (job->state == JOB_ENDED && job->failed) {
        json_str(j, "code", job->code);
        json_str(j, "message", job->message);
    } else if (job->state == JOB_ENDED) {
        result_put(j, job);
    }
    json_close(j, '}');
}

void op_exec_list(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s = session_named(call);
    if (s == NULL || !query_read(call, NULL, 0))
        return;
    cleanup_buf struct buf out = BUF_INIT(1024 * 1024);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_open(&j, "execs", '[');
    struct exec_job *job;
    TAILQ_FOREACH(job, &s->execs, link)
    if (job->events && !job->abandoned && job->state >= JOB_RUNNING)
        put_job(&j, job);
    json_close(&j, ']');
    json_close(&j, '}');
    reply_json(call, 200, &out);
}

// Where a client left off: the parameter, or what a browser says when it connects again.
static bool read_after(struct call *call, uint64_t *ret)
{
    char text[24] = "";
    struct query_param after = {.name = "after", .value = text, .size = sizeof text};
    const struct http_field *f = http_field_find(&call->x->request->fields, 0, HTTP_TEXT("last-event-id"));
    *ret = 0;
    if (!query_read(call, &after, 1))
        return false;
    if (!after.present && f != NULL && f->value.n < sizeof text) {
        memcpy(text, f->value.at, f->value.n);
        text[f->value.n] = '\0';
        after.present = true;
    }
    if (!after.present || parse_u64(text, 0, UINT64_MAX - 1, ret) == 0)
        return true;
    reply_error(call, 400, "invalid_argument", "after is \"%s\"; it must be the number of an event", text);
    return false;
}

void op_exec_events(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct exec_job *job = job_named(call);
    uint64_t after;
    if (job == NULL || !read_after(call, &after))
        return;
    if (after > job->last_seq) {
        reply_error(call, 400, "invalid_argument", "after is %llu; the last event is %llu", (unsigned long long)after,
                    (unsigned long long)job->last_seq);
        return;
    }
    if (!exec_job_follow(job, call, true, after)) {
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    followers_send(job);
}

void op_exec_kill(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct exec_job *job = job_named(call);
    if (job == NULL || !query_read(call, NULL, 0))
        return;
    exec_job_kill(job);
    reply_empty(call, 204);
}
