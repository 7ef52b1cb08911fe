// The machine over a KVM that is not there: the order of the calls, what each shape gives KVM, every call failing once, and the
// ends of a guest.
#include "base/cleanup.h"
#include "fake_kvm.h"
#include "unit.h"
#include "vmm/kvm/cpuid.h"
#include "vmm/machine.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ENTRY = 0x1000000, DEVICES = 4, QUEUES = 3, DEADLINE_MS = 30000 };
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static void no_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    memset(data, 0x5a, len);
}

static void no_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
}

static const struct machine_device *some_devices(void)
{
    static struct machine_device devices[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = (struct machine_device){.read = no_read, .write = no_write, .irq_fd = 600 + i, .queues = QUEUES};
        for (int q = 0; q < QUEUES; q++)
            devices[i].notify_fd[q] = 700 + 10 * i + q;
    }
    return devices;
}

static struct machine_config config_of(struct fake_kvm *fake, const struct guest_memory *memory, unsigned vcpus)
{
    return (struct machine_config){
        .ops = &fake->ops,
        .kvm = FAKE_KVM_FD,
        .memory = memory,
        .vcpus = vcpus,
        .entry = gpa(ENTRY),
        .devices = some_devices(),
        .device_count = DEVICES,
    };
}

static struct guest_memory *memory_of(uint64_t bytes)
{
    struct guest_memory *memory;
    assert_int_equal(guest_memory_new(bytes, &memory), 0);
    return memory;
}

// Every call of `first` comes before every call of `then`.
static void assert_order(const struct fake_kvm *fake, unsigned long first, unsigned long then)
{
    size_t last = FAKE_CALLS_MAX;
    for (size_t at = 0; (at = fake_kvm_find(fake, first, at)) != FAKE_CALLS_MAX; at++)
        last = at;
    assert_int_not_equal(last, FAKE_CALLS_MAX);
    assert_int_not_equal(fake_kvm_find(fake, then, 0), FAKE_CALLS_MAX);
    assert_true(last < fake_kvm_find(fake, then, 0));
}

static void calls_come_in_order(void **state)
{
    static struct fake_kvm fake;
    fake_kvm_init(&fake);
    struct guest_memory *memory = memory_of(5 * GIB);
    struct machine_config config = config_of(&fake, memory, 4);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    assert_order(&fake, KVM_CHECK_EXTENSION, KVM_CREATE_VM);
    assert_order(&fake, KVM_CREATE_VM, KVM_SET_USER_MEMORY_REGION);
    assert_order(&fake, KVM_SET_USER_MEMORY_REGION, KVM_CREATE_IRQCHIP);
    assert_order(&fake, KVM_SET_IDENTITY_MAP_ADDR, KVM_CREATE_VCPU);
    assert_order(&fake, KVM_SET_TSS_ADDR, KVM_CREATE_VCPU);
    assert_order(&fake, KVM_CREATE_IRQCHIP, KVM_CREATE_VCPU);
    assert_order(&fake, KVM_CREATE_VCPU, KVM_SET_CPUID2);
    assert_order(&fake, KVM_GET_SUPPORTED_CPUID, KVM_SET_CPUID2);
    assert_order(&fake, KVM_CREATE_IRQCHIP, KVM_IRQFD);
    assert_order(&fake, KVM_SET_CPUID2, KVM_SET_REGS);
    assert_order(&fake, KVM_GET_SREGS, KVM_SET_SREGS);
    // Of each vCPU: CPUID, then MSRs.
    for (size_t at = 0; (at = fake_kvm_find(&fake, KVM_SET_CPUID2, at)) != FAKE_CALLS_MAX; at++) {
        assert_int_equal(fake.call[at + 1].request, KVM_SET_MSRS);
        assert_int_equal(fake.call[at + 1].fd, fake.call[at].fd);
    }
    // The boot processor is number 0, and only it gets registers.
    assert_int_equal(fake.call[fake_kvm_find(&fake, KVM_CREATE_VCPU, 0)].number, 0);
    assert_int_equal(fake_kvm_vcpu(&fake, fake.call[fake_kvm_find(&fake, KVM_SET_REGS, 0)].fd), 0);
    assert_int_equal(fake_kvm_count(&fake, KVM_SET_REGS), 1);
    assert_int_equal(fake_kvm_count(&fake, KVM_SET_MSRS), 4);
    // No PIT.
    assert_int_equal(fake_kvm_count(&fake, KVM_CREATE_PIT2), 0);
    machine_free(machine);
    assert_int_equal(fake.open_fds, 0);
    assert_int_equal(fake.mapped, 0);
    guest_memory_free(memory);
}

