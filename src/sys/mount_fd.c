#include "sys/mount_fd.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_TRIES = 100, BUSY_STEP_NS = 1000 * 1000 };

// glibc 2.36 has wrappers, but its <sys/mount.h> and <linux/mount.h> cannot be included together.
static int sys_fsopen(const char *type)
{
    return (int)syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
}

static int configure(int fs, unsigned command, const char *key, const char *value)
{
    return syscall(SYS_fsconfig, fs, command, key, value, 0) < 0 ? -errno : 0;
}

static int mount_once(const char *type, const struct mount_option *options, uint64_t attributes)
{
    cleanup_fd int fs = sys_fsopen(type);
    if (fs < 0)
        return -errno;
    for (const struct mount_option *o = options; o->key != NULL; o++) {
        int r = configure(fs, o->value != NULL ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, o->key, o->value);
        if (r < 0)
            return r;
    }
    int r = configure(fs, FSCONFIG_CMD_CREATE, NULL, NULL);
    if (r < 0)
        return r;
    int mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes);
    return mount < 0 ? -errno : mount;
}

int mount_new(const char *type, const struct mount_option *options, uint64_t attributes)
{
    int r = mount_once(type, options, attributes);
    // A context whose creation failed is of no use any more: each try has its own.
    for (int i = 0; i < BUSY_TRIES && r == -EBUSY; i++) {
        nanosleep(&(struct timespec){.tv_nsec = BUSY_STEP_NS}, NULL);
        r = mount_once(type, options, attributes);
    }
    return r;
}

int mount_clone(int dir_fd, const char *path)
{
    unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | (*path == '\0' ? AT_EMPTY_PATH : 0);
    int mount = (int)syscall(SYS_open_tree, dir_fd, path, flags);
    return mount < 0 ? -errno : mount;
}

static int set_attributes(int mount, const struct mount_attr *a)
{
    return syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, a, sizeof *a) < 0 ? -errno : 0;
}

int mount_restrict(int mount, uint64_t attributes)
{
    return set_attributes(mount, &(struct mount_attr){.attr_set = attributes});
}

int mount_idmap(int mount, int userns_fd)
{
    return set_attributes(mount, &(struct mount_attr){.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns_fd});
}

int mount_attach(int mount, int target_fd)
{
    unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    return syscall(SYS_move_mount, mount, "", target_fd, "", flags) < 0 ? -errno : 0;
}

int mount_attach_at(int mount, int dir_fd, const char *path)
{
    return syscall(SYS_move_mount, mount, "", dir_fd, path, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

int mount_detach(int mount)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", mount);
    return mount_detach_path(path);
}

int mount_detach_path(const char *path)
{
    return syscall(SYS_umount2, path, 2 /* MNT_DETACH */) < 0 ? -errno : 0;
}
