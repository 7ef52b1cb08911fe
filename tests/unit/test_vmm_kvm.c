// The machine on the real KVM of this host, with guests of a few instructions: enough for any KVM, also those that could not
// run a stock kernel.  Skipped where there is no /dev/kvm.
#include "base/cleanup.h"
#include "unit.h"
#include "vmm/boot/start.h"
#include "vmm/kvm/cpuid.h"
#include "vmm/machine.h"
#include "vmm/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ENTRY = 0x100000, DEADLINE_MS = 60000 };
#define MIB (UINT64_C(1) << 20)

static int kvm = -1;

struct device {
    uint32_t written;
    uint32_t offset;
    unsigned writes;
};

static void device_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    memset(data, 0, len);
    *(uint8_t *)data = (uint8_t)(0x40 + offset);
}

static void device_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct device *d = arg;
    d->offset = offset;
    d->writes++;
    memcpy(&d->written, data, len < sizeof d->written ? len : sizeof d->written);
}

struct rig {
    struct guest_memory *memory;
    struct machine *machine;
    struct device device;
    int irq_fd, notify_fd;
};

static void prepare(struct rig *rig, const uint8_t *code, size_t n, uint64_t bytes)
{
    memset(rig, 0, sizeof *rig);
    rig->irq_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    rig->notify_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_int_equal(guest_memory_new(bytes, &rig->memory), 0);
    assert_int_equal(start_tables_write(rig->memory), 0);
    memcpy(guest_memory_at(rig->memory, gpa(ENTRY), n), code, n);
}

