// The threads of the vCPUs: they run the guest, hand its accesses to the buses, and can be stopped and started together.
//
// States: parked (after processors_new, and after processors_pause) <-> running -> ended.  A vCPU that ends the machine (a
// triple fault, an error of KVM, the guest's own power-off) records why, once, and signals `ended_fd`; it does not run again.
// The others go on until the loop's thread has heard of it.
//
// A vCPU thread is hostile from its first instruction on, as far as that is possible in one process: it installs `filter`
// before it runs the guest (filter.h), allocates nothing, and touches nothing but the buses' devices.
//
// Pausing: each vCPU is told to return at once (immediate_exit) and its thread is sent a signal.  KVM first finishes the access
// it was emulating, so that a paused vCPU's registers are whole.  All functions: the loop's thread.
#ifndef VMM_PROCESSORS_H
#define VMM_PROCESSORS_H

#include "vmm/device/bus.h"
#include "vmm/kvm/vcpu.h"
#include "wire/vmm.h"

#include <linux/filter.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

// What interrupts a vCPU thread in KVM_RUN.
#define PROCESSORS_SIGNAL SIGUSR1

struct processors;

struct processors_config {
    struct vcpu *const *vcpus;  // they, the buses and the filter outlive the threads
    size_t count;
    const struct bus *ports;
    const struct bus *memory;
    const struct sock_fprog *filter;  // or NULL, for tests
    int ended_fd;                     // an eventfd
};

struct processors_end {
    enum vmm_reason reason;  // NONE while the machine runs
    char detail[VMM_DETAIL_MAX];
};

// Starts the threads, parked.  Sets the process's handler of PROCESSORS_SIGNAL.  0 or a negative errno.
int processors_new(const struct processors_config *config, struct processors **ret_processors);
// Stops and joins the threads (for tests: the program just exits).  NULL is fine; returns NULL.
struct processors *processors_free(struct processors *processors);

// All vCPUs run, from now on.  0, or -EALREADY.
int processors_run(struct processors *processors);
// Returns when no vCPU runs.  0, or -EALREADY.
int processors_pause(struct processors *processors);

// Whether no vCPU runs, nor ever did since they were made or paused.
bool processors_paused(struct processors *processors);

// Ends the machine from outside of a vCPU, or from a device on a vCPU's thread.  Only the first end counts.  Any thread.
void processors_end(struct processors *processors, enum vmm_reason reason, const char *detail);
void processors_ended(struct processors *processors, struct processors_end *ret_end);

// Adds the vCPUs' counters to `stats`.
void processors_count(struct processors *processors, struct vmm_stats *stats);

#endif
