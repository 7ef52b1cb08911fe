#include "engine/streams.h"

#include "base/cleanup.h"
#include "base/log.h"
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
    uint64_t id;                  // of its line
};

static void forget(struct sandbox *sb, struct stream_op *op)
{
    TAILQ_REMOVE(&sb->streams, op, link);
    if (sb->owner != NULL)
        sb->owner->guest_ops--;
    free(op);
}

void streams_ended(struct sandbox *sb, uint64_t id)
{
    struct stream_op *op;
    TAILQ_FOREACH(op, &sb->streams, link)
    if (op->id == id) {
        forget(sb, op);
        return;
    }
}

void streams_forget(struct sandbox *sb)
{
    struct stream_op *op;
    while ((op = TAILQ_FIRST(&sb->streams)) != NULL)
        forget(sb, op);
}

// The opening frame, into a socket that is empty and has room for it.  0 or a negative errno.
static int send_request(int line, const Sandbox__StreamRequest *message)
{
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.allow_outside = true;
    request.op_case = (Sandbox__Agent__Request__OpCase)((int)message->op_case + REQUEST_NUMBERS_FROM);
    request.exec_stream = message->exec;  // whichever it is: the two unions have the same members
    cleanup_buf struct buf frame = BUF_INIT(FRAME_HEAD + AGENT_REQUEST_MAX);
    int r = pb_append_frame(&frame, &request, AGENT_REQUEST_MAX);
    if (r < 0)
        return r;
    ssize_t n = send(line, frame.data, frame.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return -errno;
    return (size_t)n == frame.len ? 0 : -ENOBUFS;
}

// Makes the line; *ret_fd is the client's end.
static int open_line(struct sandbox *sb, const Sandbox__StreamRequest *message, uint64_t *ret_id, int *ret_fd)
{
    cleanup_fd int ours = -1;
    int r = agent_line_open_stream(sb->line, &ours, ret_id);
    if (r == 0)
        r = send_request(ours, message);
    if (r == 0)
        *ret_fd = take_fd(&ours);
    return r;
}

// What stands against it; 0 or a sandbox_error_t.
static int refuse(struct request *r, const Sandbox__StreamRequest *message, struct err *err)
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
    return spec_check_stream(message, err);
}

static int fail(struct request *r, int code, const char *text)
{
    metric_result(r->client->engine->metrics.streams, code);
    return request_fail(r, code, "%s", text);
}

static void begin(struct request *r, struct sandbox *sb, const Sandbox__StreamRequest *message)
{
    cleanup_free struct stream_op *op = malloc(sizeof *op);
    cleanup_fd int fd = -1;
    int result = op != NULL ? open_line(sb, message, &op->id, &fd) : -ENOMEM;
    if (result < 0) {
        log_warn("guest_line_failed", log_u64("sandbox_id", sb->id), log_errno(result));
        fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "no line to the sandbox's agent could be opened; try again");
        return;
    }
    TAILQ_INSERT_TAIL(&sb->streams, op, link);
    sb->owner->guest_ops++;
    take_ptr(&op);
    Sandbox__StreamResponse response = SANDBOX__STREAM_RESPONSE__INIT;
    response.sandbox_id = sb->id;
    Sandbox__ServerMessage answer = SANDBOX__SERVER_MESSAGE__INIT;
    answer.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM;
    answer.stream = &response;
    metric_result(sb->engine->metrics.streams, SANDBOX_OK);
    request_reply_fd(r, &answer, take_fd(&fd));
}

void stream_begin(struct request *r, const Sandbox__StreamRequest *message)
{
    struct err err;
    int code = refuse(r, message, &err);
    if (code != 0) {
        fail(r, code, err.text);
        return;
    }
    struct sandbox *sb = sandbox_find_running(r, message->sandbox_id);
    if (sb == NULL)
        return;
    if (sb->unresponsive) {
        agent_line_ping(sb->line);
        fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox's agent does not answer; try again");
        return;
    }
    begin(r, sb, message);
}
