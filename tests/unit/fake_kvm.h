// A KVM that is not there: records every call, answers what a real one would, and lets the n-th call fail.  Descriptors are
// numbers from FAKE_FD_FIRST up; what was opened or mapped and not given back is counted.
#ifndef TESTS_UNIT_FAKE_KVM_H
#define TESTS_UNIT_FAKE_KVM_H

#include "vmm/kvm/ops.h"
#include "vmm/kvm/vm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { FAKE_CALLS_MAX = 1024, FAKE_KVM_FD = 5000, FAKE_FD_FIRST = 5001, FAKE_RUN_BYTES = 12288, FAKE_VCPUS_MAX = 32 };

struct fake_call {
    unsigned long request;  // 0: the map of a vCPU's page
    int fd;
    unsigned long number;  // KVM_CHECK_EXTENSION, KVM_CREATE_VCPU
};

struct fake_kvm {
    struct kvm_ops ops;
    struct fake_call call[FAKE_CALLS_MAX];
    size_t calls;
    size_t fail_at;  // 1 + index of the call that fails; 0: none
    int fail_with;   // negative errno
    int missing;     // a capability this KVM does not have, or -1
    int api_version;
    bool shadows;    // guests' page tables: nested paging is off
    int msrs_taken;  // what KVM_SET_MSRS answers, or -1 for all
    // What vCPUs hold, for snapshots: state that KVM_GET_* gives is filled with these bytes.
    uint8_t fill;
    int xsave2;  // what KVM_CAP_XSAVE2 says
    int tsc_khz;
    uint32_t msr[16];  // of the index list; the one that is unreadable and the one that is refused: 0, none
    size_t msrs;
    uint32_t msr_unreadable, msr_refused;
    uint64_t msr_zero;                  // this one reads as 0
    struct kvm_msr_entry set_msr[256];  // that were set, in order
    size_t set_msrs;
    uint64_t set_clock;
    uint32_t set_clock_flags;
    unsigned open_fds, mapped;
    int next_fd;
    struct kvm_userspace_memory_region slot[4];
    size_t slots;
    struct kvm_irqfd irqfd[16];
    size_t irqfds;
    struct kvm_ioeventfd ioeventfd[32];
    size_t ioeventfds;
    struct cpuid_table cpuid[FAKE_VCPUS_MAX];  // that vCPUs were given, in order
    size_t cpuids;
    struct kvm_regs regs;
    struct kvm_sregs sregs;
    // KVM_RUN: called without the lock; 0 with an exit in the page, or a negative errno.  NULL: -EINTR.
    int (*run)(struct fake_kvm *fake, int fd, struct kvm_run *run);
    void *run_arg;
    struct {
        int fd;
        void *at;
    } page[FAKE_VCPUS_MAX];
    size_t pages;
    pthread_mutex_t lock;
};

void fake_kvm_init(struct fake_kvm *fake);
// Index of the first call of `request` from `from` on, or FAKE_CALLS_MAX.
size_t fake_kvm_find(const struct fake_kvm *fake, unsigned long request, size_t from);
size_t fake_kvm_count(const struct fake_kvm *fake, unsigned long request);
// Which vCPU has this descriptor, from 0 up.
unsigned fake_kvm_vcpu(const struct fake_kvm *fake, int fd);

// What the fake says a host supports: a processor with everything that a guest must not see.
void fake_kvm_supported(struct cpuid_table *table);

#endif
