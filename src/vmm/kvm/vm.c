#include "vmm/kvm/vm.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>

// Three pages below the BIOS that VMX uses for real mode, and one for its identity map.  In the hole, away from all devices.
#define TSS_ADDRESS UINT64_C(0xfffbd000)
#define IDENTITY_MAP_ADDRESS UINT64_C(0xfffbc000)

struct vm {
    const struct kvm_ops *ops;
    int kvm;
    int fd;
};

// kvm_cpuid2 ends in a flexible array, which must fall on our own.
_Static_assert(offsetof(struct cpuid_table, entry) == sizeof(struct kvm_cpuid2), "table");

static const struct {
    int number;
    const char *name;
} needed[] = {
    {KVM_CAP_USER_MEMORY, "KVM_CAP_USER_MEMORY"},
    {KVM_CAP_IRQCHIP, "KVM_CAP_IRQCHIP"},
    {KVM_CAP_SET_TSS_ADDR, "KVM_CAP_SET_TSS_ADDR"},
    {KVM_CAP_SET_IDENTITY_MAP_ADDR, "KVM_CAP_SET_IDENTITY_MAP_ADDR"},
    {KVM_CAP_EXT_CPUID, "KVM_CAP_EXT_CPUID"},
    {KVM_CAP_IRQFD, "KVM_CAP_IRQFD"},
    {KVM_CAP_IOEVENTFD, "KVM_CAP_IOEVENTFD"},
    {KVM_CAP_IMMEDIATE_EXIT, "KVM_CAP_IMMEDIATE_EXIT"},
    {KVM_CAP_MP_STATE, "KVM_CAP_MP_STATE"},
    {KVM_CAP_ADJUST_CLOCK, "KVM_CAP_ADJUST_CLOCK"},
    // There is no PIT in this machine, so that the guest needs a timer whose rate it need not measure.
    {KVM_CAP_TSC_DEADLINE_TIMER, "KVM_CAP_TSC_DEADLINE_TIMER"},
};

static int lacks(struct kvm_failure *failure, const char *what)
{
    *failure = (struct kvm_failure){.missing = what};
    return -ENOTSUP;
}

// Makes the call and remembers it if it fails.
static int call(const struct kvm_ops *ops, int fd, unsigned long request, void *data, struct kvm_failure *failure)
{
    int r = kvm_call(ops, fd, request, data);
    if (r < 0)
        *failure = (struct kvm_failure){.call = request};
    return r;
}

static int check_extension(const struct kvm_ops *ops, int kvm, int number, struct kvm_failure *failure)
{
    return call(ops, kvm, KVM_CHECK_EXTENSION, (void *)(unsigned long)number, failure);
}

static int check_kvm(const struct kvm_ops *ops, int kvm, unsigned vcpus, struct kvm_failure *failure)
{
    int r = call(ops, kvm, KVM_GET_API_VERSION, NULL, failure);
    if (r < 0)
        return r;
    if (r != KVM_API_VERSION)
        return lacks(failure, "version 12 of the KVM interface");
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        r = check_extension(ops, kvm, needed[i].number, failure);
        if (r < 0)
            return r;
        if (r == 0)
            return lacks(failure, needed[i].name);
    }
    r = check_extension(ops, kvm, KVM_CAP_MAX_VCPUS, failure);
    if (r < 0)
        return r;
    return (unsigned)r < vcpus ? lacks(failure, "enough vCPUs (KVM_CAP_MAX_VCPUS)") : 0;
}

static int add_memory(struct vm *vm, const struct guest_memory *memory, struct kvm_failure *failure)
{
    size_t count;
    const struct guest_region *regions = guest_memory_regions(memory, &count);
    for (size_t i = 0; i < count; i++) {
        struct kvm_userspace_memory_region slot = {
            .slot = (uint32_t)i,
            .guest_phys_addr = regions[i].start.value,
            .memory_size = regions[i].bytes,
            .userspace_addr = (uintptr_t)regions[i].host,
        };
        int r = call(vm->ops, vm->fd, KVM_SET_USER_MEMORY_REGION, &slot, failure);
        if (r < 0)
            return r;
    }
    return 0;
}