static void go(struct rig *rig, const struct kvm_ops *ops, unsigned vcpus)
{
    struct machine_device device = {
        .read = device_read, .write = device_write, .arg = &rig->device, .irq_fd = rig->irq_fd, .queues = 1};
    device.notify_fd[0] = rig->notify_fd;
    const struct machine_config config = {.ops = ops,
                                          .kvm = kvm,
                                          .memory = rig->memory,
                                          .vcpus = vcpus,
                                          .entry = gpa(ENTRY),
                                          .devices = &device,
                                          .device_count = 1};
    struct err err = {0};
    if (machine_new(&config, &rig->machine, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(processors_run(machine_processors(rig->machine)), 0);
}

static void start(struct rig *rig, const uint8_t *code, size_t n, unsigned vcpus, uint64_t bytes)
{
    prepare(rig, code, n, bytes);
    go(rig, &kvm_ops_kernel, vcpus);
}

static struct processors_end end_of(struct rig *rig)
{
    struct pollfd ended = {.fd = machine_ended_fd(rig->machine), .events = POLLIN};
    assert_int_equal(poll(&ended, 1, DEADLINE_MS), 1);
    struct processors_end end;
    processors_ended(machine_processors(rig->machine), &end);
    return end;
}

static void stop(struct rig *rig)
{
    machine_free(rig->machine);
    guest_memory_free(rig->memory);
    close_fd(&rig->irq_fd);
    close_fd(&rig->notify_fd);
}

static void a_guest_meets_its_devices(void **state)
{
    static const uint8_t code[] = {
        0xba, 0xf8, 0x03, 0x00, 0x00,                                // mov $0x3f8, %edx
        0xb0, 'H',  0xee, 0xb0, 'i',  0xee,                          // out "Hi"
        0xbb, 0x00, 0x00, 0x00, 0xd0,                                // mov $0xd0000000, %ebx
        0x8b, 0x43, 0x08,                                            // mov 8(%rbx), %eax
        0x89, 0x43, 0x0c,                                            // mov %eax, 12(%rbx)
        0xc7, 0x43, 0x50, 0x00, 0x00, 0x00, 0x00,                    // movl $0, 0x50(%rbx): the notification
        0xc7, 0x83, 0x00, 0x00, 0x10, 0x00, 0x01, 0x00, 0x00, 0x00,  // movl $1, 0x100000(%rbx): nobody's
        0xba, 0x00, 0x06, 0x00, 0x00, 0xb0, 0x34, 0xee,              // out 0x34 to 0x600
        0xf4, 0xeb, 0xfd,                                            // hlt
    };
    struct rig rig;
    start(&rig, code, sizeof code, 1, 128 * MIB);
    assert_int_equal(end_of(&rig).reason, VMM_REASON_POWER_OFF);
    char text[8] = "";
    uint64_t total, notified = 0;
    assert_int_equal(machine_console(rig.machine, text, sizeof text, &total), 2);
    assert_string_equal(text, "Hi");
    assert_int_equal(rig.device.writes, 1);  // the notification came through the eventfd alone
    assert_int_equal(rig.device.offset, 12);
    assert_int_equal(rig.device.written, 0x48);
    assert_int_equal(read(rig.notify_fd, &notified, sizeof notified), sizeof notified);
    assert_int_equal(notified, 1);
    struct vmm_stats stats = {0};
    processors_count(machine_processors(rig.machine), &stats);
    assert_int_equal(stats.unknown_mmio, 1);
    assert_int_equal(stats.exits_mmio, 3);
    assert_int_equal(stats.exits_pio, 3);
    stop(&rig);
}

static void a_triple_fault_is_noticed(void **state)
{
    static const uint8_t code[] = {0x0f, 0x0b};  // ud2, and no interrupt table
    struct rig rig;
    start(&rig, code, sizeof code, 1, 128 * MIB);
    assert_int_equal(end_of(&rig).reason, VMM_REASON_TRIPLE_FAULT);
    stop(&rig);
}

// A guest that never leaves by itself, and one that sleeps for ever: both can be stopped and go on.
static void a_guest_can_be_paused_anywhere(void **state)
{
    static const uint8_t spins[] = {0xff, 0x04, 0x25, 0x00, 0x00, 0x20, 0x00, 0xeb, 0xf7};  // incl 0x200000; jmp to it
    static const uint8_t sleeps[] = {0xf4, 0xeb, 0xfd};
    struct rig rig;
    for (int i = 0; i < 2; i++) {
        start(&rig, i == 0 ? spins : sleeps, i == 0 ? sizeof spins : sizeof sleeps, 3, 5120 * MIB);
        struct processors *processors = machine_processors(rig.machine);
        const volatile uint32_t *counter = guest_memory_at(rig.memory, gpa(0x200000), sizeof *counter);
        for (int k = 0; k < 50; k++) {
            assert_int_equal(processors_pause(processors), 0);
            uint32_t before = *counter;
            struct vmm_stats stats = {0};
            processors_count(processors, &stats);
            assert_int_equal(*counter, before);
            assert_int_equal(processors_run(processors), 0);
            while (i == 0 && *counter == before)
                sched_yield();
        }
        assert_int_equal(machine_ended_fd(rig.machine) >= 0, 1);
        struct processors_end end;
        processors_ended(processors, &end);
        assert_int_equal(end.reason, VMM_REASON_NONE);
        stop(&rig);
    }
}

// Memory above the hole is where the guest's page tables say; the hole is nobody's.
static void memory_above_the_hole_is_reached(void **state)
{
    static const uint8_t code[] = {
        0x48, 0xb8, 0x00, 0x10, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,  // movabs $0x100001000, %rax
        0xc7, 0x00, 0x78, 0x56, 0x34, 0x12,                          // movl $0x12345678, (%rax)
        0xba, 0x02, 0x06, 0x00, 0x00, 0xb0, 0xfe, 0xee,              // reset
        0xf4, 0xeb, 0xfd,
    };
    struct rig rig;
    memset(&rig, 0, sizeof rig);
    rig.irq_fd = rig.notify_fd = -1;
    assert_int_equal(guest_memory_new(4096 * MIB, &rig.memory), 0);
    assert_int_equal(start_tables_write(rig.memory), 0);
    // A fifth GiB in the page tables, as one page of its own.
    uint64_t *pdpt = guest_memory_at(rig.memory, gpa(0xa000), 4096), *pd = guest_memory_at(rig.memory, gpa(0x10000), 4096);
    pdpt[4] = 0x10003;
    pd[0] = 0x100000083;
    memcpy(guest_memory_at(rig.memory, gpa(ENTRY), sizeof code), code, sizeof code);
    const struct machine_config config = {
        .ops = &kvm_ops_kernel, .kvm = kvm, .memory = rig.memory, .vcpus = 1, .entry = gpa(ENTRY)};
    struct err err = {0};
    assert_int_equal(machine_new(&config, &rig.machine, &err), 0);
    assert_int_equal(processors_run(machine_processors(rig.machine)), 0);
    assert_int_equal(end_of(&rig).reason, VMM_REASON_RESET);
    assert_int_equal(*(uint32_t *)guest_memory_at(rig.memory, gpa(0x100001000), 4), 0x12345678);
    stop(&rig);
}

extern const uint8_t vmm_guest_avx[];
extern const uint64_t vmm_guest_avx_bytes;

static bool has_avx(void)
{
    cleanup_free struct cpuid_table *table = calloc(1, sizeof *table);
    assert_non_null(table);
    table->head.nent = CPUID_ENTRIES_MAX;
    assert_int_equal(kvm_call(&kvm_ops_kernel, kvm, KVM_GET_SUPPORTED_CPUID, table), 0);
    const struct kvm_cpuid_entry2 *e = cpuid_find(table, 1, 0);
    return e != NULL && (e->ecx & (1u << 26)) != 0 && (e->ecx & (1u << 28)) != 0;
}

// Also sets XCR0 from outside, as a restore does.  The guest sets it too, but an emulated processor may not tell KVM.
static int call_and_set_xcr0(void *arg, int fd, unsigned long request, void *data)
{
    int r = kvm_call(&kvm_ops_kernel, fd, request, data);
    struct kvm_xcrs xcrs = {.nr_xcrs = 1, .xcrs = {{.xcr = 0, .value = 7}}};
    return r == 0 && request == KVM_SET_FPU ? kvm_call(&kvm_ops_kernel, fd, KVM_SET_XCRS, &xcrs) : r;
}

// Page tables and descriptors that let user mode in.
static void let_user_mode_in(struct guest_memory *memory)
{
    enum { USER = 4 };
    static const uint64_t gdt[] = {0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0, 0x00affb000000ffff, 0x00cff3000000ffff};
    uint64_t *pml4 = guest_memory_at(memory, gpa(0x9000), 8), *pdpt = guest_memory_at(memory, gpa(0xa000), 32);
    uint64_t *pd = guest_memory_at(memory, gpa(0xb000), 4 * 4096);
    pml4[0] |= USER;
    for (int i = 0; i < 4; i++)
        pdpt[i] |= USER;
    for (int i = 0; i < 4 * 512; i++)
        pd[i] |= USER;
    uint8_t *table = guest_memory_at(memory, gpa(0x110000), 0x10 + sizeof gdt);
    const uint16_t limit = sizeof gdt - 1;
    const uint64_t base = 0x110010;
    memcpy(table, &limit, sizeof limit);
    memcpy(table + 2, &base, sizeof base);
    memcpy(table + 0x10, gdt, sizeof gdt);
}

// XSAVE can be turned on, and all of a vector register survives pauses, in which this process's own threads use theirs.
static void vector_registers_are_kept(void **state)
{
    if (!has_avx())
        skip();
    struct rig rig;
    prepare(&rig, vmm_guest_avx, vmm_guest_avx_bytes, 128 * MIB);
    let_user_mode_in(rig.memory);
    float *given = guest_memory_at(rig.memory, gpa(0x140000), 32), *got = guest_memory_at(rig.memory, gpa(0x140020), 32);
    const volatile uint32_t *turns = guest_memory_at(rig.memory, gpa(0x140040), 4);
    for (int i = 0; i < 8; i++)
        given[i] = (float)(i + 1);
    struct kvm_ops ops = kvm_ops_kernel;
    ops.call = call_and_set_xcr0;
    go(&rig, &ops, 1);
    struct pollfd ended = {.fd = machine_ended_fd(rig.machine), .events = POLLIN};
    struct processors *processors = machine_processors(rig.machine);
    for (int k = 0; k < 30; k++) {
        uint32_t before = *turns;
        while (*turns == before && poll(&ended, 1, 0) == 0)
            sched_yield();
        struct processors_end end;
        processors_ended(processors, &end);
        assert_string_equal(end.detail, "");
        assert_int_equal(processors_pause(processors), 0);
        for (int i = 0; i < 8; i++)
            assert_true(got[i] == 2 * given[i]);
        memset(got, 0, 32);
        assert_int_equal(processors_run(processors), 0);
    }
    assert_int_equal(rig.device.writes, 1);
    stop(&rig);
}

static unsigned count_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void the_probe_answers(void **state)
{
    struct probe_result result;
    unsigned before = count_fds();
    probe_run(&kvm_ops_kernel, kvm, &result);
    assert_int_equal(count_fds(), before);
    assert_true(result.works == (result.detail[0] == '\0'));
    // A descriptor that is not KVM's.
    cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    probe_run(&kvm_ops_kernel, null, &result);
    assert_false(result.works);
    assert_non_null(strstr(result.detail, "KVM_GET_API_VERSION"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guest_meets_its_devices),      cmocka_unit_test(a_triple_fault_is_noticed),
        cmocka_unit_test(a_guest_can_be_paused_anywhere), cmocka_unit_test(memory_above_the_hole_is_reached),
        cmocka_unit_test(vector_registers_are_kept),      cmocka_unit_test(the_probe_answers),
    };
    kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0) {
        puts("1..0 # SKIP no usable /dev/kvm on this machine");
        return 0;
    }
    return cmocka_run_group_tests_name("vmm_kvm", tests, NULL, NULL);
}
