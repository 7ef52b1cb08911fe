#include "vmm/virtio/mmio.h"

#include "vmm/virtio/transport.h"

#include <endian.h>
#include <string.h>

// "virt", and what this monitor calls itself.
#define MAGIC UINT32_C(0x74726976)
#define VENDOR UINT32_C(0x534e4458)
enum { VERSION = 2, NO_SHARED_MEMORY = -1 };

// ---- the driver's side: status ----

static void reset(struct virtio_mmio *m)
{
    if (m->device.ops->reset != NULL)
        m->device.ops->reset(m->device.state);
    for (unsigned i = 0; i < m->device.queues; i++)
        virtq_reset(&m->queue[i]);
    __atomic_store_n(&m->state.interrupt_status, 0, __ATOMIC_SEQ_CST);
    m->state.driver_features = 0;
    m->state.device_features_sel = m->state.driver_features_sel = m->state.queue_sel = m->state.status = 0;
    transport_unsettle(m);
}

static void activate(struct virtio_mmio *m)
{
    m->state.status |= VIRTIO_CONFIG_S_DRIVER_OK;
    transport_unsettle(m);
    // The driver may have filled and notified its queues before.
    for (unsigned i = 0; i < m->device.queues; i++)
        transport_wake(m->notify[i].fd);
}

// Bits are only ever added, in the order of the specification, one step after the other.
static void write_status(struct virtio_mmio *m, uint32_t value)
{
    if (value == 0) {
        reset(m);
        return;
    }
    uint32_t *status = &m->state.status;
    uint32_t added = value & ~*status;
    *status |= added & (VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_FAILED);
    if ((added & VIRTIO_CONFIG_S_DRIVER) != 0 && (*status & VIRTIO_CONFIG_S_ACKNOWLEDGE) != 0)
        *status |= VIRTIO_CONFIG_S_DRIVER;
    if ((added & VIRTIO_CONFIG_S_FEATURES_OK) != 0 && (*status & VIRTIO_CONFIG_S_DRIVER) != 0 &&
        transport_features_fit(m, m->state.driver_features))
        *status |= VIRTIO_CONFIG_S_FEATURES_OK;
    if ((added & VIRTIO_CONFIG_S_DRIVER_OK) != 0 && (*status & VIRTIO_CONFIG_S_FEATURES_OK) != 0 &&
        (*status & VIRTIO_CONFIG_S_NEEDS_RESET) == 0)
        activate(m);
}

static void write_features(struct virtio_mmio *m, uint32_t value)
{
    if ((m->state.status & (VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK)) != VIRTIO_CONFIG_S_DRIVER)
        return;
    uint64_t *f = &m->state.driver_features;
    if (m->state.driver_features_sel == 0)
        *f = (*f & ~UINT64_C(0xffffffff)) | value;
    else if (m->state.driver_features_sel == 1)
        *f = (*f & UINT64_C(0xffffffff)) | (uint64_t)value << 32;
}

// ---- the driver's side: queues ----

// The selected queue if it may be changed now: between FEATURES_OK and DRIVER_OK, and only until it is ready.
static struct virtq *queue_to_change(struct virtio_mmio *m)
{
    uint32_t steps = m->state.status & (VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_NEEDS_RESET);
    if (m->state.queue_sel >= m->device.queues || steps != VIRTIO_CONFIG_S_FEATURES_OK)
        return NULL;
    struct virtq *q = &m->queue[m->state.queue_sel];
    return q->state.ready ? NULL : q;
}

static void write_queue_ready(struct virtio_mmio *m, uint32_t value)
{
    struct virtq *q = queue_to_change(m);
    if (q == NULL || value != 1)
        return;
    q->state.event_idx = virtio_has_feature(m, VIRTIO_RING_F_EVENT_IDX);
    const char *reason = virtq_enable(q, m->memory);
    if (reason != NULL)
        virtio_break(m, reason);
}

static void write_half(uint64_t *address, unsigned shift, uint32_t value)
{
    *address = (*address & ~(UINT64_C(0xffffffff) << shift)) | (uint64_t)value << shift;
}

static void write_queue(struct virtio_mmio *m, uint32_t offset, uint32_t value)
{
    struct virtq *q = queue_to_change(m);
    if (q == NULL)
        return;
    struct virtq_state *s = &q->state;
    switch (offset) {
    case VIRTIO_MMIO_QUEUE_NUM:
        // What is no size stays out, and the queue cannot become ready.
        s->size = value <= m->device.queue_size ? (uint16_t)value : 0;
        break;
    case VIRTIO_MMIO_QUEUE_DESC_LOW:
    case VIRTIO_MMIO_QUEUE_DESC_HIGH:
        write_half(&s->desc, offset == VIRTIO_MMIO_QUEUE_DESC_LOW ? 0 : 32, value);
        break;
    case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
    case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
        write_half(&s->avail, offset == VIRTIO_MMIO_QUEUE_AVAIL_LOW ? 0 : 32, value);
        break;
    default:
        write_half(&s->used, offset == VIRTIO_MMIO_QUEUE_USED_LOW ? 0 : 32, value);
    }
}

// ---- the driver's side: registers ----

