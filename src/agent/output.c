#include "agent/output.h"

#include "agent/drains.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

enum { READ_STEP = 64 * 1024, READS_A_TURN = 4 };

static void ended(struct output *o)
{
    o->watch = watch_remove(o->watch);
    close_fd(&o->fd);
}

static void keep_head(struct output *o, const char *bytes, size_t n)
{
    size_t room = o->head.max - o->head.len;
    if (n > room)
        n = room;
    if (n > *o->keep)
        n = (size_t)*o->keep;
    if (buf_append(&o->head, bytes, n) == 0)
        *o->keep -= n;
}

// One read of at most `most` bytes.  How many came; 0 when none are left or the pipe has ended.
static size_t pull(struct output *o, size_t most)
{
    static char bytes[READ_STEP];
    ssize_t n = read(o->fd, bytes, most < sizeof bytes ? most : sizeof bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        ended(o);
        return 0;
    }
    o->total += (uint64_t)n;
    keep_head(o, bytes, (size_t)n);
    return (size_t)n;
}

static void on_readable(void *arg, uint32_t events)
{
    struct output *o = arg;
    for (int i = 0; i < READS_A_TURN && o->fd >= 0; i++)
        if (pull(o, READ_STEP) < READ_STEP)
            break;
    o->on_bytes(o->arg);
}

int output_open(struct output *o, struct loop *loop, size_t head_max, uint64_t *keep, void (*on_bytes)(void *), void *arg,
                int *ret_child_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    cleanup_fd int ours = ends[0], theirs = ends[1];
    *o = (struct output){.fd = -1, .head = BUF_INIT(head_max), .keep = keep, .on_bytes = on_bytes, .arg = arg};
    // Only our end: the flag belongs to the open file, and the command expects a blocking pipe.
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    int r = watch_add(loop, ours, EPOLLIN, on_readable, o, &o->watch);
    if (r < 0)
        return r;
    o->fd = take_fd(&ours);
    *ret_child_end = take_fd(&theirs);
    return 0;
}

void output_collect(struct output *o)
{
    int waiting = 0;
    if (o->fd < 0 || ioctl(o->fd, FIONREAD, &waiting) < 0)
        return;
    for (size_t left = (size_t)waiting, n; left > 0 && o->fd >= 0; left -= n) {
        n = pull(o, left);
        if (n == 0)
            break;
    }
}

void output_close(struct output *o, struct drains *drains)
{
    o->watch = watch_remove(o->watch);
    if (o->fd >= 0)
        drains_add(drains, take_fd(&o->fd));
    buf_free(&o->head);
}
