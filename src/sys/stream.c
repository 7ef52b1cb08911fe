#include "sys/stream.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/pages.h"
#include "sys/fdpass.h"
#include "wire/frame.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { READ_STEP = 64 * 1024 };

// A descriptor that goes with a byte of `out`.
struct attached {
    size_t at;  // index of that byte
    int fd;
};

struct stream {
    int fd;
    struct watch *watch;
    struct stream_limits limits;
    const struct stream_handler *handler;
    void *arg;
    struct buf in;
    struct buf out;
    int pages;                                 // a pipe
    size_t pages_left;                         // bytes of it, which go behind `out`
    size_t out_sent;                           // bytes at the start of `out` that the socket has taken
    struct attached attached[STREAM_FDS_MAX];  // in order
    size_t attached_count;
    bool held;
    bool ended;
    bool hangs_up;     // the kernel says when the peer has closed altogether
    bool half_closed;  // the peer sends no more
    bool finishing;
    bool discarding;  // a frame was too long: what still comes is thrown away
    bool in_callback;
    bool freed;      // stream_free was called from a callback
    bool redeliver;  // frames read before a hold wait to be handed over
    bool waited;     // something was queued, and on_drained has not been called since
};

static void on_event(void *arg, uint32_t events);

// A socket over vsock looks the same, to poll, whether its peer has shut down its sending side or has closed.
static bool hangs_up(int fd)
{
    int domain = AF_UNIX;
    socklen_t n = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain != AF_VSOCK;
}

int stream_new(struct loop *loop, int fd, const struct stream_limits *limits, const struct stream_handler *handler, void *arg,
               struct stream **ret_stream)
{
    struct stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    *s = (struct stream){.fd = -1,
                         .limits = *limits,
                         .handler = handler,
                         .arg = arg,
                         .in = BUF_INIT(FRAME_HEAD + limits->frame_max + READ_STEP),
                         .out = BUF_INIT(limits->queue_max)};
    s->hangs_up = hangs_up(fd);
    int flags = fcntl(fd, F_GETFL);
    int r = flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = watch_add(loop, fd, EPOLLIN, on_event, s, &s->watch);
    if (r < 0) {
        free(s);
        return r;
    }
    s->fd = fd;
    *ret_stream = s;
    return 0;
}

struct stream *stream_free(struct stream *s)
{
    if (s == NULL || s->freed)
        return NULL;
    s->watch = watch_remove(s->watch);
    close_fd(&s->fd);
    for (size_t i = 0; i < s->attached_count; i++)
        close_fd(&s->attached[i].fd);
    s->attached_count = 0;
    s->ended = true;
    if (s->in_callback) {  // on_event still holds it
        s->freed = true;
        return NULL;
    }
    buf_free(&s->in);
    buf_free(&s->out);
    free(s);
    return NULL;
}

size_t stream_queued(const struct stream *s)
{
    return s->out.len - s->out_sent + s->pages_left;
}

int stream_fd(const struct stream *s)
{
    return s->fd;
}

static void update_interest(struct stream *s)
{
    if (s->ended || s->watch == NULL)
        return;
    // A socket is nearly always writable: asking for EPOLLOUT brings us back from the loop to deliver what waits.
    bool out = stream_queued(s) > 0 || s->redeliver || s->waited;
    uint32_t events = (s->held || s->half_closed ? 0 : EPOLLIN) | (out ? EPOLLOUT : 0);
    // At its end a socket is readable for ever: only what changes is of interest, to ask peer_gone again.
    if (s->half_closed && !s->hangs_up)
        events |= EPOLLIN | EPOLLET;
    watch_set(s->watch, events);
}

void stream_hold(struct stream *s, bool hold)
{
    s->held = hold;
    s->redeliver = !hold && s->in.len > 0;
    update_interest(s);
}

