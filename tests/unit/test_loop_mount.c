// sys/loopdev.h, sys/mount_fd.h: a loop device that somebody else claims for a moment is mounted all the same.
#include "base/cleanup.h"
#include "sys/loopdev.h"
#include "sys/mount_fd.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char device_path[LOOPDEV_PATH_MAX];
static int device = -1;

static int make_device(void **state)
{
    (void)state;
    char file[] = "/tmp/test-loop-mount.XXXXXX", command[128];
    cleanup_fd int image = mkstemp(file);
    snprintf(command, sizeof command, "mkfs.ext4 -q -F %s", file);
    int r = image < 0 || ftruncate(image, 16 << 20) < 0 || system(command) != 0;
    unlink(file);
    return r != 0 ? -1 : loopdev_attach(image, false, &device, device_path);
}

static int drop_device(void **state)
{
    (void)state;
    close_fd(&device);
    return 0;
}

// A process that has the device to itself for so long, as one has that tries whether it is free; it has it when this returns.
static pid_t claimed_for(long ms)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int claim = open(device_path, O_RDONLY | O_EXCL | O_CLOEXEC);
        if (claim < 0 || write(ready[1], "x", 1) != 1)
            _exit(1);
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static int mount_it(void)
{
    const struct mount_option options[] = {{"source", device_path}, {0}};
    return mount_new("ext4", options, 0);
}

static void a_device_claimed_for_a_moment_is_waited_for(void **state)
{
    (void)state;
    pid_t pid = claimed_for(20);
    cleanup_fd int mount = mount_it();
    assert_true(mount >= 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void one_that_stays_claimed_is_busy(void **state)
{
    (void)state;
    pid_t pid = claimed_for(600000);
    assert_int_equal(mount_it(), -EBUSY);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    cleanup_fd int mount = mount_it();
    assert_true(mount >= 0);
}

// A process that has the first free device to itself; its number.
static pid_t free_one_claimed(int *ret_number)
{
    int line[2], number = -1;
    assert_int_equal(pipe(line), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), claim = -1;
        char path[LOOPDEV_PATH_MAX];
        for (int i = 0; i < 1000 && claim < 0; i++) {
            number = ioctl(control, LOOP_CTL_GET_FREE);
            snprintf(path, sizeof path, "/dev/loop%d", number);
            claim = open(path, O_RDONLY | O_EXCL | O_CLOEXEC);
        }
        if (claim < 0 || write(line[1], &number, sizeof number) != sizeof number)
            _exit(1);
        pause();
        _exit(0);
    }
    close(line[1]);
    assert_int_equal(read(line[0], &number, sizeof number), sizeof number);
    close(line[0]);
    *ret_number = number;
    return pid;
}

// The kernel goes on naming it as the free one.
static void a_free_device_that_stays_claimed_is_got_round(void **state)
{
    (void)state;
    int number;
    pid_t pid = free_one_claimed(&number);
    char claimed[LOOPDEV_PATH_MAX], path[LOOPDEV_PATH_MAX];
    snprintf(claimed, sizeof claimed, "/dev/loop%d", number);
    cleanup_fd int file = memfd_create("image", MFD_CLOEXEC), got = -1;
    assert_int_equal(ftruncate(file, 1 << 20), 0);
    assert_int_equal(loopdev_attach(file, false, &got, path), 0);
    assert_string_not_equal(path, claimed);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_claimed_for_a_moment_is_waited_for),
        cmocka_unit_test(one_that_stays_claimed_is_busy),
        cmocka_unit_test(a_free_device_that_stays_claimed_is_got_round),
    };
    return cmocka_run_group_tests(tests, make_device, drop_device);
}
