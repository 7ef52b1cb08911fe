// Everything of a machine that is neither memory nor a virtio device: its vCPUs, what KVM emulates for it, its serial port.
//
// Restoring has two parts.  machine_new, given a state, puts everything but time into the new machine, in the order of
// kvm/vcpu_state.h, and the interrupt chips before any eventfd is connected to them: an edge that came before would be
// overwritten.  machine_start_time then sets the clocks going, just before the guest runs.
#ifndef VMM_KVM_MACHINE_STATE_H
#define VMM_KVM_MACHINE_STATE_H

#include "vmm/device/serial.h"
#include "vmm/kvm/vcpu_state.h"

enum { MACHINE_IRQCHIPS = 3 };  // two PICs and the I/O APIC, as KVM numbers them

struct machine_state {
    unsigned vcpus;
    struct vcpu_state *vcpu;  // an array, owned
    struct kvm_irqchip chip[MACHINE_IRQCHIPS];
    uint64_t clock_ns;  // kvmclock, the guest's monotonic time
    struct serial_state serial;
};

// Room for `vcpus`.  0 or -ENOMEM.
int machine_state_new(unsigned vcpus, struct machine_state *ret_state);
// Frees what it owns and clears it.
void machine_state_free(struct machine_state *state);

// The chips and the clock.  0, or a negative errno with *ret_failure.
int vm_read_chips(struct vm *vm, struct machine_state *state, struct kvm_failure *ret_failure);
int vm_write_chips(struct vm *vm, const struct machine_state *state, struct kvm_failure *ret_failure);
int vm_read_clock(struct vm *vm, struct machine_state *state, struct kvm_failure *ret_failure);
int vm_write_clock(struct vm *vm, const struct machine_state *state, struct kvm_failure *ret_failure);

#endif
