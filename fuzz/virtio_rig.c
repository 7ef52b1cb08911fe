#include "virtio_rig.h"

#include "base/log.h"

#include <endian.h>
#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum { QUEUE_BYTES = 0x1000, AVAIL_AT = 0x400, USED_AT = 0x800, TURNS = 4, OPS_MAX = 400 };

static struct loop *the_loop;
static struct guest_memory *the_memory;
static struct watch *turn_watch;
static unsigned turns_left;

static void on_turn(void *arg, uint32_t events)
{
    if (turns_left-- == 0)
        loop_stop(the_loop, 0);
}

static void set_up(void)
{
    log_init("fuzz", LOG_LEVEL_ERROR);
    // Always readable, so that the loop never sleeps.
    if (loop_new(&the_loop) < 0 || guest_memory_new(GUEST_MEMORY_MIN, &the_memory) < 0 ||
        watch_add(the_loop, eventfd(1, EFD_CLOEXEC), EPOLLIN, on_turn, NULL, &turn_watch) < 0)
        abort();
}

void rig_begin(struct rig *rig, const uint8_t *data, size_t size)
{
    if (the_loop == NULL)
        set_up();
    *rig = (struct rig){.loop = the_loop, .memory = the_memory, .at = data, .end = data + size};
    memset(guest_memory_at(the_memory, gpa(0), RIG_WINDOW), 0, RIG_WINDOW);
}

uint64_t rig_take(struct rig *rig, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && rig->at < rig->end; i++)
        value |= (uint64_t)*rig->at++ << (8 * i);
    return value;
}

void *rig_data(struct rig *rig, uint32_t offset, uint32_t n)
{
    void *at = guest_memory_at(rig->memory, gpa(RIG_DATA + offset), n);
    if (at == NULL)
        abort();
    return at;
}

void rig_poke(struct rig *rig, uint32_t offset, uint32_t n)
{
    size_t left = (size_t)(rig->end - rig->at);
    n = n < left ? n : (uint32_t)left;
    if (n == 0)
        return;
    memcpy(rig_data(rig, offset, n), rig->at, n);
    rig->at += n;
}

void rig_turns(struct rig *rig)
{
    turns_left = TURNS;
    if (loop_run(rig->loop) != 0)
        abort();
}

// ---- the guest ----

static void write_register(struct rig *rig, uint32_t offset, uint32_t value)
{
    value = htole32(value);
    virtio_mmio_write(rig->mmio, offset, &value, sizeof value);
}

static uint32_t read_register(struct rig *rig, uint32_t offset)
{
    uint32_t value;
    virtio_mmio_read(rig->mmio, offset, &value, sizeof value);
    return le32toh(value);
}

static void *ring_at(struct rig *rig, unsigned queue, uint32_t offset, size_t n)
{
    void *at = guest_memory_at(rig->memory, gpa(QUEUE_BYTES * (1 + (uint64_t)queue) + offset), n);
    if (at == NULL)
        abort();
    return at;
}

static void set_queue(struct rig *rig, unsigned queue)
{
    uint32_t at = QUEUE_BYTES * (1 + queue);
    memset(ring_at(rig, queue, 0, QUEUE_BYTES), 0, QUEUE_BYTES);
    rig->next_avail[queue] = rig->next_desc[queue] = 0;
    write_register(rig, VIRTIO_MMIO_QUEUE_SEL, queue);
    write_register(rig, VIRTIO_MMIO_QUEUE_NUM, RIG_QUEUE_SIZE);
    write_register(rig, VIRTIO_MMIO_QUEUE_DESC_LOW, at);
    write_register(rig, VIRTIO_MMIO_QUEUE_AVAIL_LOW, at + AVAIL_AT);
    write_register(rig, VIRTIO_MMIO_QUEUE_USED_LOW, at + USED_AT);
    write_register(rig, VIRTIO_MMIO_QUEUE_READY, 1);
}

