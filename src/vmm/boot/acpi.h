// The ACPI tables (specification 6.3): how a stock kernel learns of processors, interrupts, devices, reset and power-off.
//
// RSDP -> XSDT -> FADT (hardware-reduced: no PIT, no PIC wiring, no CMOS clock), MADT (local APICs, one I/O APIC), DSDT (a node
// of id LNRO0005 for each virtio-mmio device, PNP0501 for the serial port, \_S5).  Written here byte by byte: there is no
// compiler for them at run time, and the few kinds of AML needed are small.
#ifndef VMM_BOOT_ACPI_H
#define VMM_BOOT_ACPI_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

struct acpi_shape {
    unsigned vcpus;  // 1 to LAYOUT_VCPUS_MAX
    unsigned
        virtio;  // devices, 0 to LAYOUT_VIRTIO_MAX; the n-th is at LAYOUT_VIRTIO + n pages with interrupt LAYOUT_VIRTIO_GSI + n
};

// Appends all tables to `out`, for the address `base` (a multiple of 16, below 4 GiB), the RSDP first.  Errors are the
// buffer's sticky error.
void acpi_tables(const struct acpi_shape *shape, uint32_t base, struct buf *out);

#endif
