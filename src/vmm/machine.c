#include "vmm/machine.h"

#include "base/cleanup.h"
#include "vmm/device/power.h"
#include "vmm/device/serial.h"
#include "vmm/kvm/cpuid.h"
#include "vmm/virtio/mmio.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

struct machine {
    struct machine_config config;
    struct vm *vm;
    struct vcpu *vcpus[LAYOUT_VCPUS_MAX];
    struct bus ports, mmio;
    int serial_irq_fd;
    int ended_fd;
    struct vcpu_state_abilities can;
    struct serial *serial;
    struct power power;
    struct processors *processors;
};

static int kvm_err(struct err *err, int r, const struct kvm_failure *failure)
{
    if (failure->missing != NULL)
        return err_set(err, r, "this host's KVM lacks %s; a newer kernel or a host with hardware virtualisation is needed",
                       failure->missing);
    if (failure->msr != 0)
        return err_set(err, r, "KVM refuses the snapshot's value of the register 0x%x", failure->msr);
    if (failure->call != 0)
        return err_set(err, r, "%s failed: %s", kvm_call_name(failure->call), strerror(-r));
    return err_set(err, r, "cannot make the virtual machine: %s", strerror(-r));
}

static int new_vcpus(struct machine *m, struct kvm_failure *failure)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < m->config.vcpus; i++)
        r = vcpu_new(m->vm, i, failure, &m->vcpus[i]);
    return r;
}

static int start_vcpus(struct machine *m, struct err *err)
{
    struct kvm_failure failure = {0};
    cleanup_free struct cpuid_table *supported = calloc(2, sizeof *supported);
    if (supported == NULL)
        return kvm_err(err, -ENOMEM, &failure);
    struct cpuid_table *table = &supported[1];
    int r = vm_supported_cpuid(m->vm, supported, &failure);
    if (r == 0)
        r = new_vcpus(m, &failure);
    for (unsigned i = 0; r == 0 && i < m->config.vcpus; i++) {
        cpuid_filter(supported, m->config.vcpus, i, table);
        r = vcpu_prepare(m->vcpus[i], table, &failure);
    }
    if (r == 0)
        r = vcpu_enter_at(m->vcpus[0], m->config.entry, &failure);
    return r < 0 ? kvm_err(err, r, &failure) : 0;
}

// All vCPUs exist before the first gets its state: interrupts of one may be addressed to another.
static int restore_vcpus(struct machine *m, struct err *err)
{
    struct kvm_failure failure = {0};
    const struct machine_state *state = m->config.state;
    int r = vcpu_state_ask(m->vm, &m->can, &failure);
    if (r == 0)
        r = new_vcpus(m, &failure);
    for (unsigned i = 0; r == 0 && i < m->config.vcpus; i++)
        r = vcpu_write_state(m->vcpus[i], &m->can, &state->vcpu[i], &failure);
    if (r == 0)
        r = vm_write_chips(m->vm, state, &failure);
    return r < 0 ? kvm_err(err, r, &failure) : 0;
}

static void on_power(void *arg, enum vmm_reason reason)
{
    struct machine *m = arg;
    processors_end(m->processors, reason,
                   reason == VMM_REASON_RESET ? "the guest reset itself" : "the guest powered itself off");
}

static int connect_device(struct machine *m, unsigned n, struct kvm_failure *failure)
{
    const struct machine_device *d = &m->config.devices[n];
    uint64_t at = LAYOUT_VIRTIO + (uint64_t)n * LAYOUT_VIRTIO_BYTES;
    const struct bus_range range = {at, LAYOUT_VIRTIO_BYTES, d->read, d->write, d->arg};
    int r = bus_add(&m->mmio, &range);
    if (r == 0)
        r = vm_irqfd(m->vm, d->irq_fd, LAYOUT_VIRTIO_GSI + n, failure);
    for (unsigned q = 0; r >= 0 && q < d->queues; q++)
        r = vm_ioeventfd(m->vm, d->notify_fd[q], at + VIRTIO_MMIO_NOTIFY, q, failure);
    return r < 0 ? r : 0;
}

static int make_devices(struct machine *m, struct err *err)
{
    struct kvm_failure failure = {0};
    m->power = (struct power){.on_end = on_power, .arg = m};
    m->serial_irq_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = m->serial_irq_fd < 0 || m->ended_fd < 0 ? -errno : serial_new(m->serial_irq_fd, &m->serial);
    if (r == 0) {
        const struct bus_range range = {LAYOUT_SERIAL_PORT, LAYOUT_SERIAL_PORTS, serial_read, serial_write, m->serial};
        r = bus_add(&m->ports, &range);
    }
    if (r == 0)
        r = power_add(&m->power, &m->ports);
    if (r == 0)
        r = vm_irqfd(m->vm, m->serial_irq_fd, LAYOUT_SERIAL_GSI, &failure);
    for (unsigned i = 0; r >= 0 && i < m->config.device_count; i++)
        r = connect_device(m, i, &failure);
    if (r >= 0 && m->config.state != NULL)
        r = serial_restore(m->serial, &m->config.state->serial);
    return r < 0 ? kvm_err(err, r, &failure) : 0;
}

