#include "engine/guestop.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/grants.h"
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
    uint64_t left_ns;         // while the sandbox is paused
    struct run_grant *grant;  // NULL: it has none
    struct buf asked;         // with a grant: the agent's request, until it is sent
    struct buf answer;        // with a grant: the agent's answer, until the grant has ended
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
    grant_let_go(op->grant);
    stream_free(op->line);
    buf_free(&op->asked);
    buf_free(&op->answer);
    free(op);
    return r;
}

static void fail(struct guestop *op, int code, const char *text)
{
    metric_result(op->sandbox->engine->metrics.guest_ops[op->kind], code);
    request_fail(end_op(op), code, "%s", text);
}

static void reply(struct guestop *op, const uint8_t *body, size_t len)
{
    metric_result(op->sandbox->engine->metrics.guest_ops[op->kind], SANDBOX_OK);
    Sandbox__GuestResponse response = SANDBOX__GUEST_RESPONSE__INIT;
    response.sandbox_id = op->sandbox->id;
    response.body = (ProtobufCBinaryData){.len = len, .data = (uint8_t *)body};
    response.isolation = op->sandbox->tier->level;
    response.grant_id = op->grant != NULL ? grant_id(op->grant) : 0;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST;
    message.guest = &response;
    // A frame's body is valid to the end of this call, also when the line is freed in it (sys/stream.h).
    struct buf answer = op->answer;
    op->answer = (struct buf){.len = 0};
    request_reply(end_op(op), &message);
    buf_free(&answer);
}

static void on_grant_ended(void *arg)
{
    struct guestop *op = arg;
    reply(op, op->answer.data, op->answer.len);
}

// The command has ended; so does its grant, before anybody hears of it.
static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct guestop *op = arg;
    if (op->grant == NULL) {
        reply(op, body, len);
        return;
    }
    if (op->answer.len > 0)
        return;  // a second one, of an agent that has been taken over
    timer_cancel(op->sandbox->engine->loop, &op->deadline);
    op->answer = BUF_INIT(AGENT_RESULT_MAX);
    if (buf_append(&op->answer, body, len) < 0)
        fail(op, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    else
        grant_finish(op->grant, on_grant_ended, op);
}

static void on_end(void *arg, int reason)
{
    struct guestop *op = arg;
    if (op->answer.len > 0)
        return;  // it has answered
    fail(op, SANDBOX_ERR_GUEST_UNAVAILABLE,
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

static Sandbox__Agent__Request request_of(const Sandbox__GuestRequest *message)
{
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = (Sandbox__Agent__Request__OpCase)message->op_case;
    request.exec = message->exec;  // whichever it is: the two unions have the same members
    return request;
}

static int send_request(struct guestop *op, const Sandbox__GuestRequest *message)
{
    if (message == NULL)
        return stream_send_bytes(op->line, op->asked.data, op->asked.len);
    Sandbox__Agent__Request request = request_of(message);
    return stream_send(op->line, &request);
}

// For after its grant is open.
static int keep_request(struct guestop *op, const Sandbox__GuestRequest *message)
{
    Sandbox__Agent__Request request = request_of(message);
    size_t n = protobuf_c_message_get_packed_size(&request.base);
    uint8_t *space;
    op->asked = BUF_INIT(AGENT_REQUEST_MAX);
    int r = buf_reserve(&op->asked, n, &space);
    if (r == 0) {
        protobuf_c_message_pack(&request.base, space);
        buf_commit(&op->asked, n);
    }
    return r;
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

// What stands against it; 0 or a sandbox_error_t, and whom it is for.
static int refuse(const struct request *r, const Sandbox__GuestRequest *message, struct grant_ask *ask, struct err *err)
{
    const struct config *config = r->client->engine->config;
    if (r->id == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "a guest operation needs a request_id that is not 0");
    if (r->client->guest_ops >= config->max_guest_ops_per_connection)
        return err_set(err, SANDBOX_ERR_GUEST_UNAVAILABLE,
                       "%u guest operations are in flight on this connection, the most allowed; try again",
                       r->client->guest_ops);
    int code = spec_check_guest(message, err);
    bool given = message->opt_principal_case == SANDBOX__GUEST_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
    return code == 0 ? grants_principal(r->client, given, given ? message->principal : "", ask, err) : code;
}

// The time of its deadline, from now on; of one that is asked while the sandbox is paused, from the resume.
static int start_clock(struct guestop *op)
{
    uint64_t ns = op->limit_ms * NS_PER_MS;
    if (op->sandbox->state == SANDBOX_PAUSED) {
        op->left_ns = ns;
        return 0;
    }
    return timer_set(op->sandbox->engine->loop, &op->deadline, mono_ns() + ns);
}

// `message` NULL: what was kept.
static void dispatch(struct guestop *op, const Sandbox__GuestRequest *message)
{
    struct sandbox *sb = op->sandbox;
    int r = open_line(op);
    if (r == 0)
        r = send_request(op, message);
    if (r == 0)
        r = start_clock(op);
    if (r == 0) {
        op->request->dispatched = true;
        return;
    }
    log_warn("guest_line_failed", log_u64("sandbox_id", sb->id), log_errno(r));
    fail(op, SANDBOX_ERR_GUEST_UNAVAILABLE, "no line to the sandbox's agent could be opened; try again");
}

static void on_granted(void *arg, const struct err *err)
{
    struct guestop *op = arg;
    if (err->code == 0) {
        dispatch(op, NULL);
        return;
    }
    op->grant = NULL;
    op->request->not_run = err->not_run;
    fail(op, err->code, err->text);
}

static void begin_with_grant(struct guestop *op, const Sandbox__GuestRequest *message, struct grant_ask *ask)
{
    struct err err;
    ask->profile = message->grant_profile;
    ask->session = true;
    ask->budget_ms = op->limit_ms - op->sandbox->engine->config->exec_grace_ms;
    if (keep_request(op, message) < 0)
        err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    else
        op->grant = grants_open(op->sandbox, ask, on_granted, op, &err);
    if (op->grant == NULL)
        on_granted(op, &err);
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
    struct grant_ask ask = {.session = true};
    if (refuse(r, message, &ask, &err) != 0) {
        request_fail_err(r, &err);
        return;
    }
    struct sandbox *sb = sandbox_find_running(r, message->sandbox_id);
    if (sb == NULL)
        return;
    if (!sandbox_meets_floor(sb, message->min_isolation, r))
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
    if (message->grant_profile[0] != '\0')
        begin_with_grant(op, message, &ask);
    else
        dispatch(op, message);
}

// ---- the sandbox's doings ----

void guestops_fail(struct sandbox *sb, const char *why)
{
    struct guestop *op;
    while ((op = TAILQ_FIRST(&sb->guestops)) != NULL) {
        op->request->not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;  // of one that has not begun
        fail(op, SANDBOX_ERR_GUEST_UNAVAILABLE, why);
    }
}

void guestops_paused(struct sandbox *sb)
{
    uint64_t now = mono_ns();
    struct guestop *op;
    TAILQ_FOREACH(op, &sb->guestops, link)
    if (timer_is_set(&op->deadline)) {
        op->left_ns = op->deadline.due_ns > now ? op->deadline.due_ns - now : 0;
        timer_cancel(sb->engine->loop, &op->deadline);
    }
}

void guestops_resumed(struct sandbox *sb)
{
    uint64_t now = mono_ns();
    struct guestop *op;
    TAILQ_FOREACH(op, &sb->guestops, link)
    if (op->line != NULL && op->answer.len == 0)
        timer_set(sb->engine->loop, &op->deadline, now + op->left_ns);
}
