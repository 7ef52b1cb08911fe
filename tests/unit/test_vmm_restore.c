// Snapshots over a KVM that is not there: the order of the calls, what goes into a file and comes back, every call failing
// once, every section missing once; pages of real memory, and the working set.
#include "base/cleanup.h"
#include "fake_kvm.h"
#include "sys/host_identity.h"
#include "unit.h"
#include "vmm/machine.h"
#include "vmm/snapshot/file.h"
#include "vmm/snapshot/pages.h"
#include "vmm/snapshot/restore.h"
#include "vmm/snapshot/working_set.h"
#include "wire/page_delta.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
enum { VCPUS = 3, TSC = 0x10, DEADLINE = 0x6e0 };

static struct guest_memory *memory_of(uint64_t bytes)
{
    struct guest_memory *memory;
    assert_int_equal(guest_memory_new(bytes, &memory), 0);
    return memory;
}

static struct machine_config config_of(struct fake_kvm *fake, const struct guest_memory *memory,
                                       const struct machine_state *state)
{
    return (struct machine_config){
        .ops = &fake->ops, .kvm = FAKE_KVM_FD, .memory = memory, .vcpus = VCPUS, .entry = gpa(0x1000000), .state = state};
}

// Saved from a machine of the fake.
static void save_from(struct fake_kvm *fake, const struct guest_memory *memory, struct machine_state *ret_state)
{
    struct machine_config config = config_of(fake, memory, NULL);
    struct machine *machine;
    struct err err;
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    fake->calls = 0;
    assert_int_equal(machine_save(machine, ret_state, &err), 0);
    // Closing is no call.
    machine_free(machine);
}

// The calls on the vCPU `fd`, one after the other, are these.
static void assert_calls(const struct fake_kvm *fake, int fd, const unsigned long *expected, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < fake->calls; i++) {
        if (fake->call[i].fd != fd)
            continue;
        assert_true(n < count);
        assert_string_equal(kvm_call_name(fake->call[i].request), kvm_call_name(expected[n]));
        n++;
    }
    assert_int_equal(n, count);
}

static void state_is_read_in_order(void **state)
{
    static const unsigned long order[] = {KVM_GET_MP_STATE, KVM_GET_REGS,      KVM_GET_SREGS,      KVM_GET_XSAVE,
                                          KVM_GET_XCRS,     KVM_GET_DEBUGREGS, KVM_GET_LAPIC,      KVM_GET_TSC_KHZ,
                                          KVM_GET_CPUID2,   KVM_GET_MSRS,      KVM_GET_VCPU_EVENTS};
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_state saved;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    for (unsigned i = 0; i < VCPUS; i++)
        assert_calls(&fake, fake.page[i].fd, order, sizeof order / sizeof order[0]);
    // Abilities are asked for before anything of a vCPU is read, and the machine's own parts come after all vCPUs.
    assert_true(fake_kvm_find(&fake, KVM_CHECK_EXTENSION, 0) < fake_kvm_find(&fake, KVM_GET_MP_STATE, 0));
    size_t clock = fake_kvm_find(&fake, KVM_GET_CLOCK, 0);
    assert_int_equal(fake_kvm_find(&fake, KVM_GET_VCPU_EVENTS, clock), FAKE_CALLS_MAX);
    assert_true(clock < fake_kvm_find(&fake, KVM_GET_IRQCHIP, 0));
    assert_int_equal(fake_kvm_count(&fake, KVM_GET_IRQCHIP), 3);
    // Hyper-V's registers and MCG_CTL are left out.
    assert_int_equal(saved.vcpu[0].msrs.head.nmsrs, 5);
    machine_state_free(&saved);
    guest_memory_free(memory);
}

