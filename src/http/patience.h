// How long a wait may last: one timer for each connection, that is moved on by touching a number and not the timer.
#ifndef HTTP_PATIENCE_H
#define HTTP_PATIENCE_H

#include "base/clock.h"

#include <event2/event.h>
#include <stdint.h>

typedef void patience_fn(void *arg);

struct patience {
    struct event *timer;
    patience_fn *fn;
    void *arg;
    uint64_t touched_ns, limit_ns;  // limit 0: waits for ever
};

// fn(arg) is called when patience_touch has not been for the time of patience_start.  0 or -ENOMEM.
int patience_init(struct patience *p, struct event_base *base, patience_fn *fn, void *arg);
// NULL-safe for one that was never initialised (all zero).
void patience_end(struct patience *p);
// From now on, so many milliseconds; 0: for ever.
void patience_start(struct patience *p, uint64_t ms);

static inline void patience_touch(struct patience *p)
{
    p->touched_ns = mono_ns();
}

#endif
