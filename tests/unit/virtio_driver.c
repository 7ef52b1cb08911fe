#include "virtio_driver.h"

#include "base/clock.h"

#include <endian.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, FIRST_FREE = 0x100000 };

void driver_open(struct driver *d)
{
    *d = (struct driver){.next_free = FIRST_FREE};
    assert_int_equal(loop_new(&d->loop), 0);
    assert_int_equal(guest_memory_new(DRIVER_RAM, &d->memory), 0);
}

void driver_close(struct driver *d)
{
    d->memory = guest_memory_free(d->memory);
    d->loop = loop_free(d->loop);
}

uint32_t driver_read(struct driver *d, uint32_t offset)
{
    uint32_t value = 0xdeadbeef;
    virtio_mmio_read(d->mmio, offset, &value, sizeof value);
    return le32toh(value);
}

void driver_write(struct driver *d, uint32_t offset, uint32_t value)
{
    value = htole32(value);
    virtio_mmio_write(d->mmio, offset, &value, sizeof value);
}

uint64_t driver_offered(struct driver *d)
{
    driver_write(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 1);
    uint64_t high = driver_read(d, VIRTIO_MMIO_DEVICE_FEATURES);
    driver_write(d, VIRTIO_MMIO_DEVICE_FEATURES_SEL, 0);
    return high << 32 | driver_read(d, VIRTIO_MMIO_DEVICE_FEATURES);
}

uint64_t driver_alloc(struct driver *d, size_t bytes)
{
    uint64_t at = d->next_free;
    d->next_free += (bytes + PAGE - 1) / PAGE * PAGE;
    assert_true(d->next_free <= DRIVER_RAM);
    memset(driver_at(d, at, bytes), 0, bytes);
    return at;
}

void *driver_at(struct driver *d, uint64_t at, size_t len)
{
    void *host = guest_memory_at(d->memory, gpa(at), len);
    assert_non_null(host);
    return host;
}

// ---- initialisation ----

bool driver_features(struct driver *d, uint64_t features)
{
    driver_write(d, VIRTIO_MMIO_STATUS, 0);
    driver_write(d, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE);
    driver_write(d, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)features);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    driver_write(d, VIRTIO_MMIO_DRIVER_FEATURES, (uint32_t)(features >> 32));
    driver_write(d, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK);
    d->features = features;
    return (driver_read(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK) != 0;
}

