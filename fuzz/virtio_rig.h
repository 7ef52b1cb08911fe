// Plays a guest, and the host's side, to a virtio device from a stream of bytes: for the fuzz targets fuzz_virtio_*.
#ifndef FUZZ_VIRTIO_RIG_H
#define FUZZ_VIRTIO_RIG_H

#include "sys/loop.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/mmio.h"

#include <stddef.h>
#include <stdint.h>

// Guest memory that scripts use: rings first, then data.
enum { RIG_WINDOW = 0x20000, RIG_DATA = 0x10000, RIG_QUEUE_SIZE = 16 };

struct rig {
    struct loop *loop;
    const struct guest_memory *memory;
    struct virtio_mmio *mmio;
    uint16_t next_avail[4];
    uint16_t next_desc[4];
    // The script.
    const uint8_t *at, *end;
    // What the device's target adds: something on the host, something a guest of that device sends.
    void (*host)(struct rig *rig);
    void (*guest)(struct rig *rig);
};

// Once per process: loop and memory.  Clears the window and begins a script.
void rig_begin(struct rig *rig, const uint8_t *data, size_t size);
// Initialises the device with all it offers, then plays the script; afterwards resets the device.
void rig_play(struct rig *rig);
// A few turns of the loop.
void rig_turns(struct rig *rig);
// The next bytes of the script, zeros after its end.
uint64_t rig_take(struct rig *rig, unsigned bytes);
// The next `n` bytes of the script into guest memory at RIG_DATA + offset, as far as there are any.
void rig_poke(struct rig *rig, uint32_t offset, uint32_t n);
void *rig_data(struct rig *rig, uint32_t offset, uint32_t n);
// A buffer of one descriptor in the data part, offered and notified.
void rig_submit(struct rig *rig, unsigned queue, uint32_t offset, uint32_t n, int writable);

#endif
