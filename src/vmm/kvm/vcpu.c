#include "vmm/kvm/vcpu.h"

#include "vmm/boot/start.h"

#include <errno.h>
#include <stdlib.h>

struct vcpu {
    const struct kvm_ops *ops;
    int fd;
    struct kvm_run *run;
    size_t run_bytes;
};

static int call(struct vcpu *c, unsigned long request, void *data, struct kvm_failure *failure)
{
    int r = kvm_call(c->ops, c->fd, request, data);
    if (r < 0)
        *failure = (struct kvm_failure){.call = request};
    return r;
}

static int build(struct vcpu *c, struct vm *vm, unsigned id, struct kvm_failure *failure)
{
    int r = kvm_call(c->ops, vm_kvm_fd(vm), KVM_GET_VCPU_MMAP_SIZE, NULL);
    if (r >= 0 && (size_t)r < sizeof(struct kvm_run))
        r = -EINVAL;
    if (r < 0) {
        *failure = (struct kvm_failure){.call = KVM_GET_VCPU_MMAP_SIZE};
        return r;
    }
    c->run_bytes = (size_t)r;
    r = kvm_call_number(c->ops, vm_fd(vm), KVM_CREATE_VCPU, id);
    if (r < 0) {
        *failure = (struct kvm_failure){.call = KVM_CREATE_VCPU};
        return r;
    }
    c->fd = r;
    void *at;
    r = c->ops->map(c->ops->arg, c->fd, c->run_bytes, &at);
    if (r < 0) {
        *failure = (struct kvm_failure){0};
        return r;
    }
    c->run = at;
    return 0;
}

int vcpu_new(struct vm *vm, unsigned id, struct kvm_failure *ret_failure, struct vcpu **ret_vcpu)
{
    struct vcpu *c = calloc(1, sizeof *c);
    if (c == NULL) {
        *ret_failure = (struct kvm_failure){0};
        return -ENOMEM;
    }
    *c = (struct vcpu){.ops = vm_ops(vm), .fd = -1};
    int r = build(c, vm, id, ret_failure);
    if (r < 0) {
        vcpu_free(c);
        return r;
    }
    *ret_vcpu = c;
    return 0;
}

struct vcpu *vcpu_free(struct vcpu *vcpu)
{
    if (vcpu != NULL) {
        if (vcpu->run != NULL)
            vcpu->ops->unmap(vcpu->ops->arg, vcpu->run, vcpu->run_bytes);
        if (vcpu->fd >= 0)
            vcpu->ops->close(vcpu->ops->arg, vcpu->fd);
        free(vcpu);
    }
    return NULL;
}

// What a firmware leaves: fast string operations, and all memory write-back cached.
static int set_boot_msrs(struct vcpu *c, struct kvm_failure *failure)
{
    enum { MISC_ENABLE = 0x1a0, FAST_STRINGS = 1, MTRR_DEF_TYPE = 0x2ff, MTRR_ON_WRITE_BACK = 0x806, MSRS = 2 };
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry[MSRS];
    } msrs = {
        .head.nmsrs = MSRS,
        .entry = {{.index = MISC_ENABLE, .data = FAST_STRINGS}, {.index = MTRR_DEF_TYPE, .data = MTRR_ON_WRITE_BACK}},
    };
    int r = call(c, KVM_SET_MSRS, &msrs, failure);
    if (r >= 0 && r != MSRS) {  // it stops at the first one it refuses
        *failure = (struct kvm_failure){.call = KVM_SET_MSRS};
        return -EINVAL;
    }
    return r < 0 ? r : 0;
}

int vcpu_prepare(struct vcpu *vcpu, const struct cpuid_table *cpuid, struct kvm_failure *ret_failure)
{
    int r = call(vcpu, KVM_SET_CPUID2, (void *)cpuid, ret_failure);
    return r < 0 ? r : set_boot_msrs(vcpu, ret_failure);
}

int vcpu_enter_at(struct vcpu *vcpu, gpa_t entry, struct kvm_failure *ret_failure)
{
    struct kvm_sregs sregs;
    int r = call(vcpu, KVM_GET_SREGS, &sregs, ret_failure);
    if (r < 0)
        return r;
    start_sregs(&sregs);
    r = call(vcpu, KVM_SET_SREGS, &sregs, ret_failure);
    if (r < 0)
        return r;
    struct kvm_regs regs = start_regs(entry);
    r = call(vcpu, KVM_SET_REGS, &regs, ret_failure);
    if (r < 0)
        return r;
    struct kvm_fpu fpu = {.fcw = 0x37f, .mxcsr = 0x1f80};  // what FNINIT and reset leave
    return call(vcpu, KVM_SET_FPU, &fpu, ret_failure);
}

int vcpu_run(struct vcpu *vcpu)
{
    return kvm_call(vcpu->ops, vcpu->fd, KVM_RUN, NULL);
}

struct kvm_run *vcpu_exit(const struct vcpu *vcpu)
{
    return vcpu->run;
}

void vcpu_kick(struct vcpu *vcpu)
{
    __atomic_store_n(&vcpu->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
}

void vcpu_clear_kick(struct vcpu *vcpu)
{
    __atomic_store_n(&vcpu->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
}

const struct kvm_ops *vcpu_ops(const struct vcpu *vcpu)
{
    return vcpu->ops;
}

int vcpu_fd(const struct vcpu *vcpu)
{
    return vcpu->fd;
}
