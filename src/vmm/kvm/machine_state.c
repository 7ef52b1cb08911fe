#include "vmm/kvm/machine_state.h"

#include <errno.h>
#include <stdlib.h>

int machine_state_new(unsigned vcpus, struct machine_state *ret_state)
{
    struct vcpu_state *vcpu = calloc(vcpus, sizeof *vcpu);
    if (vcpu == NULL)
        return -ENOMEM;
    *ret_state = (struct machine_state){.vcpus = vcpus, .vcpu = vcpu};
    return 0;
}

void machine_state_free(struct machine_state *state)
{
    free(state->vcpu);
    *state = (struct machine_state){0};
}

static int call(struct vm *vm, unsigned long request, void *data, struct kvm_failure *failure)
{
    int r = kvm_call(vm_ops(vm), vm_fd(vm), request, data);
    if (r < 0)
        *failure = (struct kvm_failure){.call = request};
    return r < 0 ? r : 0;
}

int vm_read_chips(struct vm *vm, struct machine_state *state, struct kvm_failure *ret_failure)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < MACHINE_IRQCHIPS; i++) {
        state->chip[i] = (struct kvm_irqchip){.chip_id = i};
        r = call(vm, KVM_GET_IRQCHIP, &state->chip[i], ret_failure);
    }
    return r;
}

int vm_write_chips(struct vm *vm, const struct machine_state *state, struct kvm_failure *ret_failure)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < MACHINE_IRQCHIPS; i++)
        r = call(vm, KVM_SET_IRQCHIP, (void *)&state->chip[i], ret_failure);
    return r;
}

int vm_read_clock(struct vm *vm, struct machine_state *state, struct kvm_failure *ret_failure)
{
    struct kvm_clock_data clock = {0};
    int r = call(vm, KVM_GET_CLOCK, &clock, ret_failure);
    if (r == 0)
        state->clock_ns = clock.clock;
    return r;
}

// No flags: monotonic time goes on where it stood, however long ago that was.  The wall clock is the agent's to set.
int vm_write_clock(struct vm *vm, const struct machine_state *state, struct kvm_failure *ret_failure)
{
    struct kvm_clock_data clock = {.clock = state->clock_ns};
    return call(vm, KVM_SET_CLOCK, &clock, ret_failure);
}