static int build(struct vm *vm, const struct guest_memory *memory, struct kvm_failure *failure)
{
    // The number is the type of machine: the default.
    int r = call(vm->ops, vm->kvm, KVM_CREATE_VM, NULL, failure);
    if (r < 0)
        return r;
    vm->fd = r;
    uint64_t identity = IDENTITY_MAP_ADDRESS;
    r = add_memory(vm, memory, failure);
    if (r == 0)
        r = call(vm->ops, vm->fd, KVM_SET_IDENTITY_MAP_ADDR, &identity, failure);
    if (r >= 0)
        r = call(vm->ops, vm->fd, KVM_SET_TSS_ADDR, (void *)TSS_ADDRESS, failure);
    if (r >= 0)
        r = call(vm->ops, vm->fd, KVM_CREATE_IRQCHIP, NULL, failure);
    return r < 0 ? r : 0;
}

int vm_new(const struct kvm_ops *ops, int kvm, const struct guest_memory *memory, unsigned vcpus,
           struct kvm_failure *ret_failure, struct vm **ret_vm)
{
    int r = check_kvm(ops, kvm, vcpus, ret_failure);
    if (r < 0)
        return r;
    struct vm *vm = calloc(1, sizeof *vm);
    if (vm == NULL) {
        *ret_failure = (struct kvm_failure){0};
        return -ENOMEM;
    }
    *vm = (struct vm){.ops = ops, .kvm = kvm, .fd = -1};
    r = build(vm, memory, ret_failure);
    if (r < 0) {
        vm_free(vm);
        return r;
    }
    *ret_vm = vm;
    return 0;
}

struct vm *vm_free(struct vm *vm)
{
    if (vm != NULL) {
        if (vm->fd >= 0)
            vm->ops->close(vm->ops->arg, vm->fd);
        free(vm);
    }
    return NULL;
}

int vm_irqfd(struct vm *vm, int event_fd, unsigned gsi, struct kvm_failure *ret_failure)
{
    struct kvm_irqfd irq = {.fd = (uint32_t)event_fd, .gsi = gsi};
    return call(vm->ops, vm->fd, KVM_IRQFD, &irq, ret_failure);
}

int vm_ioeventfd(struct vm *vm, int event_fd, uint64_t address, uint32_t value, struct kvm_failure *ret_failure)
{
    struct kvm_ioeventfd io = {
        .datamatch = value, .addr = address, .len = sizeof value, .fd = event_fd, .flags = KVM_IOEVENTFD_FLAG_DATAMATCH};
    return call(vm->ops, vm->fd, KVM_IOEVENTFD, &io, ret_failure);
}

int vm_ioeventfd_port(struct vm *vm, int event_fd, uint16_t port, struct kvm_failure *ret_failure)
{
    struct kvm_ioeventfd io = {.addr = port, .len = 1, .fd = event_fd, .flags = KVM_IOEVENTFD_FLAG_PIO};
    return call(vm->ops, vm->fd, KVM_IOEVENTFD, &io, ret_failure);
}

int vm_supported_cpuid(const struct vm *vm, struct cpuid_table *ret_table, struct kvm_failure *ret_failure)
{
    cleanup_free struct cpuid_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        *ret_failure = (struct kvm_failure){0};
        return -ENOMEM;
    }
    table->head.nent = CPUID_ENTRIES_MAX;
    int r = call(vm->ops, vm->kvm, KVM_GET_SUPPORTED_CPUID, table, ret_failure);
    if (r < 0)
        return r;
    if (table->head.nent > CPUID_ENTRIES_MAX) {
        *ret_failure = (struct kvm_failure){.call = KVM_GET_SUPPORTED_CPUID};
        return -E2BIG;
    }
    *ret_table = *table;
    return 0;
}

const struct kvm_ops *vm_ops(const struct vm *vm)
{
    return vm->ops;
}

int vm_fd(const struct vm *vm)
{
    return vm->fd;
}

int vm_kvm_fd(const struct vm *vm)
{
    return vm->kvm;
}
