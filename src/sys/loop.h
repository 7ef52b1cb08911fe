// The event loop: epoll, one-shot timers, and nothing else.  Used by the engine, the jailer and the agent.
//
// Lifetime rules:
//  - a loop, its watches and its timers belong to one thread; nothing here is thread-safe;
//  - a callback may remove any watch or timer, its own too, and add others; a removed watch's callback never runs again,
//    also when its event had already been fetched;
//  - the loop never closes a descriptor: the owner removes the watch first and then closes;
//  - timers are memory of their owner, who cancels them before freeing it.
#ifndef SYS_LOOP_H
#define SYS_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop;
struct watch;
struct timer;

// `events` are EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR.
typedef void watch_fn(void *arg, uint32_t events);
typedef void timer_fn(void *arg);

// One-shot; set it again from its callback to repeat.  Zero-initialise, then timer_init.
struct timer {
    timer_fn *fn;
    void *arg;
    uint64_t due_ns;
    size_t place;  // 1 + index in the heap, 0 when not set
};

// 0 or a negative errno.
int loop_new(struct loop **ret_loop);
// All watches must have been removed.  NULL is fine; returns NULL.
struct loop *loop_free(struct loop *loop);

// Runs callbacks until loop_stop; returns the value given to loop_stop, or a negative errno.
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop, int result);

// Calls fn(arg, events) whenever `fd` has one of `events` (level-triggered; HUP and ERR always count).
int watch_add(struct loop *loop, int fd, uint32_t events, watch_fn *fn, void *arg, struct watch **ret_watch);
int watch_set(struct watch *watch, uint32_t events);
// Removes and forgets.  NULL is fine; returns NULL.
struct watch *watch_remove(struct watch *watch);

static inline void timer_init(struct timer *timer, timer_fn *fn, void *arg)
{
    *timer = (struct timer){.fn = fn, .arg = arg};
}

// (Re)arms for the monotonic instant `due_ns` (base/clock.h).  0 or -ENOMEM.
int timer_set(struct loop *loop, struct timer *timer, uint64_t due_ns);
void timer_cancel(struct loop *loop, struct timer *timer);

static inline bool timer_is_set(const struct timer *timer)
{
    return timer->place != 0;
}

#endif