static void state_is_written_in_order(void **state)
{
    static const unsigned long order[] = {0,  // its page is mapped
                                          KVM_GET_TSC_KHZ,
                                          KVM_SET_CPUID2,
                                          KVM_SET_MP_STATE,
                                          KVM_SET_REGS,
                                          KVM_SET_SREGS,
                                          KVM_SET_XSAVE,
                                          KVM_SET_XCRS,
                                          KVM_SET_DEBUGREGS,
                                          KVM_SET_LAPIC,
                                          KVM_SET_MSRS,
                                          KVM_SET_VCPU_EVENTS};
    static const unsigned long then[] = {KVM_SET_MSRS, KVM_KVMCLOCK_CTRL};
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(5 * 1024 * MIB);
    struct machine_state saved;
    struct machine *machine;
    struct err err;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    fake_kvm_init(&fake);
    struct machine_config config = config_of(&fake, memory, &saved);
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    for (unsigned i = 0; i < VCPUS; i++)
        assert_calls(&fake, fake.page[i].fd, order, sizeof order / sizeof order[0]);
    // Memory before the chips; the chips' state before anything can interrupt through them; no time yet.
    size_t last_slot =
        fake_kvm_find(&fake, KVM_SET_USER_MEMORY_REGION, fake_kvm_find(&fake, KVM_SET_USER_MEMORY_REGION, 0) + 1);
    assert_true(last_slot < fake_kvm_find(&fake, KVM_CREATE_IRQCHIP, 0));
    size_t chips = fake_kvm_find(&fake, KVM_SET_IRQCHIP, 0);
    assert_int_equal(fake_kvm_count(&fake, KVM_SET_IRQCHIP), 3);
    assert_int_equal(fake_kvm_find(&fake, KVM_SET_VCPU_EVENTS, chips), FAKE_CALLS_MAX);
    assert_true(chips + 2 < fake_kvm_find(&fake, KVM_IRQFD, 0));
    assert_int_equal(fake_kvm_count(&fake, KVM_SET_CLOCK), 0);
    for (size_t i = 0; i < fake.set_msrs; i++)
        assert_true(fake.set_msr[i].index != TSC && fake.set_msr[i].index != DEADLINE);
    // Time, when it runs: the clock, each TSC before its deadline, and last the word to the guest.
    fake.calls = fake.set_msrs = 0;
    assert_int_equal(machine_start_time(machine, &err), 0);
    for (unsigned i = 0; i < VCPUS; i++)
        assert_calls(&fake, fake.page[i].fd, then, 2);
    assert_int_equal(fake_kvm_find(&fake, KVM_SET_CLOCK, 0), 0);
    assert_int_equal(fake.set_clock, UINT64_C(0x5a5a5a5a5a5a5a5a));
    assert_int_equal(fake.set_clock_flags, 0);  // monotonic time goes on where it stood
    assert_int_equal(fake.set_msrs, 2 * VCPUS);
    assert_int_equal(fake.set_msr[0].index, TSC);
    assert_int_equal(fake.set_msr[1].index, DEADLINE);
    assert_int_equal(fake_kvm_find(&fake, KVM_SET_MSRS, fake_kvm_find(&fake, KVM_KVMCLOCK_CTRL, 0)), FAKE_CALLS_MAX);
    machine_free(machine);
    assert_int_equal(fake.open_fds, 0);
    assert_int_equal(fake.mapped, 0);
    machine_state_free(&saved);
    guest_memory_free(memory);
}

static const int errors[] = {EPERM, ENOENT, EINTR,  EIO,    E2BIG,  EBADF,  EAGAIN, ENOMEM, EACCES, EFAULT,
                             EBUSY, EEXIST, ENODEV, EINVAL, EMFILE, ENFILE, ENOTTY, ENOSPC, ENOSYS, EOPNOTSUPP};
enum { ERRORS = sizeof errors / sizeof errors[0] };

static void every_call_of_a_save_may_fail(void **state)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_config config = config_of(&fake, memory, NULL);
    struct machine_state saved, untouched;
    struct machine *machine;
    struct err err;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    machine_state_free(&saved);
    size_t calls = fake.calls;
    assert_true(calls > VCPUS * 11);
    memset(&untouched, 0x11, sizeof untouched);
    for (size_t at = 1; at <= calls; at++)
        for (size_t e = 0; e < ERRORS; e++) {
            fake_kvm_init(&fake);
            assert_int_equal(machine_new(&config, &machine, &err), 0);
            fake.calls = 0;
            fake.fail_at = at;
            fake.fail_with = -errors[e];
            memcpy(&saved, &untouched, sizeof saved);
            assert_int_equal(machine_save(machine, &saved, &err), -errors[e]);
            assert_non_null(strstr(err.text, kvm_call_name(fake.call[at - 1].request)));
            assert_int_equal(fake.calls, at);
            assert_memory_equal(&saved, &untouched, sizeof saved);
            machine_free(machine);
            assert_int_equal(fake.open_fds, 0);
        }
    guest_memory_free(memory);
}

