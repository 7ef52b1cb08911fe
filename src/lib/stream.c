#include "lib/stream.h"

#include "lib/errors.h"
#include "wire/frame.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

// ---- sending ----

static sandbox_error_t unsendable(sandbox_stream_t *s)
{
    // A frame that was cut would be read as something else: nothing may follow it.
    atomic_store(&s->send_failed, true);
    return fail(SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox takes nothing from this stream any more");
}

// All bytes of a frame, in two parts.  False when the peer has gone, or does not read.
static bool send_all(int fd, struct iovec parts[2])
{
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            int ready = poll(&p, 1, SEND_WAIT_MS);
            if (ready == 0 || (ready < 0 && errno != EINTR))
                return false;
            continue;
        }
        if (n < 0 && errno != EINTR)
            return false;
        for (size_t i = 0, left = n > 0 ? (size_t)n : 0; i < 2; i++) {
            size_t gone = left < parts[i].iov_len ? left : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + gone;
            parts[i].iov_len -= gone;
            left -= gone;
        }
    }
    return true;
}

sandbox_error_t stream_send_frame(sandbox_stream_t *s, enum stream_frame_type type, const void *payload, size_t n)
{
    uint8_t head[FRAME_HEAD + 1];
    frame_put_head(head, (uint32_t)(1 + n));
    head[FRAME_HEAD] = (uint8_t)type;
    struct iovec parts[2] = {{.iov_base = head, .iov_len = sizeof head}, {.iov_base = (void *)payload, .iov_len = n}};
    pthread_mutex_lock(&s->send_lock);
    bool sent = !atomic_load(&s->send_failed) && send_all(s->fd, parts);
    sandbox_error_t r = sent ? SANDBOX_OK : unsendable(s);
    pthread_mutex_unlock(&s->send_lock);
    return r;
}

// Up to `n` bytes of the window; another thread may be taking from it too.
static size_t take_window(sandbox_stream_t *s, size_t n)
{
    size_t room = atomic_load(&s->window);
    size_t taken;
    do
        taken = n < room ? n : room;
    while (!atomic_compare_exchange_weak(&s->window, &room, room - taken));
    return taken;
}

sandbox_error_t sandbox_stream_write_stdin(sandbox_stream_t *stream, const void *data, size_t len, size_t *out_written)
{
    if (stream == NULL || out_written == NULL || (data == NULL && len > 0))
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL",
                    stream == NULL        ? "the stream"
                    : out_written == NULL ? "out_written"
                                          : "data");
    if (stream->stdin_closed)
        return fail(SANDBOX_ERR_INVALID_SPEC, "this stream's standard input is not open");
    size_t written = 0;
    while (written < len) {
        size_t most = len - written < STREAM_PAYLOAD_MAX ? len - written : STREAM_PAYLOAD_MAX;
        size_t n = take_window(stream, most);
        if (n == 0)
            break;
        sandbox_error_t r = stream_send_frame(stream, FRAME_STDIN, (const uint8_t *)data + written, n);
        if (r != SANDBOX_OK)
            return r;
        written += n;
    }
    *out_written = written;
    return SANDBOX_OK;
}

static sandbox_error_t no_stream(void)
{
    return fail(SANDBOX_ERR_INVALID_SPEC, "the stream is NULL");
}

sandbox_error_t sandbox_stream_close_stdin(sandbox_stream_t *stream)
{
    if (stream == NULL)
        return no_stream();
    if (stream->stdin_closed)
        return SANDBOX_OK;
    stream->stdin_closed = true;
    return stream_send_frame(stream, FRAME_STDIN_END, NULL, 0);
}

sandbox_error_t sandbox_stream_resize(sandbox_stream_t *stream, uint16_t rows, uint16_t cols)
{
    uint8_t payload[STREAM_SMALL_MAX];
    size_t n = stream_frame_put_size(rows, cols, payload);
    return stream == NULL ? no_stream() : stream_send_frame(stream, FRAME_RESIZE, payload, n);
}

