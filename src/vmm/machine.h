// The machine: memory, KVM's part, vCPUs, buses and built-in devices, put together in the one right order.
//
//  1. memory slots, then interrupt chips (kvm/vm.h says why)
//  2. vCPUs, boot processor first; each one's CPUID, then its MSRs
//  3. the boot processor's registers, at the kernel's entry; or the state of a snapshot (kvm/machine_state.h)
//  4. interrupts and notifications of the devices
//  5. threads, parked
//
// A machine made from a snapshot gets its clocks just before it first runs, by machine_start_time.
// A failure takes back everything before it.  Owned by the loop's thread.
#ifndef VMM_MACHINE_H
#define VMM_MACHINE_H

#include "base/err.h"
#include "vmm/device/bus.h"
#include "vmm/kvm/machine_state.h"
#include "vmm/layout.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/processors.h"

enum { MACHINE_QUEUES_MAX = 4 };

// A virtio-mmio device, ready made.  The n-th one has its registers and interrupt where layout.h says.
struct machine_device {
    bus_read_fn *read;
    bus_write_fn *write;
    void *arg;
    int irq_fd;
    unsigned queues;
    int notify_fd[MACHINE_QUEUES_MAX];
};

struct machine_config {
    const struct kvm_ops *ops;
    int kvm;  // the opened /dev/kvm
    const struct guest_memory *memory;
    unsigned vcpus;
    gpa_t entry;  // of the kernel that boot_load put into memory
    // Or of a snapshot, with as many vCPUs: `entry` means nothing then.  Must outlive machine_start_time.
    const struct machine_state *state;
    const struct machine_device *devices;
    size_t device_count;
    const struct sock_fprog *vcpu_filter;  // or NULL, for tests
};

struct machine;

// Everything in `config` stays the caller's and outlives the machine; the struct itself need not.  0, or a negative errno with
// a sentence in *err.
int machine_new(const struct machine_config *config, struct machine **ret_machine, struct err *err);
// NULL is fine; returns NULL.
struct machine *machine_free(struct machine *machine);

// Reads everything out, while no vCPU runs.  0, or a negative errno with a sentence in *err; *ret_state is the caller's to
// free.
int machine_save(struct machine *machine, struct machine_state *ret_state, struct err *err);
// Sets the clocks of a machine made from a snapshot going; its vCPUs run next.  Nothing to do for another one.  0, or a
// negative errno with a sentence.
int machine_start_time(struct machine *machine, struct err *err);

struct processors *machine_processors(struct machine *machine);
// Readable when the machine has ended (processors_ended says why).
int machine_ended_fd(struct machine *machine);
// See serial_tail.
size_t machine_console(struct machine *machine, void *bytes, size_t n, uint64_t *ret_total);

#endif
