// The serial console: the registers of a 16550A, transmit only.  What the guest writes goes into a ring that keeps the last
// SERIAL_RING_BYTES; a flood of output costs nothing but the guest's own time.  There is no input.
//
// The transmitter is always empty: a byte is in the ring when the write returns.  The interrupt is an edge, raised through an
// eventfd.  Thread-safe.
#ifndef VMM_DEVICE_SERIAL_H
#define VMM_DEVICE_SERIAL_H

#include "vmm/device/bus.h"

enum { SERIAL_RING_BYTES = 64 * 1024 };

struct serial;

// `irq_fd` is an eventfd, stays the caller's and must outlive it.  0 or -ENOMEM.
int serial_new(int irq_fd, struct serial **ret_serial);
// NULL is fine; returns NULL.
struct serial *serial_free(struct serial *serial);

// What a snapshot holds of it; the text is not part of it.
struct serial_state {
    uint8_t ier, lcr, mcr, scratch, fcr;
    uint8_t divisor[2];
    uint8_t transmit_pending;
};

void serial_save(struct serial *serial, struct serial_state *ret_state);
// An interrupt that was pending is raised again.  0, or -EINVAL for what no guest could have brought about.
int serial_restore(struct serial *serial, const struct serial_state *state);

// For the bus; `arg` is the serial port.
bus_read_fn serial_read;
bus_write_fn serial_write;

// The newest bytes, at most `n`, oldest of them first; returns how many.  *ret_total: all bytes ever written.
size_t serial_tail(struct serial *serial, void *bytes, size_t n, uint64_t *ret_total);

#endif