static void start(struct rig *rig)
{
    write_register(rig, VIRTIO_MMIO_STATUS, 0);
    write_register(rig, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE);
    write_register(rig, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER);
    for (uint32_t half = 0; half < 2; half++) {
        write_register(rig, VIRTIO_MMIO_DEVICE_FEATURES_SEL, half);
        write_register(rig, VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
        write_register(rig, VIRTIO_MMIO_DRIVER_FEATURES, read_register(rig, VIRTIO_MMIO_DEVICE_FEATURES));
    }
    write_register(rig, VIRTIO_MMIO_STATUS, 0xb);
    for (unsigned i = 0; i < virtio_mmio_queues(rig->mmio); i++)
        set_queue(rig, i);
    write_register(rig, VIRTIO_MMIO_STATUS, 0xf);
}

static void put_descriptor(struct rig *rig, unsigned queue, unsigned index, uint64_t addr, uint32_t len, unsigned flags,
                           unsigned next)
{
    struct vring_desc *d = ring_at(rig, queue, (index % RIG_QUEUE_SIZE) * (uint32_t)sizeof *d, sizeof *d);
    *d = (struct vring_desc){htole64(addr), htole32(len), htole16((uint16_t)flags), htole16((uint16_t)next)};
}

static void offer(struct rig *rig, unsigned queue, unsigned head)
{
    uint16_t *entry = ring_at(rig, queue, AVAIL_AT + 4 + 2 * (rig->next_avail[queue] % RIG_QUEUE_SIZE), 2);
    *entry = htole16((uint16_t)head);
    uint16_t *index = ring_at(rig, queue, AVAIL_AT + 2, 2);
    __atomic_store_n(index, htole16(++rig->next_avail[queue]), __ATOMIC_SEQ_CST);
}

static void kick(struct rig *rig, unsigned queue)
{
    write_register(rig, VIRTIO_MMIO_NOTIFY, queue);
}

void rig_submit(struct rig *rig, unsigned queue, uint32_t offset, uint32_t n, int writable)
{
    unsigned head = rig->next_desc[queue]++ % RIG_QUEUE_SIZE;
    put_descriptor(rig, queue, head, RIG_DATA + offset, n, writable ? VRING_DESC_F_WRITE : 0, 0);
    offer(rig, queue, head);
    kick(rig, queue);
}

// An address that is usually good.
static uint64_t take_address(struct rig *rig)
{
    uint64_t kind = rig_take(rig, 1);
    if (kind == 0xff)
        return rig_take(rig, 8);
    if (kind == 0xfe)
        return GUEST_MEMORY_MIN - rig_take(rig, 2);
    return RIG_DATA + rig_take(rig, 2);
}

static void chain(struct rig *rig, unsigned queue)
{
    unsigned n = 1 + (unsigned)rig_take(rig, 1) % 6;
    unsigned head = rig->next_desc[queue];
    for (unsigned i = 0; i < n; i++) {
        uint64_t at = take_address(rig);
        uint32_t len = (uint32_t)rig_take(rig, 2);
        unsigned flags = (unsigned)rig_take(rig, 1) % 2 != 0 ? VRING_DESC_F_WRITE : 0;
        unsigned index = rig->next_desc[queue]++;
        if (i + 1 < n)
            flags |= VRING_DESC_F_NEXT;
        put_descriptor(rig, queue, index, at, len, flags, (index + 1) % RIG_QUEUE_SIZE);
    }
    offer(rig, queue, head % RIG_QUEUE_SIZE);
    kick(rig, queue);
}

static void access_register(struct rig *rig, int is_write)
{
    uint8_t bytes[8];
    uint32_t offset = (uint32_t)rig_take(rig, 2) % VIRTIO_MMIO_BYTES;
    uint32_t len = 1U << rig_take(rig, 1) % 4;
    uint64_t value = htole64(rig_take(rig, 4));
    memcpy(bytes, &value, sizeof bytes);
    if (is_write)
        virtio_mmio_write(rig->mmio, offset, bytes, len);
    else
        virtio_mmio_read(rig->mmio, offset, bytes, len);
}

static void one_op(struct rig *rig)
{
    unsigned op = (unsigned)rig_take(rig, 1);
    unsigned queue = op >> 4 & 3;
    if (queue >= virtio_mmio_queues(rig->mmio))
        queue = 0;
    switch (op & 15) {
    case 0:
    case 1: {
        uint32_t offset = (uint32_t)rig_take(rig, 2) % 0x8000;
        rig_poke(rig, offset, (uint32_t)rig_take(rig, 1));
        break;
    }
    case 2:
    case 3:
        chain(rig, queue);
        break;
    case 4: {
        unsigned index = (unsigned)rig_take(rig, 1);
        uint64_t at = take_address(rig);
        uint32_t len = (uint32_t)rig_take(rig, 4);
        unsigned flags = (unsigned)rig_take(rig, 1);
        put_descriptor(rig, queue, index, at, len, flags, (unsigned)rig_take(rig, 2));
        break;
    }
    case 5:
        offer(rig, queue, (unsigned)rig_take(rig, 2));
        break;
    case 6:
        *(uint16_t *)ring_at(rig, queue, AVAIL_AT + 2, 2) = (uint16_t)rig_take(rig, 2);
        break;
    case 7:
        kick(rig, queue);
        break;
    case 8:
        access_register(rig, 1);
        break;
    case 9:
        access_register(rig, 0);
        break;
    case 10:
        start(rig);
        break;
    case 11:
    case 12:
        if (rig->host != NULL)
            rig->host(rig);
        break;
    case 13:
    case 14:
        if (rig->guest != NULL)
            rig->guest(rig);
        break;
    default:
        rig_turns(rig);
    }
}

void rig_play(struct rig *rig)
{
    start(rig);
    for (unsigned n = 0; n < OPS_MAX && rig->at < rig->end; n++)
        one_op(rig);
    rig_turns(rig);
    struct virtio_mmio_report report;
    virtio_mmio_report(rig->mmio, &report);
    if (report.broken && report.reason == NULL)
        abort();
    write_register(rig, VIRTIO_MMIO_STATUS, 0);
    if (read_register(rig, VIRTIO_MMIO_STATUS) != 0)
        abort();
    rig_turns(rig);
}
