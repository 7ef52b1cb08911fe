#include "engine/streams.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "engine/grants.h"
#include "libsandbox.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/spec.h"

#include <errno.h>
#include <sys/socket.h>

// An agent.Request's number for a stream is StreamRequest's and this.
enum { REQUEST_NUMBERS_FROM = 20 };
_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM == (int)SANDBOX__STREAM_REQUEST__OP_EXEC + REQUEST_NUMBERS_FROM,
               "the same operations in the same places");
_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_WRITE_STREAM == (int)SANDBOX__STREAM_REQUEST__OP_WRITE + REQUEST_NUMBERS_FROM,
               "likewise");
_Static_assert((int)SANDBOX__AGENT__REQUEST__OP_ATTACH == (int)SANDBOX__STREAM_REQUEST__OP_ATTACH + REQUEST_NUMBERS_FROM,
               "likewise");

struct stream_op {
    TAILQ_ENTRY(stream_op) link;  // in sandbox->streams
    struct sandbox *sandbox;
    uint64_t id;              // of its line; 0: it is not open yet
    struct run_grant *grant;  // NULL: it has none
    // While its grant is being opened:
    struct request *request;
    struct buf frame;  // the agent's request
};

static void forget(struct stream_op *op)
{
    struct sandbox *sb = op->sandbox;
    TAILQ_REMOVE(&sb->streams, op, link);
    if (sb->owner != NULL)
        sb->owner->guest_ops--;
    grant_let_go(op->grant);
    buf_free(&op->frame);
    free(op);
}

static void fail_waiting(struct stream_op *op, const struct err *err)
{
    struct request *r = op->request;
    metric_result(op->sandbox->engine->metrics.streams, err->code);
    forget(op);
    request_fail_err(r, err);
}

void streams_ended(struct sandbox *sb, uint64_t id)
{
    struct stream_op *op;
    TAILQ_FOREACH(op, &sb->streams, link)
    if (op->id == id) {
        forget(op);
        return;
    }
}