static void every_call_of_a_restore_may_fail(void **state)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(5 * 1024 * MIB);
    struct machine_state saved;
    struct machine *machine;
    struct err err;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    struct machine_config config = config_of(&fake, memory, &saved);
    fake_kvm_init(&fake);
    assert_int_equal(machine_new(&config, &machine, &err), 0);
    size_t built = fake.calls;
    assert_int_equal(machine_start_time(machine, &err), 0);
    size_t all = fake.calls;
    machine_free(machine);
    for (size_t at = 1; at <= all; at++)
        for (size_t e = 0; e < ERRORS; e++) {
            fake_kvm_init(&fake);
            fake.fail_at = at;
            fake.fail_with = -errors[e];
            machine = NULL;
            int r = machine_new(&config, &machine, &err);
            if (at > built) {
                assert_int_equal(r, 0);
                r = machine_start_time(machine, &err);
            }
            unsigned long request = fake.call[at - 1].request;
            if (request == KVM_KVMCLOCK_CTRL && errors[e] == EINVAL) {  // a guest without kvmclock
                assert_int_equal(r, 0);
            } else {
                assert_int_equal(r, -errors[e]);
                assert_non_null(strstr(err.text, request != 0 ? kvm_call_name(request) : "cannot make"));
                assert_int_equal(fake.calls, at);
            }
            machine_free(machine);
            assert_int_equal(fake.open_fds, 0);
            assert_int_equal(fake.mapped, 0);
        }
    machine_state_free(&saved);
    guest_memory_free(memory);
}

static int try_restore(struct fake_kvm *fake, const struct guest_memory *memory, const struct machine_state *saved,
                       struct err *err)
{
    struct machine_config config = config_of(fake, memory, saved);
    struct machine *machine = NULL;
    int r = machine_new(&config, &machine, err);
    machine_free(machine);
    assert_int_equal(fake->open_fds, 0);
    return r;
}

static void what_kvm_cannot_do_is_asked_first(void **state)
{
    static const int needed[] = {KVM_CAP_XSAVE, KVM_CAP_DEBUGREGS, KVM_CAP_VCPU_EVENTS, KVM_CAP_GET_TSC_KHZ};
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_state saved, other;
    struct err err;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        fake_kvm_init(&fake);
        fake.missing = needed[i];
        assert_int_equal(try_restore(&fake, memory, &saved, &err), -ENOTSUP);
        assert_non_null(strstr(err.text, "KVM_CAP_"));
        assert_int_equal(fake_kvm_count(&fake, KVM_SET_CPUID2), 0);
    }
    // Without extended control registers nothing reads or writes them; a snapshot with them does not fit there.
    fake_kvm_init(&fake);
    fake.missing = KVM_CAP_XCRS;
    assert_int_equal(try_restore(&fake, memory, &saved, &err), -ENOTSUP);
    fake_kvm_init(&fake);
    fake.missing = KVM_CAP_XCRS;
    save_from(&fake, memory, &other);
    assert_int_equal(fake_kvm_count(&fake, KVM_GET_XCRS), 0);
    fake_kvm_init(&fake);
    fake.missing = KVM_CAP_XCRS;
    assert_int_equal(try_restore(&fake, memory, &other, &err), 0);
    assert_int_equal(fake_kvm_count(&fake, KVM_SET_XCRS), 0);
    machine_state_free(&other);
    // A larger save area is read whole, and fits only where it is as large.
    fake_kvm_init(&fake);
    fake.xsave2 = 11008;
    save_from(&fake, memory, &other);
    assert_int_equal(fake_kvm_count(&fake, KVM_GET_XSAVE2), VCPUS);
    assert_int_equal(other.vcpu[0].xsave_bytes, 11008);
    assert_int_equal(other.vcpu[0].xsave[11007], 0x5a);
    fake_kvm_init(&fake);
    assert_int_equal(try_restore(&fake, memory, &other, &err), -ENOTSUP);
    fake_kvm_init(&fake);
    fake.xsave2 = VCPU_XSAVE_MAX + 1;
    assert_int_equal(try_restore(&fake, memory, &other, &err), -ENOTSUP);
    machine_state_free(&other);
    machine_state_free(&saved);
    guest_memory_free(memory);
}

