// The processor a guest sees: what this KVM can give, less what a sandbox must not have or a snapshot could not carry.
//
// Taken away: nested virtualisation, AMX, SGX, MPX, processor trace, performance counters, monitor/mwait, thermal and power
// management, resource control, memory encryption, Hyper-V's leaves, asynchronous page faults and migration control of KVM.
// Given whatever KVM reports, because it does these itself: hypervisor bit, x2APIC, TSC deadline timer.
// Rewritten: topology (one package, `vcpus` cores of one thread each), cache sharing, sizes of the XSAVE area.
// Pure and a function of its arguments: the same host, the same table, byte by byte.
#ifndef VMM_KVM_CPUID_H
#define VMM_KVM_CPUID_H

#include "vmm/kvm/vm.h"

// The table of vCPU `id` of `vcpus`, from what vm_supported_cpuid gave.
void cpuid_filter(const struct cpuid_table *supported, unsigned vcpus, unsigned id, struct cpuid_table *ret_table);

// The entry of a leaf, or NULL.  `index` counts only for leaves that have sub-leaves.
const struct kvm_cpuid_entry2 *cpuid_find(const struct cpuid_table *table, uint32_t function, uint32_t index);

#endif
