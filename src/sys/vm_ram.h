// How much memory a machine of the vm tier has.  The jailer makes it so, and the engine lets no monitor write down more.
#ifndef SYS_VM_RAM_H
#define SYS_VM_RAM_H

#include "wire/vmm.h"

#include <stdint.h>

enum {
    VM_GUEST_KERNEL_MIB = 128,   // a machine has this much more than its sandbox may use, for its kernel and agent ...
    VM_GUEST_KERNEL_SHARE = 32,  // ... and one part in this many of it, for the kernel's account of its pages
};

// A machine's memory for a sandbox that may use `memory_mib`.
static inline uint64_t vm_ram_mib(uint64_t memory_mib)
{
    uint64_t ram = memory_mib + VM_GUEST_KERNEL_MIB + memory_mib / VM_GUEST_KERNEL_SHARE;
    ram += ram % VMM_MEMORY_MIB_STEP;
    return ram < VMM_MEMORY_MIB_MAX ? ram : VMM_MEMORY_MIB_MAX;
}

#endif
