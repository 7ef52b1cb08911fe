#include "vmm/kvm/vcpu_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    MSR_TSC = 0x10,
    MSR_TSC_DEADLINE = 0x6e0,
    MSR_MCG_CTL = 0x17b,
    MSR_HYPERV_FIRST = 0x40000000,
    MSR_HYPERV_LAST = 0x400001ff,
    MSRS_AT_ONCE = 128,    // KVM takes fewer than 256
    TSC_TOLERANCE = 4000,  // one part in this many: 250 ppm, what KVM itself lets pass
};

// The arrays fall on the flexible ones of KVM's structs.
_Static_assert(offsetof(struct vcpu_msrs, entry) == sizeof(struct kvm_msrs), "msrs");

struct msr_chunk {
    struct kvm_msrs head;
    struct kvm_msr_entry entry[MSRS_AT_ONCE];
};

static int call(struct vcpu *c, unsigned long request, void *data, struct kvm_failure *failure)
{
    int r = kvm_call(vcpu_ops(c), vcpu_fd(c), request, data);
    if (r < 0)
        *failure = (struct kvm_failure){.call = request};
    return r;
}

// ---- what KVM can do ----

static int ask(struct vm *vm, int fd, int capability, const char *needed_as, int *ret_value, struct kvm_failure *failure)
{
    int r = kvm_call_number(vm_ops(vm), fd, KVM_CHECK_EXTENSION, (unsigned long)capability);
    if (r < 0) {
        *failure = (struct kvm_failure){.call = KVM_CHECK_EXTENSION};
        return r;
    }
    if (r == 0 && needed_as != NULL) {
        *failure = (struct kvm_failure){.missing = needed_as};
        return -ENOTSUP;
    }
    *ret_value = r;
    return 0;
}

int vcpu_state_ask(struct vm *vm, struct vcpu_state_abilities *ret_can, struct kvm_failure *ret_failure)
{
    static const struct {
        int number;
        const char *needed_as;
    } asked[] = {{KVM_CAP_XSAVE, "KVM_CAP_XSAVE"},
                 {KVM_CAP_DEBUGREGS, "KVM_CAP_DEBUGREGS"},
                 {KVM_CAP_VCPU_EVENTS, "KVM_CAP_VCPU_EVENTS"},
                 {KVM_CAP_GET_TSC_KHZ, "KVM_CAP_GET_TSC_KHZ"},
                 {KVM_CAP_XCRS, NULL},
                 {KVM_CAP_TSC_CONTROL, NULL},
                 {KVM_CAP_XSAVE2, NULL}};
    int got[sizeof asked / sizeof asked[0]];
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        // The size of the vector registers is this machine's, the rest every machine's.
        int fd = asked[i].number == KVM_CAP_XSAVE2 ? vm_fd(vm) : vm_kvm_fd(vm);
        int r = ask(vm, fd, asked[i].number, asked[i].needed_as, &got[i], ret_failure);
        if (r < 0)
            return r;
    }
    struct vcpu_state_abilities can = {.xcrs = got[4] != 0, .tsc_control = got[5] != 0, .xsave_bytes = VCPU_XSAVE_MIN};
    if (got[6] > (int)VCPU_XSAVE_MIN) {
        can.xsave2 = true;
        can.xsave_bytes = (uint32_t)got[6];
    }
    if (can.xsave_bytes > VCPU_XSAVE_MAX) {
        *ret_failure = (struct kvm_failure){.missing = "vector registers of at most 16 KiB"};
        return -ENOTSUP;
    }
    *ret_can = can;
    return 0;
}

// ---- reading ----

static bool msr_is_wanted(uint32_t index)
{
    return index != MSR_MCG_CTL && (index < MSR_HYPERV_FIRST || index > MSR_HYPERV_LAST);
}

static int list_msrs(struct vm *vm, struct vcpu_msrs *msrs, struct kvm_failure *failure)
{
    struct {
        struct kvm_msr_list head;
        uint32_t index[VCPU_MSRS_MAX];
    } list = {.head.nmsrs = VCPU_MSRS_MAX};
    int r = kvm_call(vm_ops(vm), vm_kvm_fd(vm), KVM_GET_MSR_INDEX_LIST, &list);
    if (r == 0 && list.head.nmsrs > VCPU_MSRS_MAX)
        r = -E2BIG;
    if (r < 0) {
        *failure = (struct kvm_failure){.call = KVM_GET_MSR_INDEX_LIST};
        return r;
    }
    msrs->head.nmsrs = 0;
    for (uint32_t i = 0; i < list.head.nmsrs; i++)
        if (msr_is_wanted(list.index[i]))
            msrs->entry[msrs->head.nmsrs++] = (struct kvm_msr_entry){.index = list.index[i]};
    return 0;
}

