// The two clocks.  Deadlines and durations are monotonic; only log lines and expiry dates use the wall clock.
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S UINT64_C(1000000000)

static inline uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static inline uint64_t mono_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static inline uint64_t wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

#endif
