// A split virtqueue (virtio 1.2, section 2.7), the device's side.
//
// The rings are the guest's memory and may change at any moment, so every field is loaded once into a local variable, checked
// there, and used from there.  An error is a static sentence; the queue's owner breaks the device with it.
//
// Limits: a queue has at most VIRTQ_SIZE_MAX entries; a chain at most as many descriptors as its queue; no head is in flight
// twice; the driver is never more than the queue's size ahead.  Indirect tables are not offered, and refused.
//
// All state that outlives a pause is in `struct virtq_state`; the rest is derived from it by virtq_enable.  Not thread-safe.
#ifndef VMM_VIRTIO_QUEUE_H
#define VMM_VIRTIO_QUEUE_H

#include "vmm/mem/guest_memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

enum { VIRTQ_SIZE_MAX = 256 };

// What the driver set up, and how far both sides are.  Saved and restored as it is.
struct virtq_state {
    uint64_t desc;  // guest physical addresses of the three rings
    uint64_t avail;
    uint64_t used;
    uint16_t size;  // entries, a power of two
    uint16_t next_avail;
    uint16_t next_used;
    uint8_t ready;
    uint8_t event_idx;  // VIRTIO_F_EVENT_IDX was negotiated
};

struct virtq {
    struct virtq_state state;
    const struct guest_memory *memory;
    // The rings, inside RAM; valid while state.ready.
    uint8_t *desc;
    uint8_t *avail;
    uint8_t *used;
    bool listening;  // the driver was asked for notifications
    bool signalled;  // signalled_used means something
    uint16_t signalled_used;
    uint16_t in_flight;
    uint64_t in_flight_heads[VIRTQ_SIZE_MAX / 64];
};

// One request: buffers to read first, then buffers to write, as the driver chained them.  All of them are inside RAM.
struct virtq_chain {
    uint16_t head;
    uint16_t readable;  // iov[0 .. readable) is for the device to read,
    uint16_t writable;  // iov[readable .. readable + writable) for it to write
    uint64_t readable_bytes;
    uint64_t writable_bytes;
    struct iovec iov[VIRTQ_SIZE_MAX];
};

// Checks what the driver set up and makes the queue usable.  NULL, or what is wrong with it.
const char *virtq_enable(struct virtq *q, const struct guest_memory *memory);
// Back to what it was before any set-up.
void virtq_reset(struct virtq *q);

// The next request.  1: *chain is it, and in flight until virtq_push.  0: there is none, and the driver will notify when there
// is one.  -EPROTO with *ret_reason set: the driver broke the rules.
int virtq_pop(struct virtq *q, struct virtq_chain *chain, const char **ret_reason);
// Gives back the chain of the last virtq_pop, which comes again at the next one.
void virtq_unpop(struct virtq *q, const struct virtq_chain *chain);
// Completes a request: `written` bytes were written from the start of its writable buffers.
void virtq_push(struct virtq *q, uint16_t head, uint32_t written);
// Whether the driver wants an interrupt for what was pushed since this was last called.
bool virtq_wants_signal(struct virtq *q);

// Asks the driver to notify when it adds the next chain, however many wait; returns its available index as it is now.
uint16_t virtq_listen(struct virtq *q);

// Copies out of or into the first `n` bytes of `iov` after `skip`; returns how many there were.
size_t iov_read(const struct iovec *iov, size_t count, size_t skip, void *bytes, size_t n);
size_t iov_write(const struct iovec *iov, size_t count, size_t skip, const void *bytes, size_t n);
// The part [skip, skip + n) of `iov` as vectors of its own in `out` (room for `count`); returns their number.
size_t iov_part(const struct iovec *iov, size_t count, uint64_t skip, uint64_t n, struct iovec *out);

#endif