static void the_tsc_runs_as_fast_or_not_at_all(void **state)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_state saved;
    struct err err;
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    static const struct {
        int khz;
        bool can;
        unsigned sets;
        int result;
    } cases[] = {{2600000, false, 0, 0}, {2600650, false, 0, 0},        {2599350, false, 0, 0},
                 {2600651, true, 3, 0},  {2600651, false, 0, -ENOTSUP}, {1000000, true, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_kvm_init(&fake);
        fake.tsc_khz = cases[i].khz;
        if (!cases[i].can)
            fake.missing = KVM_CAP_TSC_CONTROL;
        assert_int_equal(try_restore(&fake, memory, &saved, &err), cases[i].result);
        assert_int_equal(fake_kvm_count(&fake, KVM_SET_TSC_KHZ), cases[i].sets);
    }
    machine_state_free(&saved);
    guest_memory_free(memory);
}

static void registers_that_cannot_be_had(void **state)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    struct machine_state saved;
    struct err err;
    // One that cannot be read is left out, and those behind it are not.
    fake_kvm_init(&fake);
    fake.msr_unreadable = 0xc0000080;
    fake.msr_zero = DEADLINE;
    save_from(&fake, memory, &saved);
    const struct vcpu_msrs *msrs = &saved.vcpu[1].msrs;
    assert_int_equal(msrs->head.nmsrs, 4);
    assert_int_equal(msrs->entry[3].index, 0x1a0);
    assert_int_equal(msrs->entry[3].data, 1000 + 0x1a0);
    // A timer that has just fired is made to fire again.
    assert_int_equal(msrs->entry[1].index, DEADLINE);
    assert_int_equal(msrs->entry[1].data, 1000 + TSC);
    machine_state_free(&saved);
    // One that is refused is named, unless it is zero.
    fake_kvm_init(&fake);
    save_from(&fake, memory, &saved);
    fake_kvm_init(&fake);
    fake.msr_refused = 0x4b564d01;
    assert_int_equal(try_restore(&fake, memory, &saved, &err), -EINVAL);
    assert_non_null(strstr(err.text, "0x4b564d01"));
    saved.vcpu[0].msrs.entry[3].data = saved.vcpu[1].msrs.entry[3].data = saved.vcpu[2].msrs.entry[3].data = 0;
    fake_kvm_init(&fake);
    fake.msr_refused = 0x4b564d01;
    assert_int_equal(try_restore(&fake, memory, &saved, &err), 0);
    assert_int_equal(fake.set_msr[1].index, 0x1a0);
    machine_state_free(&saved);
    guest_memory_free(memory);
}

// ---- files ----

static void a_snapshot(struct snapshot *s)
{
    static struct fake_kvm fake;
    struct guest_memory *memory = memory_of(128 * MIB);
    memset(s, 0, sizeof *s);
    assert_int_equal(host_identity_get(&s->host), 0);
    s->shape = (struct snapshot_shape){.memory_bytes = 128 * MIB, .vcpus = VCPUS, .devices = 2};
    fake_kvm_init(&fake);
    fake.fill = 0;
    save_from(&fake, memory, &s->machine);
    guest_memory_free(memory);
    s->machine.vcpu[1].regs.rip = 0x1234;
    s->machine.chip[2].chip.ioapic.redirtbl[5].bits = 99;
    s->machine.serial.ier = 2;
    s->devices = (struct devices_state){.count = 2, .has_vsock = 1, .disk_bytes = 4096};
    s->devices.device[1].transport.queue[0].next_avail = 77;
    s->devices.vsock.next_host_port = 5;
}

static int file_of(const struct vmstate *state)
{
    int fd = memfd_create("state", MFD_CLOEXEC);
    assert_int_equal(snapshot_write_file(fd, state), 0);
    return fd;
}

