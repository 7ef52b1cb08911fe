// The inside of a virtio-mmio transport: only for device.c, mmio.c and snapshot.c.
#ifndef VMM_VIRTIO_TRANSPORT_H
#define VMM_VIRTIO_TRANSPORT_H

#include "vmm/virtio/device.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <pthread.h>

#define BIT(n) (UINT64_C(1) << (n))
#define EVERY_DEVICE (BIT(VIRTIO_F_VERSION_1) | BIT(VIRTIO_RING_F_EVENT_IDX))

struct notify {
    struct virtio_mmio *mmio;
    unsigned queue;
    int fd;
    struct watch *watch;
};

struct virtio_mmio {
    pthread_mutex_t lock;
    struct virtio_device device;
    const struct guest_memory *memory;
    int irq;
    int settle;  // an eventfd: the loop's thread has to look at an activation or a reset
    struct watch *settle_watch;
    struct notify notify[VIRTIO_QUEUES_MAX];
    // Under the lock, except that interrupt_status is only ever touched atomically.
    struct virtio_mmio_state state;
    struct virtq queue[VIRTIO_QUEUES_MAX];
    bool told;  // the log, of the first one
    uint64_t breaks;
    const char *reason;
    bool unsettled;
};

// Wakes whoever watches the eventfd `fd`.
void transport_wake(int fd);
// Sets `bit` of the interrupt status and interrupts the driver.
void transport_interrupt(struct virtio_mmio *mmio, uint32_t bit);
// The loop's thread has to look at an activation or a reset.  Locked.
void transport_unsettle(struct virtio_mmio *mmio);

static inline uint64_t transport_offered(const struct virtio_mmio *mmio)
{
    return mmio->device.features | EVERY_DEVICE;
}

static inline bool transport_features_fit(const struct virtio_mmio *mmio, uint64_t features)
{
    return (features & BIT(VIRTIO_F_VERSION_1)) != 0 && (features & ~transport_offered(mmio)) == 0;
}

#endif