sandbox_error_t sandbox_stream_signal(sandbox_stream_t *stream, int signal_number)
{
    if (stream == NULL)
        return no_stream();
    if (signal_number <= 0 || signal_number >= NSIG)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%d is no signal; they go from 1 to %d", signal_number, NSIG - 1);
    uint8_t payload[STREAM_SMALL_MAX];
    return stream_send_frame(stream, FRAME_SIGNAL, payload,
                             stream_frame_put_number(FRAME_SIGNAL, (uint64_t)signal_number, payload));
}

sandbox_error_t sandbox_stream_kill(sandbox_stream_t *stream)
{
    return stream == NULL ? no_stream() : stream_send_frame(stream, FRAME_KILL, NULL, 0);
}

// ---- receiving ----

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// Whether the socket has something before the deadline (0: no deadline).
static bool wait_readable(int fd, bool forever, uint64_t until_ms)
{
    for (;;) {
        uint64_t now = now_ms();
        int wait = forever ? -1 : until_ms > now ? (int)(until_ms - now) : 0;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, wait);
        if (ready > 0)
            return true;
        if (ready == 0 || errno != EINTR)
            return false;
    }
}

// The stream is over, and this is why; every later read says it again.
static sandbox_error_t end_with(sandbox_stream_t *s, sandbox_error_t code)
{
    s->over = true;
    s->end.code = code;
    snprintf(s->end.text, sizeof s->end.text, "%s", sandbox_last_error());
    return code;
}

