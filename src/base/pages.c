#include "base/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

// Empty pipes, for whoever needs one next.
static int spare[PAGES_SPARE][2];
static unsigned spares;

static void forget(int pipe[2])
{
    pipe[0] = pipe[1] = -1;
}

int pages_take_pipe(int pipe[2])
{
    if (spares > 0) {
        memcpy(pipe, spare[--spares], sizeof spare[0]);
        return 0;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    // With less than that, pieces are smaller.
    (void)fcntl(ends[1], F_SETPIPE_SZ, PAGES_PIECE);
    memcpy(pipe, ends, sizeof ends);
    return 0;
}

void pages_close_pipe(int pipe[2])
{
    if (pipe[0] >= 0) {
        close(pipe[0]);
        close(pipe[1]);
    }
    forget(pipe);
}

void pages_give_pipe(int pipe[2])
{
    if (spares == PAGES_SPARE) {
        pages_close_pipe(pipe);
        return;
    }
    memcpy(spare[spares++], pipe, sizeof spare[0]);
    forget(pipe);
}

ssize_t pages_move_file(int file, off_t *offset, int to, size_t n)
{
    ssize_t moved = splice(file, offset, to, NULL, n, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
    if (moved < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    return moved;
}

ssize_t pages_move(int from, int to, size_t n)
{
    return pages_move_file(from, NULL, to, n);
}
