// Everything KVM knows of one vCPU, read out of a parked one and put into a new one.
//
// The orders are not free (docs/isolation.md is about walls, so here is why):
//  - Reading begins with MP_STATE, which may make KVM take in pending events and change what the others say; VCPU_EVENTS comes
//    last.
//  - Writing begins with CPUID, which bounds what registers may hold.  REGS clears pending exceptions and so comes before
//    VCPU_EVENTS; SREGS holds the APIC's base and mode and so comes before LAPIC; the LAPIC's timer mode decides whether a
//    deadline is taken, so LAPIC comes before MSRS.
//  - Time comes apart, just before the guest runs (vcpu_write_time): a machine may wait for its claim, and must not find that
//    its clocks ran meanwhile.  TSC before TSC_DEADLINE: the deadline becomes a host timer at once, by the TSC as it is then.
//
// Not here: PIT and nested virtualisation, which this machine does not have.
#ifndef VMM_KVM_VCPU_STATE_H
#define VMM_KVM_VCPU_STATE_H

#include "vmm/kvm/vcpu.h"

#include <stdbool.h>

enum {
    VCPU_MSRS_MAX = 512,
    VCPU_XSAVE_MIN = sizeof(struct kvm_xsave),
    VCPU_XSAVE_MAX = 16 * 1024,  // without AMX, which is masked
};

struct vcpu_msrs {
    struct kvm_msrs head;
    struct kvm_msr_entry entry[VCPU_MSRS_MAX];
};

struct vcpu_state {
    struct cpuid_table cpuid;
    struct kvm_mp_state mp_state;
    struct kvm_regs regs;
    struct kvm_sregs sregs;
    uint32_t xsave_bytes;
    bool has_xcrs;
    uint8_t xsave[VCPU_XSAVE_MAX] __attribute__((aligned(64)));
    struct kvm_xcrs xcrs;
    struct kvm_debugregs debugregs;
    struct kvm_lapic_state lapic;
    struct vcpu_msrs msrs;
    struct kvm_vcpu_events events;
    uint32_t tsc_khz;
};

// What of this a KVM can do; asked for before anything of it is used.
struct vcpu_state_abilities {
    bool xcrs, tsc_control;
    uint32_t xsave_bytes;  // from VCPU_XSAVE_MIN to VCPU_XSAVE_MAX
    bool xsave2;
};

// 0, or a negative errno with *ret_failure: -ENOTSUP when something that no snapshot can do without is missing.
int vcpu_state_ask(struct vm *vm, struct vcpu_state_abilities *ret_can, struct kvm_failure *ret_failure);

// Of a parked vCPU.
int vcpu_read_state(struct vm *vm, struct vcpu *vcpu, const struct vcpu_state_abilities *can, struct vcpu_state *ret_state,
                    struct kvm_failure *ret_failure);

// Into a vCPU that never ran.  All but its time.
int vcpu_write_state(struct vcpu *vcpu, const struct vcpu_state_abilities *can, const struct vcpu_state *state,
                     struct kvm_failure *ret_failure);
// Its TSC and its timer, from now on.
int vcpu_write_time(struct vcpu *vcpu, const struct vcpu_state *state, struct kvm_failure *ret_failure);
// Tells a guest with kvmclock that it was stopped, so that its watchdogs keep still.
int vcpu_tell_stopped(struct vcpu *vcpu, struct kvm_failure *ret_failure);

#endif
