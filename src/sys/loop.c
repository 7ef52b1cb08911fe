#include "sys/loop.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { BATCH = 64 };

struct watch {
    struct loop *loop;
    int fd;
    uint32_t events;
    watch_fn *fn;
    void *arg;
    struct watch *next_dead;
};

struct loop {
    int epoll;
    bool stopped;
    int result;
    struct epoll_event batch[BATCH];
    int batch_len;
    struct watch *dead;  // removed during a batch: freed after it, so that fetched events can be compared with them
    bool in_batch;
    struct timer **heap;  // by due_ns, smallest first
    size_t timers;
    size_t heap_size;
};

int loop_new(struct loop **ret_loop)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL)
        return -ENOMEM;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0) {
        int r = -errno;
        free(loop);
        return r;
    }
    *ret_loop = loop;
    return 0;
}

static void free_dead(struct loop *loop)
{
    while (loop->dead != NULL) {
        struct watch *w = loop->dead;
        loop->dead = w->next_dead;
        free(w);
    }
}

struct loop *loop_free(struct loop *loop)
{
    if (loop != NULL) {
        free_dead(loop);
        close_fd(&loop->epoll);
        free(loop->heap);
        free(loop);
    }
    return NULL;
}

int watch_add(struct loop *loop, int fd, uint32_t events, watch_fn *fn, void *arg, struct watch **ret_watch)
{
    struct watch *w = malloc(sizeof *w);
    if (w == NULL)
        return -ENOMEM;
    *w = (struct watch){.loop = loop, .fd = fd, .events = events, .fn = fn, .arg = arg};
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &e) < 0) {
        int r = -errno;
        free(w);
        return r;
    }
    *ret_watch = w;
    return 0;
}

int watch_set(struct watch *watch, uint32_t events)
{
    if (watch->events == events)
        return 0;
    struct epoll_event e = {.events = events, .data.ptr = watch};
    if (epoll_ctl(watch->loop->epoll, EPOLL_CTL_MOD, watch->fd, &e) < 0)
        return -errno;
    watch->events = events;
    return 0;
}

struct watch *watch_remove(struct watch *watch)
{
    if (watch == NULL)
        return NULL;
    struct loop *loop = watch->loop;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    if (!loop->in_batch) {
        free(watch);
        return NULL;
    }
    for (int i = 0; i < loop->batch_len; i++)
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
    watch->next_dead = loop->dead;
    loop->dead = watch;
    return NULL;
}

// --- timers: a binary heap whose members know their place ---

static void put(struct loop *loop, size_t i, struct timer *t)
{
    loop->heap[i] = t;
    t->place = i + 1;
}

static void sift_up(struct loop *loop, size_t i, struct timer *t)
{
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (loop->heap[parent]->due_ns <= t->due_ns)
            break;
        put(loop, i, loop->heap[parent]);
        i = parent;
    }
    put(loop, i, t);
}

static void sift_down(struct loop *loop, size_t i, struct timer *t)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= loop->timers)
            break;
        if (child + 1 < loop->timers && loop->heap[child + 1]->due_ns < loop->heap[child]->due_ns)
            child++;
        if (loop->heap[child]->due_ns >= t->due_ns)
            break;
        put(loop, i, loop->heap[child]);
        i = child;
    }
    put(loop, i, t);
}

void timer_cancel(struct loop *loop, struct timer *timer)
{
    if (timer->place == 0)
        return;
    size_t i = timer->place - 1;
    timer->place = 0;
    struct timer *last = loop->heap[--loop->timers];
    if (last == timer)
        return;
    if (i > 0 && loop->heap[(i - 1) / 2]->due_ns > last->due_ns)
        sift_up(loop, i, last);
    else
        sift_down(loop, i, last);
}

int timer_set(struct loop *loop, struct timer *timer, uint64_t due_ns)
{
    timer_cancel(loop, timer);
    if (loop->timers == loop->heap_size) {
        size_t size = loop->heap_size > 0 ? loop->heap_size * 2 : 16;
        struct timer **grown = realloc(loop->heap, size * sizeof *grown);
        if (grown == NULL)
            return -ENOMEM;
        loop->heap = grown;
        loop->heap_size = size;
    }
    timer->due_ns = due_ns;
    sift_up(loop, loop->timers++, timer);
    return 0;
}

// Runs what is due; returns milliseconds until the next timer, or -1.
static int run_timers(struct loop *loop)
{
    uint64_t now = mono_ns();
    while (loop->timers > 0 && !loop->stopped) {
        struct timer *t = loop->heap[0];
        if (t->due_ns > now) {
            uint64_t ms = (t->due_ns - now + NS_PER_MS - 1) / NS_PER_MS;
            return ms > 60000 ? 60000 : (int)ms;
        }
        timer_cancel(loop, t);
        t->fn(t->arg);
    }
    return -1;
}

static void run_batch(struct loop *loop)
{
    loop->in_batch = true;
    for (int i = 0; i < loop->batch_len && !loop->stopped; i++) {
        struct watch *w = loop->batch[i].data.ptr;
        if (w != NULL)
            w->fn(w->arg, loop->batch[i].events);
    }
    loop->in_batch = false;
    loop->batch_len = 0;
    free_dead(loop);
}

int loop_run(struct loop *loop)
{
    loop->stopped = false;
    while (!loop->stopped) {
        int wait_ms = run_timers(loop);
        if (loop->stopped)
            break;
        int n = epoll_wait(loop->epoll, loop->batch, BATCH, wait_ms);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        loop->batch_len = n;
        run_batch(loop);
    }
    return loop->result;
}

void loop_stop(struct loop *loop, int result)
{
    loop->stopped = true;
    loop->result = result;
}
