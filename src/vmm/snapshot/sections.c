#include "vmm/snapshot/sections.h"

#include "vmm/layout.h"
#include "vmm/mem/guest_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Files hold these structs as they are: no byte may be padding, and no size may change without a new version.
_Static_assert(sizeof(struct host_identity) == 152, "host");
_Static_assert(sizeof(struct snapshot_shape) == 16, "shape");
_Static_assert(sizeof(struct virtio_mmio_state) == 160 && sizeof(struct device_state) == 168, "transport");
_Static_assert(sizeof(struct vsock_state) == 16, "vsock");
_Static_assert(sizeof(struct serial_state) == 8, "serial");

// The parts of a vCPU whose size is fixed.
static const struct part {
    enum vmstate_type type;
    size_t offset, size;
} parts[] = {
#define PART(type, member)                                                                                                     \
    {                                                                                                                          \
        type, offsetof(struct vcpu_state, member), sizeof((struct vcpu_state *)0)->member                                      \
    }
    PART(VMSTATE_MP_STATE, mp_state),   PART(VMSTATE_REGS, regs),   PART(VMSTATE_SREGS, sregs),
    PART(VMSTATE_DEBUGREGS, debugregs), PART(VMSTATE_LAPIC, lapic), PART(VMSTATE_VCPU_EVENTS, events),
    PART(VMSTATE_TSC_KHZ, tsc_khz),
#undef PART
};
enum { PARTS = sizeof parts / sizeof parts[0] };

static size_t cpuid_bytes(uint32_t entries)
{
    return sizeof(struct kvm_cpuid2) + entries * sizeof(struct kvm_cpuid_entry2);
}

static size_t msrs_bytes(uint32_t entries)
{
    return sizeof(struct kvm_msrs) + entries * sizeof(struct kvm_msr_entry);
}

static int add_vcpu(const struct vcpu_state *v, uint32_t i, struct vmstate *state)
{
    int r = vmstate_add(state, VMSTATE_CPUID, i, &v->cpuid, cpuid_bytes(v->cpuid.head.nent));
    for (size_t p = 0; r == 0 && p < PARTS; p++)
        r = vmstate_add(state, parts[p].type, i, (const uint8_t *)v + parts[p].offset, parts[p].size);
    if (r == 0)
        r = vmstate_add(state, VMSTATE_XSAVE, i, v->xsave, v->xsave_bytes);
    if (r == 0 && v->has_xcrs)
        r = vmstate_add(state, VMSTATE_XCRS, i, &v->xcrs, sizeof v->xcrs);
    return r == 0 ? vmstate_add(state, VMSTATE_MSRS, i, &v->msrs, msrs_bytes(v->msrs.head.nmsrs)) : r;
}

static int add_devices(const struct devices_state *d, struct vmstate *state)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < d->count; i++)
        r = vmstate_add(state, VMSTATE_TRANSPORT, i, &d->device[i], sizeof d->device[i]);
    if (r == 0 && d->disk_bytes != 0)
        r = vmstate_add(state, VMSTATE_DISK, 0, &d->disk_bytes, sizeof d->disk_bytes);
    if (r == 0 && d->has_vsock)
        r = vmstate_add(state, VMSTATE_VSOCK, 0, &d->vsock, sizeof d->vsock);
    return r;
}

int sections_add(const struct snapshot *snapshot, struct vmstate *state)
{
    const struct machine_state *m = &snapshot->machine;
    int r = vmstate_add(state, VMSTATE_HOST, 0, &snapshot->host, sizeof snapshot->host);
    if (r == 0)
        r = vmstate_add(state, VMSTATE_SHAPE, 0, &snapshot->shape, sizeof snapshot->shape);
    for (uint32_t i = 0; r == 0 && i < m->vcpus; i++)
        r = add_vcpu(&m->vcpu[i], i, state);
    for (uint32_t i = 0; r == 0 && i < MACHINE_IRQCHIPS; i++)
        r = vmstate_add(state, VMSTATE_IRQCHIP, i, &m->chip[i], sizeof m->chip[i]);
    if (r == 0)
        r = vmstate_add(state, VMSTATE_CLOCK, 0, &m->clock_ns, sizeof m->clock_ns);
    if (r == 0)
        r = vmstate_add(state, VMSTATE_SERIAL, 0, &m->serial, sizeof m->serial);
    return r == 0 ? add_devices(&snapshot->devices, state) : r;
}

// ---- back ----

// A section with a head that counts its entries, which `room` bytes are there for.
static int get_counted(const struct vmstate *state, enum vmstate_type type, uint32_t i, void *out, size_t room,
                       size_t (*bytes_of)(uint32_t entries), uint32_t most, struct err *err)
{
    const struct vmstate_section *s = vmstate_find(state, type, i);
    uint32_t entries = 0;
    if (s == NULL)
        return err_set(err, -EBADMSG, "section \"%s\" %u is missing", vmstate_type_name(type), i);
    if (s->len >= sizeof entries)
        memcpy(&entries, s->bytes, sizeof entries);
    if (entries == 0 || entries > most || s->len != bytes_of(entries) || s->len > room)
        return err_set(err, -EBADMSG, "section \"%s\" %u does not have as many entries as it says", vmstate_type_name(type), i);
    memcpy(out, s->bytes, s->len);
    return 0;
}

