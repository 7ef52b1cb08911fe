// What a virtual machine's init and the jailer agree on: options, sizes, and the growing of the disk.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "jailer/vm.h"
#include "jailer/vm_enter.h"
#include "sys/fdpass.h"
#include "unit.h"
#include "wire/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

// The command line that the jailer writes is the one that init reads.
static void check_command_line(bool volume, const struct guest_line *line)
{
    struct jail_start what = {
        .vcpus = JAIL_VCPUS_MAX, .memory_mib = JAIL_MEMORY_MIB_MAX, .disk_mib = JAIL_DISK_MIB_MAX, .pids_max = JAIL_PIDS_MAX};
    memset(what.hostname, 'h', JAIL_HOSTNAME_MAX);
    char text[VMM_CMDLINE_MAX + 1];
    assert_int_equal(vm_cmdline(&what, volume, line, text, sizeof text), 0);
    char *rest = strstr(text, " -- ");
    assert_non_null(rest);
    rest += 4;
    char *argv[16] = {(char *)"/init"};
    int argc = 1;
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        argv[argc++] = word;
    assert_true(machine_wanted(argc, argv));
    struct machine_options o;
    assert_true(machine_options_parse(argc, argv, &o));
    assert_int_equal(o.memory_mib, what.memory_mib);
    assert_int_equal(o.disk_mib, what.disk_mib);
    assert_int_equal(o.pids_max, what.pids_max);
    assert_int_equal(o.vcpus, what.vcpus);
    assert_string_equal(o.hostname, what.hostname);
    assert_true(o.volume == volume);
    assert_memory_equal(&o.line, line, sizeof o.line);
    assert_int_equal(vm_cmdline(&what, volume, line, text, 64), -E2BIG);
}

static void command_line_comes_through(void **state)
{
    const struct guest_line none = {.kind = 0},
                            some = {.kind = JAIL_LINE_ALL_, .address = {{255, 254, 253, 252}, {251, 250, 249, 248}, 30}};
    check_command_line(false, &none);
    check_command_line(true, &none);
    check_command_line(false, &some);
    check_command_line(true, &some);
}

static bool parses(const char *line)
{
    static char copy[512];
    char *argv[16] = {(char *)"/init"}, *rest = copy;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) != NULL && argc < 15;)
        argv[argc++] = word;
    struct machine_options o;
    return machine_options_parse(argc, argv, &o);
}

static void options_are_all_needed_once_and_in_range(void **state)
{
    assert_true(parses("--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a"));
    static const char *const bad[] = {
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1",
#define ALL_ "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a "
        ALL_ "--line=",
        ALL_ "--line=1",
        ALL_ "--line=1,1.2.3.4,1.2.3.5",
        ALL_ "--line=0,1.2.3.4,1.2.3.5,30",
        ALL_ "--line=8,1.2.3.4,1.2.3.5,30",
        ALL_ "--line=1,1.2.3.4,1.2.3.5,33",
        ALL_ "--line=1,1.2.3.4,1.2.3.5,0",
        ALL_ "--line=1,1.2.3.4,1.2.3.256,30",
        ALL_ "--line=1,1.2.3.4,1.2.3,30",
        ALL_ "--line=1,,1.2.3.4,30",
        ALL_ "--line=1,1.2.3.4,1.2.3.5,30,",
        ALL_ "--line=1,1.2.3.4,1.2.3.5,30,1",
        ALL_ "--line=1,1.2.3.4,1.2.3.5,30 --line=1,1.2.3.4,1.2.3.5,30",
        ALL_ "--line=1,123.123.123.1234,1.2.3.5,30",
#undef ALL_
        "--memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a",
        "--vm --memory-mib=15 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a",
        "--vm --memory-mib=65537 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a",
        "--vm --memory-mib=16 --disk-mib=15 --pids=1 --vcpus=1 --hostname=a",
        "--vm --memory-mib=16 --disk-mib=16 --pids=0 --vcpus=1 --hostname=a",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=33 --hostname=a",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=A",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a --hostname=b",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a nokaslr",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a --init",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a --volume --volume",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --hostname=a --volume=1",
        "--vm --memory-mib=16 --disk-mib=16 --pids=1 --vcpus=1 --volume",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(parses(bad[i]));
}

static void disks_grow_as_far_as_needed_and_possible(void **state)
{
    // There is enough; the device has no more; a little more is asked for than is wanted; the device is the end.
    assert_int_equal(machine_disk_grown(1000, 500, 500, 100000), 1000);
    assert_int_equal(machine_disk_grown(1000, 0, 500, 1000), 1000);
    assert_int_equal(machine_disk_grown(1000, 0, 500, 900), 1000);
    uint64_t grown = machine_disk_grown(100000, 1000, 33000, 1000000);
    assert_true(grown >= 132000 && grown < 135000);
    assert_int_equal(machine_disk_grown(100000, 1000, 33000, 110000), 110000);
    // The host makes the device large enough for that, whatever is free in the image.
    static const uint64_t wants[] = {16, 256, 1024, 4096, 1024 * 1024};
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++) {
        const uint64_t image_mib = 300, blocks_per_mib = 256;
        uint64_t device = vm_disk_mib(image_mib << 20, wants[i]) * blocks_per_mib;
        assert_true(machine_disk_grown(image_mib * blocks_per_mib, 0, wants[i] * blocks_per_mib, device) < device);
    }
}

