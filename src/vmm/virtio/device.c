#include "vmm/virtio/device.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "vmm/virtio/transport.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

void transport_wake(int fd)
{
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);  // can only fail when the counter is full, which wakes as well
    (void)ignored;
}

static void read_event(int fd)
{
    uint64_t count;
    ssize_t ignored = read(fd, &count, sizeof count);
    (void)ignored;
}

void transport_interrupt(struct virtio_mmio *m, uint32_t bit)
{
    __atomic_or_fetch(&m->state.interrupt_status, bit, __ATOMIC_SEQ_CST);
    transport_wake(m->irq);
}

void transport_unsettle(struct virtio_mmio *m)
{
    m->unsettled = true;
    transport_wake(m->settle);
}

// ---- the device's side ----

void virtio_lock(struct virtio_mmio *mmio)
{
    pthread_mutex_lock(&mmio->lock);
}

void virtio_unlock(struct virtio_mmio *mmio)
{
    pthread_mutex_unlock(&mmio->lock);
}

bool virtio_active(const struct virtio_mmio *mmio)
{
    return (mmio->state.status & (VIRTIO_CONFIG_S_DRIVER_OK | VIRTIO_CONFIG_S_NEEDS_RESET | VIRTIO_CONFIG_S_FAILED)) ==
           VIRTIO_CONFIG_S_DRIVER_OK;
}

bool virtio_has_feature(const struct virtio_mmio *mmio, unsigned bit)
{
    return (mmio->state.driver_features & BIT(bit)) != 0;
}

void virtio_break(struct virtio_mmio *mmio, const char *reason)
{
    if ((mmio->state.status & VIRTIO_CONFIG_S_NEEDS_RESET) != 0)
        return;
    mmio->state.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
    mmio->reason = reason;
    // A vCPU's thread may not even allocate memory: the loop's writes the log.
    if (mmio->breaks++ == 0)
        transport_wake(mmio->settle);
    if ((mmio->state.status & VIRTIO_CONFIG_S_DRIVER_OK) != 0)
        transport_interrupt(mmio, VIRTIO_MMIO_INT_CONFIG);
}

int virtio_pop(struct virtio_mmio *mmio, unsigned queue, struct virtq_chain *chain)
{
    struct virtq *q = &mmio->queue[queue];
    if (!virtio_active(mmio) || !q->state.ready)
        return 0;
    const char *reason = NULL;
    int r = virtq_pop(q, chain, &reason);
    if (r < 0)
        virtio_break(mmio, reason);
    return r;
}

void virtio_unpop(struct virtio_mmio *mmio, unsigned queue, const struct virtq_chain *chain)
{
    virtq_unpop(&mmio->queue[queue], chain);
}

void virtio_push(struct virtio_mmio *mmio, unsigned queue, uint16_t head, uint32_t written)
{
    virtq_push(&mmio->queue[queue], head, written);
}

void virtio_signal(struct virtio_mmio *mmio, unsigned queue)
{
    struct virtq *q = &mmio->queue[queue];
    if (virtio_active(mmio) && q->state.ready && virtq_wants_signal(q))
        transport_interrupt(mmio, VIRTIO_MMIO_INT_VRING);
}

uint16_t virtio_listen(struct virtio_mmio *mmio, unsigned queue)
{
    return mmio->queue[queue].state.ready ? virtq_listen(&mmio->queue[queue]) : 0;
}

void virtio_again(struct virtio_mmio *mmio, unsigned queue)
{
    transport_wake(mmio->notify[queue].fd);
}

void virtio_config_changed(struct virtio_mmio *mmio)
{
    mmio->state.config_generation++;
    if (virtio_active(mmio))
        transport_interrupt(mmio, VIRTIO_MMIO_INT_CONFIG);
}

// ---- the loop's thread ----

// Locked.  A guest that does it again and again fills no log.
static void tell(struct virtio_mmio *m)
{
    if (m->breaks == 0 || m->told)
        return;
    m->told = true;
    log_warn("virtio_device_broken", log_u64("device", m->device.ops->id), log_str("reason", m->reason));
}

// Locked.  An activation or reset comes before anything of the queues, in whatever order the loop sees their events.
static void settle(struct virtio_mmio *m)
{
    if (!m->unsettled)
        return;
    m->unsettled = false;
    if (m->device.ops->settle != NULL)
        m->device.ops->settle(m->device.state, virtio_active(m));
}

static void on_notify(void *arg, uint32_t events)
{
    (void)events;
    struct notify *n = arg;
    struct virtio_mmio *m = n->mmio;
    read_event(n->fd);
    virtio_lock(m);
    settle(m);
    if (virtio_active(m) && m->queue[n->queue].state.ready)
        m->device.ops->queue_ready(m->device.state, n->queue);
    virtio_unlock(m);
}

static void on_settle(void *arg, uint32_t events)
{
    (void)events;
    struct virtio_mmio *m = arg;
    read_event(m->settle);
    virtio_lock(m);
    tell(m);
    settle(m);
    virtio_unlock(m);
}

// ---- life ----

static int open_event(struct loop *loop, int *ret_fd, watch_fn *fn, void *arg, struct watch **ret_watch)
{
    *ret_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*ret_fd < 0)
        return -errno;
    return fn == NULL ? 0 : watch_add(loop, *ret_fd, EPOLLIN, fn, arg, ret_watch);
}

int virtio_mmio_new(struct loop *loop, const struct guest_memory *memory, const struct virtio_device *device,
                    struct virtio_mmio **ret_mmio)
{
    struct virtio_mmio *m = calloc(1, sizeof *m);
    if (m == NULL)
        return -ENOMEM;
    pthread_mutex_init(&m->lock, NULL);
    m->device = *device;
    m->memory = memory;
    m->irq = m->settle = -1;
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++)
        m->notify[i] = (struct notify){.mmio = m, .queue = i, .fd = -1};
    int r = open_event(loop, &m->irq, NULL, NULL, NULL);
    if (r == 0)
        r = open_event(loop, &m->settle, on_settle, m, &m->settle_watch);
    for (unsigned i = 0; r == 0 && i < device->queues; i++)
        r = open_event(loop, &m->notify[i].fd, on_notify, &m->notify[i], &m->notify[i].watch);
    if (r < 0) {
        virtio_mmio_free(m);
        return r;
    }
    *ret_mmio = m;
    return 0;
}

struct virtio_mmio *virtio_mmio_free(struct virtio_mmio *mmio)
{
    if (mmio == NULL)
        return NULL;
    for (unsigned i = 0; i < VIRTIO_QUEUES_MAX; i++) {
        mmio->notify[i].watch = watch_remove(mmio->notify[i].watch);
        close_fd(&mmio->notify[i].fd);
    }
    mmio->settle_watch = watch_remove(mmio->settle_watch);
    close_fd(&mmio->settle);
    close_fd(&mmio->irq);
    pthread_mutex_destroy(&mmio->lock);
    free(mmio);
    return NULL;
}