static void files_bring_back_what_went_in(void **state)
{
    static struct vmstate list;
    struct snapshot s, back;
    struct err err;
    a_snapshot(&s);
    memset(&list, 0, sizeof list);
    assert_int_equal(sections_add(&s, &list), 0);
    cleanup_fd int fd = file_of(&list);
    assert_int_equal(restore_read(fd, &s.host, &back, &err), 0);
    assert_memory_equal(&back.shape, &s.shape, sizeof s.shape);
    assert_memory_equal(&back.devices, &s.devices, sizeof s.devices);
    assert_memory_equal(back.machine.chip, s.machine.chip, sizeof s.machine.chip);
    assert_memory_equal(&back.machine.serial, &s.machine.serial, sizeof s.machine.serial);
    assert_int_equal(back.machine.clock_ns, s.machine.clock_ns);
    for (unsigned i = 0; i < VCPUS; i++) {
        const struct vcpu_state *a = &s.machine.vcpu[i], *b = &back.machine.vcpu[i];
        assert_memory_equal(&a->regs, &b->regs, sizeof a->regs);
        assert_memory_equal(&a->lapic, &b->lapic, sizeof a->lapic);
        assert_memory_equal(a->xsave, b->xsave, a->xsave_bytes);
        assert_int_equal(a->msrs.head.nmsrs, b->msrs.head.nmsrs);
        assert_memory_equal(a->msrs.entry, b->msrs.entry, a->msrs.head.nmsrs * sizeof a->msrs.entry[0]);
        assert_memory_equal(&a->cpuid, &b->cpuid, sizeof(struct kvm_cpuid2) + a->cpuid.head.nent * sizeof a->cpuid.entry[0]);
        assert_int_equal(a->tsc_khz, b->tsc_khz);
    }
    machine_state_free(&back.machine);
    // Another processor, and another kernel.
    for (int i = 0; i < 2; i++) {
        struct host_identity other = s.host;
        if (i == 0)
            other.signature ^= 0x10;
        else
            other.build[0] ^= 1;
        assert_int_equal(restore_read(fd, &other, &back, &err), -ENOTSUP);
        assert_non_null(strstr(err.text, "another processor or kernel"));
    }
    machine_state_free(&s.machine);
}

// Whatever section is missing, cut, or too much: the file is refused, with a sentence.
static void every_section_is_needed(void **state)
{
    static struct vmstate list, less;
    static uint8_t one_byte[1];
    struct snapshot s, back;
    struct err err;
    a_snapshot(&s);
    memset(&list, 0, sizeof list);
    assert_int_equal(sections_add(&s, &list), 0);
    for (size_t i = 0; i < list.count; i++)
        for (int how = 0; how < 2; how++) {
            less = list;
            if (how == 0) {
                memmove(&less.section[i], &less.section[i + 1], (less.count - i - 1) * sizeof less.section[0]);
                less.count--;
            } else {
                less.section[i].bytes = one_byte;
                less.section[i].len = 1;
            }
            cleanup_fd int fd = file_of(&less);
            uint32_t type = list.section[i].type;
            // Machines without these exist.
            if (how == 0 && (type == VMSTATE_DISK || type == VMSTATE_VSOCK || type == VMSTATE_XCRS)) {
                assert_int_equal(restore_read(fd, &s.host, &back, &err), 0);
                machine_state_free(&back.machine);
                continue;
            }
            assert_int_equal(restore_read(fd, &s.host, &back, &err), -EBADMSG);
            assert_non_null(strstr(err.text, "section"));
        }
    less = list;
    assert_int_equal(vmstate_add(&less, VMSTATE_REGS, VCPUS, one_byte, 1), 0);  // of a vCPU that there is not
    cleanup_fd int fd = file_of(&less);
    assert_int_equal(restore_read(fd, &s.host, &back, &err), -EBADMSG);
    machine_state_free(&s.machine);
}

static void shapes_and_counts_are_bounded(void **state)
{
    static struct vmstate list;
    struct snapshot s, back;
    struct err err;
    const struct snapshot_shape bad[] = {{128 * MIB, 0, 2}, {128 * MIB, 33, 2}, {128 * MIB, 3, DEVICES_MAX + 1},
                                         {127 * MIB, 3, 2}, {126 * MIB, 3, 2},  {(64 * 1024 + 2) * MIB, 3, 2}};
    a_snapshot(&s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct snapshot changed = s;
        changed.shape = bad[i];
        memset(&list, 0, sizeof list);
        assert_int_equal(sections_add(&changed, &list), 0);
        cleanup_fd int fd = file_of(&list);
        assert_int_equal(restore_read(fd, &s.host, &back, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "shape"));
    }
    // A list of registers that says more than it holds.
    memset(&list, 0, sizeof list);
    assert_int_equal(sections_add(&s, &list), 0);
    for (size_t i = 0; i < list.count; i++)
        if (list.section[i].type == VMSTATE_MSRS || list.section[i].type == VMSTATE_CPUID) {
            uint8_t copy[16 * 1024];
            struct vmstate changed = list;
            memcpy(copy, list.section[i].bytes, list.section[i].len);
            copy[0]++;
            changed.section[i].bytes = copy;
            cleanup_fd int fd = file_of(&changed);
            assert_int_equal(restore_read(fd, &s.host, &back, &err), -EBADMSG);
            assert_non_null(strstr(err.text, "as many entries"));
        }
    machine_state_free(&s.machine);
}

