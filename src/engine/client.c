#include "engine/client.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "engine/create.h"
#include "engine/exec_input.h"
#include "engine/requests.h"
#include "engine/sandbox.h"
#include "libsandbox.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>

// An id-0 frame that waits for its turn, as it came: parsed it could be many times larger.
struct queued {
    TAILQ_ENTRY(queued) link;
    uint64_t arrival;
    bool malformed;
    size_t n;
    uint8_t bytes[];
};

// Ends the connection from a place where its memory is still in use: the socket's hang-up brings on_end, from the loop.
static void drop(struct client *c)
{
    if (c->dropped)
        return;
    c->dropped = true;
    stream_hold(c->stream, true);
    shutdown(stream_fd(c->stream), SHUT_RDWR);
}

// ---- answers ----

static void send_message(struct client *c, const Sandbox__ServerMessage *message)
{
    if (c->refused || c->dropped)
        return;
    int r = stream_send(c->stream, message);
    if (r == 0)
        return;
    if (r == -ENOSPC || r == -EMSGSIZE) {
        c->engine->metrics.dropped_slow++;
        log_warn("client_dropped", log_str("reason", "it does not read its answers"), log_u64("uid", c->peer.uid));
    }
    drop(c);
}

// The text of an answer is UTF-8 without control characters, whatever an agent's message brought into it.
static void clean(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        size_t width = utf8_width((const uint8_t *)text + i, n - i);
        if (width == 0 || (unsigned char)text[i] < 0x20 || text[i] == 0x7F)
            text[i] = '?';
        i += width > 0 ? width : 1;
    }
}

// What a failure says by itself of a request of which nothing was done.
static Sandbox__NotRun not_run_of(int code)
{
    switch (code) {
    case SANDBOX_ERR_PERMISSION_DENIED:
        return SANDBOX__NOT_RUN__NOT_RUN_PERMISSION;
    case SANDBOX_ERR_POOL_EXHAUSTED:
    case SANDBOX_ERR_GUEST_UNAVAILABLE:
        return SANDBOX__NOT_RUN__NOT_RUN_CAPACITY;
    case SANDBOX_ERR_INTERNAL:
    case SANDBOX_ERR_DAEMON_UNREACHABLE:
    case SANDBOX_ERR_TIMEOUT:
        return SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
    default:
        return SANDBOX__NOT_RUN__NOT_RUN_REQUEST;
    }
}

static void send_error(struct client *c, uint64_t id, int code, Sandbox__NotRun not_run, const char *text)
{
    Sandbox__ErrorResponse error = SANDBOX__ERROR_RESPONSE__INIT;
    error.error_code = code;
    error.not_run = not_run;
    error.message = (char *)text;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR;
    message.error = &error;
    message.request_id = id;
    send_message(c, &message);
}

static void pump(struct client *c);

static void finish(struct request *r)
{
    struct client *c = r->client;
    if (c != NULL) {
        TAILQ_REMOVE(&c->in_flight, r, link);
        c->pending--;
        if (c->legacy == r)
            c->legacy = NULL;
    }
    free(r);
    if (c != NULL)
        pump(c);
}

void request_reply(struct request *r, Sandbox__ServerMessage *message)
{
    message->request_id = r->id;
    if (r->client != NULL)
        send_message(r->client, message);
    finish(r);
}

// The kernel counts the bytes that the peer has not read.  (Its count of a socket that sent nothing is 0.)
static bool all_read(const struct client *c)
{
    int unread = 0;
    return ioctl(stream_fd(c->stream), SIOCOUTQ, &unread) == 0 && unread == 0 && stream_queued(c->stream) == 0;
}

bool request_may_have_fd(struct request *r)
{
    struct client *c = r->client;
    if (c->fds_unread > 0 && all_read(c))
        c->fds_unread = 0;
    return c->fds_unread < CLIENT_FDS_UNREAD_MAX;
}

void request_reply_fd(struct request *r, Sandbox__ServerMessage *message, int fd)
{
    struct client *c = r->client;
    message->request_id = r->id;
    if (c == NULL || c->refused || c->dropped) {
        close(fd);
    } else if (stream_send_fd(c->stream, message, fd) < 0) {
        close(fd);
        drop(c);
    } else {
        c->fds_unread++;
    }
    finish(r);
}

int request_fail_err(struct request *r, const struct err *err)
{
    if (err->not_run != 0)
        r->not_run = err->not_run;
    return request_fail(r, err->code, "%s", err->text);
}