static void shapes_give_slots_vcpus_and_lines(void **state)
{
    static const struct {
        uint64_t bytes;
        unsigned vcpus;
        uint64_t low, high;
    } shapes[] = {{128 * MIB, 1, 128 * MIB, 0},
                  {3 * GIB, 4, 3 * GIB, 0},
                  {5 * GIB, 4, 3 * GIB, 2 * GIB},
                  {64 * GIB, 32, 3 * GIB, 61 * GIB}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        static struct fake_kvm fake;
        fake_kvm_init(&fake);
        struct guest_memory *memory = memory_of(shapes[i].bytes);
        struct machine_config config = config_of(&fake, memory, shapes[i].vcpus);
        struct machine *machine;
        struct err err;
        assert_int_equal(machine_new(&config, &machine, &err), 0);
        assert_int_equal(fake.slots, shapes[i].high != 0 ? 2 : 1);
        assert_int_equal(fake.slot[0].guest_phys_addr, 0);
        assert_int_equal(fake.slot[0].memory_size, shapes[i].low);
        assert_ptr_equal((void *)(uintptr_t)fake.slot[0].userspace_addr, guest_memory_at(memory, gpa(0), 1));
        if (shapes[i].high != 0) {
            assert_int_equal(fake.slot[1].slot, 1);
            assert_int_equal(fake.slot[1].guest_phys_addr, 4 * GIB);
            assert_int_equal(fake.slot[1].memory_size, shapes[i].high);
            assert_ptr_equal((void *)(uintptr_t)fake.slot[1].userspace_addr, guest_memory_at(memory, gpa(4 * GIB), 1));
        }
        assert_int_equal(fake_kvm_count(&fake, KVM_CREATE_VCPU), shapes[i].vcpus);
        for (unsigned v = 0; v < shapes[i].vcpus; v++)
            assert_int_equal(cpuid_find(&fake.cpuid[v], 1, 0)->ebx >> 24, v);
        machine_free(machine);
        guest_memory_free(memory);
    }
}

static void devices_get_lines_and_notifications(void **state)
{
    static struct fake_kvm fake;
    fake_kvm_init(&fake);
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_config config = config_of(&fake, memory, 1);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    assert_int_equal(fake.irqfds, 1 + DEVICES);
    assert_int_equal(fake.irqfd[0].gsi, 4);
    assert_int_equal(fake.ioeventfds, DEVICES * QUEUES);
    for (int i = 0; i < DEVICES; i++) {
        assert_int_equal(fake.irqfd[1 + i].gsi, 5 + i);
        assert_int_equal(fake.irqfd[1 + i].fd, 600 + i);
        assert_int_equal(fake.irqfd[1 + i].flags, 0);
        for (int q = 0; q < QUEUES; q++) {
            const struct kvm_ioeventfd *io = &fake.ioeventfd[i * QUEUES + q];
            assert_int_equal(io->addr, 0xd0000050 + 0x1000 * (unsigned)i);
            assert_int_equal(io->len, 4);
            assert_int_equal(io->datamatch, q);
            assert_int_equal(io->flags, KVM_IOEVENTFD_FLAG_DATAMATCH);
            assert_int_equal(io->fd, 700 + 10 * i + q);
        }
    }
    assert_int_equal(fake.regs.rip, ENTRY);
    assert_int_equal(fake.regs.rsi, 0x7000);
    assert_int_equal(fake.regs.rflags, 2);
    assert_int_equal(fake.sregs.cr3, 0x9000);
    assert_int_equal(fake.sregs.efer, 0x500);
    assert_int_equal(fake.sregs.cr0, 0x80000011);
    assert_int_equal(fake.sregs.cs.l, 1);
    machine_free(machine);
    guest_memory_free(memory);
}

