// The machine's disk: the template's ext4 image below, what this machine writes above it; which is which only the monitor
// knows.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <time.h>

enum {
    DISK_WAIT_S = 10,
    DISK_STEP_NS = 1000000,
    GROW_SHARE = 32,   // of what is added, one part in this many is for its own bitmaps and inode tables
    GROW_LEAST = 512,  // and so many blocks in any case
};

static const char device_path[] = "/dev/vda";

#define EXT4_IOC_RESIZE_FS_ _IOW('f', 16, uint64_t)

static int open_device(void)
{
    uint64_t deadline = mono_ns() + DISK_WAIT_S * NS_PER_S;
    for (;;) {
        int fd = open(device_path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
        if ((errno != ENOENT && errno != ENXIO) || mono_ns() > deadline)
            return -errno;
        nanosleep(&(struct timespec){.tv_nsec = DISK_STEP_NS}, NULL);
    }
}

uint64_t machine_disk_grown(uint64_t blocks, uint64_t available, uint64_t want, uint64_t device)
{
    if (available >= want || device <= blocks)
        return blocks;
    uint64_t more = want - available;
    more += more / GROW_SHARE + GROW_LEAST;
    return more < device - blocks ? blocks + more : device;
}

// The file system's size in blocks, which statvfs does not tell (it leaves out the file system's own tables).
static int64_t blocks_of(void)
{
    enum { SUPERBLOCK = 1024, BLOCKS_COUNT = 4 };
    cleanup_fd int device = open(device_path, O_RDONLY | O_CLOEXEC);
    uint32_t count;
    if (device < 0)
        return -errno;
    return pread(device, &count, sizeof count, SUPERBLOCK + BLOCKS_COUNT) == (ssize_t)sizeof count ? (int64_t)count : -EIO;
}

static int grow(int root, const struct statvfs *now, uint64_t want, uint64_t device_bytes)
{
    int64_t blocks = blocks_of();
    if (blocks < 0)
        return (int)blocks;
    uint64_t target = machine_disk_grown((uint64_t)blocks, now->f_bavail, want, device_bytes / now->f_bsize);
    return target > (uint64_t)blocks && ioctl(root, EXT4_IOC_RESIZE_FS_, &target) < 0 ? -errno : 0;
}

// What is free beyond `want` goes into a file nobody can find, so that a disk is as large as was asked for.
static int reserve(int root, uint64_t excess_bytes, int *ret_fd)
{
    *ret_fd = -1;
    if (excess_bytes == 0)
        return 0;
    cleanup_fd int fd = openat(root, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)excess_bytes) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

static int fit(int mount, uint64_t disk_mib, uint64_t device_bytes, int *ret_reserve)
{
    cleanup_fd int root = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct statvfs now;
    if (root < 0 || fstatvfs(root, &now) < 0)
        return -errno;
    uint64_t want = (disk_mib << 20) / now.f_bsize;
    int r = grow(root, &now, want, device_bytes);
    if (r < 0)
        return r;
    if (fstatvfs(root, &now) < 0)
        return -errno;
    return reserve(root, now.f_bavail > want ? (now.f_bavail - want) * now.f_bsize : 0, ret_reserve);
}

int machine_mount_disk(uint64_t disk_mib, int *ret_mount, int *ret_reserve)
{
    cleanup_fd int device = open_device();
    if (device < 0)
        return device;
    uint64_t bytes;
    if (ioctl(device, BLKGETSIZE64, &bytes) < 0)
        return -errno;
    // As the disks of the container tier: nothing on it outlives the machine.  noinit_itable: the kernel would otherwise
    // write every inode table in the background.
    static const struct mount_option options[] = {
        {"source", device_path}, {"noinit_itable", NULL}, {"nobarrier", NULL}, {"errors", "remount-ro"}, {0}};
    cleanup_fd int mount = mount_new("ext4", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
    if (mount < 0)
        return mount;
    int r = fit(mount, disk_mib, bytes, ret_reserve);
    if (r == 0)
        *ret_mount = take_fd(&mount);
    return r;
}
