#include "sys/loopdev.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum {
    ATTACH_TRIES = 64,             // others take free devices at the same time
    ATTACH_STEP_NS = 1000 * 1000,  // or have one claimed for a moment that is free
    ATTACH_WALK = 4096,            // devices looked at beyond the one that stays busy
    ATTACH_AT_ONCE = 8,            // tries before the first wait
};

static int configure(int device, int file_fd, bool read_only)
{
    // A read-only image goes past the cache where the file allows it: its pages would be cached twice.  A writable one is
    // scratch space that is mostly thrown away before it ever needs to reach the disk: there the cache is what makes it fast.
    uint32_t optional = read_only ? LO_FLAGS_DIRECT_IO : 0;
    for (;;) {
        struct loop_config c = {
            .fd = (uint32_t)file_fd,
            .info.lo_flags = LO_FLAGS_AUTOCLEAR | (read_only ? LO_FLAGS_READ_ONLY : 0) | optional,
        };
        if (ioctl(device, LOOP_CONFIGURE, &c) == 0)
            return 0;
        if (errno != EINVAL || optional == 0)
            return -errno;
        optional = 0;
    }
}

static int attach_to(int number, int file_fd, bool read_only, int *ret_fd, char ret_path[LOOPDEV_PATH_MAX])
{
    char path[LOOPDEV_PATH_MAX];
    snprintf(path, sizeof path, "/dev/loop%d", number);
    cleanup_fd int device = open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (device < 0)
        return -errno;
    int r = configure(device, file_fd, read_only);
    if (r == 0) {
        memcpy(ret_path, path, sizeof path);
        *ret_fd = take_fd(&device);
    }
    return r;
}

// Each device after `number`, made where there is none yet.
static int attach_after(int control, int number, int file_fd, bool read_only, int *ret_fd, char ret_path[LOOPDEV_PATH_MAX])
{
    int r = -EBUSY;
    for (int i = 1; i <= ATTACH_WALK && r == -EBUSY; i++) {
        if (ioctl(control, LOOP_CTL_ADD, number + i) < 0 && errno != EEXIST)
            return -errno;
        r = attach_to(number + i, file_fd, read_only, ret_fd, ret_path);
    }
    return r;
}

int loopdev_attach(int file_fd, bool read_only, int *ret_fd, char ret_path[LOOPDEV_PATH_MAX])
{
    cleanup_fd int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0)
        return -errno;
    int r = -EBUSY, number = -1;
    for (int i = 0; i < ATTACH_TRIES && r == -EBUSY; i++) {
        if (i >= ATTACH_AT_ONCE)
            nanosleep(&(struct timespec){.tv_nsec = ATTACH_STEP_NS}, NULL);
        number = ioctl(control, LOOP_CTL_GET_FREE);
        if (number < 0)
            return -errno;
        r = attach_to(number, file_fd, read_only, ret_fd, ret_path);
    }
    // The kernel names the first device that has no file, also while somebody stays with it.
    return r == -EBUSY ? attach_after(control, number, file_fd, read_only, ret_fd, ret_path) : r;
}