int request_fail(struct request *r, int code, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    clean(text);
    Sandbox__NotRun not_run = r->not_run != 0 ? (Sandbox__NotRun)r->not_run : not_run_of(code);
    if (r->client != NULL)
        send_error(r->client, r->id, code, r->dispatched ? SANDBOX__NOT_RUN__NOT_RUN_UNKNOWN : not_run, text);
    finish(r);
    return code;
}

// ---- requests ----

// NULL: no memory, and the client is dropped.
static struct request *new_request(struct client *c, uint64_t arrival, uint64_t id)
{
    struct request *r = malloc(sizeof *r);
    if (r == NULL) {
        drop(c);
        return NULL;
    }
    *r = (struct request){.client = c, .id = id, .arrival = arrival};
    TAILQ_INSERT_TAIL(&c->in_flight, r, link);
    c->pending++;
    if (id == 0)
        c->legacy = r;
    return r;
}

// Starts work on one request; `message` NULL is a frame that could not be parsed.
static void run(struct client *c, uint64_t arrival, const Sandbox__ClientMessage *message)
{
    struct request *r = new_request(c, arrival, message != NULL ? message->request_id : 0);
    if (r == NULL)
        return;
    r->is_create = message != NULL && message->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE;
    if (message != NULL)
        requests_dispatch(r, message);
    else {
        r->not_run = SANDBOX__NOT_RUN__NOT_RUN_PROTOCOL;
        request_fail(r, SANDBOX_ERR_INVALID_SPEC, "the frame is not a ClientMessage of proto/sandbox.proto");
    }
}

static bool earlier_create(const struct client *c, uint64_t arrival)
{
    const struct request *r;
    TAILQ_FOREACH(r, &c->in_flight, link)
    if (r->is_create && r->arrival < arrival)
        return true;
    return false;
}

static bool may_run(const struct client *c, uint64_t arrival, bool malformed)
{
    return c->legacy == NULL && (malformed || !earlier_create(c, arrival));
}

static void update_hold(struct client *c)
{
    bool full = c->pending >= CLIENT_PENDING_MAX || c->queued_bytes >= CLIENT_QUEUED_BYTES_MAX;
    if (c->dropped || full == c->held)
        return;
    c->held = full;
    stream_hold(c->stream, full);
}

static Sandbox__ClientMessage *parse(const uint8_t *bytes, size_t n)
{
    return (Sandbox__ClientMessage *)pb_unpack(&sandbox__client_message__descriptor, bytes, n);
}

static void unqueue(struct client *c, struct queued *q)
{
    TAILQ_REMOVE(&c->queued, q, link);
    c->pending--;
    c->queued_bytes -= q->n;
}

// Runs the id-0 requests whose turn has come.
static void pump(struct client *c)
{
    if (c->pumping)
        return;
    c->pumping = true;
    struct queued *q;
    while (!c->refused && !c->dropped && (q = TAILQ_FIRST(&c->queued)) != NULL && may_run(c, q->arrival, q->malformed)) {
        unqueue(c, q);
        Sandbox__ClientMessage *message = q->malformed ? NULL : parse(q->bytes, q->n);
        run(c, q->arrival, message);
        pb_free(message);
        free(q);
    }
    c->pumping = false;
    update_hold(c);
}

static void enqueue(struct client *c, uint64_t arrival, const uint8_t *bytes, size_t n, bool malformed)
{
    n = malformed ? 0 : n;
    struct queued *q = malloc(sizeof *q + n);
    if (q == NULL) {
        drop(c);
        return;
    }
    *q = (struct queued){.arrival = arrival, .malformed = malformed, .n = n};
    if (n > 0)
        memcpy(q->bytes, bytes, n);
    TAILQ_INSERT_TAIL(&c->queued, q, link);
    c->pending++;
    c->queued_bytes += n;
}

// ---- an exec and the rest of its standard input ----

static void run_whole(void *arg, const Sandbox__ClientMessage *message, uint64_t arrival)
{
    run(arg, arrival, message);
}

