// What a Linux kernel is told at its 64-bit entry (Documentation/arch/x86/boot.rst): the zero page with the map of memory,
// the command line, where the initramfs is, where the ACPI tables are, and 32 random bytes.
#ifndef VMM_BOOT_PARAMS_H
#define VMM_BOOT_PARAMS_H

#include "vmm/mem/guest_memory.h"

#include <asm/bootparam.h>
#include <stddef.h>
#include <stdint.h>

enum { BOOT_SEED_BYTES = 32, BOOT_E820_MAX = 8 };

struct boot_facts {
    const char *cmdline;  // at most VMM_CMDLINE_MAX bytes
    gpa_t initramfs;
    uint64_t initramfs_bytes;  // 0: none
    uint8_t seed[BOOT_SEED_BYTES];
};

// The map of a guest's memory: RAM except what lies between 0x9fc00 and 1 MiB, and the hole.  Returns the number of entries.
size_t boot_e820(const struct guest_region *regions, size_t count, struct boot_e820_entry map[static BOOT_E820_MAX]);

// Writes zero page, command line and seed.  0, or -E2BIG (the command line), or -EFAULT (no memory there).
int boot_params_write(const struct guest_memory *memory, const struct boot_facts *facts);

#endif