static int get_xsave(const struct vmstate *state, uint32_t i, struct vcpu_state *v, struct err *err)
{
    const struct vmstate_section *s = vmstate_find(state, VMSTATE_XSAVE, i);
    if (s == NULL || s->len < VCPU_XSAVE_MIN || s->len > VCPU_XSAVE_MAX)
        return err_set(err, -EBADMSG, "section \"%s\" %u is missing or of no possible size", vmstate_type_name(VMSTATE_XSAVE),
                       i);
    memcpy(v->xsave, s->bytes, s->len);
    v->xsave_bytes = (uint32_t)s->len;
    v->has_xcrs = vmstate_find(state, VMSTATE_XCRS, i) != NULL;
    return v->has_xcrs ? vmstate_get(state, VMSTATE_XCRS, i, &v->xcrs, sizeof v->xcrs, err) : 0;
}

static int get_vcpu(const struct vmstate *state, uint32_t i, struct vcpu_state *v, struct err *err)
{
    int r = get_counted(state, VMSTATE_CPUID, i, &v->cpuid, sizeof v->cpuid, cpuid_bytes, CPUID_ENTRIES_MAX, err);
    for (size_t p = 0; r == 0 && p < PARTS; p++)
        r = vmstate_get(state, parts[p].type, i, (uint8_t *)v + parts[p].offset, parts[p].size, err);
    if (r == 0)
        r = get_xsave(state, i, v, err);
    return r == 0 ? get_counted(state, VMSTATE_MSRS, i, &v->msrs, sizeof v->msrs, msrs_bytes, VCPU_MSRS_MAX, err) : r;
}

static int get_devices(const struct vmstate *state, uint32_t count, struct devices_state *d, struct err *err)
{
    int r = 0;
    d->count = count;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        r = vmstate_get(state, VMSTATE_TRANSPORT, i, &d->device[i], sizeof d->device[i], err);
    if (r == 0 && vmstate_find(state, VMSTATE_DISK, 0) != NULL)
        r = vmstate_get(state, VMSTATE_DISK, 0, &d->disk_bytes, sizeof d->disk_bytes, err);
    d->has_vsock = vmstate_find(state, VMSTATE_VSOCK, 0) != NULL;
    if (r == 0 && d->has_vsock)
        r = vmstate_get(state, VMSTATE_VSOCK, 0, &d->vsock, sizeof d->vsock, err);
    return r;
}

static int get_machine(const struct vmstate *state, struct machine_state *m, struct err *err)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < m->vcpus; i++)
        r = get_vcpu(state, i, &m->vcpu[i], err);
    for (uint32_t i = 0; r == 0 && i < MACHINE_IRQCHIPS; i++) {
        r = vmstate_get(state, VMSTATE_IRQCHIP, i, &m->chip[i], sizeof m->chip[i], err);
        if (r == 0 && m->chip[i].chip_id != i)
            r = err_set(err, -EBADMSG, "section \"%s\" %u is another chip's", vmstate_type_name(VMSTATE_IRQCHIP), i);
    }
    if (r == 0)
        r = vmstate_get(state, VMSTATE_CLOCK, 0, &m->clock_ns, sizeof m->clock_ns, err);
    return r == 0 ? vmstate_get(state, VMSTATE_SERIAL, 0, &m->serial, sizeof m->serial, err) : r;
}

static int check_shape(const struct snapshot_shape *s, struct err *err)
{
    if (s->vcpus == 0 || s->vcpus > LAYOUT_VCPUS_MAX || s->devices > DEVICES_MAX || s->memory_bytes < GUEST_MEMORY_MIN ||
        s->memory_bytes > GUEST_MEMORY_MAX || s->memory_bytes % GUEST_MEMORY_STEP != 0)
        return err_set(err, -EBADMSG, "section \"%s\" is of no machine that there can be", vmstate_type_name(VMSTATE_SHAPE));
    return 0;
}

// As many sections as a machine of this shape has: none is there that nobody would read.
static int check_count(const struct vmstate *state, const struct snapshot *s, struct err *err)
{
    struct vmstate *own = calloc(1, sizeof *own);
    if (own == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    int r = sections_add(s, own);
    size_t count = own->count;
    free(own);
    return r == 0 && count == state->count ? 0 : err_set(err, -EBADMSG, "it has sections that no such machine has");
}

int sections_get(const struct vmstate *state, struct snapshot *ret_snapshot, struct err *err)
{
    struct snapshot s = {0};
    int r = vmstate_get(state, VMSTATE_HOST, 0, &s.host, sizeof s.host, err);
    if (r == 0)
        r = vmstate_get(state, VMSTATE_SHAPE, 0, &s.shape, sizeof s.shape, err);
    if (r == 0)
        r = check_shape(&s.shape, err);
    if (r == 0 && machine_state_new(s.shape.vcpus, &s.machine) < 0)
        r = err_set(err, -ENOMEM, "out of memory");
    if (r == 0)
        r = get_machine(state, &s.machine, err);
    if (r == 0)
        r = get_devices(state, s.shape.devices, &s.devices, err);
    if (r == 0)
        r = check_count(state, &s, err);
    if (r < 0) {
        machine_state_free(&s.machine);
        return r;
    }
    *ret_snapshot = s;
    return 0;
}
