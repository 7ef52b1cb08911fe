// From a fresh process in fresh namespaces to sandbox-vmm in a root without any file: what the child of a vm tier's START does
// before it execs.
//
// Actors and words are those of enter/enter.h; the program is the monitor, which the guest in it may take over one day.  It
// gets what it needs as descriptors and nothing else: no capability, no file, no network, no other process, one uid nobody
// else has.
#ifndef JAILER_VM_ENTER_H
#define JAILER_VM_ENTER_H

#include "enter/enter.h"
#include "wire/vmm.h"

enum vm_step {
    VM_CGROUPS,
    VM_LINE,
    VM_ORDER,
    VM_IDS,
    VM_LIMITS,
    VM_DESCRIPTORS,
    VM_ROOT,
    VM_PRIVILEGES,
    VM_EXEC,
    VM_STEPS,
};

// Descriptors that come with the order, in this order; of a probe, only the first two, and the log; the last one only with
// a volume.
enum {
    VM_FD_PROGRAM,
    VM_FD_KVM,
    VM_FD_LOG,
    VM_FD_PROBE_END,
    VM_FD_BEGIN = VM_FD_PROBE_END,  // kernel, or a snapshot's state
    VM_FD_BEGIN_TOO,                // initramfs, or its memory
    VM_FD_LAYER,                    // of a snapshot
    VM_FD_WORKING_SET,              // likewise, if there is one
    VM_FD_DISK,
    VM_FD_DELTA,
    VM_FD_CONTROL,
    VM_FD_VSOCK,
    VM_FD_VSOCK_OUT,
    VM_FD_NET,  // a tap, if there is one
    VM_FD_VOLUME,
    VM_FDS,
};

struct vm_order {
    uint32_t probe;
    uint32_t vcpus;
    uint32_t clone, waits, working_set;
    uint32_t net;
    uint64_t ram_mib;
    uint64_t disk_mib;
    uint64_t volume_mib;  // 0: there is none
    // Of the disk and of the volume, each; 0: no limit.
    uint32_t disk_mib_s, disk_iops;
    char cmdline[VMM_CMDLINE_MAX + 1];
};

// How many descriptors come with it.
static inline size_t vm_order_fds(const struct vm_order *order)
{
    return order->probe ? VM_FD_PROBE_END : order->volume_mib > 0 ? VM_FDS : VM_FD_VOLUME;
}

const char *vm_step_text(uint32_t step);

// The child's whole life; never returns.
void vm_enter_main(int line, const struct cgroup_entry *groups) __attribute__((noreturn));

#endif