static void write_register(struct virtio_mmio *m, uint32_t offset, uint32_t value)
{
    switch (offset) {
    case VIRTIO_MMIO_DEVICE_FEATURES_SEL:
        m->state.device_features_sel = value;
        break;
    case VIRTIO_MMIO_DRIVER_FEATURES_SEL:
        m->state.driver_features_sel = value;
        break;
    case VIRTIO_MMIO_DRIVER_FEATURES:
        write_features(m, value);
        break;
    case VIRTIO_MMIO_QUEUE_SEL:
        m->state.queue_sel = value;
        break;
    case VIRTIO_MMIO_QUEUE_READY:
        write_queue_ready(m, value);
        break;
    case VIRTIO_MMIO_STATUS:
        write_status(m, value);
        break;
    case VIRTIO_MMIO_QUEUE_NUM:
    case VIRTIO_MMIO_QUEUE_DESC_LOW:
    case VIRTIO_MMIO_QUEUE_DESC_HIGH:
    case VIRTIO_MMIO_QUEUE_AVAIL_LOW:
    case VIRTIO_MMIO_QUEUE_AVAIL_HIGH:
    case VIRTIO_MMIO_QUEUE_USED_LOW:
    case VIRTIO_MMIO_QUEUE_USED_HIGH:
        write_queue(m, offset, value);
        break;
    default:
        break;
    }
}

static uint32_t read_register(const struct virtio_mmio *m, uint32_t offset)
{
    const struct virtio_mmio_state *s = &m->state;
    switch (offset) {
    case VIRTIO_MMIO_MAGIC_VALUE:
        return MAGIC;
    case VIRTIO_MMIO_VERSION:
        return VERSION;
    case VIRTIO_MMIO_DEVICE_ID:
        return m->device.ops->id;
    case VIRTIO_MMIO_VENDOR_ID:
        return VENDOR;
    case VIRTIO_MMIO_DEVICE_FEATURES:
        return s->device_features_sel > 1 ? 0 : (uint32_t)(transport_offered(m) >> (32 * s->device_features_sel));
    case VIRTIO_MMIO_QUEUE_NUM_MAX:
        return s->queue_sel < m->device.queues ? m->device.queue_size : 0;
    case VIRTIO_MMIO_QUEUE_READY:
        return s->queue_sel < m->device.queues && m->queue[s->queue_sel].state.ready;
    case VIRTIO_MMIO_STATUS:
        return s->status;
    case VIRTIO_MMIO_CONFIG_GENERATION:
        return s->config_generation;
    case VIRTIO_MMIO_SHM_LEN_LOW:
    case VIRTIO_MMIO_SHM_LEN_HIGH:
    case VIRTIO_MMIO_SHM_BASE_LOW:
    case VIRTIO_MMIO_SHM_BASE_HIGH:
        return (uint32_t)NO_SHARED_MEMORY;
    default:
        return 0;
    }
}

static bool is_register_access(uint32_t offset, uint32_t len)
{
    return offset < VIRTIO_MMIO_CONFIG && offset % 4 == 0 && len == 4;
}

static void read_config(const struct virtio_mmio *m, uint32_t offset, void *data, uint32_t len)
{
    uint32_t at = offset - VIRTIO_MMIO_CONFIG;
    if (at < m->device.config_bytes && len <= m->device.config_bytes - at)
        memcpy(data, (const char *)m->device.config + at, len);
}

void virtio_mmio_read(struct virtio_mmio *mmio, uint32_t offset, void *data, uint32_t len)
{
    memset(data, 0, len);
    if (is_register_access(offset, len)) {
        uint32_t value;
        if (offset == VIRTIO_MMIO_INTERRUPT_STATUS) {
            value = __atomic_load_n(&mmio->state.interrupt_status, __ATOMIC_SEQ_CST);
        } else {
            virtio_lock(mmio);
            value = read_register(mmio, offset);
            virtio_unlock(mmio);
        }
        value = htole32(value);
        memcpy(data, &value, sizeof value);
    } else if (offset >= VIRTIO_MMIO_CONFIG) {
        virtio_lock(mmio);
        read_config(mmio, offset, data, len);
        virtio_unlock(mmio);
    }
}

void virtio_mmio_write(struct virtio_mmio *mmio, uint32_t offset, const void *data, uint32_t len)
{
    if (!is_register_access(offset, len))
        return;  // no device here has a configuration that the driver may write
    uint32_t value;
    memcpy(&value, data, sizeof value);
    value = le32toh(value);
    if (offset == VIRTIO_MMIO_NOTIFY) {
        if (value < mmio->device.queues)
            transport_wake(mmio->notify[value].fd);
    } else if (offset == VIRTIO_MMIO_INTERRUPT_ACK) {
        __atomic_and_fetch(&mmio->state.interrupt_status, ~value, __ATOMIC_SEQ_CST);
    } else {
        virtio_lock(mmio);
        write_register(mmio, offset, value);
        virtio_unlock(mmio);
    }
}

// ---- the core's side ----

int virtio_mmio_irq_fd(struct virtio_mmio *mmio)
{
    return mmio->irq;
}

int virtio_mmio_notify_fd(struct virtio_mmio *mmio, unsigned queue)
{
    return mmio->notify[queue].fd;
}

unsigned virtio_mmio_queues(struct virtio_mmio *mmio)
{
    return mmio->device.queues;
}

void virtio_mmio_report(struct virtio_mmio *mmio, struct virtio_mmio_report *ret_report)
{
    virtio_lock(mmio);
    *ret_report = (struct virtio_mmio_report){
        .device_id = mmio->device.ops->id,
        .active = virtio_active(mmio),
        .broken = (mmio->state.status & VIRTIO_CONFIG_S_NEEDS_RESET) != 0,
        .breaks = mmio->breaks,
        .reason = mmio->reason,
    };
    virtio_unlock(mmio);
}
