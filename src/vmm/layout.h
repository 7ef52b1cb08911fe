// Where everything is in the guest's address space and on its interrupt lines.  Frozen once snapshots exist: a restored guest
// finds its devices where it left them.
//
//     0x00000500  GDT, IDT               0x00007000  boot parameters ("zero page")
//     0x00008000  boot stack             0x00009000  page tables (six pages)
//     0x00020000  command line           0x00021000  setup data (seed)
//     0x000e0000  ACPI tables            0x000ffff0  the real-mode reset vector
//     0x00100000  the kernel, from 1 MiB up
//     low RAM's end: the initramfs       0xc0000000  hole up to 4 GiB: no RAM
//     0xd0000000  virtio-mmio, a page each    0xfec00000  I/O APIC    0xfee00000  local APICs
//     0x100000000 the rest of the RAM
#ifndef VMM_LAYOUT_H
#define VMM_LAYOUT_H

#define LAYOUT_GDT 0x500
#define LAYOUT_IDT 0x520
#define LAYOUT_BOOT_PARAMS 0x7000
#define LAYOUT_STACK_TOP 0x8ff0
#define LAYOUT_PML4 0x9000
#define LAYOUT_PDPT 0xa000
#define LAYOUT_PD 0xb000
#define LAYOUT_CMDLINE 0x20000
#define LAYOUT_SETUP_DATA 0x21000
#define LAYOUT_LOW_RAM_END 0x9fc00
#define LAYOUT_ACPI 0xe0000
#define LAYOUT_ACPI_BYTES 0x1f000
#define LAYOUT_RESET_VECTOR 0xffff0
#define LAYOUT_KERNEL_MIN 0x100000
// A kernel may say that it takes an initramfs no higher than this.
#define LAYOUT_INITRAMFS_END UINT64_C(0x7fffffff)
#define LAYOUT_VIRTIO UINT64_C(0xd0000000)
#define LAYOUT_VIRTIO_BYTES 0x1000
#define LAYOUT_IOAPIC 0xfec00000
#define LAYOUT_LAPIC 0xfee00000

// Interrupt lines (global system interrupts, the I/O APIC's pins).
#define LAYOUT_SERIAL_GSI 4
#define LAYOUT_VIRTIO_GSI 5

// I/O ports.
#define LAYOUT_SERIAL_PORT 0x3f8
#define LAYOUT_SERIAL_PORTS 8
#define LAYOUT_KEYBOARD_PORT 0x64   // its reset command only
#define LAYOUT_SLEEP_CONTROL 0x600  // ACPI: one byte each
#define LAYOUT_SLEEP_STATUS 0x601
#define LAYOUT_RESET 0x602

enum { LAYOUT_VIRTIO_MAX = 8, LAYOUT_VCPUS_MAX = 32 };

// What the ACPI tables say and device/power.c understands.
enum { LAYOUT_SLEEP_TYPE_S5 = 5, LAYOUT_RESET_VALUE = 0xfe };

#endif
