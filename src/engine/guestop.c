#include "engine/guestop.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "libsandbox.h"
#include "sys/stream.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/spec.h"

#include <errno.h>
#include <sys/socket.h>

struct guestop {
    TAILQ_ENTRY(guestop) link;  // in sandbox->guestops
    struct sandbox *sandbox;
    struct request *request;
    enum metric_guest_op kind;
    struct stream *line;
    uint64_t limit_ms;
    struct timer deadline;
    uint64_t left_ns;  // while the sandbox is paused
};

// Lets go of the line and of everything else but the request, which is returned.
static struct request *end_op(struct guestop *op)
{
    struct request *r = op->request;
    struct sandbox *sb = op->sandbox;
    TAILQ_REMOVE(&sb->guestops, op, link);
    // The request knows whether its client is still there.
    if (r->client != NULL)
        r->client->guest_ops--;
    timer_cancel(sb->engine->loop, &op->deadline);
    stream_free(op->line);
    free(op);
    return r;
}

static void fail(struct guestop *op, int code, const char *text)
{
    metric_result(op->sandbox->engine->metrics.guest_ops[op->kind], code);
    request_fail(end_op(op), code, "%s", text);
}

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct guestop *op = arg;
    metric_result(op->sandbox->engine->metrics.guest_ops[op->kind], SANDBOX_OK);
    Sandbox__GuestResponse response = SANDBOX__GUEST_RESPONSE__INIT;
    response.sandbox_id = op->sandbox->id;
    response.body = (ProtobufCBinaryData){.len = len, .data = (uint8_t *)body};
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST;
    message.guest = &response;
    // `body` is valid to the end of this call, also when the line is freed in it (sys/stream.h).
    request_reply(end_op(op), &message);
}

static void on_end(void *arg, int reason)
{
    fail(arg, SANDBOX_ERR_GUEST_UNAVAILABLE,
         reason == -EMSGSIZE ? "the sandbox's agent gave an answer that is too long"
                             : "the sandbox's agent closed the line before it answered");
}

static void on_deadline(void *arg)
{
    struct guestop *op = arg;
    struct sandbox *sb = op->sandbox;
    log_warn("guest_op_timeout", log_u64("sandbox_id", sb->id), log_u64("limit_ms", op->limit_ms));
    // Whether the agent is alive at all decides about the operations to come.
    sb->unresponsive = true;
    agent_line_ping(sb->line);
    char text[128];
    snprintf(text, sizeof text, "the sandbox did not answer within %llu ms; the operation was cancelled",
             (unsigned long long)op->limit_ms);
    fail(op, SANDBOX_ERR_TIMEOUT, text);
}

// ---- the beginning ----

_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_EXEC == (int)SANDBOX__GUEST_REQUEST__OP_EXEC, "one set of numbers");
_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_REMOVE == (int)SANDBOX__GUEST_REQUEST__OP_REMOVE, "one set of numbers");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_REMOVE - (int)SANDBOX__GUEST_REQUEST__OP_EXEC == METRIC_REMOVE, "in order");
_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_SIGNAL_PROCESS == (int)SANDBOX__GUEST_REQUEST__OP_SIGNAL_PROCESS, "likewise");
_Static_assert((int)SANDBOX__GUEST_REQUEST__OP_SIGNAL_PROCESS - (int)SANDBOX__GUEST_REQUEST__OP_EXEC == METRIC_SIGNAL_PROCESS,
               "in order");

static int send_request(struct guestop *op, const Sandbox__GuestRequest *message)
{
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = (Sandbox__Agent__Request__OpCase)message->op_case;
    request.exec = message->exec;  // whichever it is: the two unions have the same members
    return stream_send(op->line, &request);
}

