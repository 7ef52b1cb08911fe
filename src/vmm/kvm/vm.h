// A virtual machine of KVM: memory slots, interrupt chips, and the descriptors that stand for interrupts and register writes.
//
// Order matters (vm_new keeps it): a memory slot made before the interrupt chips costs 0.1 ms, one made after them 7 ms on
// kernels from 6.18 on, because the slot then waits for the chips' registration on KVM's bus.  vCPUs come after the chips.
//
// A VM belongs to the address space of the process that made it: it cannot be used in a forked child.
#ifndef VMM_KVM_VM_H
#define VMM_KVM_VM_H

#include "vmm/kvm/ops.h"
#include "vmm/mem/guest_memory.h"

#include <stddef.h>
#include <stdint.h>

struct vm;

// Which call of KVM failed, for the report; `call` is 0 if it was something else.
struct kvm_failure {
    unsigned long call;
    const char *missing;  // a capability this kernel's KVM does not have, or NULL
    uint32_t msr;         // KVM_SET_MSRS: the register whose value was refused, or 0
};

// Checks that this KVM has what the monitor needs (version, capabilities, `vcpus`), then makes a VM over `memory`, with
// interrupt chips.  `kvm` is the opened /dev/kvm; it, `ops` and `memory` stay the caller's and must outlive the VM.
// 0, or a negative errno with *ret_failure saying where; -ENOTSUP when something is missing.
int vm_new(const struct kvm_ops *ops, int kvm, const struct guest_memory *memory, unsigned vcpus,
           struct kvm_failure *ret_failure, struct vm **ret_vm);
// All vCPUs must be gone.  Closing a VM that had ioeventfds takes the kernel 13 to 24 ms.  NULL is fine; returns NULL.
struct vm *vm_free(struct vm *vm);

// A write to `event_fd` raises the edge-triggered interrupt `gsi`.
int vm_irqfd(struct vm *vm, int event_fd, unsigned gsi, struct kvm_failure *ret_failure);

// A guest's 32-bit write of `value` at `address` signals `event_fd` and never reaches a vCPU thread.
int vm_ioeventfd(struct vm *vm, int event_fd, uint64_t address, uint32_t value, struct kvm_failure *ret_failure);

// Likewise for an 8-bit write of any value to an I/O port.
int vm_ioeventfd_port(struct vm *vm, int event_fd, uint16_t port, struct kvm_failure *ret_failure);

// The largest CPUID table this monitor takes from KVM.
enum { CPUID_ENTRIES_MAX = 256 };

struct cpuid_table {
    struct kvm_cpuid2 head;
    struct kvm_cpuid_entry2 entry[CPUID_ENTRIES_MAX];
};

// What this KVM can give a guest, unfiltered (kvm/cpuid.h filters it).
int vm_supported_cpuid(const struct vm *vm, struct cpuid_table *ret_table, struct kvm_failure *ret_failure);

// For kvm/vcpu.c.
const struct kvm_ops *vm_ops(const struct vm *vm);
int vm_fd(const struct vm *vm);
int vm_kvm_fd(const struct vm *vm);

#endif