// ---- pages ----

static void touch(const struct guest_memory *memory, uint64_t page, uint8_t value)
{
    uint8_t *at = guest_memory_at(memory, gpa(page * PAGE_BYTES), PAGE_BYTES);
    assert_non_null(at);
    at[PAGE_BYTES - 1] = value;
}

static int seal(int fd)
{
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
}

static void memory_is_written_sparse_and_comes_back(void **state)
{
    enum { HIGH = 0x100000 };  // the first page above the hole
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct guest_memory *memory = memory_of(3074 * MIB), *clone;
    static const uint64_t pages[] = {0, 1, 2, 700, 0xbffff, HIGH, HIGH + 511};
    struct page_counts counts;
    struct stat st;
    for (size_t i = 0; i < 7; i++)
        touch(memory, pages[i], (uint8_t)(i + 1));
    touch(memory, 900, 0);  // present, and zero
    assert_int_equal(pages_count(memory, pagemap, &counts), 0);
    assert_true(counts.own >= 8 && counts.present == counts.own);
    assert_int_equal(pages_write(memory, pagemap, file), 0);
    assert_int_equal(fstat(file, &st), 0);
    assert_int_equal(st.st_size, 3074 * MIB);
    assert_int_equal(st.st_blocks, 7 * 8);
    assert_int_equal(guest_memory_map(3074 * MIB, file, &clone), -EBADMSG);  // not sealed
    assert_int_equal(seal(file), 0);
    assert_int_equal(guest_memory_map(3072 * MIB, file, &clone), -EBADMSG);
    assert_int_equal(guest_memory_map(3074 * MIB, file, &clone), 0);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(*(uint8_t *)guest_memory_at(clone, gpa(pages[i] * PAGE_BYTES + PAGE_BYTES - 1), 1), i + 1);
    assert_int_equal(pages_count(clone, pagemap, &counts), 0);
    assert_int_equal(counts.own, 0);
    assert_true(counts.present >= 7);
    // What a clone writes is its own; the file, and another clone, do not see it.
    touch(clone, 700, 99);
    touch(clone, 701, 98);
    assert_int_equal(pages_count(clone, pagemap, &counts), 0);
    assert_int_equal(counts.own, 2);
    struct guest_memory *other;
    assert_int_equal(guest_memory_map(3074 * MIB, file, &other), 0);
    assert_int_equal(*(uint8_t *)guest_memory_at(other, gpa(701 * PAGE_BYTES - 1), 1), 4);
    guest_memory_free(other);
    guest_memory_free(clone);
    guest_memory_free(memory);
}

static void a_clones_memory_is_written_whole(void **state)
{
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), again = memfd_create("again", MFD_CLOEXEC);
    struct guest_memory *memory = memory_of(128 * MIB), *clone;
    touch(memory, 5, 5);
    touch(memory, 6, 6);
    assert_int_equal(pages_write(memory, pagemap, file), 0);
    assert_int_equal(seal(file), 0);
    assert_int_equal(guest_memory_map(128 * MIB, file, &clone), 0);
    touch(clone, 6, 0);  // zero again
    touch(clone, 7, 7);
    assert_int_equal(pages_write(clone, pagemap, again), 0);  // 5 was never read by it
    uint8_t last[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pread(again, &last[i], 1, (5 + i + 1) * PAGE_BYTES - 1), 1);
    assert_memory_equal(last, "\5\0\7", 3);
    guest_memory_free(clone);
    guest_memory_free(memory);
}

