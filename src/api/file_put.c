// PUT of a file: the body goes to the sandbox as it comes, and is in place when all of it has come.
#include "api/engine_link.h"
#include "api/file_op.h"
#include "api/metrics.h"

#include <stdlib.h>

struct put_op {
    struct file_stream s;  // first
    uint32_t flags;
    bool closed;  // the end has been sent
    uint64_t bytes;
};

// Passes on what the sandbox has room for; an error of the stream comes as its end.
static void on_body(void *arg, struct evbuffer *in, bool over)
{
    struct put_op *o = arg;
    struct evbuffer_iovec piece;
    while (evbuffer_get_length(in) > 0 && evbuffer_peek(in, -1, NULL, &piece, 1) > 0) {
        size_t written = 0;
        sandbox_stream_write_stdin(o->s.stream, piece.iov_base, piece.iov_len, &written);
        evbuffer_drain(in, written);
        o->bytes += written;
        if (written < piece.iov_len)
            return;
    }
    if (over && !o->closed) {
        o->closed = true;
        sandbox_stream_close_stdin(o->s.stream);
    }
}

static void finish(struct put_op *o)
{
    struct call *call = file_op_take_call(&o->s.op);
    o->s.op.api->metrics->file_bytes_in += o->bytes;
    file_stream_free(&o->s.op);
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
        sandbox_error_t r = sandbox_stream_read(o->s.stream, 0, &e);
        if (r != SANDBOX_OK) {
            file_stream_fail_last(&o->s, r);
            return;
        }
        if (e.type == SANDBOX_EVENT_EXIT) {
            finish(o);
            return;
        }
        if (e.type == SANDBOX_EVENT_NONE)
            return;
        if (e.type == SANDBOX_EVENT_STDIN_ROOM && o->s.op.call != NULL)
            http_body_more(o->s.op.call->x);
    }
}

static sandbox_error_t run(struct file_op *op)
{
    struct put_op *o = (struct put_op *)op;
    return sandbox_open_write(op->handle, op->path, 0, o->flags | SANDBOX_WRITE_INSIDE | SANDBOX_WRITE_BRIEF, &o->s.stream);
}

static void done(struct file_op *op)
{
    static const struct http_exchange_ops ops = {.on_body = on_body, .on_gone = file_stream_on_gone};
    if (file_stream_begin(op, &ops, on_readable))
        http_read_stream(op->call->x, SANDBOX_MAX_FILE);
}

static bool read_params(struct call *call, struct put_op *o)
{
    char append[8] = "", exclusive[8] = "";
    bool adds, alone;
    struct query_param params[] = {{.name = "path", .value = o->s.op.path, .size = sizeof o->s.op.path, .required = true},
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
    struct session *s;
    struct put_op *o = file_op_new(call, sizeof *o, run, done, &s);
    if (o == NULL)
        return;
    o->s.op.discard = file_stream_discard;
    if (!read_params(call, o)) {
        free(o);
        return;
    }
    file_op_begin(&o->s.op, call, s);
}
