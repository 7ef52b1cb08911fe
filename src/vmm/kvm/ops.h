// The one way to KVM: everything the monitor asks of it goes through this table, so that a test can stand in for the kernel,
// assert the order of the calls and let each of them fail.
//
// One entry for all ioctls, not one for each: a fake then covers a new ioctl without being told, and the code that is tested
// is the code that runs.
#ifndef VMM_KVM_OPS_H
#define VMM_KVM_OPS_H

#include <linux/kvm.h>
#include <stddef.h>

struct kvm_ops {
    // ioctl(fd, request, data).  The result (>= 0) or a negative errno.
    int (*call)(void *arg, int fd, unsigned long request, void *data);
    // Maps the shared page(s) of a vCPU's descriptor, readable and writable.  0 or a negative errno.
    int (*map)(void *arg, int fd, size_t bytes, void **ret_at);
    void (*unmap)(void *arg, void *at, size_t bytes);
    void (*close)(void *arg, int fd);
    void *arg;
};

// The kernel's.
extern const struct kvm_ops kvm_ops_kernel;

static inline int kvm_call(const struct kvm_ops *ops, int fd, unsigned long request, void *data)
{
    return ops->call(ops->arg, fd, request, data);
}

// An ioctl whose argument is a number.
static inline int kvm_call_number(const struct kvm_ops *ops, int fd, unsigned long request, unsigned long number)
{
    return ops->call(ops->arg, fd, request, (void *)number);
}

// "KVM_CREATE_VM" and so on; "a KVM call" for one this monitor never makes.
const char *kvm_call_name(unsigned long request);

#endif