static int make_threads(struct machine *m, struct err *err)
{
    const struct processors_config config = {
        .vcpus = m->vcpus,
        .count = m->config.vcpus,
        .ports = &m->ports,
        .memory = &m->mmio,
        .filter = m->config.vcpu_filter,
        .ended_fd = m->ended_fd,
    };
    int r = processors_new(&config, &m->processors);
    return r < 0 ? err_set(err, r, "cannot start the vCPU threads: %s", strerror(-r)) : 0;
}

static int build(struct machine *m, struct err *err)
{
    struct kvm_failure failure = {0};
    const struct machine_config *c = &m->config;
    int r = vm_new(c->ops, c->kvm, c->memory, c->vcpus, &failure, &m->vm);
    if (r < 0)
        return kvm_err(err, r, &failure);
    r = c->state != NULL ? restore_vcpus(m, err) : start_vcpus(m, err);
    if (r == 0)
        r = make_devices(m, err);
    return r == 0 ? make_threads(m, err) : r;
}

int machine_new(const struct machine_config *config, struct machine **ret_machine, struct err *err)
{
    if (config->vcpus == 0 || config->vcpus > LAYOUT_VCPUS_MAX || config->device_count > LAYOUT_VIRTIO_MAX ||
        (config->state != NULL && config->state->vcpus != config->vcpus))
        return err_set(err, -EINVAL, "a machine has 1 to %d vCPUs and at most %d devices", LAYOUT_VCPUS_MAX, LAYOUT_VIRTIO_MAX);
    struct machine *m = calloc(1, sizeof *m);
    if (m == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    *m = (struct machine){.config = *config, .serial_irq_fd = -1, .ended_fd = -1};
    int r = build(m, err);
    if (r < 0) {
        machine_free(m);
        return r;
    }
    *ret_machine = m;
    return 0;
}

struct machine *machine_free(struct machine *machine)
{
    if (machine == NULL)
        return NULL;
    processors_free(machine->processors);
    for (unsigned i = 0; i < LAYOUT_VCPUS_MAX; i++)
        vcpu_free(machine->vcpus[i]);
    vm_free(machine->vm);
    serial_free(machine->serial);
    close_fd(&machine->serial_irq_fd);
    close_fd(&machine->ended_fd);
    free(machine);
    return NULL;
}

int machine_save(struct machine *machine, struct machine_state *ret_state, struct err *err)
{
    struct kvm_failure failure = {0};
    struct machine_state state;
    int r = machine_state_new(machine->config.vcpus, &state);
    if (r < 0)
        return err_set(err, r, "out of memory");
    r = vcpu_state_ask(machine->vm, &machine->can, &failure);
    for (unsigned i = 0; r == 0 && i < state.vcpus; i++)
        r = vcpu_read_state(machine->vm, machine->vcpus[i], &machine->can, &state.vcpu[i], &failure);
    if (r == 0)
        r = vm_read_clock(machine->vm, &state, &failure);
    if (r == 0)
        r = vm_read_chips(machine->vm, &state, &failure);
    if (r < 0) {
        machine_state_free(&state);
        return kvm_err(err, r, &failure);
    }
    serial_save(machine->serial, &state.serial);
    *ret_state = state;
    return 0;
}

int machine_start_time(struct machine *machine, struct err *err)
{
    const struct machine_state *state = machine->config.state;
    struct kvm_failure failure = {0};
    if (state == NULL)
        return 0;
    int r = vm_write_clock(machine->vm, state, &failure);
    for (unsigned i = 0; r == 0 && i < state->vcpus; i++)
        r = vcpu_write_time(machine->vcpus[i], &state->vcpu[i], &failure);
    for (unsigned i = 0; r == 0 && i < state->vcpus; i++)
        r = vcpu_tell_stopped(machine->vcpus[i], &failure);
    return r < 0 ? kvm_err(err, r, &failure) : 0;
}

struct processors *machine_processors(struct machine *machine)
{
    return machine->processors;
}

int machine_ended_fd(struct machine *machine)
{
    return machine->ended_fd;
}

size_t machine_console(struct machine *machine, void *bytes, size_t n, uint64_t *ret_total)
{
    return serial_tail(machine->serial, bytes, n, ret_total);
}
