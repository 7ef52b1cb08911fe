// What is done about each reason for which KVM_RUN comes back.  No threads, no KVM: a function of the shared page and the
// buses.
#ifndef VMM_EXIT_H
#define VMM_EXIT_H

#include "vmm/device/bus.h"
#include "wire/vmm.h"

#include <linux/kvm.h>
#include <stdint.h>

// Written by one vCPU's thread, read by any.
struct exit_counters {
    uint64_t pio, mmio, signal, other;
    uint64_t unknown_pio, unknown_mmio;  // accesses that no device answered
};

static inline void exit_count(uint64_t *counter)
{
    __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

static inline uint64_t exit_counted(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

struct exit_end {
    enum vmm_reason reason;
    char detail[VMM_DETAIL_MAX];
};

// Serves the exit that `run` holds.  *end is set only if this vCPU's guest is at its end.
void exit_handle(struct kvm_run *run, const struct bus *ports, const struct bus *memory, struct exit_counters *counters,
                 struct exit_end *end);
// KVM_RUN itself gave the negative errno `r`.
void exit_run_failed(int r, struct exit_end *end);

#endif