// True when the message belongs to an exec whose input is coming, or begins one, and needs nothing more done.
static bool take_input(struct client *c, const Sandbox__ClientMessage *message, uint64_t arrival, const uint8_t *body,
                       size_t len)
{
    struct err err;
    int r = 0;
    if (c->input != NULL) {
        bool ours = exec_input_is_for(c->input, message);
        r = ours ? exec_input_add(c->input, message->guest_input, run_whole, c, &err)
                 : err_set(&err, SANDBOX_ERR_INVALID_SPEC, "another message came where the rest of its stdin was due");
        if (r == EXEC_INPUT_MORE)
            return true;
        struct request *failed = r < 0 ? new_request(c, exec_input_arrival(c->input), exec_input_id(c->input)) : NULL;
        c->input = exec_input_free(c->input);
        if (failed != NULL)
            request_fail_err(failed, &err);
        if (ours)
            return true;
    }
    if (c->dropped || !exec_input_needed(message))
        return false;
    c->input = exec_input_new(message, arrival, body, len);
    if (c->input == NULL)
        drop(c);
    return true;
}

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct client *c = arg;
    if (c->refused || c->dropped)
        return;
    uint64_t arrival = ++c->arrivals;
    Sandbox__ClientMessage *message = parse(body, len);
    bool malformed = message == NULL;
    if (malformed)
        c->engine->metrics.malformed_frames++;
    if (take_input(c, message, arrival, body, len)) {
        pb_free(message);
        update_hold(c);
        return;
    }
    bool legacy = malformed || message->request_id == 0;
    if (!legacy || (TAILQ_EMPTY(&c->queued) && may_run(c, arrival, malformed)))
        run(c, arrival, message);
    else
        enqueue(c, arrival, body, len, malformed);
    pb_free(message);
    update_hold(c);
}

// ---- the connection ----

// Lets go of everything but the socket.
static void release(struct client *c)
{
    struct request *r;
    while ((r = TAILQ_FIRST(&c->in_flight)) != NULL) {
        TAILQ_REMOVE(&c->in_flight, r, link);
        r->client = NULL;
    }
    struct queued *q;
    while ((q = TAILQ_FIRST(&c->queued)) != NULL) {
        unqueue(c, q);
        free(q);
    }
    c->input = exec_input_free(c->input);
    c->pending = 0;
    c->legacy = NULL;
    while (!TAILQ_EMPTY(&c->creates))
        create_cancel(TAILQ_FIRST(&c->creates));
    struct sandbox *sb;
    while ((sb = TAILQ_FIRST(&c->owned)) != NULL)
        sandbox_disown(sb, "its client has gone");
}

void client_close(struct client *c)
{
    struct engine *e = c->engine;
    log_debug("client_gone", log_u64("uid", c->peer.uid), log_u64("sandboxes", c->owned_count));
    timer_cancel(e->loop, &c->linger);
    release(c);
    c->stream = stream_free(c->stream);
    TAILQ_REMOVE(&e->clients, c, link);
    e->client_count--;
    e->refused_count -= c->refused;
    free(c);
}

void client_refuse(struct client *c, int code, const char *text)
{
    if (c->refused)
        return;
    send_error(c, 0, code, SANDBOX__NOT_RUN__NOT_RUN_UNKNOWN, text);  // others may be under way
    c->refused = true;
    c->engine->refused_count++;
    release(c);
    if (c->dropped)
        return;
    stream_finish(c->stream);
    stream_hold(c->stream, false);  // what still comes is read and thrown away, until the peer goes
    timer_set(c->engine->loop, &c->linger, mono_ns() + CLIENT_LINGER_MS * NS_PER_MS);
}

static void on_end(void *arg, int reason)
{
    (void)reason;
    client_close(arg);
}

static void on_oversize(void *arg)
{
    struct client *c = arg;
    c->engine->metrics.malformed_frames++;
    client_refuse(c, SANDBOX_ERR_TOO_LARGE, "the frame is longer than 64 KiB; the connection ends here");
}

static void on_linger(void *arg)
{
    client_close(arg);
}

int client_new(struct engine *e, int fd, const struct ucred *peer, struct client **ret_client)
{
    static const struct stream_handler handler = {.on_frame = on_frame, .on_end = on_end, .on_oversize = on_oversize};
    static const struct stream_limits limits = {.frame_max = IPC_FRAME_MAX, .queue_max = CLIENT_SEND_QUEUE_MAX};
    cleanup_fd int socket = fd;
    cleanup_free struct client *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    *c = (struct client){.engine = e, .peer = *peer};
    TAILQ_INIT(&c->in_flight);
    TAILQ_INIT(&c->queued);
    TAILQ_INIT(&c->creates);
    TAILQ_INIT(&c->owned);
    timer_init(&c->linger, on_linger, c);
    int r = stream_new(e->loop, socket, &limits, &handler, c, &c->stream);
    if (r < 0)
        return r;
    take_fd(&socket);
    TAILQ_INSERT_TAIL(&e->clients, c, link);
    e->client_count++;
    *ret_client = take_ptr(&c);
    return 0;
}
