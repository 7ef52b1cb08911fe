#include "agent/input.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

void input_close(struct input *in)
{
    in->watch = watch_remove(in->watch);
    close_fd(&in->fd);
    free(in->bytes);
    in->bytes = NULL;
}

// Writes what the pipe takes.  When all is written, or nobody reads any more (EPIPE), the pipe is closed.
static void feed(void *arg, uint32_t events)
{
    struct input *in = arg;
    while (in->sent < in->len) {
        ssize_t n = write(in->fd, in->bytes + in->sent, in->len - in->sent);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            break;
        in->sent += (size_t)n;
    }
    input_close(in);
}

int input_open(struct input *in, struct loop *loop, const void *bytes, size_t n, int *ret_child_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    cleanup_fd int theirs = ends[0];
    *in = (struct input){.fd = ends[1], .len = n};
    int r = fcntl(in->fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0 && n > 0) {
        in->bytes = malloc(n);
        if (in->bytes == NULL)
            r = -ENOMEM;
        else
            memcpy(in->bytes, bytes, n);
    }
    if (r == 0)
        r = watch_add(loop, in->fd, EPOLLOUT, feed, in, &in->watch);
    if (r < 0) {
        input_close(in);
        return r;
    }
    *ret_child_end = take_fd(&theirs);
    feed(in, EPOLLOUT);
    return 0;
}