void driver_queue_registers(struct driver *d, unsigned queue, uint16_t size, uint64_t desc, uint64_t avail, uint64_t used)
{
    driver_write(d, VIRTIO_MMIO_QUEUE_SEL, queue);
    driver_write(d, VIRTIO_MMIO_QUEUE_NUM, size);
    driver_write(d, VIRTIO_MMIO_QUEUE_DESC_LOW, (uint32_t)desc);
    driver_write(d, VIRTIO_MMIO_QUEUE_DESC_HIGH, (uint32_t)(desc >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_AVAIL_LOW, (uint32_t)avail);
    driver_write(d, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, (uint32_t)(avail >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_USED_LOW, (uint32_t)used);
    driver_write(d, VIRTIO_MMIO_QUEUE_USED_HIGH, (uint32_t)(used >> 32));
    driver_write(d, VIRTIO_MMIO_QUEUE_READY, 1);
}

bool driver_queue(struct driver *d, unsigned queue, uint16_t size)
{
    struct driver_queue *q = &d->queue[queue];
    *q = (struct driver_queue){.size = size, .desc = driver_alloc(d, (size_t)size * 16)};
    q->avail = driver_alloc(d, 6 + (size_t)size * 2);
    q->used = driver_alloc(d, 6 + (size_t)size * 8);
    driver_queue_registers(d, queue, size, q->desc, q->avail, q->used);
    return driver_read(d, VIRTIO_MMIO_QUEUE_READY) == 1;
}

void driver_go(struct driver *d)
{
    driver_write(d, VIRTIO_MMIO_STATUS, driver_read(d, VIRTIO_MMIO_STATUS) | VIRTIO_CONFIG_S_DRIVER_OK);
    assert_true((driver_read(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_DRIVER_OK) != 0);
}

void driver_start(struct driver *d, uint64_t features, uint16_t size)
{
    assert_true(driver_features(d, features));
    for (unsigned i = 0; i < virtio_mmio_queues(d->mmio); i++)
        assert_true(driver_queue(d, i, size));
    driver_go(d);
}

void driver_reset(struct driver *d)
{
    driver_write(d, VIRTIO_MMIO_STATUS, 0);
    assert_int_equal(driver_read(d, VIRTIO_MMIO_STATUS), 0);
}

// ---- rings ----

static uint16_t *avail_at(struct driver *d, unsigned queue, unsigned field)
{
    return driver_at(d, d->queue[queue].avail + (uint64_t)field * 2, 2);
}

void driver_descriptor(struct driver *d, unsigned queue, uint16_t index, uint64_t at, uint32_t len, uint16_t flags,
                       uint16_t next)
{
    struct vring_desc *desc = driver_at(d, d->queue[queue].desc + (uint64_t)index * sizeof *desc, sizeof *desc);
    *desc = (struct vring_desc){.addr = htole64(at), .len = htole32(len), .flags = htole16(flags), .next = htole16(next)};
}

void driver_set_avail(struct driver *d, unsigned queue, uint16_t index)
{
    d->queue[queue].next_avail = index;
    __atomic_store_n(avail_at(d, queue, 1), htole16(index), __ATOMIC_SEQ_CST);
}

void driver_offer(struct driver *d, unsigned queue, uint16_t head)
{
    struct driver_queue *q = &d->queue[queue];
    *avail_at(d, queue, 2 + q->next_avail % q->size) = htole16(head);
    driver_set_avail(d, queue, (uint16_t)(q->next_avail + 1));
}

void driver_kick(struct driver *d, unsigned queue)
{
    driver_write(d, VIRTIO_MMIO_NOTIFY, queue);
}

uint16_t driver_used_index(struct driver *d, unsigned queue)
{
    return le16toh(__atomic_load_n((uint16_t *)driver_at(d, d->queue[queue].used + 2, 2), __ATOMIC_SEQ_CST));
}

bool driver_must_kick(struct driver *d, unsigned queue, uint16_t before)
{
    struct driver_queue *q = &d->queue[queue];
    uint16_t flags = le16toh(*(uint16_t *)driver_at(d, q->used, 2));
    uint16_t event = le16toh(*(uint16_t *)driver_at(d, q->used + 4 + (uint64_t)q->size * 8, 2));
    if ((d->features & DRIVER_FEATURE(VIRTIO_RING_F_EVENT_IDX)) == 0)
        return (flags & VRING_USED_F_NO_NOTIFY) == 0;
    return vring_need_event(event, q->next_avail, before) != 0;
}

static uint16_t take_descriptor(struct driver_queue *q)
{
    for (uint16_t i = 0; i < q->size; i++)
        if (!q->busy[i]) {
            q->busy[i] = true;
            return i;
        }
    fail_msg("no descriptor is free");
    return 0;
}

uint16_t driver_submit(struct driver *d, unsigned queue, const struct driver_buffer *buffer, size_t count)
{
    struct driver_queue *q = &d->queue[queue];
    uint16_t index[DRIVER_ENTRIES];
    for (size_t i = 0; i < count; i++)
        index[i] = take_descriptor(q);
    for (size_t i = 0; i < count; i++) {
        bool last = i + 1 == count;
        unsigned flags = (buffer[i].writable ? VRING_DESC_F_WRITE : 0) | (last ? 0 : VRING_DESC_F_NEXT);
        driver_descriptor(d, queue, index[i], buffer[i].at, buffer[i].len, (uint16_t)flags, last ? 0 : index[i + 1]);
    }
    q->chained[index[0]] = (uint16_t)count;
    driver_offer(d, queue, index[0]);
    driver_kick(d, queue);
    return index[0];
}

bool driver_used(struct driver *d, unsigned queue, uint16_t *ret_head, uint32_t *ret_len)
{
    struct driver_queue *q = &d->queue[queue];
    if (driver_used_index(d, queue) == q->next_used)
        return false;
    struct vring_used_elem *e = driver_at(d, q->used + 4 + (uint64_t)(q->next_used % q->size) * sizeof *e, sizeof *e);
    uint32_t head = le32toh(e->id);
    assert_true(head < q->size);
    q->next_used++;
    *ret_head = (uint16_t)head;
    *ret_len = le32toh(e->len);
    for (unsigned n = q->chained[head]; n > 0; n--) {
        const struct vring_desc *desc = driver_at(d, q->desc + (uint64_t)head * sizeof *desc, sizeof *desc);
        q->busy[head] = false;
        head = le16toh(desc->next) % q->size;
    }
    return true;
}

// ---- running ----

struct wait {
    struct driver *driver;
    bool (*cond)(void *arg);
    void *arg;
    struct timer timer;
    uint64_t deadline;
    unsigned rounds;
};

static void look(void *arg)
{
    struct wait *w = arg;
    if (w->cond != NULL ? w->cond(w->arg) : w->rounds-- == 0)
        loop_stop(w->driver->loop, 0);
    else if (mono_ns() > w->deadline)
        loop_stop(w->driver->loop, 1);
    else
        assert_int_equal(timer_set(w->driver->loop, &w->timer, mono_ns() + 1), 0);
}

static void on_irq(void *arg, uint32_t events)
{
    struct wait *w = arg;
    uint64_t count;
    assert_int_equal(read(virtio_mmio_irq_fd(w->driver->mmio), &count, sizeof count), sizeof count);
    if (w->cond != NULL && w->cond(w->arg))
        loop_stop(w->driver->loop, 0);
}

static void run(struct wait *w)
{
    struct driver *d = w->driver;
    if (w->cond != NULL && w->cond(w->arg))
        return;
    struct watch *irq;
    assert_int_equal(watch_add(d->loop, virtio_mmio_irq_fd(d->mmio), EPOLLIN, on_irq, w, &irq), 0);
    timer_init(&w->timer, look, w);
    w->deadline = mono_ns() + DRIVER_WAIT_MS * NS_PER_MS;
    assert_int_equal(timer_set(d->loop, &w->timer, mono_ns() + 1), 0);
    int r = loop_run(d->loop);
    timer_cancel(d->loop, &w->timer);
    watch_remove(irq);
    if (r != 0)
        fail_msg("nothing happened for %d ms", DRIVER_WAIT_MS);
}

void driver_run(struct driver *d, bool (*cond)(void *arg), void *arg)
{
    struct wait w = {.driver = d, .cond = cond, .arg = arg};
    run(&w);
}

void driver_rounds(struct driver *d, unsigned rounds)
{
    struct wait w = {.driver = d, .rounds = rounds};
    run(&w);
}

struct used_wait {
    struct driver *driver;
    unsigned queue;
};

static bool something_used(void *arg)
{
    struct used_wait *u = arg;
    return driver_used_index(u->driver, u->queue) != u->driver->queue[u->queue].next_used;
}

uint32_t driver_wait_used(struct driver *d, unsigned queue, uint16_t *ret_head)
{
    struct used_wait u = {d, queue};
    uint16_t head;
    uint32_t len;
    driver_run(d, something_used, &u);
    assert_true(driver_used(d, queue, &head, &len));
    if (ret_head != NULL)
        *ret_head = head;
    return len;
}

uint32_t driver_interrupts(struct driver *d)
{
    uint32_t bits = driver_read(d, VIRTIO_MMIO_INTERRUPT_STATUS);
    driver_write(d, VIRTIO_MMIO_INTERRUPT_ACK, bits);
    return bits;
}

bool driver_broken(struct driver *d)
{
    return (driver_read(d, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET) != 0;
}

static bool is_broken(void *arg)
{
    return driver_broken(arg);
}

void driver_must_break(struct driver *d, const char *reason)
{
    driver_run(d, is_broken, d);
    struct virtio_mmio_report report;
    virtio_mmio_report(d->mmio, &report);
    assert_true(report.broken);
    assert_false(report.active);
    assert_non_null(report.reason);
    if (strstr(report.reason, reason) == NULL)
        fail_msg("broken because \"%s\", not because of \"%s\"", report.reason, reason);
}
