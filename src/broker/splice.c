#include "broker/splice.h"

#include "base/pages.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

struct way {
    struct splice *splice;
    int from, to;
    struct event *readable, *writable;
    int pipe[2];  // -1 while there is nothing in it
    size_t held;  // bytes in it
    bool ended;
};

struct splice {
    struct way way[2];
    splice_bytes_fn *bytes;
    splice_end_fn *end;
    void *arg;
};

static void fail(struct way *w, int error)
{
    w->splice->end(w->splice->arg, error);
}

static void pass_end(struct way *w)
{
    struct splice *s = w->splice;
    w->ended = true;
    event_del(w->readable);
    shutdown(w->to, SHUT_WR);
    if (s->way[0].ended && s->way[1].ended)
        s->end(s->arg, 0);
}

// Writes what the pipe holds.  1: all of it, and the pipe is given back.  0: there is some left.  A negative errno: over.
static int empty_pipe(struct way *w)
{
    while (w->held > 0) {
        ssize_t n = pages_move(w->pipe[0], w->to, w->held);
        if (n < 0)
            return n == -EAGAIN ? 0 : (int)n;
        w->held -= (size_t)n;
    }
    pages_give_pipe(w->pipe);
    return 1;
}

// Moves one piece.  1: there may be more.  0: not now.  -ECANCELED: this direction has ended.  Another negative errno: over.
static int move(struct way *w)
{
    int r = pages_take_pipe(w->pipe);
    if (r < 0)
        return r;
    ssize_t got = pages_move(w->from, w->pipe[1], PAGES_PIECE);
    if (got <= 0) {
        pages_give_pipe(w->pipe);
        if (got == 0)
            pass_end(w);
        return got == 0 ? -ECANCELED : got == -EAGAIN ? 0 : (int)got;
    }
    w->splice->bytes(w->splice->arg, (unsigned)(w - w->splice->way), (size_t)got);
    w->held = (size_t)got;
    r = empty_pipe(w);
    if (r == 0) {
        event_del(w->readable);
        event_add(w->writable, NULL);
    }
    return r;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct way *w = arg;
    (void)fd;
    (void)what;
    int r = 1;
    for (int i = 0; r == 1 && i < SPLICE_TURN; i++)
        r = move(w);
    if (r < 0 && r != -ECANCELED)
        fail(w, r);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct way *w = arg;
    (void)what;
    (void)fd;
    int r = empty_pipe(w);
    if (r < 0)
        fail(w, r);
    if (r <= 0)
        return;
    event_del(w->writable);
    event_add(w->readable, NULL);
}

static int open_way(struct splice *s, struct event_base *base, unsigned d, const int fds[2], bool ended)
{
    struct way *w = &s->way[d];
    *w = (struct way){.splice = s, .from = fds[d], .to = fds[1 - d], .pipe = {-1, -1}, .ended = ended};
    w->readable = event_new(base, w->from, EV_READ | EV_PERSIST, on_readable, w);
    w->writable = event_new(base, w->to, EV_WRITE | EV_PERSIST, on_writable, w);
    if (w->readable == NULL || w->writable == NULL || (!ended && event_add(w->readable, NULL) < 0))
        return -ENOMEM;
    return 0;
}

int splice_new(struct event_base *base, const int fds[2], const bool ended[2], splice_bytes_fn *bytes, splice_end_fn *end,
               void *arg, struct splice **ret)
{
    struct splice *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    for (unsigned d = 0; d < 2; d++)
        s->way[d].pipe[0] = s->way[d].pipe[1] = -1;
    s->bytes = bytes;
    s->end = end;
    s->arg = arg;
    for (unsigned d = 0; d < 2; d++)
        if (open_way(s, base, d, fds, ended[d]) < 0) {
            splice_free(s);
            return -ENOMEM;
        }
    *ret = s;
    return 0;
}

struct splice *splice_free(struct splice *s)
{
    if (s == NULL)
        return NULL;
    for (unsigned d = 0; d < 2; d++) {
        if (s->way[d].readable != NULL)
            event_free(s->way[d].readable);
        if (s->way[d].writable != NULL)
            event_free(s->way[d].writable);
        pages_close_pipe(s->way[d].pipe);
    }
    free(s);
    return NULL;
}
