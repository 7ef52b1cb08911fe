// PUT of a file: the body goes to the sandbox as it comes, and is in place when all of it has come.
#include "api/engine_link.h"
#include "api/file_op.h"
#include "api/metrics.h"

#include <stdlib.h>

struct put_op {
    struct file_op op;  // first
    uint32_t flags;
    sandbox_stream_t *stream;
    struct event *readable;
    bool closed;  // the end has been sent
    uint64_t bytes;
};

static void stop(struct put_op *o)
{
    if (o->readable != NULL)
        event_free(o->readable);
    o->readable = NULL;
    sandbox_stream_free(o->stream);
    o->stream = NULL;
}

static void gone(struct file_op *op)
{
    stop((struct put_op *)op);
    file_op_free(op);
}

static void fail(struct put_op *o, sandbox_error_t error, const char *text)
{
    stop(o);
    o->op.error = error;
    snprintf(o->op.text, sizeof o->op.text, "%s", text);
    file_op_fail(&o->op);
}

static void on_gone(void *arg)
{
    struct put_op *o = arg;
    o->op.call = NULL;
    gone(&o->op);
}

// Passes on what the sandbox has room for; an error of the stream comes as its end.
static void on_body(void *arg, struct evbuffer *in, bool over)
{
    struct put_op *o = arg;
    struct evbuffer_iovec piece;
    while (evbuffer_get_length(in) > 0 && evbuffer_peek(in, -1, NULL, &piece, 1) > 0) {
        size_t written = 0;
        sandbox_stream_write_stdin(o->stream, piece.iov_base, piece.iov_len, &written);
        evbuffer_drain(in, written);
        o->bytes += written;
        if (written < piece.iov_len)
            return;
    }
    if (over && !o->closed) {
        o->closed = true;
        sandbox_stream_close_stdin(o->stream);
    }
}

static void finish(struct put_op *o)
{
    struct call *call = file_op_take_call(&o->op);
    o->op.api->metrics->file_bytes_in += o->bytes;
    gone(&o->op);
    if (call != NULL)
        reply_empty(call, 204);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct put_op *o = arg;
    (void)fd;
    (void)what;
    for (;;) {
        sandbox_event_t e = {0};
        sandbox_error_t r = sandbox_stream_read(o->stream, 0, &e);
        if (r != SANDBOX_OK) {
            char text[384];
            snprintf(text, sizeof text, "%s", sandbox_last_error());
            fail(o, r, text);
            return;
        }
        if (e.type == SANDBOX_EVENT_EXIT) {
            finish(o);
            return;
        }
        if (e.type == SANDBOX_EVENT_NONE)
            return;
        if (e.type == SANDBOX_EVENT_STDIN_ROOM && o->op.call != NULL)
            http_body_more(o->op.call->x);
    }
}

static sandbox_error_t run(struct file_op *op)
{
    struct put_op *o = (struct put_op *)op;
    return sandbox_open_write(op->handle, op->path, 0, o->flags | SANDBOX_WRITE_INSIDE | SANDBOX_WRITE_BRIEF, &o->stream);
}

static void done(struct file_op *op)
{
    static const struct http_exchange_ops ops = {.on_body = on_body, .on_gone = on_gone};
    struct put_op *o = (struct put_op *)op;
    if (op->error != SANDBOX_OK) {
        file_op_fail(op);
        return;
    }
    if (op->call == NULL) {
        gone(op);
        return;
    }
    o->readable = event_new(op->api->base, sandbox_stream_fd(o->stream), EV_READ | EV_PERSIST, on_readable, o);
    if (o->readable == NULL || event_add(o->readable, NULL) < 0) {
        fail(o, SANDBOX_ERR_INTERNAL, "no memory");
        return;
    }
    op->call->x->ops = &ops;
    op->gone_fn = gone;
    http_read_stream(op->call->x, SANDBOX_MAX_FILE);
}

static bool read_params(struct call *call, struct put_op *o)
{
    char append[8] = "", exclusive[8] = "";
    bool adds, alone;
    struct query_param params[] = {{.name = "path", .value = o->op.path, .size = sizeof o->op.path, .required = true},
                                   {.name = "append", .value = append, .size = sizeof append},
                                   {.name = "exclusive", .value = exclusive, .size = sizeof exclusive}};
    if (!query_read(call, params, 3) || !query_flag(call, &params[1], &adds) || !query_flag(call, &params[2], &alone))
        return false;
    o->flags = (adds ? SANDBOX_WRITE_APPEND : 0) | (alone ? SANDBOX_WRITE_EXCL : 0);
    const struct http_body *body = &call->x->request->body;
    if (body->kind == HTTP_BODY_LENGTH && body->length > SANDBOX_MAX_FILE) {
        reply_error(call, 413, "too_large", "%llu bytes are more than the %u that a file may have",
                    (unsigned long long)body->length, SANDBOX_MAX_FILE);
        return false;
    }
    return true;
}

void op_file_put(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s = session_named(call);
    if (s == NULL)
        return;
    struct put_op *o = calloc(1, sizeof *o);
    if (o == NULL) {
        reply_error(call, 503, "unavailable", "no memory");
        return;
    }
    if (!read_params(call, o)) {
        free(o);
        return;
    }
    o->op.run = run;
    o->op.done = done;
    file_op_begin(&o->op, call, s);
}