static int open_line(struct guestop *op)
{
    static const struct stream_handler handler = {.on_frame = on_frame, .on_end = on_end};
    static const struct stream_limits limits = {.frame_max = AGENT_RESULT_MAX, .queue_max = FRAME_HEAD + AGENT_REQUEST_MAX};
    cleanup_fd int ours = -1;
    uint64_t id;  // whose end is seen here
    int r = agent_line_open_stream(op->sandbox->line, &ours, &id);
    if (r == 0)
        r = stream_new(op->sandbox->engine->loop, ours, &limits, &handler, op, &op->line);
    if (r == 0)
        take_fd(&ours);
    return r;
}

static uint64_t limit_of(const struct config *config, const Sandbox__GuestRequest *message)
{
    if (message->op_case != SANDBOX__GUEST_REQUEST__OP_EXEC)
        return config->guest_deadline_ms;
    uint64_t timeout = message->exec->timeout_ms != 0 ? message->exec->timeout_ms : EXEC_TIMEOUT_MAX_MS;
    return timeout + config->exec_grace_ms;
}

// What stands against it; 0 or a sandbox_error_t.
static int refuse(const struct request *r, const Sandbox__GuestRequest *message, struct err *err)
{
    const struct config *config = r->client->engine->config;
    if (r->id == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "a guest operation needs a request_id that is not 0");
    if (r->client->guest_ops >= config->max_guest_ops_per_connection)
        return err_set(err, SANDBOX_ERR_GUEST_UNAVAILABLE,
                       "%u guest operations are in flight on this connection, the most allowed; try again",
                       r->client->guest_ops);
    return spec_check_guest(message, err);
}

static struct guestop *new_op(struct sandbox *sb, struct request *r, const Sandbox__GuestRequest *message)
{
    struct guestop *op = malloc(sizeof *op);
    if (op == NULL)
        return NULL;
    *op = (struct guestop){.sandbox = sb, .request = r, .limit_ms = limit_of(sb->engine->config, message)};
    op->kind = (enum metric_guest_op)((int)message->op_case - (int)SANDBOX__GUEST_REQUEST__OP_EXEC);
    timer_init(&op->deadline, on_deadline, op);
    TAILQ_INSERT_TAIL(&sb->guestops, op, link);
    r->client->guest_ops++;
    return op;
}

void guestop_begin(struct request *r, const Sandbox__GuestRequest *message)
{
    struct err err;
    if (refuse(r, message, &err) != 0) {
        request_fail_err(r, &err);
        return;
    }
    struct sandbox *sb = sandbox_find_running(r, message->sandbox_id);
    if (sb == NULL)
        return;
    if (sb->unresponsive) {
        agent_line_ping(sb->line);
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the agent of sandbox %u does not answer; try again", sb->id);
        return;
    }
    struct guestop *op = new_op(sb, r, message);
    if (op == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    int result = open_line(op);
    if (result == 0)
        result = send_request(op, message);
    if (result == 0)
        result = timer_set(sb->engine->loop, &op->deadline, mono_ns() + op->limit_ms * NS_PER_MS);
    if (result < 0) {
        log_warn("guest_line_failed", log_u64("sandbox_id", sb->id), log_errno(result));
        fail(op, SANDBOX_ERR_GUEST_UNAVAILABLE, "no line to the sandbox's agent could be opened; try again");
    }
}

// ---- the sandbox's doings ----

void guestops_fail(struct sandbox *sb, const char *why)
{
    struct guestop *op;
    while ((op = TAILQ_FIRST(&sb->guestops)) != NULL)
        fail(op, SANDBOX_ERR_GUEST_UNAVAILABLE, why);
}

void guestops_paused(struct sandbox *sb)
{
    uint64_t now = mono_ns();
    struct guestop *op;
    TAILQ_FOREACH(op, &sb->guestops, link)
    {
        op->left_ns = op->deadline.due_ns > now ? op->deadline.due_ns - now : 0;
        timer_cancel(sb->engine->loop, &op->deadline);
    }
}

void guestops_resumed(struct sandbox *sb)
{
    uint64_t now = mono_ns();
    struct guestop *op;
    TAILQ_FOREACH(op, &sb->guestops, link)
    timer_set(sb->engine->loop, &op->deadline, now + op->left_ns);
}