static void machines_have_more_than_their_sandbox(void **state)
{
    for (uint64_t mib = JAIL_MEMORY_MIB_MIN; mib <= JAIL_MEMORY_MIB_MAX; mib = mib * 3 / 2 + 1) {
        uint64_t ram = vm_ram_mib(mib);
        assert_true(ram >= VMM_MEMORY_MIB_MIN && ram <= VMM_MEMORY_MIB_MAX && ram % VMM_MEMORY_MIB_STEP == 0);
        assert_true(ram >= mib + VM_GUEST_KERNEL_MIB || ram == VMM_MEMORY_MIB_MAX);
        const struct jail_start what = {.memory_mib = mib, .vcpus = 3};
        struct cgroup_limits limits = vm_limits(&what);
        assert_true(limits.one_process);
        assert_true(limits.memory_bytes >= (ram + VM_MONITOR_MIB) << 20);
        assert_int_equal(limits.pids_max, 3 + VM_MONITOR_TASKS);
    }
    assert_int_equal(vm_ram_mib(JAIL_MEMORY_MIB_MAX), VMM_MEMORY_MIB_MAX);
}

struct stage {
    char dir[32];
    int line[2];
    int part[VM_FDS];  // what is sent as what, but for KVM, the log and the delta
    struct host host;
};

static void set(struct stage *s)
{
    *s = (struct stage){.dir = "/tmp/vm-order.XXXXXX"};
    assert_non_null(mkdtemp(s->dir));
    s->host.state_fd = open(s->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s->line), 0);
    for (int i = 0; i < VM_FDS; i++) {
        s->part[i] = memfd_create("part", MFD_CLOEXEC);
        assert_int_equal(ftruncate(s->part[i], (i + 1) << 20), 0);
    }
    s->host.vmm_fd = s->part[VM_FD_PROGRAM];
}

static void strike(struct stage *s)
{
    for (int i = 0; i < VM_FDS; i++)
        close(s->part[i]);
    close(s->line[0]);
    close(s->line[1]);
    close(s->host.state_fd);
    assert_int_equal(rmdir(s->dir), 0);  // nothing in there has a name
}

static bool same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static bool can_order(void)
{
    cleanup_fd int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        print_message("# there is no KVM here\n");
    return kvm >= 0;
}

enum kind { BOOTS, BOOTS_WITH_VOLUME, BOOTS_WITH_LINE, BOOTS_WITH_BOTH, IS_CLONE };

static bool has_line(enum kind kind)
{
    return kind == BOOTS_WITH_LINE || kind == BOOTS_WITH_BOTH;
}

static struct vm_plan plan_of(const struct stage *s, enum kind kind)
{
    struct vm_plan plan = VM_PLAN_INIT;
    plan.image = s->part[VM_FD_DISK];
    plan.control = s->part[VM_FD_CONTROL];
    plan.vsock = s->part[VM_FD_VSOCK];
    plan.vsock_out = s->part[VM_FD_VSOCK_OUT];
    plan.clone = plan.waits = kind == IS_CLONE;
    *(kind == IS_CLONE ? &plan.state : &plan.kernel) = s->part[VM_FD_BEGIN];
    *(kind == IS_CLONE ? &plan.memory : &plan.initramfs) = s->part[VM_FD_BEGIN_TOO];
    if (kind == IS_CLONE) {
        plan.layer = s->part[VM_FD_LAYER];
        plan.working_set = s->part[VM_FD_WORKING_SET];
    }
    if (kind == BOOTS_WITH_VOLUME || kind == BOOTS_WITH_BOTH) {
        plan.volume = s->part[VM_FD_VOLUME];
        plan.volume_mib = 32;
    }
    if (has_line(kind)) {
        plan.net = s->part[VM_FD_NET];
        plan.line = (struct guest_line){.kind = JAIL_LINE_PROXY, .address = {{169, 254, 1, 1}, {169, 254, 1, 2}, 30}};
    }
    return plan;
}

