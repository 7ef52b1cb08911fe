#include "agent/input.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

enum { END_OF_FILE = 4 };  // VEOF of a new terminal, ^D

static void taken(struct input *in, size_t n)
{
    size_t first = n < in->first ? n : in->first;
    in->first -= first;
    if (n > first && in->on_taken != NULL)
        in->on_taken(in->arg, n - first);
}

void input_close(struct input *in)
{
    in->watch = watch_remove(in->watch);
    close_fd(&in->fd);
    buf_free(&in->pending);
}

// Nobody reads any more: what is pending and all that comes is thrown away.
static void give_up(struct input *in)
{
    size_t n = in->pending.len;
    in->watch = watch_remove(in->watch);
    close_fd(&in->fd);
    buf_clear(&in->pending);
    if (n > 0)
        taken(in, n);
}

static void feed(void *arg, uint32_t events);

// Everything has been written, or there is more that the pipe does not take now.
static void settle(struct input *in)
{
    if (in->pending.len > 0) {
        if (in->watch == NULL && watch_add(in->loop, in->fd, EPOLLOUT, feed, in, &in->watch) < 0)
            give_up(in);
        return;
    }
    in->watch = watch_remove(in->watch);
    if (!in->open)
        close_fd(&in->fd);
}

static void feed(void *arg, uint32_t events)
{
    (void)events;
    struct input *in = arg;
    size_t sent = 0;
    while (sent < in->pending.len) {
        ssize_t n = write(in->fd, in->pending.data + sent, in->pending.len - sent);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            give_up(in);
            return;
        }
        sent += (size_t)n;
    }
    buf_consume(&in->pending, sent);
    settle(in);
    if (sent > 0)
        taken(in, sent);
}

static int begin(struct input *in, const struct input_use *use, int fd, bool terminal)
{
    *in = (struct input){.fd = fd,
                         .loop = use->loop,
                         .pending = BUF_INIT(INPUT_PENDING_MAX),
                         .open = use->open,
                         .terminal = terminal,
                         .first = use->n,
                         .on_taken = use->on_taken,
                         .arg = use->arg};
    int r = use->n > 0 ? buf_append(&in->pending, use->bytes, use->n) : 0;
    if (r == 0)
        feed(in, EPOLLOUT);
    return r;
}

int input_open(struct input *in, const struct input_use *use, int *ret_child_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    cleanup_fd int theirs = ends[0], ours = ends[1];
    int r = fcntl(ours, F_SETFL, O_NONBLOCK) < 0 ? -errno : begin(in, use, ours, false);
    if (r < 0) {
        in->fd = -1;
        return r;
    }
    take_fd(&ours);  // it may be closed already
    *ret_child_end = take_fd(&theirs);
    return 0;
}

int input_open_terminal(struct input *in, const struct input_use *use, int master)
{
    int r = begin(in, use, master, true);
    if (r < 0)
        in->fd = -1;
    return r;
}

int input_write(struct input *in, const void *bytes, size_t n)
{
    if (!in->open)
        return -EPIPE;
    if (in->fd < 0) {
        taken(in, n);
        return 0;
    }
    int r = buf_append(&in->pending, bytes, n);
    if (r < 0) {
        in->pending.error = 0;
        return r;
    }
    if (in->watch == NULL)
        feed(in, EPOLLOUT);
    return 0;
}

void input_end(struct input *in)
{
    if (!in->open)
        return;
    static const uint8_t end_of_file = END_OF_FILE;
    if (in->terminal && in->fd >= 0) {
        in->first += 1;  // no byte of the caller's
        input_write(in, &end_of_file, 1);
        return;  // a terminal stays open
    }
    in->open = false;
    if (in->fd >= 0)
        settle(in);
}