// KVM stops at the first one that this vCPU does not have: that one is left out.
static int read_msrs(struct vcpu *vcpu, struct vcpu_msrs *msrs, struct kvm_failure *failure)
{
    uint32_t kept = 0;
    for (uint32_t at = 0; at < msrs->head.nmsrs;) {
        uint32_t left = msrs->head.nmsrs - at, n = left < MSRS_AT_ONCE ? left : MSRS_AT_ONCE;
        struct msr_chunk chunk = {.head.nmsrs = n};
        memcpy(chunk.entry, &msrs->entry[at], n * sizeof chunk.entry[0]);
        int r = call(vcpu, KVM_GET_MSRS, &chunk, failure);
        if (r < 0)
            return r;
        uint32_t got = (uint32_t)r < n ? (uint32_t)r : n;
        memmove(&msrs->entry[kept], chunk.entry, got * sizeof chunk.entry[0]);
        kept += got;
        at += got < n ? got + 1 : n;
    }
    msrs->head.nmsrs = kept;
    return 0;
}

static struct kvm_msr_entry *find_msr(struct vcpu_msrs *msrs, uint32_t index)
{
    for (uint32_t i = 0; i < msrs->head.nmsrs; i++)
        if (msrs->entry[i].index == index)
            return &msrs->entry[i];
    return NULL;
}

// A timer that has just fired is nowhere to be read: its interrupt may not have been delivered.  One too many does no harm, one
// too few is a vCPU that sleeps for ever.
static void keep_timer_alive(struct vcpu_msrs *msrs)
{
    const struct kvm_msr_entry *tsc = find_msr(msrs, MSR_TSC);
    struct kvm_msr_entry *deadline = find_msr(msrs, MSR_TSC_DEADLINE);
    if (tsc != NULL && deadline != NULL && deadline->data == 0)
        deadline->data = tsc->data;
}

static int read_all(struct vm *vm, struct vcpu *c, const struct vcpu_state_abilities *can, struct vcpu_state *s,
                    struct kvm_failure *failure)
{
    int r = call(c, KVM_GET_MP_STATE, &s->mp_state, failure);
    if (r >= 0)
        r = call(c, KVM_GET_REGS, &s->regs, failure);
    if (r >= 0)
        r = call(c, KVM_GET_SREGS, &s->sregs, failure);
    s->xsave_bytes = can->xsave_bytes;
    if (r >= 0)
        r = call(c, can->xsave2 ? KVM_GET_XSAVE2 : KVM_GET_XSAVE, s->xsave, failure);
    s->has_xcrs = can->xcrs;
    if (r >= 0 && can->xcrs)
        r = call(c, KVM_GET_XCRS, &s->xcrs, failure);
    if (r >= 0)
        r = call(c, KVM_GET_DEBUGREGS, &s->debugregs, failure);
    if (r >= 0)
        r = call(c, KVM_GET_LAPIC, &s->lapic, failure);
    if (r >= 0 && (r = call(c, KVM_GET_TSC_KHZ, NULL, failure)) >= 0)
        s->tsc_khz = (uint32_t)r;
    s->cpuid.head.nent = CPUID_ENTRIES_MAX;
    if (r >= 0)
        r = call(c, KVM_GET_CPUID2, &s->cpuid, failure);
    if (r >= 0)
        r = list_msrs(vm, &s->msrs, failure);
    if (r >= 0)
        r = read_msrs(c, &s->msrs, failure);
    if (r >= 0)
        r = call(c, KVM_GET_VCPU_EVENTS, &s->events, failure);
    return r < 0 ? r : 0;
}

int vcpu_read_state(struct vm *vm, struct vcpu *vcpu, const struct vcpu_state_abilities *can, struct vcpu_state *ret_state,
                    struct kvm_failure *ret_failure)
{
    memset(ret_state, 0, sizeof *ret_state);
    int r = read_all(vm, vcpu, can, ret_state, ret_failure);
    if (r == 0)
        keep_timer_alive(&ret_state->msrs);
    return r;
}

// ---- writing ----

static bool msr_is_time(uint32_t index)
{
    return index == MSR_TSC || index == MSR_TSC_DEADLINE;
}

