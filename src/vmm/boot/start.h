// The state the boot processor starts in: long mode with paging on, at the kernel's 64-bit entry, RSI pointing at the zero page
// (Documentation/arch/x86/boot.rst, "64-bit boot protocol").  The other processors wait for the first one's start-up
// interrupt, which KVM does.
#ifndef VMM_BOOT_START_H
#define VMM_BOOT_START_H

#include "vmm/mem/guest_memory.h"

#include <linux/kvm.h>

// Writes page tables (the first 4 GiB, identity), GDT, and at the reset vector a few instructions that reset the machine:
// a kernel that believes in firmware goes there, in real mode, to restart.  0 or -EFAULT.
int start_tables_write(const struct guest_memory *memory);

// General registers for an entry at `entry`.
struct kvm_regs start_regs(gpa_t entry);

// Changes `sregs`, as KVM reported them for a processor after reset, to long mode.
void start_sregs(struct kvm_sregs *sregs);

#endif