// Whatever fails, wherever: the error comes back with the call's name, nothing is left, no output is touched.
static void every_call_may_fail(void **state)
{
    static struct fake_kvm fake;
    static const int errors[] = {EPERM, ENOENT, EINTR,  EIO,    E2BIG,  EBADF,  EAGAIN, ENOMEM, EACCES, EFAULT,
                                 EBUSY, EEXIST, ENODEV, EINVAL, EMFILE, ENFILE, ENOTTY, ENOSPC, ENOSYS, EOPNOTSUPP};
    struct guest_memory *memory = memory_of(5 * GIB);
    fake_kvm_init(&fake);
    struct machine_config config = config_of(&fake, memory, 2);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    machine_free(machine);
    size_t calls = fake.calls;
    assert_true(calls > 40);
    for (size_t at = 1; at <= calls; at++) {
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
            fake_kvm_init(&fake);
            fake.fail_at = at;
            fake.fail_with = -errors[e];
            machine = (void *)&fake;
            err.text[0] = '\0';
            assert_int_equal(machine_new(&config, &machine, &err), -errors[e]);
            assert_ptr_equal(machine, &fake);
            unsigned long request = fake.call[at - 1].request;
            assert_non_null(strstr(err.text, request != 0 ? kvm_call_name(request) : "cannot make"));
            assert_int_equal(fake.calls, at);
            assert_int_equal(fake.open_fds, 0);
            assert_int_equal(fake.mapped, 0);
        }
    }
    guest_memory_free(memory);
}

static void what_is_missing_is_named(void **state)
{
    static struct fake_kvm fake;
    static const int needed[] = {KVM_CAP_USER_MEMORY, KVM_CAP_IRQCHIP,        KVM_CAP_IRQFD,
                                 KVM_CAP_IOEVENTFD,   KVM_CAP_IMMEDIATE_EXIT, KVM_CAP_TSC_DEADLINE_TIMER,
                                 KVM_CAP_EXT_CPUID,   KVM_CAP_MAX_VCPUS};
    struct guest_memory *memory = memory_of(128 * MIB);
    struct err err;
    struct machine *machine = NULL;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        fake_kvm_init(&fake);
        fake.missing = needed[i];
        struct machine_config config = config_of(&fake, memory, 1);
        assert_int_equal(machine_new(&config, &machine, &err), -ENOTSUP);
        assert_non_null(strstr(err.text, "KVM_CAP_"));
        assert_int_equal(fake_kvm_count(&fake, KVM_CREATE_VM), 0);
    }
    fake_kvm_init(&fake);
    fake.api_version = 11;
    struct machine_config config = config_of(&fake, memory, 1);
    assert_int_equal(machine_new(&config, &machine, &err), -ENOTSUP);
    fake_kvm_init(&fake);
    fake.msrs_taken = 1;  // KVM stops at one it refuses
    assert_int_equal(machine_new(&config, &machine, &err), -EINVAL);
    assert_non_null(strstr(err.text, "KVM_SET_MSRS"));
    assert_int_equal(fake.open_fds, 0);
    guest_memory_free(memory);
}

