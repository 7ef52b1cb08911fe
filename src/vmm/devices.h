// The virtio devices of a machine, from the descriptors the engine gave, in an order that never changes: rng, disk, vsock, net,
// volume.
#ifndef VMM_DEVICES_H
#define VMM_DEVICES_H

#include "base/err.h"
#include "sys/loop.h"
#include "vmm/machine.h"
#include "vmm/options.h"

struct devices;

// `loop`, `memory` and `options` outlive them.  0, or a negative errno with a sentence in *err.
int devices_new(struct loop *loop, const struct guest_memory *memory, const struct options *options,
                struct devices **ret_devices, struct err *err);
// When no vCPU runs any more.  NULL is fine; returns NULL.
struct devices *devices_free(struct devices *devices);

// For the machine; the array lives as long as `devices`.
const struct machine_device *devices_list(const struct devices *devices, size_t *ret_count);

// Makes the disk larger, and tells the guest.  0, -ENODEV without a disk, or what disk_grow says.
int devices_resize_disk(struct devices *devices, uint64_t bytes);

#endif