// What KVM refuses is an error, but for a zero: that is what a register is without being written.
static int write_chunk(struct vcpu *vcpu, struct msr_chunk *chunk, struct kvm_failure *failure)
{
    for (uint32_t at = 0, n = chunk->head.nmsrs; at < n;) {
        struct msr_chunk rest = {.head.nmsrs = n - at};
        memcpy(rest.entry, &chunk->entry[at], (n - at) * sizeof rest.entry[0]);
        int r = call(vcpu, KVM_SET_MSRS, &rest, failure);
        if (r < 0)
            return r;
        at += (uint32_t)r;
        if (at < n && chunk->entry[at].data != 0) {
            *failure = (struct kvm_failure){.call = KVM_SET_MSRS, .msr = chunk->entry[at].index};
            return -EINVAL;
        }
        at++;
    }
    return 0;
}

static int write_msrs(struct vcpu *vcpu, const struct vcpu_msrs *msrs, struct kvm_failure *failure)
{
    for (uint32_t at = 0; at < msrs->head.nmsrs;) {
        struct msr_chunk chunk = {0};
        for (; at < msrs->head.nmsrs && chunk.head.nmsrs < MSRS_AT_ONCE; at++)
            if (!msr_is_time(msrs->entry[at].index))
                chunk.entry[chunk.head.nmsrs++] = msrs->entry[at];
        int r = write_chunk(vcpu, &chunk, failure);
        if (r < 0)
            return r;
    }
    return 0;
}

// The TSC must run as fast as it did.
static int write_tsc_rate(struct vcpu *vcpu, const struct vcpu_state_abilities *can, uint32_t khz, struct kvm_failure *failure)
{
    int now = call(vcpu, KVM_GET_TSC_KHZ, NULL, failure);
    if (now < 0)
        return now;
    uint32_t have = (uint32_t)now, apart = have > khz ? have - khz : khz - have;
    if (apart <= khz / TSC_TOLERANCE)
        return 0;
    if (!can->tsc_control) {
        *failure = (struct kvm_failure){.missing = "KVM_CAP_TSC_CONTROL, for a TSC as fast as where the snapshot was made"};
        return -ENOTSUP;
    }
    return call(vcpu, KVM_SET_TSC_KHZ, (void *)(unsigned long)khz, failure);
}

static int write_registers(struct vcpu *c, const struct vcpu_state_abilities *can, const struct vcpu_state *s,
                           struct kvm_failure *failure)
{
    int r = call(c, KVM_SET_MP_STATE, (void *)&s->mp_state, failure);
    if (r >= 0)
        r = call(c, KVM_SET_REGS, (void *)&s->regs, failure);
    if (r >= 0)
        r = call(c, KVM_SET_SREGS, (void *)&s->sregs, failure);
    if (r >= 0)
        r = call(c, KVM_SET_XSAVE, (void *)s->xsave, failure);
    if (r >= 0 && s->has_xcrs)
        r = call(c, KVM_SET_XCRS, (void *)&s->xcrs, failure);
    if (r >= 0)
        r = call(c, KVM_SET_DEBUGREGS, (void *)&s->debugregs, failure);
    if (r >= 0)
        r = call(c, KVM_SET_LAPIC, (void *)&s->lapic, failure);
    if (r >= 0)
        r = write_msrs(c, &s->msrs, failure);
    if (r >= 0)
        r = call(c, KVM_SET_VCPU_EVENTS, (void *)&s->events, failure);
    return r < 0 ? r : 0;
}

int vcpu_write_state(struct vcpu *vcpu, const struct vcpu_state_abilities *can, const struct vcpu_state *state,
                     struct kvm_failure *ret_failure)
{
    if (state->xsave_bytes != can->xsave_bytes || state->has_xcrs != can->xcrs) {
        *ret_failure = (struct kvm_failure){.missing = "the vector registers of the processor the snapshot was made on"};
        return -ENOTSUP;
    }
    int r = write_tsc_rate(vcpu, can, state->tsc_khz, ret_failure);
    if (r >= 0)
        r = call(vcpu, KVM_SET_CPUID2, (void *)&state->cpuid, ret_failure);
    return r < 0 ? r : write_registers(vcpu, can, state, ret_failure);
}

int vcpu_write_time(struct vcpu *vcpu, const struct vcpu_state *state, struct kvm_failure *ret_failure)
{
    static const uint32_t order[] = {MSR_TSC, MSR_TSC_DEADLINE};
    struct msr_chunk chunk = {0};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const struct kvm_msr_entry *msr = find_msr((struct vcpu_msrs *)&state->msrs, order[i]);
        if (msr != NULL)
            chunk.entry[chunk.head.nmsrs++] = *msr;
    }
    return write_chunk(vcpu, &chunk, ret_failure);
}

int vcpu_tell_stopped(struct vcpu *vcpu, struct kvm_failure *ret_failure)
{
    int r = call(vcpu, KVM_KVMCLOCK_CTRL, NULL, ret_failure);
    return r == -EINVAL ? 0 : r;  // it does not use kvmclock
}
