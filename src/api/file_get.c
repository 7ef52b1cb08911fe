// GET of a file: its bytes as they come from the sandbox, as fast as the client takes them; a range where one is asked for.
#include "api/engine_link.h"
#include "api/file_op.h"
#include "api/metrics.h"

#include <stdlib.h>
#include <string.h>

enum { EVENTS_IN_A_TURN_MAX = 32 };

struct get_op {
    struct file_stream s;  // first
    sandbox_read_options_t options;
    bool ranged;
    bool paused;
    uint64_t left;  // of the answer's body
};

// ---- the range ----

static bool take_number(struct http_text *t, uint64_t *ret)
{
    size_t n = 0;
    uint64_t value = 0;
    while (n < t->n && t->at[n] >= '0' && t->at[n] <= '9' && n < 18)
        value = value * 10 + (uint64_t)(t->at[n++] - '0');
    *t = (struct http_text){t->at + n, t->n - n};
    *ret = value;
    return n > 0;
}

// One range of bytes (RFC 9110, 14.2).  Any other Range is as if there were none.
static void read_range(const struct http_request *r, struct get_op *o)
{
    const struct http_field *f = http_field_find(&r->fields, 0, HTTP_TEXT("range"));
    const struct http_text unit = HTTP_TEXT("bytes=");
    if (f == NULL || f->value.n <= unit.n || !http_text_is((struct http_text){f->value.at, unit.n}, unit))
        return;
    struct http_text t = {f->value.at + unit.n, f->value.n - unit.n};
    uint64_t first, last;
    bool has_first = take_number(&t, &first);
    if (t.n == 0 || t.at[0] != '-')
        return;
    t = (struct http_text){t.at + 1, t.n - 1};
    bool has_last = take_number(&t, &last);
    if (t.n > 0 || (!has_first && !has_last) || (has_first && has_last && last < first))
        return;
    o->ranged = true;
    o->options.offset = has_first ? first : last;
    o->options.from_end = !has_first;
    if (has_first && has_last)
        o->options.most = last - first + 1;
}

// ---- what comes ----

static void answer_range(struct get_op *o, uint64_t size, uint64_t offset, uint64_t length)
{
    struct http_exchange *x = o->s.op.call->x;
    http_add_header(x, "Content-Range", "bytes %llu-%llu/%llu", (unsigned long long)offset,
                    (unsigned long long)(offset + length - 1), (unsigned long long)size);
}

// The file is open: the answer's head.  False: there is no body to follow, and `o` is gone.
static bool begin_answer(struct get_op *o, uint64_t size, uint64_t offset)
{
    struct call *call = o->s.op.call;
    uint64_t length = offset < size ? size - offset : 0;
    if (o->options.most > 0 && o->options.most < length)
        length = o->options.most;
    if (o->ranged && length == 0) {
        file_op_take_call(&o->s.op);
        http_add_header(call->x, "Content-Range", "bytes */%llu", (unsigned long long)size);
        reply_error(call, 416, "range_not_satisfiable", "the file has %llu bytes", (unsigned long long)size);
    } else if (length > SANDBOX_MAX_FILE) {
        file_op_take_call(&o->s.op);
        reply_error(call, 413, "too_large", "%llu bytes are more than the %u of one answer; ask for a range",
                    (unsigned long long)length, SANDBOX_MAX_FILE);
    } else {
        if (o->ranged)
            answer_range(o, size, offset, length);
        http_add_header(call->x, "Accept-Ranges", "bytes");
        http_add_header(call->x, "X-Content-Type-Options", "nosniff");
        http_begin(call->x, o->ranged ? 206 : 200, "application/octet-stream", length);
        o->left = length;
        if (length > 0 && !call->x->head_only)
            return true;
        file_op_take_call(&o->s.op);
        http_end(call->x);
    }
    file_stream_free(&o->s.op);
    return false;
}

// `bytes` NULL: they are in the connection's pipe.
static bool take_bytes(struct get_op *o, const uint8_t *bytes, size_t n)
{
    struct call *call = o->s.op.call;
    if (call == NULL)
        return true;
    if (n > o->left)
        n = (size_t)o->left;  // no more than was promised, whatever a guest says
    if (bytes != NULL)
        http_send(call->x, bytes, n);
    else
        http_send_piped(call->x, n);
    o->s.op.api->metrics->file_bytes_out += n;
    o->left -= n;
    if (o->left == 0) {
        file_op_take_call(&o->s.op);
        http_end(call->x);
    }
    return true;
}

// One event; false when there is no more for now, or `o` is gone.
static bool take_event(struct get_op *o)
{
    sandbox_event_t e = {0};
    int pipe = o->left > 0 && o->s.op.call != NULL ? http_pipe(o->s.op.call->x) : -1;
    sandbox_error_t r =
        pipe >= 0 ? sandbox_stream_splice(o->s.stream, pipe, (size_t)o->left, &e) : sandbox_stream_read(o->s.stream, 0, &e);
    if (r != SANDBOX_OK) {
        file_stream_fail_last(&o->s, r);
        return false;
    }
    switch (e.type) {
    case SANDBOX_EVENT_FILE:
        return begin_answer(o, e.file_size, e.file_offset);
    case SANDBOX_EVENT_STDOUT:
        return take_bytes(o, e.data, e.len);
    case SANDBOX_EVENT_EXIT:
        if (o->s.op.call != NULL)
            file_stream_fail(&o->s, SANDBOX_ERR_GUEST_IO, "the file became shorter while it was read");
        else
            file_stream_free(&o->s.op);
        return false;
    default:
        return e.type != SANDBOX_EVENT_NONE;
    }
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct get_op *o = arg;
    (void)fd;
    (void)what;
    for (int i = 0; i < EVENTS_IN_A_TURN_MAX; i++) {
        // What is in a pipe goes before more is put into it.
        if (o->s.op.call != NULL && (http_unsent(o->s.op.call->x) >= HTTP_WINDOW || http_piping(o->s.op.call->x))) {
            event_del(o->s.readable);
            o->paused = true;
            return;
        }
        if (!take_event(o))
            return;
    }
    event_active(o->s.readable, EV_READ, 0);
}

static void on_room(void *arg)
{
    struct get_op *o = arg;
    if (!o->paused)
        return;
    o->paused = false;
    event_add(o->s.readable, NULL);
    event_active(o->s.readable, EV_READ, 0);
}

// ---- the beginning ----

static sandbox_error_t run(struct file_op *op)
{
    struct get_op *o = (struct get_op *)op;
    return sandbox_open_read(op->handle, op->path, &o->options, &o->s.stream);
}

static void done(struct file_op *op)
{
    static const struct http_exchange_ops ops = {.on_room = on_room, .on_gone = file_stream_on_gone};
    file_stream_begin(op, &ops, on_readable);
}

void op_file_get(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s;
    struct get_op *o = file_op_new(call, sizeof *o, run, done, &s);
    if (o == NULL)
        return;
    o->s.op.discard = file_stream_discard;
    struct query_param path = {.name = "path", .value = o->s.op.path, .size = sizeof o->s.op.path, .required = true};
    if (!query_read(call, &path, 1)) {
        free(o);
        return;
    }
    read_range(call->x->request, o);
    o->options.inside = 1;
    file_op_begin(&o->s.op, call, s);
}
