#include "vmm/kvm/ops.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static int kernel_call(void *arg, int fd, unsigned long request, void *data)
{
    int r = ioctl(fd, request, data);
    return r < 0 ? -errno : r;
}

static int kernel_map(void *arg, int fd, size_t bytes, void **ret_at)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    *ret_at = at;
    return 0;
}

static void kernel_unmap(void *arg, void *at, size_t bytes)
{
    munmap(at, bytes);
}

static void kernel_close(void *arg, int fd)
{
    close(fd);
}

const struct kvm_ops kvm_ops_kernel = {
    .call = kernel_call,
    .map = kernel_map,
    .unmap = kernel_unmap,
    .close = kernel_close,
};

const char *kvm_call_name(unsigned long request)
{
#define NAME(request)                                                                                                          \
    case request:                                                                                                              \
        return #request
    switch (request) {
        NAME(KVM_GET_API_VERSION);
        NAME(KVM_CHECK_EXTENSION);
        NAME(KVM_GET_VCPU_MMAP_SIZE);
        NAME(KVM_GET_SUPPORTED_CPUID);
        NAME(KVM_CREATE_VM);
        NAME(KVM_SET_USER_MEMORY_REGION);
        NAME(KVM_SET_TSS_ADDR);
        NAME(KVM_SET_IDENTITY_MAP_ADDR);
        NAME(KVM_CREATE_IRQCHIP);
        NAME(KVM_CREATE_VCPU);
        NAME(KVM_SET_CPUID2);
        NAME(KVM_GET_SREGS);
        NAME(KVM_SET_SREGS);
        NAME(KVM_SET_REGS);
        NAME(KVM_SET_FPU);
        NAME(KVM_SET_MSRS);
        NAME(KVM_IRQFD);
        NAME(KVM_IOEVENTFD);
        NAME(KVM_RUN);
        NAME(KVM_GET_MSR_INDEX_LIST);
        NAME(KVM_GET_MP_STATE);
        NAME(KVM_SET_MP_STATE);
        NAME(KVM_GET_REGS);
        NAME(KVM_GET_XSAVE);
        NAME(KVM_GET_XSAVE2);
        NAME(KVM_SET_XSAVE);
        NAME(KVM_GET_XCRS);
        NAME(KVM_SET_XCRS);
        NAME(KVM_GET_DEBUGREGS);
        NAME(KVM_SET_DEBUGREGS);
        NAME(KVM_GET_LAPIC);
        NAME(KVM_SET_LAPIC);
        NAME(KVM_GET_MSRS);
        NAME(KVM_GET_VCPU_EVENTS);
        NAME(KVM_SET_VCPU_EVENTS);
        NAME(KVM_GET_TSC_KHZ);
        NAME(KVM_SET_TSC_KHZ);
        NAME(KVM_GET_CPUID2);
        NAME(KVM_GET_IRQCHIP);
        NAME(KVM_SET_IRQCHIP);
        NAME(KVM_GET_CLOCK);
        NAME(KVM_SET_CLOCK);
        NAME(KVM_KVMCLOCK_CTRL);
    default:
        return "a KVM call";
    }
#undef NAME
}
