#include "agent/output.h"

#include "agent/drains.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

// A terminal's buffers hold less than this: what was written before a moment is within as many bytes, or until none are there.
enum { READS_A_TURN = 4, TERMINAL_HOLDS = 128 * 1024 };

static void ended(struct output *o)
{
    o->watch = watch_remove(o->watch);
    close_fd(&o->fd);
    o->left = 0;
}

static void keep_head(struct output *o, const uint8_t *bytes, size_t n)
{
    size_t room = o->head.max - o->head.len;
    if (n > room)
        n = room;
    if (n > *o->keep)
        n = (size_t)*o->keep;
    if (buf_append(&o->head, bytes, n) == 0)
        *o->keep -= n;
}

// One read.  How many bytes came; 0 when none are there or the pipe has ended.
static size_t pull(struct output *o)
{
    static uint8_t bytes[OUTPUT_PIECE];
    size_t most = o->finishing && o->left < sizeof bytes ? o->left : sizeof bytes;
    if (most == 0)
        return 0;
    ssize_t n = read(o->fd, bytes, most);
    if (n < 0 && errno == EINTR)
        return 0;
    if (n < 0 && errno == EAGAIN) {
        o->left = 0;
        return 0;
    }
    if (n <= 0) {  // a terminal that nobody has open any more gives EIO
        ended(o);
        return 0;
    }
    o->total += (uint64_t)n;
    o->left -= o->finishing ? (size_t)n : 0;
    if (o->take != NULL)
        o->take(o->arg, bytes, (size_t)n);
    else
        keep_head(o, bytes, (size_t)n);
    return (size_t)n;
}

static void on_readable(void *arg, uint32_t events)
{
    struct output *o = arg;
    for (int i = 0; i < READS_A_TURN && o->fd >= 0 && !o->held; i++)
        if (pull(o) < OUTPUT_PIECE)
            break;
    o->on_bytes(o->arg);
}

static struct output fresh(const struct output_use *use)
{
    return (struct output){.fd = -1,
                           .loop = use->loop,
                           .head = BUF_INIT(use->head_max),
                           .keep = use->keep,
                           .take = use->take,
                           .on_bytes = use->on_bytes,
                           .arg = use->arg};
}

int output_open(struct output *o, const struct output_use *use, int *ret_child_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    cleanup_fd int ours = ends[0], theirs = ends[1];
    *o = fresh(use);
    // Only our end: the flag belongs to the open file, and the command expects a blocking pipe.
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    int r = watch_add(o->loop, ours, EPOLLIN, on_readable, o, &o->watch);
    if (r < 0)
        return r;
    o->fd = take_fd(&ours);
    *ret_child_end = take_fd(&theirs);
    return 0;
}

int output_open_terminal(struct output *o, const struct output_use *use, int master)
{
    *o = fresh(use);
    o->terminal = true;
    int r = watch_add(o->loop, master, EPOLLIN, on_readable, o, &o->watch);
    if (r == 0)
        o->fd = master;
    return r;
}

void output_hold(struct output *o, bool hold)
{
    if (o->held == hold)
        return;
    o->held = hold;
    if (o->fd < 0)
        return;
    // The watch goes altogether: a pipe without writers would report its hang-up again and again.
    o->watch = watch_remove(o->watch);
    if (!hold && watch_add(o->loop, o->fd, EPOLLIN, on_readable, o, &o->watch) < 0)
        ended(o);  // nothing would ever be read again
}

void output_finish(struct output *o)
{
    int waiting = 0;
    o->finishing = true;
    if (o->fd < 0)
        o->left = 0;
    else if (o->terminal)
        o->left = TERMINAL_HOLDS;
    else
        o->left = ioctl(o->fd, FIONREAD, &waiting) == 0 ? (size_t)waiting : 0;
}

bool output_done(const struct output *o)
{
    return o->fd < 0 || (o->finishing && o->left == 0);
}

void output_collect(struct output *o)
{
    while (o->fd >= 0 && o->left > 0 && !o->held)
        pull(o);
}

void output_close(struct output *o, struct drains *drains)
{
    o->watch = watch_remove(o->watch);
    if (o->fd >= 0 && !o->terminal)
        drains_add(drains, take_fd(&o->fd));
    close_fd(&o->fd);
    buf_free(&o->head);
}