static void order_and_look(enum kind kind)
{
    struct stage s;
    set(&s);
    struct vm_plan plan = plan_of(&s, kind);
    const struct jail_start what = {
        .vcpus = 3, .memory_mib = 200, .disk_mib = 64, .pids_max = 9, .disk_mib_s = 7, .disk_iops = 70, .hostname = "sbx-1"};
    const char *step = "";
    assert_int_equal(vm_send_order(&s.host, s.line[0], &plan, &what, &step), 0);
    static struct vm_order order;
    int fds[FDPASS_MAX];
    size_t count = FDPASS_MAX;
    assert_int_equal(fdpass_recv(s.line[1], &order, sizeof order, fds, &count), sizeof order);
    assert_int_equal(count, kind == BOOTS_WITH_VOLUME || kind == BOOTS_WITH_BOTH ? VM_FDS : VM_FD_VOLUME);
    assert_int_equal(order.probe, 0);
    assert_int_equal(order.volume_mib, plan.volume_mib);
    assert_int_equal(order.vcpus, 3);
    assert_int_equal(order.disk_mib_s, 7);
    assert_int_equal(order.disk_iops, 70);
    assert_int_equal(order.ram_mib, vm_ram_mib(200));
    assert_int_equal(order.disk_mib, vm_disk_mib((VM_FD_DISK + 1) << 20, 64));
    assert_true(order.clone == plan.clone && order.waits == plan.waits && order.working_set == plan.clone);
    assert_int_equal(strstr(order.cmdline, "--hostname=sbx-1") != NULL, !plan.clone);
    assert_int_equal(order.net, has_line(kind));
    assert_int_equal(strstr(order.cmdline, " --line=1,169.254.1.1,169.254.1.2,30") != NULL, has_line(kind));
    for (size_t i = 0; i < count; i++) {
        bool snapshot = i == VM_FD_LAYER || i == VM_FD_WORKING_SET;
        if (i != VM_FD_KVM && i != VM_FD_LOG && i != VM_FD_DELTA)
            assert_int_equal(same_file(fds[i], s.part[i]), i == VM_FD_NET ? has_line(kind) : !snapshot || plan.clone);
    }
    assert_int_equal(vm_check_kvm(fds[VM_FD_KVM]), 0);
    struct stat delta;
    assert_int_equal(fstat(fds[VM_FD_DELTA], &delta), 0);
    assert_true(S_ISREG(delta.st_mode) && delta.st_nlink == 0 && delta.st_size == 0 && (delta.st_mode & 0777) == 0600);
    assert_int_equal(fcntl(fds[VM_FD_DELTA], F_GETFL) & O_ACCMODE, O_RDWR);
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    strike(&s);
}

// The parent's side of a START_VM: what is sent is what the child takes, each in its place.
static void an_order_has_everything_in_its_place(void **state)
{
    if (!can_order())
        skip();
    order_and_look(BOOTS);
    order_and_look(BOOTS_WITH_VOLUME);
    order_and_look(BOOTS_WITH_LINE);
    order_and_look(BOOTS_WITH_BOTH);
    order_and_look(IS_CLONE);
}

static void the_order_of_a_probe_has_no_machine(void **state)
{
    if (!can_order())
        skip();
    struct stage s;
    set(&s);
    struct vm_plan plan = VM_PLAN_INIT;
    plan.probe = true;
    plan.log = s.part[VM_FD_LOG];
    const struct jail_start what = {.vcpus = 1};
    const char *step = "";
    assert_int_equal(vm_send_order(&s.host, s.line[0], &plan, &what, &step), 0);
    static struct vm_order order;
    int fds[FDPASS_MAX];
    size_t count = FDPASS_MAX;
    assert_int_equal(fdpass_recv(s.line[1], &order, sizeof order, fds, &count), sizeof order);
    assert_int_equal(count, VM_FD_PROBE_END);
    assert_int_equal(order.probe, 1);
    assert_true(same_file(fds[VM_FD_PROGRAM], s.part[VM_FD_PROGRAM]) && same_file(fds[VM_FD_LOG], s.part[VM_FD_LOG]));
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    strike(&s);
}

static void an_order_that_cannot_be_made_says_at_which_step(void **state)
{
    if (!can_order())
        skip();
    struct stage s;
    set(&s);
    struct vm_plan plan = VM_PLAN_INIT;
    const struct jail_start what = {.vcpus = 1, .memory_mib = 64, .disk_mib = 16, .pids_max = 1, .hostname = "a"};
    const char *step = "";
    assert_int_equal(vm_send_order(&s.host, s.line[0], &plan, &what, &step), -EBADF);
    assert_string_equal(step, "making the machine's disk");
    plan.image = s.part[VM_FD_DISK];
    assert_int_equal(vm_send_order(&s.host, s.line[0], &plan, &what, &step), -EBADF);
    assert_string_equal(step, "passing descriptors");
    strike(&s);
}

static void only_kvm_is_kvm(void **state)
{
    static const char *const others[] = {"/dev/null", "/dev/zero", "/proc/self/exe", "/"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cleanup_fd int fd = open(others[i], O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(vm_check_kvm(fd), -ENODEV);
    }
    assert_int_equal(vm_check_kvm(-1), -ENODEV);
    // A node of that number is it, whether or not this kernel has a driver behind it.
    cleanup_fd int fd = open("/dev/kvm", O_PATH | O_CLOEXEC);
    assert_int_equal(fd < 0 ? 0 : vm_check_kvm(fd), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_line_comes_through),
        cmocka_unit_test(options_are_all_needed_once_and_in_range),
        cmocka_unit_test(disks_grow_as_far_as_needed_and_possible),
        cmocka_unit_test(machines_have_more_than_their_sandbox),
        cmocka_unit_test(only_kvm_is_kvm),
        cmocka_unit_test(an_order_has_everything_in_its_place),
        cmocka_unit_test(the_order_of_a_probe_has_no_machine),
        cmocka_unit_test(an_order_that_cannot_be_made_says_at_which_step),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
