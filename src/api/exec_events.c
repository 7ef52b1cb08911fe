// The events of a command (text/event-stream): made once, as they are sent, and shared by all who follow.
#include "api/exec_job.h"
#include "api/metrics.h"
#include "base/base64.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EVENT_TEXT_MAX = 1024 * 1024 };  // 64 KiB of output, each byte of which may be six characters; or a trace

// ---- the ring ----

static bool needed(const struct exec_job *job, const struct exec_event *e)
{
    const struct follower *f;
    TAILQ_FOREACH(f, &job->followers, link)
    if (f->events && f->at != NULL && f->at->seq <= e->seq)
        return true;
    return false;
}

static size_t kept_bytes(const struct exec_job *job)
{
    return exec_job_kept(job) && job->api->metrics->output_held < OUTPUT_HELD_MAX ? EVENTS_KEPT_BYTES : 0;
}

static void drop_oldest(struct exec_job *job)
{
    struct exec_event *e = TAILQ_FIRST(&job->ring);
    struct follower *f;
    TAILQ_FOREACH(f, &job->followers, link)
    if (f->at == e)
        f->at = TAILQ_NEXT(e, link);
    TAILQ_REMOVE(&job->ring, e, link);
    job->ring_bytes -= e->n + EVENT_COST;
    job->api->metrics->output_held -= e->n + EVENT_COST;
    free(e);
}

void events_trim(struct exec_job *job)
{
    size_t keep = kept_bytes(job);
    struct exec_event *e;
    while (job->ring_bytes > keep && (e = TAILQ_FIRST(&job->ring)) != NULL) {
        // The last event is the end, which everybody is to see.
        if (needed(job, e) && (!job->request.detach || TAILQ_NEXT(e, link) == NULL))
            return;
        if (job->state == JOB_ENDED && TAILQ_NEXT(e, link) == NULL && exec_job_kept(job))
            return;
        drop_oldest(job);
    }
}

bool events_must_wait(const struct exec_job *job)
{
    size_t most = exec_job_kept(job) ? EVENTS_KEPT_BYTES : EVENTS_WINDOW_BYTES;
    const struct exec_event *oldest = TAILQ_FIRST(&job->ring);
    return !job->request.detach && job->ring_bytes >= most && oldest != NULL && needed(job, oldest);
}

void events_free(struct exec_job *job)
{
    while (!TAILQ_EMPTY(&job->ring))
        drop_oldest(job);
}

static void add(struct exec_job *job, const char *kind, struct buf *data)
{
    uint64_t seq = ++job->last_seq;
    const char *json = buf_text(data);
    if (json == NULL)
        return;
    size_t size = sizeof(struct exec_event) + data->len + 96;
    struct exec_event *e = malloc(size);
    if (e == NULL)
        return;  // a follower is told that one is missing
    e->seq = seq;
    e->n = (size_t)snprintf(e->text, size - sizeof *e, "id: %" PRIu64 "\nevent: %s\ndata: %s\n\n", seq, kind, json);
    TAILQ_INSERT_TAIL(&job->ring, e, link);
    job->ring_bytes += e->n + EVENT_COST;
    job->api->metrics->output_held += e->n + EVENT_COST;
    struct follower *f;
    TAILQ_FOREACH(f, &job->followers, link)
    if (f->events && f->at == NULL)
        f->at = e;
    events_trim(job);
}

// ---- the kinds ----

static void begin(struct exec_job *job, struct json_out *j)
{
    json_open(j, NULL, '{');
    json_u64(j, "seq", job->last_seq + 1);
}

void events_started(struct exec_job *job)
{
    cleanup_buf struct buf data = BUF_INIT(EVENT_TEXT_MAX);
    struct json_out j = JSON_OUT_INIT(&data);
    begin(job, &j);
    json_str(&j, "exec_id", job->id);
    json_str(&j, "session_id", job->session->id);
    json_i64(&j, "started_at", job->started_at);
    json_bool(&j, "detached", job->request.detach);
    json_close(&j, '}');
    add(job, "started", &data);
}

