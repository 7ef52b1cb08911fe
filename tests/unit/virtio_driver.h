// A driver for virtio-mmio devices that knows nothing but registers and rings: what a guest does, good or bad, without a VM.
//
// One thread plays guest and monitor: driver_run lets the device's loop work until a condition holds.
#ifndef TESTS_UNIT_VIRTIO_DRIVER_H
#define TESTS_UNIT_VIRTIO_DRIVER_H

#include "sys/loop.h"
#include "unit.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/mmio.h"

#include <linux/virtio_config.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_ring.h>
#include <stdbool.h>

enum { DRIVER_QUEUES = 4, DRIVER_WAIT_MS = 20000, DRIVER_ENTRIES = 256 };
#define DRIVER_RAM (UINT64_C(128) << 20)
#define DRIVER_FEATURE(bit) (UINT64_C(1) << (bit))
#define DRIVER_USUAL (DRIVER_FEATURE(VIRTIO_F_VERSION_1) | DRIVER_FEATURE(VIRTIO_RING_F_EVENT_IDX))

struct driver_queue {
    uint16_t size;
    uint64_t desc, avail, used;
    uint16_t next_avail;  // of the driver: what it has offered
    uint16_t next_used;
    bool busy[DRIVER_ENTRIES];         // descriptors in use
    uint16_t chained[DRIVER_ENTRIES];  // how many follow a head
};

struct driver {
    struct loop *loop;
    struct guest_memory *memory;
    struct virtio_mmio *mmio;
    uint64_t next_free;  // guest memory not handed out yet
    uint64_t features;
    struct driver_queue queue[DRIVER_QUEUES];
};

// A buffer of a request.
struct driver_buffer {
    uint64_t at;
    uint32_t len;
    bool writable;
};

// Loop and memory for a device; the caller makes it and sets driver.mmio.
void driver_open(struct driver *d);
void driver_close(struct driver *d);

uint32_t driver_read(struct driver *d, uint32_t offset);
void driver_write(struct driver *d, uint32_t offset, uint32_t value);
uint64_t driver_offered(struct driver *d);
// Guest memory, zeroed, aligned to 4096.
uint64_t driver_alloc(struct driver *d, size_t bytes);
void *driver_at(struct driver *d, uint64_t at, size_t len);

// The steps of initialisation.  driver_features stops before FEATURES_OK is checked, which is what it returns.
bool driver_features(struct driver *d, uint64_t features);
// Rings in fresh memory, written to the registers, ready.  Whether the device says so.
bool driver_queue(struct driver *d, unsigned queue, uint16_t size);
void driver_queue_registers(struct driver *d, unsigned queue, uint16_t size, uint64_t desc, uint64_t avail, uint64_t used);
void driver_go(struct driver *d);
// All of it: features, all queues of `size`, DRIVER_OK.
void driver_start(struct driver *d, uint64_t features, uint16_t size);
void driver_reset(struct driver *d);

// Rings, raw.
void driver_descriptor(struct driver *d, unsigned queue, uint16_t index, uint64_t at, uint32_t len, uint16_t flags,
                       uint16_t next);
void driver_offer(struct driver *d, unsigned queue, uint16_t head);
void driver_set_avail(struct driver *d, unsigned queue, uint16_t index);
void driver_kick(struct driver *d, unsigned queue);
uint16_t driver_used_index(struct driver *d, unsigned queue);
// Whether the device asked for a notification of what was added after `before`.
bool driver_must_kick(struct driver *d, unsigned queue, uint16_t before);

// Requests: a chain of free descriptors, offered and kicked; its head.
uint16_t driver_submit(struct driver *d, unsigned queue, const struct driver_buffer *buffer, size_t count);
// The next used entry, or false.
bool driver_used(struct driver *d, unsigned queue, uint16_t *ret_head, uint32_t *ret_len);
// As driver_used, after running the loop until there is one; fails when there is none in time.
uint32_t driver_wait_used(struct driver *d, unsigned queue, uint16_t *ret_head);

// Runs the loop until cond(arg); fails the test at a deadline.
void driver_run(struct driver *d, bool (*cond)(void *arg), void *arg);
// Gives everything that is due some turns, for what must not happen.
void driver_rounds(struct driver *d, unsigned rounds);
// Whether there was an interrupt since the last call; the bits, which are acknowledged.
uint32_t driver_interrupts(struct driver *d);

bool driver_broken(struct driver *d);
// Runs until the device is broken; the reason must contain `reason`.
void driver_must_break(struct driver *d, const char *reason);

#endif
