#include "vmm/virtio/transport.h"

#include <errno.h>
#include <string.h>

int virtio_mmio_save(struct virtio_mmio *mmio, struct virtio_mmio_state *ret_state)
{
    virtio_lock(mmio);
    bool busy = false;
    for (unsigned i = 0; i < mmio->device.queues; i++)
        busy = busy || mmio->queue[i].in_flight > 0;
    if (!busy) {
        *ret_state = mmio->state;
        for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++)
            ret_state->queue[i] = mmio->queue[i].state;
    }
    virtio_unlock(mmio);
    return busy ? -EBUSY : 0;
}

// The queues of `state` in `queue`, as the driver that made it must have set them up.
static bool restore_queues(const struct virtio_mmio *m, const struct virtio_mmio_state *state, struct virtq *queue)
{
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        queue[i] = (struct virtq){.state = state->queue[i]};
        if (!state->queue[i].ready)
            continue;
        bool event_idx = (state->driver_features & BIT(VIRTIO_RING_F_EVENT_IDX)) != 0;
        if (i >= m->device.queues || state->queue[i].ready != 1 || state->queue[i].event_idx != event_idx ||
            state->queue[i].size > m->device.queue_size || (state->status & VIRTIO_CONFIG_S_FEATURES_OK) == 0 ||
            virtq_enable(&queue[i], m->memory) != NULL)
            return false;
    }
    return true;
}

static bool status_fits(const struct virtio_mmio *m, const struct virtio_mmio_state *state)
{
    static const uint32_t steps[] = {0, VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_FEATURES_OK,
                                     VIRTIO_CONFIG_S_DRIVER_OK};
    uint32_t wanted = state->status & ~(uint32_t)(VIRTIO_CONFIG_S_FAILED | VIRTIO_CONFIG_S_NEEDS_RESET);
    uint32_t reached = 0;
    bool found = false;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        reached |= steps[i];
        found = found || wanted == reached;
    }
    return found && ((wanted & VIRTIO_CONFIG_S_FEATURES_OK) == 0 || transport_features_fit(m, state->driver_features)) &&
           (state->interrupt_status & ~(uint32_t)(VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG)) == 0;
}

int virtio_mmio_restore(struct virtio_mmio *mmio, const struct virtio_mmio_state *state)
{
    struct virtq queue[VIRTIO_QUEUES_MAX];
    if (!status_fits(mmio, state) || !restore_queues(mmio, state, queue))
        return -EINVAL;
    virtio_lock(mmio);
    mmio->state = *state;
    memcpy(mmio->queue, queue, sizeof queue);
    if (virtio_active(mmio)) {
        // What the driver added or we signalled just before the snapshot may have been lost with the old eventfds.
        transport_unsettle(mmio);
        for (unsigned i = 0; i < mmio->device.queues; i++)
            transport_wake(mmio->notify[i].fd);
        transport_interrupt(mmio, VIRTIO_MMIO_INT_VRING);
    }
    virtio_unlock(mmio);
    return 0;
}