static void put_output(struct exec_job *job, unsigned which, const uint8_t *bytes, size_t n)
{
    cleanup_buf struct buf data = BUF_INIT(EVENT_TEXT_MAX);
    struct json_out j = JSON_OUT_INIT(&data);
    begin(job, &j);
    if (job->request.base64) {
        char *text = malloc(base64_length(n) + 1);
        if (text == NULL)
            return;
        base64_encode(bytes, n, text);
        json_str(&j, "encoding", "base64");
        json_bytes(&j, "data", text, base64_length(n));
        free(text);
    } else {
        json_bytes(&j, "data", bytes, n);
    }
    json_close(&j, '}');
    add(job, which == 0 ? "stdout" : "stderr", &data);
}

// How many of the last bytes are the beginning of a character that may still become whole.
static size_t split_at_end(const uint8_t *bytes, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        uint8_t c = bytes[n - k];
        if ((c & 0xC0) == 0x80)
            continue;
        size_t width = c >= 0xF0 && c < 0xF5 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
        return width > k && c < 0xF5 ? k : 0;
    }
    return 0;
}

void events_output(struct exec_job *job, unsigned which, const uint8_t *bytes, size_t n)
{
    if (job->request.base64) {
        put_output(job, which, bytes, n);
        return;
    }
    size_t before = job->n_split[which];
    uint8_t *whole = malloc(before + n);
    if (whole == NULL)
        return;
    memcpy(whole, job->split[which], before);
    memcpy(whole + before, bytes, n);
    n += before;
    size_t rest = split_at_end(whole, n);
    memcpy(job->split[which], whole + n - rest, rest);
    job->n_split[which] = rest;
    if (n > rest)
        put_output(job, which, whole, n - rest);
    free(whole);
}

static void flush_splits(struct exec_job *job)
{
    for (unsigned i = 0; i < 2; i++) {
        size_t n = job->n_split[i];
        job->n_split[i] = 0;
        if (n > 0)
            put_output(job, i, job->split[i], n);
    }
}

void events_dropped(struct exec_job *job, uint64_t bytes)
{
    cleanup_buf struct buf data = BUF_INIT(EVENT_TEXT_MAX);
    struct json_out j = JSON_OUT_INIT(&data);
    begin(job, &j);
    json_u64(&j, "bytes", bytes);
    json_close(&j, '}');
    add(job, "dropped", &data);
}

static void put_call(struct json_out *j, const sandbox_grant_call_t *c)
{
    json_open(j, NULL, '{');
    json_u64(j, "sequence", c->sequence);
    json_str(j, "method", c->method);
    json_str(j, "route", c->route);
    json_u64(j, "status", c->status);
    json_bool(j, "delivered", c->delivered);
    json_u64(j, "request_bytes", c->request_bytes);
    json_u64(j, "response_bytes", c->response_bytes);
    json_u64(j, "latency_us", c->latency_us);
    json_close(j, '}');
}

static void put_finding(struct json_out *j, const sandbox_grant_finding_t *f)
{
    json_open(j, NULL, '{');
    json_str(j, "pattern", f->pattern);
    json_str(j, "severity", f->severity);
    json_str(j, "remedy", f->remedy);
    json_str(j, "method", f->method);
    json_str(j, "route", f->route);
    json_str(j, "suggested_method", f->suggested_method);
    json_str(j, "suggested_route", f->suggested_route);
    json_bool(j, "at_least", f->at_least);
    json_str(j, "detail", f->detail);
    json_close(j, '}');
}

