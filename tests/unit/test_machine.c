// What a virtual machine's init and the jailer agree on: options, sizes, and the growing of the disk.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "jailer/vm.h"
#include "unit.h"
#include "wire/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

// The command line that the jailer writes is the one that init reads.
static void check_command_line(bool volume)
{
    struct jail_start what = {
        .vcpus = JAIL_VCPUS_MAX, .memory_mib = JAIL_MEMORY_MIB_MAX, .disk_mib = JAIL_DISK_MIB_MAX, .pids_max = JAIL_PIDS_MAX};
    memset(what.hostname, 'h', JAIL_HOSTNAME_MAX);
    char text[VMM_CMDLINE_MAX + 1];
    assert_int_equal(vm_cmdline(&what, volume, text, sizeof text), 0);
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
    assert_int_equal(vm_cmdline(&what, volume, text, 64), -E2BIG);
}

static void command_line_comes_through(void **state)
{
    check_command_line(false);
    check_command_line(true);
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
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