// One send: up to the next byte that has a descriptor, or from it.  The number of bytes taken, or a negative errno.
static ssize_t send_part(struct stream *s)
{
    size_t end = s->out.len;
    bool with_fd = false;
    for (size_t i = 0; i < s->attached_count && i < 2; i++) {
        if (s->attached[i].at == s->out_sent)
            with_fd = true;
        else if (s->attached[i].at < end)
            end = s->attached[i].at;
    }
    ssize_t n = fdpass_send(s->fd, s->out.data + s->out_sent, end - s->out_sent, &s->attached[0].fd, with_fd ? 1 : 0);
    if (n > 0 && with_fd) {
        close_fd(&s->attached[0].fd);
        s->attached_count--;
        memmove(s->attached, s->attached + 1, s->attached_count * sizeof s->attached[0]);
    }
    return n;
}

// Sends what the socket takes.  0 or a negative errno.
static int flush(struct stream *s)
{
    while (s->out_sent < s->out.len) {
        ssize_t n = send_part(s);
        if (n < 0)
            return n == -EAGAIN ? 0 : (int)n;
        s->out_sent += (size_t)n;
    }
    while (s->pages_left > 0) {
        ssize_t n = pages_move(s->pages, s->fd, s->pages_left);
        if (n <= 0)
            return n == -EAGAIN ? 0 : n < 0 ? (int)n : -EIO;
        s->pages_left -= (size_t)n;
    }
    buf_clear(&s->out);
    s->out_sent = 0;
    if (s->finishing) {
        s->finishing = false;
        shutdown(s->fd, SHUT_WR);
    }
    return 0;
}

// Whether something can be queued: 0, or why not.  The room that sent bytes still take in `out` is given back first.
static int make_room(struct stream *s)
{
    if (s->ended)
        return -EPIPE;
    if (s->pages_left > 0)
        return -EBUSY;
    buf_consume(&s->out, s->out_sent);
    for (size_t i = 0; i < s->attached_count; i++)
        s->attached[i].at -= s->out_sent;
    s->out_sent = 0;
    s->out.error = 0;
    return 0;
}

// A socket that fails while sending is reported by the next event (EPOLLERR or EPOLLHUP), never from inside a send.
static int sent(struct stream *s, int queue_result)
{
    if (queue_result < 0) {
        s->out.error = 0;
        return queue_result;
    }
    int r = flush(s);
    // What waited before may have gone with this: the owner is told all the same, from the loop.
    s->waited = s->waited || (stream_queued(s) > 0 && s->handler->on_drained != NULL);
    update_interest(s);
    return r < 0 ? -EPIPE : 0;
}

int stream_send(struct stream *s, const void *message)
{
    int r = make_room(s);
    if (r < 0)
        return r;
    return sent(s, pb_append_frame(&s->out, message, s->limits.queue_max));
}

int stream_send_fd(struct stream *s, const void *message, int fd)
{
    int r = make_room(s);
    if (r < 0)
        return r;
    if (s->attached_count == STREAM_FDS_MAX)
        return -ENOSPC;
    size_t at = s->out.len;
    r = pb_append_frame(&s->out, message, s->limits.queue_max);
    if (r == 0)
        s->attached[s->attached_count++] = (struct attached){.at = at, .fd = fd};
    // The frame is queued: what goes wrong from here on is told by on_end, and the descriptor is this stream's.
    return r == 0 ? (sent(s, 0), 0) : sent(s, r);
}

// One frame of two parts.
static int send_parts(struct stream *s, const void *first, size_t n_first, const void *second, size_t n_second)
{
    int r = make_room(s);
    if (r < 0)
        return r;
    uint8_t *space;
    size_t n = n_first + n_second;
    r = n > UINT32_MAX ? -EMSGSIZE : buf_reserve(&s->out, FRAME_HEAD + n, &space);
    if (r == 0) {
        frame_put_head(space, (uint32_t)n);
        if (n_first > 0)
            memcpy(space + FRAME_HEAD, first, n_first);
        if (n_second > 0)
            memcpy(space + FRAME_HEAD + n_first, second, n_second);
        buf_commit(&s->out, FRAME_HEAD + n);
    }
    return sent(s, r);
}

