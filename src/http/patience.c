#include "http/patience.h"

#include <errno.h>
#include <stddef.h>

static void arm(struct patience *p, uint64_t ns)
{
    struct timeval t = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_usec = (suseconds_t)(ns % NS_PER_S / NS_PER_US + 1)};
    event_add(p->timer, &t);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct patience *p = arg;
    (void)fd;
    (void)what;
    if (p->limit_ns == 0)
        return;
    uint64_t passed = mono_ns() - p->touched_ns;
    if (passed < p->limit_ns)
        arm(p, p->limit_ns - passed);
    else
        p->fn(p->arg);
}

int patience_init(struct patience *p, struct event_base *base, patience_fn *fn, void *arg)
{
    *p = (struct patience){.fn = fn, .arg = arg};
    p->timer = evtimer_new(base, on_timer, p);
    return p->timer != NULL ? 0 : -ENOMEM;
}

void patience_end(struct patience *p)
{
    if (p->timer != NULL)
        event_free(p->timer);
    p->timer = NULL;
}

void patience_start(struct patience *p, uint64_t ms)
{
    p->limit_ns = ms * NS_PER_MS;
    patience_touch(p);
    if (ms == 0)
        event_del(p->timer);
    else
        arm(p, p->limit_ns);
}
