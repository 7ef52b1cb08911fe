// The vm tier's half of a START: what a machine is made of, and its sizes.
//
// The engine chooses which image, how much memory, disk and processors, and hands three sockets; the kernel and its initramfs
// were registered before, from files that only root can write.  This process opens /dev/kvm and the delta file, and computes
// the rest: how much more than the sandbox's memory a machine needs, and the words on its kernel's command line.
#ifndef JAILER_VM_H
#define JAILER_VM_H

#include "enter/guest_line.h"
#include "jailer/host.h"
#include "sys/cgroup.h"
#include "sys/jail.h"
#include "sys/vm_ram.h"

enum {
    VM_MONITOR_MIB = 64,    // the monitor's group may hold this much more than the machine's memory ...
    VM_MONITOR_SHARE = 64,  // ... and one part in this many, for page tables
    VM_MONITOR_TASKS = 16,  // threads of the monitor and of KVM besides the vCPUs
    VM_DISK_SHARE = 32,     // what a disk grows by for the file system's own tables: one part in this many ...
    VM_DISK_MORE_MIB = 8,   // ... and so much in any case
};

struct vm_plan {
    int image;  // the template's rootfs.ext4
    int kernel, initramfs;
    int control, vsock, vsock_out;
    int volume;  // the session's, or -1
    uint64_t volume_mib;
    // A clone has these instead of a kernel and an initramfs; the last may be -1.
    bool clone, waits;
    int state, memory, layer, working_set;
    bool probe;              // none of the above: only say whether this host's KVM can do it
    int log;                 // of a probe
    int net;                 // the tap of its line, or -1; not owned
    struct guest_line line;  // with `net`; a clone is told by the engine
};

#define VM_PLAN_INIT                                                                                                           \
    ((struct vm_plan){.image = -1,                                                                                             \
                      .kernel = -1,                                                                                            \
                      .initramfs = -1,                                                                                         \
                      .control = -1,                                                                                           \
                      .vsock = -1,                                                                                             \
                      .vsock_out = -1,                                                                                         \
                      .volume = -1,                                                                                            \
                      .state = -1,                                                                                             \
                      .memory = -1,                                                                                            \
                      .layer = -1,                                                                                             \
                      .working_set = -1,                                                                                       \
                      .log = -1,                                                                                               \
                      .net = -1})

// The disk's size over an image of `image_bytes`.
uint64_t vm_disk_mib(uint64_t image_bytes, uint64_t disk_mib);
// What the group of its monitor may use.
struct cgroup_limits vm_limits(const struct jail_start *what);
// The kernel's command line; `volume`: there is one; `line`: of no kind, or its network.  0, or -E2BIG.
int vm_cmdline(const struct jail_start *what, bool volume, const struct guest_line *line, char *text, size_t room);

// Whether it is what the kernel's KVM gives and no other device of that name.  0 or -ENODEV.
int vm_check_kvm(int fd);

// Sends the child its order, with copies of the plan's descriptors.  0, or a negative errno with a sentence part.
int vm_send_order(const struct host *host, int line, const struct vm_plan *plan, const struct jail_start *what,
                  const char **ret_step);

#endif
