// One virtual processor.
//
// vcpu_boot makes its calls in the only order that works: CPUID first, because it bounds what MSRs and registers may hold.
// A vCPU is used by one thread at a time; vcpu_kick may be called by any.
#ifndef VMM_KVM_VCPU_H
#define VMM_KVM_VCPU_H

#include "vmm/kvm/vm.h"

struct vcpu;

// The vCPU `id` (its APIC id) of `vm`, which must outlive it.  0, or a negative errno with *ret_failure.
int vcpu_new(struct vm *vm, unsigned id, struct kvm_failure *ret_failure, struct vcpu **ret_vcpu);
// NULL is fine; returns NULL.
struct vcpu *vcpu_free(struct vcpu *vcpu);

// Prepares a cold start: the processor of `cpuid`, the MSRs a firmware would set.
int vcpu_prepare(struct vcpu *vcpu, const struct cpuid_table *cpuid, struct kvm_failure *ret_failure);
// And for the boot processor: long mode at `entry` (boot/start.h).
int vcpu_enter_at(struct vcpu *vcpu, gpa_t entry, struct kvm_failure *ret_failure);

// KVM_RUN, until something has to be done for the guest.  0: vcpu_exit says what.  -EINTR: it was kicked, and an access that
// was being emulated is finished.  -EAGAIN: run it again.  Another negative errno: it will not run again.
int vcpu_run(struct vcpu *vcpu);
// The page shared with KVM.
struct kvm_run *vcpu_exit(const struct vcpu *vcpu);
// From now on vcpu_run returns -EINTR (to interrupt one that is under way, its thread needs a signal too), until cleared.
void vcpu_kick(struct vcpu *vcpu);
void vcpu_clear_kick(struct vcpu *vcpu);

// For kvm/vcpu_state.c.
const struct kvm_ops *vcpu_ops(const struct vcpu *vcpu);
int vcpu_fd(const struct vcpu *vcpu);

#endif
