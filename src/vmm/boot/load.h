// Puts everything a cold boot needs into the guest's memory: kernel, initramfs, command line, tables.  No KVM.
#ifndef VMM_BOOT_LOAD_H
#define VMM_BOOT_LOAD_H

#include "base/err.h"
#include "vmm/mem/guest_memory.h"

struct boot_image {
    int kernel;     // a vmlinux, a regular file
    int initramfs;  // a regular file, or -1
    const char *cmdline;
    unsigned vcpus;
    unsigned virtio;  // devices
};

// `memory` is all zero.  0 with *ret_entry, where the boot processor starts, or a negative errno with a sentence in *err.
int boot_load(const struct boot_image *image, const struct guest_memory *memory, gpa_t *ret_entry, struct err *err);

#endif
