// How fast a sandbox may use its disk (the engine runs with disk_mib_s=1, disk_iops=50).
#include "system.h"

#include <stdio.h>
#include <string.h>

enum { MIB_S = 1, IOPS = 50 };

// The vm tier's monitor limits its disks itself.
static bool host_can(void)
{
    return setting()->tier == SANDBOX_ISOLATION_VM ||
           access("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device", F_OK) == 0 ||
           system("grep -qw io /sys/fs/cgroup/cgroup.controllers 2>/dev/null") == 0;
}

// Milliseconds that `command` takes; never fewer than the limit asks for, however fast the host is.
static uint64_t time_of(sandbox_handle_t *h, const char *command)
{
    uint64_t begun = now_ms();
    assert_int_equal(exit_code(h, "%s", command), 0);
    return now_ms() - begun;
}

static void disks_are_no_faster_than_allowed(void **state)
{
    enum { MIB = 4, OPS = 200, BURST_MS = 1000 };
    if (!host_can()) {
        print_message("# only where the host has the controller io or blkio\n");
        skip();
    }
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    // Not through the page cache, whose writing is not counted on cgroup v1.
    assert_true(time_of(h, "dd if=/dev/zero of=bytes bs=256k count=16 oflag=direct 2>/dev/null") >=
                MIB * 1000 / MIB_S - BURST_MS);
    assert_true(time_of(h, "dd if=bytes of=/dev/null bs=256k iflag=direct 2>/dev/null") >= MIB * 1000 / MIB_S - BURST_MS);
    assert_true(time_of(h, "dd if=/dev/zero of=ops bs=4k count=200 oflag=direct 2>/dev/null") >= OPS * 1000 / IOPS - BURST_MS);
    assert_true(time_of(h, "dd if=ops of=/dev/null bs=4k iflag=direct 2>/dev/null") >= OPS * 1000 / IOPS - BURST_MS);
}

// A session's volume is another device.
static void volumes_are_no_faster_than_allowed(void **state)
{
    enum { MIB = 4, BURST_MS = 1000 };
    if (!host_can()) {
        print_message("# only where the host has the controller io or blkio\n");
        skip();
    }
    sandbox_spec_t spec = plain_spec();
    spec.session_key = "disk-speed";
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    assert_true(time_of(h, "dd if=/dev/zero of=bytes bs=256k count=16 oflag=direct 2>/dev/null") >=
                MIB * 1000 / MIB_S - BURST_MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(disks_are_no_faster_than_allowed),
        cmocka_unit_test(volumes_are_no_faster_than_allowed),
    };
    return cmocka_run_group_tests_name("disk speed", tests, open_connection, close_connection);
}