static void limits_have_two_sides(void **state)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct err err;
    struct machine *machine = NULL;
    fake_kvm_init(&fake);
    struct machine_config config = config_of(&fake, memory, 0);
    assert_int_equal(machine_new(&config, &machine, &err), -EINVAL);
    config.vcpus = LAYOUT_VCPUS_MAX + 1;
    assert_int_equal(machine_new(&config, &machine, &err), -EINVAL);
    config.vcpus = LAYOUT_VCPUS_MAX;
    config.device_count = LAYOUT_VIRTIO_MAX + 1;
    assert_int_equal(machine_new(&config, &machine, &err), -EINVAL);
    static struct machine_device many[LAYOUT_VIRTIO_MAX];
    for (int i = 0; i < LAYOUT_VIRTIO_MAX; i++)
        many[i] = (struct machine_device){.read = no_read, .write = no_write, .irq_fd = i, .queues = 1};
    config.devices = many;
    config.device_count = LAYOUT_VIRTIO_MAX;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    machine_free(machine);
    guest_memory_free(memory);
}

// ---- running ----

// A guest that does what `run_arg` (a function) does, on its vCPU 0; the others wait for a kick.
typedef int guest_fn(struct kvm_run *run, unsigned turn);

static unsigned inside;  // vCPUs in their guest

static int run_guest_inside(struct fake_kvm *fake, int fd, struct kvm_run *run)
{
    static unsigned turn[FAKE_VCPUS_MAX];
    unsigned id = fake_kvm_vcpu(fake, fd);
    if (__atomic_load_n(&run->immediate_exit, __ATOMIC_SEQ_CST))
        return -EINTR;
    if (id == 0) {
        guest_fn *guest = *(guest_fn **)fake->run_arg;
        int r = guest(run, turn[0]++);
        if (r != -EAGAIN)
            turn[0] = 0;
        return r == -EAGAIN ? 0 : r;
    }
    struct timespec nap = {.tv_nsec = 1000000};
    nanosleep(&nap, NULL);
    return -EAGAIN;
}

static int run_guest(struct fake_kvm *fake, int fd, struct kvm_run *run)
{
    __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
    int r = run_guest_inside(fake, fd, run);
    __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
    return r;
}

static struct processors_end end_of(guest_fn *guest, unsigned vcpus)
{
    static struct fake_kvm fake;
    fake_kvm_init(&fake);
    fake.run = run_guest;
    fake.run_arg = &guest;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_config config = config_of(&fake, memory, vcpus);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    struct pollfd ended = {.fd = machine_ended_fd(machine), .events = POLLIN};
    assert_int_equal(poll(&ended, 1, 0), 0);
    assert_int_equal(processors_run(machine_processors(machine)), 0);
    assert_int_equal(poll(&ended, 1, DEADLINE_MS), 1);
    struct processors_end end;
    processors_ended(machine_processors(machine), &end);
    machine_free(machine);
    assert_int_equal(fake.open_fds, 0);
    guest_memory_free(memory);
    return end;
}

static void out(struct kvm_run *run, uint16_t port, uint8_t value)
{
    run->exit_reason = KVM_EXIT_IO;
    run->io.direction = KVM_EXIT_IO_OUT;
    run->io.port = port;
    run->io.size = 1;
    run->io.count = 1;
    run->io.data_offset = 4096;
    ((uint8_t *)run)[4096] = value;
}

static int powers_off(struct kvm_run *run, unsigned turn)
{
    out(run, 0x600, 5 << 2 | 0x20);
    return 0;
}

static int resets_by_acpi(struct kvm_run *run, unsigned turn)
{
    out(run, 0x602, 0xfe);
    return 0;
}

static int resets_by_keyboard(struct kvm_run *run, unsigned turn)
{
    out(run, 0x64, 0xfe);
    return 0;
}

static int faults(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_SHUTDOWN;
    return 0;
}

static int fails_to_enter(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_FAIL_ENTRY;
    run->fail_entry.hardware_entry_failure_reason = 0x80000021;
    return 0;
}

static int breaks_kvm(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_INTERNAL_ERROR;
    run->emulation_failure.suberror = KVM_INTERNAL_ERROR_EMULATION;
    run->emulation_failure.ndata = 3;
    run->emulation_failure.flags = KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES;
    run->emulation_failure.insn_size = 200;  // KVM would not, but the text must not overflow
    memset(run->emulation_failure.insn_bytes, 0xf3, sizeof run->emulation_failure.insn_bytes);
    return 0;
}

