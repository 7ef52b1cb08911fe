// What a virtio device sees of its transport (virtio/mmio.h is the other side).
//
// A device is a table of operations and a state of its own.  Every operation runs with the transport's mutex held; whatever
// else runs on the loop's thread for the device (a socket is readable, a worker finished) takes it with virtio_lock.
#ifndef VMM_VIRTIO_DEVICE_H
#define VMM_VIRTIO_DEVICE_H

#include "sys/loop.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

enum {
    VIRTIO_QUEUES_MAX = 4,
    // Requests handled for one notification of one queue, before other descriptors of the loop get their turn.
    VIRTIO_BUDGET = 64,
};

struct virtio_device_ops {
    uint32_t id;
    // On the loop's thread, while the driver runs: queue `queue` was notified, or has to be looked at again.  Handles at most
    // VIRTIO_BUDGET requests, and asks with virtio_again for another turn if there may be more.
    void (*queue_ready)(void *device, unsigned queue);
    // On the loop's thread, after each activation and each reset, before the queues: what only that thread may do.  Optional.
    void (*settle)(void *device, bool active);
    // On a vCPU's thread.  When it returns, nothing of the device touches guest memory any more.  Must not touch the loop.
    // Optional.
    void (*reset)(void *device);
};

struct virtio_device {
    const struct virtio_device_ops *ops;
    void *state;
    uint64_t features;  // besides VERSION_1 and EVENT_IDX, which every device offers
    unsigned queues;
    uint16_t queue_size;  // the largest the driver may choose
    const void *config;   // the configuration space, read only for the driver; changed with the lock held
    uint32_t config_bytes;
};

// Everything of a transport that a snapshot holds.
struct virtio_mmio_state {
    uint64_t driver_features;
    uint32_t device_features_sel;
    uint32_t driver_features_sel;
    uint32_t queue_sel;
    uint32_t status;
    uint32_t interrupt_status;
    uint32_t config_generation;
    struct virtq_state queue[VIRTIO_QUEUES_MAX];
};

// `device` is copied; its state, its configuration space and `memory` outlive the transport.  0 or a negative errno.
int virtio_mmio_new(struct loop *loop, const struct guest_memory *memory, const struct virtio_device *device,
                    struct virtio_mmio **ret_mmio);
// On the loop's thread, when no vCPU runs any more.  NULL is fine; returns NULL.
struct virtio_mmio *virtio_mmio_free(struct virtio_mmio *mmio);

// For what runs on the loop's thread outside of an operation.
void virtio_lock(struct virtio_mmio *mmio);
void virtio_unlock(struct virtio_mmio *mmio);

// All below: with the lock held.

// Whether the driver is running and the device is not broken.
bool virtio_active(const struct virtio_mmio *mmio);
bool virtio_has_feature(const struct virtio_mmio *mmio, unsigned bit);
// As virtq_pop; breaks the device on an error.  > 0: *chain is the next request.  Otherwise none, now.
int virtio_pop(struct virtio_mmio *mmio, unsigned queue, struct virtq_chain *chain);
void virtio_unpop(struct virtio_mmio *mmio, unsigned queue, const struct virtq_chain *chain);
void virtio_push(struct virtio_mmio *mmio, unsigned queue, uint16_t head, uint32_t written);
// An interrupt, if the driver wants one for what was pushed.
void virtio_signal(struct virtio_mmio *mmio, unsigned queue);
// As virtq_listen.
uint16_t virtio_listen(struct virtio_mmio *mmio, unsigned queue);
// Another turn for the queue, after the others had theirs.
void virtio_again(struct virtio_mmio *mmio, unsigned queue);
// `reason` is a static sentence.
void virtio_break(struct virtio_mmio *mmio, const char *reason);
// After a change of the configuration space: a new generation, and the driver is told.
void virtio_config_changed(struct virtio_mmio *mmio);

// For save and restore, with no vCPU running, on the loop's thread, without the lock.  Saving gives -EBUSY while requests are
// in flight: run the loop until they are answered.  Restoring is possible before the driver's first access: 0, or -EINVAL for
// a state that no driver could have brought about here, and then nothing changed; queues are looked at again and the driver is
// interrupted once, because what was under way in eventfds is not part of a snapshot.
int virtio_mmio_save(struct virtio_mmio *mmio, struct virtio_mmio_state *ret_state);
int virtio_mmio_restore(struct virtio_mmio *mmio, const struct virtio_mmio_state *state);

#endif
