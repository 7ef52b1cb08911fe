// The virtio devices of a machine, from the descriptors the engine gave, in an order that never changes: rng, disk, vsock, net,
// volume.
//
// The set of its devices is part of a snapshot, and what is behind the last two is not.  With `spare` both are always there,
// so that a machine that was saved with nothing behind them can be restored with a tap, with a volume, with both or with
// neither.
#ifndef VMM_DEVICES_H
#define VMM_DEVICES_H

#include "base/err.h"
#include "sys/loop.h"
#include "vmm/devices_state.h"
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

// For a snapshot, while no vCPU runs.  0, or -EBUSY while requests are in flight.
int devices_save(struct devices *devices, struct devices_state *ret_state);
// Into devices that were made alike and that no driver has used.  0, or -EBADMSG with a sentence in *err.
int devices_restore(struct devices *devices, const struct devices_state *state, struct err *err);
// What the disk differs from its base by, to the empty file `fd`.  0 or a negative errno.
int devices_copy_delta(struct devices *devices, int fd);

// Makes the disk larger, and tells the guest.  0, -ENODEV without a disk, or what disk_grow says.
int devices_resize_disk(struct devices *devices, uint64_t bytes);

#endif