// Against a model: what was written since the file was mapped is listed, whatever was written, and nothing else of the file.
static void what_a_clone_wrote_is_listed(void **state)
{
    enum { PAGES = 130 * 256, WRITES = 500 };
    static uint8_t model[PAGES], wrote[PAGES], list[PAGES / 8];
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), delta = memfd_create("delta", MFD_CLOEXEC);
    struct guest_memory *memory = memory_of(130 * MIB), *clone;
    unsigned seed = 7;
    for (int i = 0; i < WRITES; i++) {
        uint64_t page = (uint64_t)rand_r(&seed) % PAGES;
        touch(memory, page, model[page] = (uint8_t)(1 + i % 255));
    }
    assert_int_equal(pages_write(memory, pagemap, file), 0);
    assert_int_equal(seal(file), 0);
    assert_int_equal(guest_memory_map(130 * MIB, file, &clone), 0);
    for (int i = 0; i < WRITES; i++) {
        uint64_t page = (uint64_t)rand_r(&seed) % PAGES;
        uint8_t value = i % 3 == 0 ? 0 : (uint8_t)(i % 255);  // zeros over what was there, and over zeros
        touch(clone, page, model[page] = value);
        wrote[page] = 1;
        // Reading is no writing.
        (void)*(volatile uint8_t *)guest_memory_at(clone, gpa((uint64_t)rand_r(&seed) % PAGES * PAGE_BYTES), 1);
    }
    struct stat st;
    assert_int_equal(pages_write_own(clone, pagemap, delta), 0);
    assert_int_equal(fstat(delta, &st), 0);
    assert_int_equal(st.st_size, page_delta_file_bytes(130 * MIB));
    assert_int_equal(pread(delta, list, sizeof list, 130 * MIB), sizeof list);
    for (uint64_t page = 0; page < PAGES; page++) {
        uint8_t last;
        // What was only read where the file has nothing may be listed, as the zeros that it is.
        assert_true(wrote[page] ? page_delta_has(list, page) : model[page] == 0 || !page_delta_has(list, page));
        assert_int_equal(pread(delta, &last, 1, (off_t)((page + 1) * PAGE_BYTES - 1)), 1);
        assert_int_equal(last, wrote[page] ? model[page] : 0);
    }
    // Pages of zeros take no room.
    assert_true(st.st_blocks < (off_t)(WRITES + 8) * 8);
    guest_memory_free(clone);
    guest_memory_free(memory);
}

// A page that another process has, too, as after a fork or where the kernel found two alike, was written all the same.
static void what_others_have_too_is_listed(void **state)
{
    enum { PAGES = 130 * 256, WRITES = 200 };
    static uint8_t list[PAGES / 8], wrote[PAGES];
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(file, 130 * MIB), 0);
    assert_int_equal(seal(file), 0);
    for (int mapped = 0; mapped < 2; mapped++) {
        unsigned seed = 5;
        memset(wrote, 0, sizeof wrote);
        struct guest_memory *memory;
        if (mapped)
            assert_int_equal(guest_memory_map(130 * MIB, file, &memory), 0);
        else
            memory = memory_of(130 * MIB);
        for (int i = 0; i < WRITES; i++) {
            uint64_t page = (uint64_t)rand_r(&seed) % PAGES;
            touch(memory, page, (uint8_t)(1 + i % 255));
            wrote[page] = 1;
            (void)*(volatile uint8_t *)guest_memory_at(memory, gpa((uint64_t)rand_r(&seed) % PAGES * PAGE_BYTES), 1);
        }
        int line[2];
        assert_int_equal(pipe2(line, O_CLOEXEC), 0);
        pid_t other = fork();
        if (other == 0) {
            char byte;
            close(line[1]);
            _exit(read(line[0], &byte, 1) == 0 ? 0 : 1);  // until this test goes on, or ends
        }
        assert_true(other > 0);
        cleanup_fd int delta = memfd_create("delta", MFD_CLOEXEC);
        assert_int_equal(pages_write_own(memory, pagemap, delta), 0);
        close(line[0]);
        close(line[1]);
        assert_int_equal(waitpid(other, NULL, 0), other);
        assert_int_equal(pread(delta, list, sizeof list, 130 * MIB), sizeof list);
        for (uint64_t page = 0; page < PAGES; page++) {
            uint8_t last;
            if (wrote[page])
                assert_true(page_delta_has(list, page));
            assert_int_equal(pread(delta, &last, 1, (off_t)((page + 1) * PAGE_BYTES - 1)), 1);
            assert_int_equal(last != 0, wrote[page]);
        }
        guest_memory_free(memory);
    }
}

