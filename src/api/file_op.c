#include "api/file_op.h"

#include "api/engine_link.h"

#include <stdlib.h>

static struct file_op *op_of(struct use *use)
{
    return (struct file_op *)((char *)use - offsetof(struct file_op, use));
}

struct call *file_op_take_call(struct file_op *op)
{
    struct call *call = op->call;
    op->call = NULL;
    if (call != NULL)
        call->x->ops = NULL;
    return call;
}

void file_op_free(struct file_op *op)
{
    file_op_take_call(op);
    use_end(&op->use);
    free(op);
}

void file_op_fail(struct file_op *op)
{
    struct call *call = file_op_take_call(op);
    if (op->error == SANDBOX_ERR_DAEMON_UNREACHABLE || op->error == SANDBOX_ERR_GUEST_UNAVAILABLE)
        engine_link_suspect(op->api->engine);
    if (call != NULL)
        reply_engine_error(call, op->error, op->text);
    file_op_free(op);
}

static void run_job(struct job *job)
{
    struct file_op *op = (struct file_op *)job;
    unsigned tries = 0;
    do
        op->error = op->run(op);
    while (engine_lags(op->error, op->has_room, &tries));
    if (op->error == SANDBOX_OK)
        return;
    snprintf(op->text, sizeof op->text, "%s", sandbox_last_error());
    sandbox_status_t status;
    op->gone = (op->error == SANDBOX_ERR_GUEST_UNAVAILABLE || op->error == SANDBOX_ERR_DAEMON_UNREACHABLE ||
                op->error == SANDBOX_ERR_PERMISSION_DENIED) &&
               sandbox_inspect(op->handle, &status) != SANDBOX_OK;
}

static void end_job(struct job *job, bool ran)
{
    struct file_op *op = (struct file_op *)job;
    struct session *s = op->use.session;
    op->running = false;
    if (!ran) {
        if (op->discard != NULL)
            op->discard(op);
        use_end(&op->use);
        free(op);
    } else if (op->gone && !op->tried_again && op->call != NULL) {
        // Its sandbox had ended before it began: it gets another one.
        op->tried_again = true;
        engine_link_suspect(op->api->engine);
        use_lost(&op->use);
        use_end(&op->use);
        session_use(s, &op->use);
    } else {
        op->done(op);
    }
}

static void on_ready(struct use *use, sandbox_error_t error, const char *text)
{
    struct file_op *op = op_of(use);
    if (error != SANDBOX_OK) {
        op->error = error;
        snprintf(op->text, sizeof op->text, "%s", text);
        file_op_fail(op);
        return;
    }
    op->handle = use->guest->handle;
    op->has_room = use->session->n_uses <= SANDBOX_MAX_GUEST_OPS;
    op->running = true;
    workers_submit(op->api->lanes[LANE_CALLS], &op->job);
}

static void on_gone(void *arg)
{
    struct file_op *op = arg;
    op->call = NULL;
    if (op->running)
        return;  // its end frees it
    if (op->use.guest == NULL)
        file_op_free(op);
    else if (op->gone_fn != NULL)
        op->gone_fn(op);
}

static void on_cancel(struct use *use)
{
    struct file_op *op = op_of(use);
    struct session_end why = session_end_of(use->session);
    struct call *call = file_op_take_call(op);
    // While a worker has it, its end finds that nobody waits any more, and frees it.
    if (!op->running && op->gone_fn != NULL)
        op->gone_fn(op);
    if (call == NULL)
        return;
    if (call->x->status == 0)
        reply_error(call, 503, why.code, "%s", why.text);
    else
        http_abort(call->x);
}

void file_op_begin(struct file_op *op, struct call *call, struct session *s)
{
    static const struct http_exchange_ops ops = {.on_gone = on_gone};
    op->job = (struct job){.run = run_job, .finish = end_job};
    op->use = (struct use){.ready = on_ready, .cancel = on_cancel};
    op->api = call->api;
    op->call = call;
    call->x->ops = &ops;
    call->x->arg = op;
    session_use(s, &op->use);
}

void *file_op_new(struct call *call, size_t size, sandbox_error_t (*run)(struct file_op *op), void (*done)(struct file_op *op),
                  struct session **ret_session)
{
    *ret_session = session_named(call);
    if (*ret_session == NULL)
        return NULL;
    struct file_op *op = calloc(1, size);
    if (op == NULL) {
        reply_error(call, 503, "unavailable", "no memory");
        return NULL;
    }
    op->run = run;
    op->done = done;
    return op;
}

// ---- transfers ----

static void stop_reading(struct file_stream *s)
{
    if (s->readable != NULL)
        event_free(s->readable);
    s->readable = NULL;
    sandbox_stream_free(s->stream);
    s->stream = NULL;
}

void file_stream_discard(struct file_op *op)
{
    stop_reading((struct file_stream *)op);
}

void file_stream_free(struct file_op *op)
{
    stop_reading((struct file_stream *)op);
    file_op_free(op);
}

void file_stream_on_gone(void *arg)
{
    struct file_op *op = arg;
    op->call = NULL;
    file_stream_free(op);
}

void file_stream_fail(struct file_stream *s, sandbox_error_t error, const char *text)
{
    struct call *call = s->op.call;
    stop_reading(s);
    s->op.error = error;
    snprintf(s->op.text, sizeof s->op.text, "%s", text);
    if (call != NULL && call->x->status != 0) {
        file_op_take_call(&s->op);
        http_abort(call->x);
    }
    file_op_fail(&s->op);
}

void file_stream_fail_last(struct file_stream *s, sandbox_error_t error)
{
    char text[sizeof s->op.text];
    snprintf(text, sizeof text, "%s", sandbox_last_error());
    file_stream_fail(s, error, text);
}

bool file_stream_begin(struct file_op *op, const struct http_exchange_ops *ops, event_callback_fn on_readable)
{
    struct file_stream *s = (struct file_stream *)op;
    if (op->error != SANDBOX_OK) {
        file_op_fail(op);
        return false;
    }
    if (op->call == NULL) {
        file_stream_free(op);
        return false;
    }
    s->readable = event_new(op->api->base, sandbox_stream_fd(s->stream), EV_READ | EV_PERSIST, on_readable, s);
    if (s->readable == NULL || event_add(s->readable, NULL) < 0) {
        file_stream_fail(s, SANDBOX_ERR_INTERNAL, "no memory");
        return false;
    }
    op->call->x->ops = ops;
    op->gone_fn = file_stream_free;
    return true;
}