static sandbox_error_t end_cut(sandbox_stream_t *s)
{
    return end_with(s, fail(SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox ended before the stream did"));
}

// Forgets what was handed over, so that there is room for a frame.
static void compact(sandbox_stream_t *s)
{
    s->in_len -= s->in_used;
    memmove(s->in, s->in + s->in_used, s->in_len);
    s->in_used = 0;
}

// The length that the frame at the start says it has.
static size_t said_length(const sandbox_stream_t *s)
{
    return (size_t)s->in[0] << 24 | (size_t)s->in[1] << 16 | (size_t)s->in[2] << 8 | s->in[3];
}

// How many bytes of the frame that is being read are still missing, of which at least the length and the type are asked for.
static size_t missing(const sandbox_stream_t *s)
{
    enum { START = FRAME_HEAD + 1 };
    size_t whole = s->in_len >= START ? FRAME_HEAD + said_length(s) : START;
    return whole > s->in_len ? whole - s->in_len : 1;
}

// At most `n` more bytes.  1, 0: none now, -1: there will be none.
static int take_bytes(sandbox_stream_t *s, size_t n)
{
    ssize_t got = recv(s->fd, s->in + s->in_len, n, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN))
        return -1;
    s->in_len += got > 0 ? (size_t)got : 0;
    return got > 0;
}

// The next whole frame: 1, 0 when none came in time, or -1 when there will be none.  It is valid until the next call.
static int next_frame(sandbox_stream_t *s, int timeout_ms, struct stream_frame *ret_frame, bool *ret_nonsense)
{
    uint64_t until = timeout_ms > 0 ? now_ms() + (uint64_t)timeout_ms : 0;
    compact(s);
    for (;;) {
        const uint8_t *body;
        size_t n;
        int r = frame_find(s->in, s->in_len, STREAM_FRAME_MAX, &body, &n);
        if (r == 1 && stream_frame_parse(body, n, STREAM_TO_CLIENT, ret_frame) == 0) {
            s->in_used = FRAME_HEAD + n;
            return 1;
        }
        *ret_nonsense = r != 0;
        if (r != 0)
            return -1;
        if (!wait_readable(s->fd, timeout_ms < 0, until))
            return 0;
        // What comes behind a file's description may have to be left in the socket, for sandbox_stream_splice.
        if (take_bytes(s, s->head_left > 0 ? missing(s) : sizeof s->in - s->in_len) < 0)
            return -1;
    }
}

static sandbox_error_t take_end(sandbox_stream_t *s, const struct stream_frame *f)
{
    Sandbox__Guest__Result *result = (Sandbox__Guest__Result *)pb_unpack(&sandbox__guest__result__descriptor, f->payload, f->n);
    sandbox_error_t r;
    if (result == NULL)
        r = guest_nonsense("its end cannot be parsed");
    else if (f->type == FRAME_EXIT && s->head_left > 0)
        r = guest_nonsense("a file that it does not describe");
    else if ((f->type == FRAME_EXIT) != (result->status == SANDBOX__GUEST__STATUS__STATUS_OK))
        r = guest_nonsense("its end says that it failed and that it did not");
    else
        r = guest_error_of(result);
    if (r == SANDBOX_OK)
        r = s->take_result(s, result);
    pb_free(result);
    if (r != SANDBOX_OK)
        return end_with(s, r);
    s->over = true;
    return SANDBOX_OK;
}

static void give_room(sandbox_stream_t *s, uint64_t n)
{
    // More than was taken is a lie, and would only make us send what the agent cuts us off for.
    size_t room = atomic_load(&s->window), more;
    do
        more = room + n < STREAM_WINDOW ? room + (size_t)n : STREAM_WINDOW;
    while (!atomic_compare_exchange_weak(&s->window, &room, more));
}

// The bytes before a described file's.
static sandbox_error_t take_head(sandbox_stream_t *s, const struct stream_frame *f, sandbox_event_t *event)
{
    // They were written in one piece, but pieces are the agent's to make.
    size_t n = f->n < s->head_left ? f->n : s->head_left;
    for (size_t i = 0; i < n; i++, s->head_left--) {
        uint64_t *half = &s->head[s->head_left <= STREAM_FILE_HEAD / 2];
        *half = *half << 8 | f->payload[i];
    }
    if (s->head_left == 0)
        *event = (sandbox_event_t){.type = SANDBOX_EVENT_FILE, .file_size = s->head[0], .file_offset = s->head[1]};
    else
        *event = (sandbox_event_t){.type = SANDBOX_EVENT_NONE};
    // The rest of the frame is the file's: it is read again as a frame of its own.
    if (n < f->n) {
        size_t rest = f->n - n;
        uint8_t *start = s->in + s->in_used - rest - FRAME_HEAD - 1;
        frame_put_head(start, (uint32_t)(1 + rest));
        start[FRAME_HEAD] = FRAME_STDOUT;
        s->in_used -= rest + FRAME_HEAD + 1;
    }
    return SANDBOX_OK;
}

static sandbox_error_t take_frame(sandbox_stream_t *s, const struct stream_frame *f, sandbox_event_t *event)
{
    switch (f->type) {
    case FRAME_STDOUT:
    case FRAME_STDERR:
        if (s->head_left > 0 && f->type == FRAME_STDOUT)
            return take_head(s, f, event);
        *event = (sandbox_event_t){
            .type = f->type == FRAME_STDOUT ? SANDBOX_EVENT_STDOUT : SANDBOX_EVENT_STDERR, .data = f->payload, .len = f->n};
        return SANDBOX_OK;
    case FRAME_WINDOW:
        give_room(s, f->number);
        *event = (sandbox_event_t){.type = SANDBOX_EVENT_STDIN_ROOM};
        return SANDBOX_OK;
    case FRAME_EXIT:
    case FRAME_ERROR: {
        sandbox_error_t r = take_end(s, f);
        if (r == SANDBOX_OK)
            *event = (sandbox_event_t){.type = SANDBOX_EVENT_EXIT, .result = &s->result};
        return r;
    }
    case FRAME_STARTED:
        if (s->op != SANDBOX__STREAM_REQUEST__OP_SPAWN || s->process != 0 || f->number == 0)
            return end_with(s, guest_nonsense("a process that was not asked for"));
        s->process = (uint32_t)f->number;
        *event = (sandbox_event_t){.type = SANDBOX_EVENT_NONE};
        return SANDBOX_OK;
    case FRAME_DROPPED:
        if (s->op != SANDBOX__STREAM_REQUEST__OP_EXEC) {
            *event = (sandbox_event_t){.type = SANDBOX_EVENT_DROPPED, .dropped = f->number};
            return SANDBOX_OK;
        }
        return end_with(s, guest_nonsense("output is missing that is never thrown away"));
    default:
        return end_with(s, guest_nonsense("a frame that does not belong to this stream"));
    }
}

static sandbox_error_t say_end_again(const sandbox_stream_t *s, sandbox_event_t *event)
{
    if (s->end.code != SANDBOX_OK)
        return fail_with_text_of_peer(s->end.code, s->end.text);
    *event = (sandbox_event_t){.type = SANDBOX_EVENT_EXIT, .result = &s->result};
    return SANDBOX_OK;
}

// What is left of a frame whose beginning went into a pipe.
static sandbox_error_t read_rest(sandbox_stream_t *s, int timeout_ms, sandbox_event_t *event)
{
    uint64_t until = timeout_ms > 0 ? now_ms() + (uint64_t)timeout_ms : 0;
    compact(s);
    while (s->in_len == 0) {
        if (!wait_readable(s->fd, timeout_ms < 0, until)) {
            *event = (sandbox_event_t){.type = SANDBOX_EVENT_NONE};
            return SANDBOX_OK;
        }
        if (take_bytes(s, s->rest) < 0)
            return end_cut(s);
    }
    s->in_used = s->in_len < s->rest ? s->in_len : s->rest;
    s->rest -= s->in_used;
    *event = (sandbox_event_t){.type = SANDBOX_EVENT_STDOUT, .data = s->in, .len = s->in_used};
    return SANDBOX_OK;
}

sandbox_error_t sandbox_stream_read(sandbox_stream_t *stream, int timeout_ms, sandbox_event_t *out_event)
{
    if (stream == NULL || out_event == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", stream == NULL ? "the stream" : "out_event");
    if (stream->over)
        return say_end_again(stream, out_event);
    if (stream->rest > 0)
        return read_rest(stream, timeout_ms, out_event);
    struct stream_frame frame;
    bool nonsense = false;
    int got;
    while ((got = next_frame(stream, timeout_ms, &frame, &nonsense)) > 0) {
        sandbox_error_t r = take_frame(stream, &frame, out_event);
        // A part of a file's description is no event, and what follows it may have been read already.
        if (r != SANDBOX_OK || out_event->type != SANDBOX_EVENT_NONE || stream->head_left == 0)
            return r;
    }
    if (got < 0)
        return nonsense ? end_with(stream, guest_nonsense("a frame that cannot be read")) : end_cut(stream);
    *out_event = (sandbox_event_t){.type = SANDBOX_EVENT_NONE};
    return SANDBOX_OK;
}

// Whether the next frame is output, whose length is now in `rest`: 1, 0: nothing has come, -1: the line is cut, 2: it is
// another frame, or none that can be read.
static int begin_output(sandbox_stream_t *s)
{
    compact(s);
    while (s->in_len < FRAME_HEAD + 1) {
        int r = take_bytes(s, missing(s));
        if (r <= 0)
            return r;
    }
    size_t n = said_length(s);
    if (s->in_len > FRAME_HEAD + 1 || s->head_left > 0 || s->in[FRAME_HEAD] != FRAME_STDOUT || n < 2 || n > STREAM_FRAME_MAX)
        return 2;
    s->rest = n - 1;
    s->in_used = FRAME_HEAD + 1;
    return 1;
}

sandbox_error_t sandbox_stream_splice(sandbox_stream_t *stream, int pipe, size_t most, sandbox_event_t *out_event)
{
    if (stream == NULL || out_event == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", stream == NULL ? "the stream" : "out_event");
    if (stream->over)
        return say_end_again(stream, out_event);
    compact(stream);
    int r = stream->rest > 0 ? 1 : begin_output(stream);
    if (r < 0)
        return end_cut(stream);
    if (r == 2 || (r == 1 && stream->in_len > stream->in_used))  // another frame, or bytes that have been read already
        return sandbox_stream_read(stream, 0, out_event);
    ssize_t n = 0;
    if (r == 1) {
        most = most < stream->rest ? most : stream->rest;
        n = splice(stream->fd, NULL, pipe, NULL, most, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
        if (n == 0)
            return end_cut(stream);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return end_with(stream, fail(SANDBOX_ERR_INTERNAL, "splice: %s", strerror(errno)));
        stream->rest -= n > 0 ? (size_t)n : 0;
    }
    *out_event = (sandbox_event_t){.type = n > 0 ? SANDBOX_EVENT_STDOUT : SANDBOX_EVENT_NONE, .len = n > 0 ? (size_t)n : 0};
    return SANDBOX_OK;
}
