#include "agent/drains.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { DRAIN_STEP = 64 * 1024, PAUSE_MS = 10 };

struct drain {
    struct drains *owner;
    struct drain *next;  // younger
    int fd;
    struct watch *watch;
    bool paused;
};

struct drains {
    struct loop *loop;
    struct drain *oldest;
    size_t count;
    struct timer resume;
};

static void discard(struct drain *d)
{
    struct drains *all = d->owner;
    for (struct drain **at = &all->oldest; *at != NULL; at = &(*at)->next)
        if (*at == d) {
            *at = d->next;
            break;
        }
    all->count--;
    d->watch = watch_remove(d->watch);
    close_fd(&d->fd);
    free(d);
}

static void on_readable(void *arg, uint32_t events)
{
    struct drain *d = arg;
    static char bin[DRAIN_STEP];
    ssize_t n = read(d->fd, bin, sizeof bin);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        discard(d);
        return;
    }
    // Without a reader's pause a flooding child would make the agent as busy as itself.  (After EPOLLHUP only what is left
    // in the pipe comes, so that needs none.)
    if ((events & EPOLLHUP) == 0 && n == (ssize_t)sizeof bin) {
        d->paused = watch_set(d->watch, 0) == 0;
        if (!timer_is_set(&d->owner->resume))
            timer_set(d->owner->loop, &d->owner->resume, mono_ns() + PAUSE_MS * NS_PER_MS);
    }
}

static void on_resume(void *arg)
{
    struct drains *all = arg;
    for (struct drain *d = all->oldest; d != NULL; d = d->next)
        if (d->paused) {
            d->paused = false;
            watch_set(d->watch, EPOLLIN);
        }
}

int drains_new(struct loop *loop, struct drains **ret_drains)
{
    struct drains *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    all->loop = loop;
    timer_init(&all->resume, on_resume, all);
    *ret_drains = all;
    return 0;
}

struct drains *drains_free(struct drains *drains)
{
    if (drains == NULL)
        return NULL;
    while (drains->oldest != NULL)
        discard(drains->oldest);
    timer_cancel(drains->loop, &drains->resume);
    free(drains);
    return NULL;
}

void drains_add(struct drains *drains, int fd)
{
    cleanup_fd int owned = fd;
    struct drain *d = calloc(1, sizeof *d);
    if (d == NULL || watch_add(drains->loop, fd, EPOLLIN, on_readable, d, &d->watch) < 0) {
        free(d);
        return;
    }
    d->owner = drains;
    d->fd = take_fd(&owned);
    struct drain **end = &drains->oldest;
    while (*end != NULL)
        end = &(*end)->next;
    *end = d;
    if (++drains->count > DRAINS_MAX)
        discard(drains->oldest);
}
