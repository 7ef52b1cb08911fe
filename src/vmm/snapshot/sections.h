// A machine's state as a list of sections (wire/vmstate.h), and back.
//
// What comes back is checked for its form only: sizes, counts, that nothing is missing and nothing is there that should not be.
// What values may be is KVM's and the devices' to say, when they are given them.
#ifndef VMM_SNAPSHOT_SECTIONS_H
#define VMM_SNAPSHOT_SECTIONS_H

#include "sys/host_identity.h"
#include "vmm/devices_state.h"
#include "vmm/kvm/machine_state.h"
#include "wire/vmstate.h"

struct snapshot_shape {
    uint64_t memory_bytes;
    uint32_t vcpus;
    uint32_t devices;
};

struct snapshot {
    struct host_identity host;
    struct snapshot_shape shape;
    struct machine_state machine;
    struct devices_state devices;
};

// Adds all sections to the empty list `state`; `snapshot` outlives its writing.  0 or -ENOSPC.
int sections_add(const struct snapshot *snapshot, struct vmstate *state);
// 0, or -EBADMSG or -ENOMEM with a sentence; ret_snapshot->machine is the caller's to free.
int sections_get(const struct vmstate *state, struct snapshot *ret_snapshot, struct err *err);

#endif
