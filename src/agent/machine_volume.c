// The session's volume: an ext4 image that the host gives to one machine at a time and never mounts itself.  The machine that
// had it before was as little trusted as this one: what a hostile image can do is what its maker could do to this kernel
// anyway.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SIZE_WAIT_S = 10, SIZE_STEP_NS = 1000000 };

static const char device_path[] = "/dev/vdb";
static const char mount_point[] = "/volume";

// A clone's is a disk without a size until its driver has looked again.
static int await_size(void)
{
    cleanup_fd int device = open(device_path, O_RDONLY | O_CLOEXEC);
    uint64_t deadline = mono_ns() + SIZE_WAIT_S * NS_PER_S, bytes;
    if (device < 0)
        return -errno;
    for (;;) {
        if (ioctl(device, BLKGETSIZE64, &bytes) < 0)
            return -errno;
        if (bytes > 0)
            return 0;
        if (mono_ns() > deadline)
            return -ENOMEDIUM;
        nanosleep(&(struct timespec){.tv_nsec = SIZE_STEP_NS}, NULL);
    }
}

static int make_guest_dir(int mount)
{
    if (mkdirat(mount, MACHINE_VOLUME_DIR, 0755) < 0)
        return errno == EEXIST ? 0 : -errno;
    return fchmodat(mount, MACHINE_VOLUME_DIR, 0755, 0) < 0 ? -errno : 0;
}

// Only of something that is attached can a part be taken.
static int attach(int mount)
{
    if (mkdir(mount_point, 0700) < 0)
        return -errno;
    return mount_attach_at(mount, AT_FDCWD, mount_point);
}

int machine_mount_volume(int *ret_volume)
{
    // Barriers are on, as they are unless said otherwise: what a guest has synced is on the host's disk.
    static const struct mount_option options[] = {
        {"source", device_path}, {"noinit_itable", NULL}, {"discard", NULL}, {"errors", "remount-ro"}, {0}};
    int r = await_size();
    if (r < 0)
        return r;
    cleanup_fd int mount = mount_new("ext4", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
    if (mount < 0)
        return mount;
    r = make_guest_dir(mount);
    if (r == 0)
        r = attach(mount);
    if (r == 0)
        *ret_volume = take_fd(&mount);
    return r;
}

int machine_sync_volume(int volume)
{
    cleanup_fd int dir = openat(volume, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0 || syncfs(dir) < 0 ? -errno : 0;
}