void streams_forget(struct sandbox *sb)
{
    struct stream_op *op;
    struct err err;
    err_set(&err, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    err.not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    while ((op = TAILQ_FIRST(&sb->streams)) != NULL)
        if (op->request != NULL)
            fail_waiting(op, &err);
        else
            forget(op);
}

// The opening frame.  0 or a negative errno.
static int write_request(const Sandbox__StreamRequest *message, struct buf *frame)
{
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.allow_outside = true;
    request.op_case = (Sandbox__Agent__Request__OpCase)((int)message->op_case + REQUEST_NUMBERS_FROM);
    request.exec_stream = message->exec;  // whichever it is: the two unions have the same members
    *frame = BUF_INIT(FRAME_HEAD + AGENT_REQUEST_MAX);
    return pb_append_frame(frame, &request, AGENT_REQUEST_MAX);
}

// Into a socket that is empty and has room for it.
static int send_request(int line, const struct buf *frame)
{
    ssize_t n = send(line, frame->data, frame->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    return (size_t)n == frame->len ? 0 : -ENOBUFS;
}

// Makes the line; *ret_fd is the client's end.
static int open_line(struct stream_op *op, int *ret_fd)
{
    cleanup_fd int ours = -1;
    int r = agent_line_open_stream(op->sandbox->line, &ours, &op->id);
    if (r == 0)
        r = send_request(ours, &op->frame);
    if (r == 0)
        *ret_fd = take_fd(&ours);
    return r;
}

// What stands against it; 0 or a sandbox_error_t, and whom it is for.
static int refuse(struct request *r, const Sandbox__StreamRequest *message, struct grant_ask *ask, struct err *err)
{
    const struct config *config = r->client->engine->config;
    if (r->id == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "a stream needs a request_id that is not 0");
    if (r->client->guest_ops >= config->max_guest_ops_per_connection)
        return err_set(err, SANDBOX_ERR_GUEST_UNAVAILABLE,
                       "%u guest operations are in flight on this connection, the most allowed; try again",
                       r->client->guest_ops);
    if (!request_may_have_fd(r))
        return err_set(err, SANDBOX_ERR_GUEST_UNAVAILABLE,
                       "the answers with earlier streams have not been read; read them first");
    int code = spec_check_stream(message, err);
    bool given = message->opt_principal_case == SANDBOX__STREAM_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
    return code == 0 ? grants_principal(r->client, given, given ? message->principal : "", ask, err) : code;
}

static int fail(struct request *r, const struct err *err)
{
    metric_result(r->client->engine->metrics.streams, err->code);
    return request_fail_err(r, err);
}

// Hands the client its end.
static void begin(struct stream_op *op)
{
    struct sandbox *sb = op->sandbox;
    cleanup_fd int fd = -1;
    int result = open_line(op, &fd);
    if (result < 0) {
        struct err err;
        log_warn("guest_line_failed", log_u64("sandbox_id", sb->id), log_errno(result));
        err_set(&err, SANDBOX_ERR_GUEST_UNAVAILABLE, "no line to the sandbox's agent could be opened; try again");
        fail_waiting(op, &err);
        return;
    }
    struct request *r = take_ptr(&op->request);
    buf_free(&op->frame);
    Sandbox__StreamResponse response = SANDBOX__STREAM_RESPONSE__INIT;
    response.sandbox_id = sb->id;
    response.isolation = sb->tier->level;
    response.grant_id = op->grant != NULL ? grant_id(op->grant) : 0;
    Sandbox__ServerMessage answer = SANDBOX__SERVER_MESSAGE__INIT;
    answer.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM;
    answer.stream = &response;
    metric_result(sb->engine->metrics.streams, SANDBOX_OK);
    request_reply_fd(r, &answer, take_fd(&fd));
}

static void on_granted(void *arg, const struct err *err)
{
    struct stream_op *op = arg;
    if (err->code == 0) {
        begin(op);
        return;
    }
    op->grant = NULL;
    fail_waiting(op, err);
}

static uint64_t budget_of(const Sandbox__Guest__ExecStream *exec)
{
    if (exec->exec->timeout_ms != 0)
        return exec->exec->timeout_ms;
    return exec->terminal != NULL ? 0 : EXEC_TIMEOUT_MAX_MS;
}

static void begin_with_grant(struct stream_op *op, const Sandbox__StreamRequest *message, struct grant_ask *ask)
{
    struct err err;
    ask->profile = message->grant_profile;
    ask->budget_ms = budget_of(message->exec);
    op->grant = grants_open(op->sandbox, ask, on_granted, op, &err);
    if (op->grant == NULL)
        fail_waiting(op, &err);
}

// NULL: no memory.
static struct stream_op *new_op(struct sandbox *sb, struct request *r, const Sandbox__StreamRequest *message)
{
    struct stream_op *op = malloc(sizeof *op);
    if (op == NULL)
        return NULL;
    *op = (struct stream_op){.sandbox = sb, .request = r};
    if (write_request(message, &op->frame) < 0) {
        buf_free(&op->frame);
        free(op);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&sb->streams, op, link);
    sb->owner->guest_ops++;
    return op;
}

void stream_begin(struct request *r, const Sandbox__StreamRequest *message)
{
    struct err err;
    struct grant_ask ask = {.session = true};
    if (refuse(r, message, &ask, &err) != 0) {
        fail(r, &err);
        return;
    }
    struct sandbox *sb = sandbox_find_running(r, message->sandbox_id);
    if (sb == NULL || !sandbox_meets_floor(sb, message->min_isolation, r))
        return;
    if (sb->unresponsive) {
        agent_line_ping(sb->line);
        err_set(&err, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox's agent does not answer; try again");
        fail(r, &err);
        return;
    }
    struct stream_op *op = new_op(sb, r, message);
    if (op == NULL) {
        err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        fail(r, &err);
    } else if (message->grant_profile[0] != '\0') {
        begin_with_grant(op, message, &ask);
    } else {
        begin(op);
    }
}
