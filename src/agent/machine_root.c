// The machine's own root: a small tmpfs with the file systems that building a sandbox needs, in place of the initramfs.
#include "agent/machine.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static const char base[] = "/base";

static int mount_at(const char *type, const char *path, unsigned long flags, const char *data)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    return mount(type, path, type, MS_NOSUID | flags, data) < 0 ? -errno : 0;
}

int machine_mount_early(void)
{
    return mount_at("devtmpfs", "/dev", MS_NOEXEC, "mode=0755");
}

// /proc and /sys stay whole here: where a part of them is covered, the kernel lets no user namespace mount its own.
static int fill(void)
{
    static const struct {
        const char *type, *path;
    } all[] = {{"devtmpfs", "dev"}, {"proc", "proc"}, {"sysfs", "sys"}, {"cgroup2", "cgroup"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int r = mount_at(all[i].type, all[i].path, MS_NOEXEC, NULL);
        if (r < 0)
            return r;
    }
    return mkdir("tmp", 0755) < 0 || mkdir("disk", 0700) < 0 ? -errno : 0;
}

// A detached mount cannot be copied (Linux 6.1), and a copy is what gets the sandbox's ids.
static int attach_disk(int disk)
{
    return mount_attach_at(disk, AT_FDCWD, "/disk");
}

int machine_leave_initramfs(int disk)
{
    int r = mount_at("tmpfs", base, MS_NODEV, "size=1m,mode=0755");
    if (r < 0)
        return r;
    if (chdir(base) < 0)
        return -errno;
    r = fill();
    if (r < 0)
        return r;
    // What is left in it is this program, which its own run keeps.
    unlink("/init");
    umount2("/dev", MNT_DETACH);
    if (mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        return -errno;
    return attach_disk(disk);
}
