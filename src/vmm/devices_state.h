// What a snapshot holds of a machine's virtio devices.
#ifndef VMM_DEVICES_STATE_H
#define VMM_DEVICES_STATE_H

#include "vmm/virtio/device.h"
#include "vmm/virtio/vsock.h"

enum { DEVICES_MAX = 5 };

struct device_state {
    uint32_t id;  // virtio's number for its kind
    uint32_t reserved;
    struct virtio_mmio_state transport;
};

struct devices_state {
    uint32_t count;
    uint32_t has_vsock;
    uint64_t disk_bytes;  // 0: no disk
    struct device_state device[DEVICES_MAX];
    struct vsock_state vsock;
};

#endif