static void put_trace(struct json_out *j, const sandbox_grant_trace_t *t)
{
    json_open(j, "grant", '{');
    json_str(j, "profile", t->profile);
    json_bool(j, "lost", t->lost);
    json_u64(j, "attempts", t->attempts);
    json_u64(j, "denied", t->denied);
    json_u64(j, "shed", t->shed);
    json_u64(j, "dropped", t->dropped);
    json_open(j, "calls", '[');
    for (size_t i = 0; i < t->call_count; i++)
        put_call(j, &t->call[i]);
    json_close(j, ']');
    json_open(j, "advice", '[');
    for (size_t i = 0; i < t->finding_count; i++)
        put_finding(j, &t->finding[i]);
    json_close(j, ']');
    json_close(j, '}');
}

void result_put(struct json_out *j, const struct exec_job *job)
{
    const sandbox_exec_result_t *r = &job->result;
    char ms[40];
    json_i64(j, "exit_code", r->exit_code);
    json_i64(j, "term_signal", r->term_signal);
    json_bool(j, "timed_out", r->timed_out);
    json_bool(j, "output_truncated", r->output_truncated || job->cut);
    json_bool(j, "oom_killed", r->oom_killed);
    snprintf(ms, sizeof ms, "%" PRIu64 ".%03u", r->duration_us / 1000, (unsigned)(r->duration_us % 1000));
    json_raw(j, "duration_ms", ms);
    json_str(j, "isolation", sandbox_isolation_name((sandbox_isolation_t)r->isolation));
    if (job->trace != NULL)
        put_trace(j, job->trace);
}

void events_end(struct exec_job *job)
{
    flush_splits(job);
    cleanup_buf struct buf data = BUF_INIT(EVENT_TEXT_MAX);
    struct json_out j = JSON_OUT_INIT(&data);
    begin(job, &j);
    if (job->failed) {
        json_str(&j, "code", job->code);
        json_str(&j, "message", job->message);
    } else {
        result_put(&j, job);
        json_u64(&j, "stdout_bytes", job->result.out_total);
        json_u64(&j, "stderr_bytes", job->result.err_total);
    }
    json_close(&j, '}');
    add(job, job->failed ? "error" : "exit", &data);
}

// ---- sending ----

static void begin_sending(struct follower *f)
{
    struct http_exchange *x = f->call->x;
    f->begun = true;
    f->sent_ns = mono_ns();
    http_add_header(x, "Cache-Control", "no-store");
    http_add_header(x, "X-Accel-Buffering", "no");
    http_begin(x, 200, "text/event-stream", HTTP_UNKNOWN_LENGTH);
}

// Some events were dropped before this follower had them.
static void say_missing(struct follower *f, uint64_t first)
{
    char text[160];
    int n = snprintf(text, sizeof text,
                     "id: %" PRIu64 "\nevent: dropped\ndata: {\"seq\":%" PRIu64 ",\"from\":%" PRIu64 ",\"to\":%" PRIu64 "}\n\n",
                     first - 1, first - 1, f->next_seq, first - 1);
    http_send(f->call->x, text, (size_t)n);
}

void follower_send(struct follower *f)
{
    struct exec_job *job = f->job;
    struct http_exchange *x = f->call->x;
    if (!f->begun && job->last_seq > 0)
        begin_sending(f);
    while (f->at != NULL && http_unsent(x) < HTTP_WINDOW) {
        struct exec_event *e = f->at;
        if (e->seq > f->next_seq)
            say_missing(f, e->seq);
        if (e->seq >= f->next_seq)
            http_send(x, e->text, e->n);
        f->next_seq = e->seq + 1;
        f->at = TAILQ_NEXT(e, link);
        f->sent_ns = mono_ns();
    }
    if (f->at == NULL && job->state == JOB_ENDED && f->begun) {
        follower_free(f);
        http_end(x);
    }
}

void follower_keep_alive(struct follower *f, uint64_t now)
{
    static const char comment[] = ": keepalive\n\n";
    if (!f->begun || now - f->sent_ns < f->call->api->options.keepalive_s * NS_PER_S)
        return;
    f->sent_ns = now;
    if (http_unsent(f->call->x) == 0)
        http_send(f->call->x, comment, sizeof comment - 1);
}