int stream_send_bytes(struct stream *s, const void *bytes, size_t n)
{
    return send_parts(s, NULL, 0, bytes, n);
}

int stream_send_typed(struct stream *s, uint8_t type, const void *bytes, size_t n)
{
    return send_parts(s, &type, 1, bytes, n);
}

int stream_send_pages(struct stream *s, int pipe, size_t n)
{
    int r = make_room(s);
    if (r < 0)
        return r;
    s->pages = pipe;
    s->pages_left = n;
    return sent(s, 0);
}

void stream_finish(struct stream *s)
{
    if (s->ended)
        return;
    s->finishing = true;
    flush(s);
    update_interest(s);
}

static void end(struct stream *s, int reason)
{
    if (s->ended)
        return;
    s->ended = true;
    s->watch = watch_remove(s->watch);
    s->handler->on_end(s->arg, reason);
}

// A frame is too long: nothing behind it can be read as frames any more.
static void refuse(struct stream *s, int reason)
{
    if (s->handler->on_oversize == NULL) {
        end(s, reason);
        return;
    }
    s->discarding = true;
    buf_clear(&s->in);
    s->handler->on_oversize(s->arg);
}

// Hands over the whole frames that have been read; a held stream keeps them for later.
static void deliver(struct stream *s)
{
    size_t used = 0;
    s->redeliver = false;
    while (!s->ended && !s->held) {
        const uint8_t *body;
        size_t len;
        int r = frame_find(s->in.data + used, s->in.len - used, s->limits.frame_max, &body, &len);
        if (r < 0) {
            refuse(s, r);
            return;
        }
        if (r == 0)
            break;
        used += FRAME_HEAD + len;
        s->handler->on_frame(s->arg, body, len);
    }
    if (!s->freed)
        buf_consume(&s->in, used);
}

// Whether a peer that sends no more takes nothing either.  Even nothing cannot be sent to one over vsock then.
static bool peer_gone(const struct stream *s)
{
    struct pollfd p = {.fd = s->fd};
    return poll(&p, 1, 0) != 0 || (!s->hangs_up && send(s->fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN);
}

// The peer sends no more.
static void at_end(struct stream *s)
{
    if (s->handler->on_half_close == NULL || peer_gone(s)) {
        end(s, 0);
        return;
    }
    s->half_closed = true;
    update_interest(s);
    s->handler->on_half_close(s->arg);
}

static void fill(struct stream *s)
{
    uint8_t *space;
    int r = buf_reserve(&s->in, READ_STEP, &space);
    if (r < 0) {
        end(s, r);
        return;
    }
    ssize_t n = recv(s->fd, space, READ_STEP, 0);
    if (n < 0) {
        if (errno != EINTR && errno != EAGAIN)
            end(s, -errno);
        return;
    }
    if (n == 0) {
        at_end(s);
        return;
    }
    if (s->discarding)
        return;
    buf_commit(&s->in, (size_t)n);
    deliver(s);
}

static void on_event(void *arg, uint32_t events)
{
    struct stream *s = arg;
    s->in_callback = true;
    if ((events & EPOLLOUT) != 0) {
        int r = flush(s);
        if (r < 0)
            end(s, r);
        else if (s->redeliver)
            deliver(s);
        if (!s->ended && s->waited && stream_queued(s) == 0) {
            s->waited = false;
            s->handler->on_drained(s->arg);
        }
        update_interest(s);
    }
    if (!s->ended && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
        if (!s->held && !s->half_closed)
            fill(s);
        else if ((events & (EPOLLHUP | EPOLLERR)) != 0 || (s->half_closed && peer_gone(s)))
            end(s, 0);
    }
    s->in_callback = false;
    if (s->freed) {
        s->freed = false;
        stream_free(s);
    }
}
