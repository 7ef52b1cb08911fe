// How fast a disk may be used: bytes a second and operations a second, of reading and of writing apart.
//
// An operation begins when those before it have been paid for, and is paid for when it has ended, by what it really moved: so
// none is too large, and the next one waits for it.  What was not used is saved up for THROTTLE_SAVED_NS, no longer.  Times are
// of the monotonic clock and come from the caller.  Not thread-safe.
#ifndef VMM_VIRTIO_THROTTLE_H
#define VMM_VIRTIO_THROTTLE_H

#include <stdint.h>

#define THROTTLE_SAVED_NS UINT64_C(100000000)

enum throttle_direction { THROTTLE_READS, THROTTLE_WRITES, THROTTLE_DIRECTIONS };

struct throttle {
    uint64_t bytes_per_s, ops_per_s;  // 0: no limit
    // Until when what was done is paid for.
    uint64_t bytes_ns[THROTTLE_DIRECTIONS], ops_ns[THROTTLE_DIRECTIONS];
};

// Nanoseconds until the next operation may begin; 0: now.
uint64_t throttle_wait(const struct throttle *t, enum throttle_direction direction, uint64_t now_ns);
// One operation that moved so many bytes has ended.
void throttle_pay(struct throttle *t, enum throttle_direction direction, uint64_t bytes, uint64_t now_ns);

#endif