static int crashes(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_SYSTEM_EVENT;
    run->system_event.type = KVM_SYSTEM_EVENT_CRASH;
    return 0;
}

static int does_the_unheard_of(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_HLT;
    return 0;
}

static int cannot_run(struct kvm_run *run, unsigned turn)
{
    return -EFAULT;
}

static void every_end_has_its_reason(void **state)
{
    static const struct {
        guest_fn *guest;
        enum vmm_reason reason;
        const char *detail;
    } ends[] = {
        {powers_off, VMM_REASON_POWER_OFF, "powered itself off"},
        {resets_by_acpi, VMM_REASON_RESET, "reset itself"},
        {resets_by_keyboard, VMM_REASON_RESET, "reset itself"},
        {faults, VMM_REASON_TRIPLE_FAULT, "triple fault"},
        {fails_to_enter, VMM_REASON_FAIL_ENTRY, "0x80000021"},
        {breaks_kvm, VMM_REASON_INTERNAL_ERROR, "internal error 1, instruction f3 f3"},
        {crashes, VMM_REASON_SYSTEM_EVENT, "system event 3"},
        {does_the_unheard_of, VMM_REASON_UNKNOWN_EXIT, "exit 5"},
        {cannot_run, VMM_REASON_RUN_FAILED, "EFAULT"},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        for (unsigned vcpus = 1; vcpus <= 4; vcpus += 3) {
            struct processors_end end = end_of(ends[i].guest, vcpus);
            assert_int_equal(end.reason, ends[i].reason);
            assert_non_null(strstr(end.detail, ends[i].detail));
        }
    }
}

static int spins(struct kvm_run *run, unsigned turn)
{
    run->exit_reason = KVM_EXIT_MMIO;
    run->mmio.phys_addr = 0xd0000000 + 0x10000000 * (turn % 2);  // a device, then nothing
    run->mmio.len = 4;
    run->mmio.is_write = turn % 4 < 2;
    return -EAGAIN;
}

static void pause_and_resume(void **state)
{
    static struct fake_kvm fake;
    guest_fn *guest = spins;
    fake_kvm_init(&fake);
    fake.run = run_guest;
    fake.run_arg = &guest;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_config config = config_of(&fake, memory, 4);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    struct processors *processors = machine_processors(machine);
    assert_int_equal(processors_pause(processors), -EALREADY);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(processors_run(processors), 0);
        assert_int_equal(processors_run(processors), -EALREADY);
        assert_int_equal(processors_pause(processors), 0);
        assert_int_equal(__atomic_load_n(&inside, __ATOMIC_SEQ_CST), 0);
    }
    assert_int_equal(processors_run(processors), 0);
    struct vmm_stats stats;
    do {
        stats = (struct vmm_stats){0};
        processors_count(processors, &stats);
    } while (stats.unknown_mmio < 10);
    // Counts of processors that run are not of one moment.
    assert_int_equal(processors_pause(processors), 0);
    stats = (struct vmm_stats){0};
    processors_count(processors, &stats);
    assert_true(stats.exits_mmio >= stats.unknown_mmio);
    assert_int_equal(processors_run(processors), 0);
    // The first end counts.
    processors_end(processors, VMM_REASON_ASKED, "first");
    processors_end(processors, VMM_REASON_RESET, "second");
    struct processors_end end;
    processors_ended(processors, &end);
    assert_int_equal(end.reason, VMM_REASON_ASKED);
    assert_string_equal(end.detail, "first");
    machine_free(machine);
    guest_memory_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_in_order),
        cmocka_unit_test(shapes_give_slots_vcpus_and_lines),
        cmocka_unit_test(devices_get_lines_and_notifications),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(limits_have_two_sides),
        cmocka_unit_test(every_end_has_its_reason),
        cmocka_unit_test(pause_and_resume),
    };
    return cmocka_run_group_tests_name("vmm_machine", tests, NULL, NULL);
}