static void working_sets_are_recorded_and_fetched(void **state)
{
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), list = memfd_create("list", MFD_CLOEXEC);
    struct guest_memory *memory = memory_of(128 * MIB), *clone, *small;
    struct page_counts counts;
    struct err err;
    assert_int_equal(working_set_record(memory, pagemap, list), -ENODATA);
    for (uint64_t i = 0; i < 64; i++)
        touch(memory, 1000 + i, 1);
    assert_int_equal(pages_write(memory, pagemap, file), 0);
    assert_int_equal(seal(file), 0);
    assert_int_equal(guest_memory_map(128 * MIB, file, &clone), 0);
    for (uint64_t i = 0; i < 8; i++)
        touch(clone, 1000 + i, 2);
    assert_int_equal(*(uint8_t *)guest_memory_at(clone, gpa(1050 * PAGE_BYTES), 1), 0);
    assert_int_equal(working_set_record(clone, pagemap, list), 0);
    guest_memory_free(clone);
    assert_int_equal(guest_memory_map(128 * MIB, file, &clone), 0);
    assert_int_equal(working_set_prefetch(clone, list, &err), 0);
    assert_int_equal(pages_count(clone, pagemap, &counts), 0);
    assert_int_equal(counts.own, 8);
    assert_true(counts.present > 8);
    // What was fetched is what was there.
    assert_int_equal(*(uint8_t *)guest_memory_at(clone, gpa(1001 * PAGE_BYTES - 1), 1), 1);
    guest_memory_free(clone);
    // A list of a larger memory, and what is no list.
    touch(memory, 128 * 256 - 1, 1);
    assert_int_equal(working_set_record(memory, pagemap, list), 0);
    struct guest_memory *large = memory_of(130 * MIB);
    touch(large, 130 * 256 - 1, 1);
    assert_int_equal(working_set_record(large, pagemap, list), 0);
    small = memory_of(128 * MIB);
    assert_int_equal(working_set_prefetch(small, list, &err), -EBADMSG);
    assert_int_equal(working_set_prefetch(small, file, &err), -EBADMSG);
    guest_memory_free(small);
    guest_memory_free(large);
    guest_memory_free(memory);
}

static void fetching_ahead_is_bounded(void **state)
{
    cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    cleanup_fd int list = memfd_create("list", MFD_CLOEXEC), file = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    static struct vmstate state_list;
    const struct vmstate_range ranges[] = {{0, PREFETCH_WRITE_PAGES + 100, 1, 0},
                                           {PREFETCH_WRITE_PAGES + 100, PREFETCH_READ_PAGES + 100, 0, 0}};
    struct guest_memory *clone;
    struct page_counts counts;
    struct err err;
    memset(&state_list, 0, sizeof state_list);
    assert_int_equal(vmstate_add(&state_list, VMSTATE_WORKING_SET, 0, ranges, sizeof ranges), 0);
    assert_int_equal(snapshot_write_file(list, &state_list), 0);
    assert_int_equal(ftruncate(file, 128 * MIB), 0);
    assert_int_equal(seal(file), 0);
    assert_int_equal(guest_memory_map(128 * MIB, file, &clone), 0);
    assert_int_equal(working_set_prefetch(clone, list, &err), 0);
    assert_int_equal(pages_count(clone, pagemap, &counts), 0);
    assert_int_equal(counts.own, PREFETCH_WRITE_PAGES);
    assert_int_equal(counts.present, PREFETCH_WRITE_PAGES + PREFETCH_READ_PAGES);
    guest_memory_free(clone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_is_read_in_order),
        cmocka_unit_test(state_is_written_in_order),
        cmocka_unit_test(every_call_of_a_save_may_fail),
        cmocka_unit_test(every_call_of_a_restore_may_fail),
        cmocka_unit_test(what_kvm_cannot_do_is_asked_first),
        cmocka_unit_test(the_tsc_runs_as_fast_or_not_at_all),
        cmocka_unit_test(registers_that_cannot_be_had),
        cmocka_unit_test(files_bring_back_what_went_in),
        cmocka_unit_test(every_section_is_needed),
        cmocka_unit_test(shapes_and_counts_are_bounded),
        cmocka_unit_test(memory_is_written_sparse_and_comes_back),
        cmocka_unit_test(a_clones_memory_is_written_whole),
        cmocka_unit_test(what_a_clone_wrote_is_listed),
        cmocka_unit_test(what_others_have_too_is_listed),
        cmocka_unit_test(working_sets_are_recorded_and_fetched),
        cmocka_unit_test(fetching_ahead_is_bounded),
    };
    return cmocka_run_group_tests_name("vmm_restore", tests, NULL, NULL);
}
