// The virtio-mmio transport, version 2 (virtio 1.2, section 4.2): what the rest of the monitor sees of a device.
//
// A device is a page of registers, an interrupt, and one notification per queue.  The core registers the page with its MMIO
// dispatch, the interrupt's eventfd with KVM_IRQFD and each queue's eventfd with KVM_IOEVENTFD at VIRTIO_MMIO_NOTIFY, length
// 4, datamatch = the queue's number.  A kernel without ioeventfd works too: a write to that register does the same.
//
// Threads.  Registers are read and written by vCPU threads; the device itself works on the thread of its loop.  Both hold the
// device's mutex, which is inside; the interrupt registers and notifications need no lock.  A write of 0 to the status
// register (reset) returns only when nothing of the device touches guest memory any more.
//
// The driver is hostile.  What it may not do (an illegal queue, a descriptor that leads out of RAM) breaks the device: it sets
// DEVICE_NEEDS_RESET, does nothing more until it is reset, and keeps the reason.
#ifndef VMM_VIRTIO_MMIO_H
#define VMM_VIRTIO_MMIO_H

#include <stdbool.h>
#include <stdint.h>

enum { VIRTIO_MMIO_BYTES = 0x1000, VIRTIO_MMIO_NOTIFY = 0x50 };

struct virtio_mmio;

// An access of `len` bytes at `offset` of the device's page, by any thread.  Whatever is not a register, or not accessed as
// the specification says (4 bytes, aligned, below 0x100), reads as zero and is not written.
void virtio_mmio_read(struct virtio_mmio *mmio, uint32_t offset, void *data, uint32_t len);
void virtio_mmio_write(struct virtio_mmio *mmio, uint32_t offset, const void *data, uint32_t len);

// The eventfd that is written for each interrupt, and the one of a queue.  They stay the transport's.
int virtio_mmio_irq_fd(struct virtio_mmio *mmio);
int virtio_mmio_notify_fd(struct virtio_mmio *mmio, unsigned queue);
unsigned virtio_mmio_queues(struct virtio_mmio *mmio);

struct virtio_mmio_report {
    uint32_t device_id;
    bool active;         // the driver is running
    bool broken;         // and will stay so until the driver resets the device
    uint64_t breaks;     // how often since the start
    const char *reason;  // of the last time, a static sentence; NULL if it never was
};

// Any thread.
void virtio_mmio_report(struct virtio_mmio *mmio, struct virtio_mmio_report *ret_report);

#endif
