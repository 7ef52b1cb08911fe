// What of the file system a sandbox may write, and the devices it has.
#include "agent/self_test_walls.h"
#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

// Opening for writing is the attempt; nothing is written, because for some of these any byte would act.
static bool not_writable(const char *path, struct err *why)
{
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return true;
    return err_set(why, 0, "%s can be opened for writing", path), false;
}

// A masked file is an empty one, or /dev/null, on top of the real one; that takes writes and does nothing.
static bool masked(const char *path)
{
    struct stat st, null;
    return stat(path, &st) == 0 && stat("/dev/null", &null) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == null.st_rdev;
}

// Some settings belong to a sandbox's own namespaces and are its root's to write; the mount is what forbids it.
static bool mounted_read_only(const char *path, struct err *why)
{
    struct statfs fs;
    bool of_kernel = statfs(path, &fs) == 0 && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC);
    if (!of_kernel || (fs.f_flags & ST_RDONLY) != 0)
        return true;
    return err_set(why, 0, "%s is not mounted read-only", path), false;
}

bool wall_kernel_files(struct err *why)
{
    if (!mounted_read_only("/proc/sys", why) || !mounted_read_only("/sys", why))
        return false;
    static const char *const files[] = {
        "/proc/sys/kernel/hostname",      "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity", "/sys/kernel/uevent_helper",     "/sys/power/state",
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (!masked(files[i]) && !not_writable(files[i], why))
            return false;
    static const char *const secrets[] = {"/proc/kcore", "/proc/kmsg", "/proc/keys", "/dev/mem", "/dev/kmsg"};
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++) {
        char byte;
        cleanup_fd int fd = open(secrets[i], O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd >= 0 && read(fd, &byte, 1) > 0)
            return err_set(why, 0, "%s can be read", secrets[i]), false;
    }
    return true;
}

struct device {
    const char *name;
    unsigned major, minor;
};

static const struct device harmless[] = {
    {"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}, {"ptmx", 5, 2},
};

static bool device_ok(const char *name, const struct stat *st)
{
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strcmp(name, harmless[i].name) == 0)
            return S_ISCHR(st->st_mode) && st->st_rdev == makedev(harmless[i].major, harmless[i].minor);
    // The console of a sandbox is a pseudo-terminal.
    return strcmp(name, "console") == 0 && S_ISCHR(st->st_mode) && major(st->st_rdev) >= 136 && major(st->st_rdev) <= 143;
}

static bool entry_ok(int dir, const char *name)
{
    static const char *const plain[] = {"pts", "shm", "mqueue", "fd", "stdin", "stdout", "stderr", "ptmx", "core"};
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT;
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode))
        return device_ok(name, &st);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(name, plain[i]) == 0)
            return S_ISDIR(st.st_mode) || S_ISLNK(st.st_mode);
    // A device is told by what it is: the bind mount of one over a plain file shows as the device.
    return false;
}

static void dir_close(DIR **dir)
{
    if (*dir != NULL)
        closedir(*dir);
}

bool wall_devices(struct err *why)
{
    __attribute__((cleanup(dir_close))) DIR *dir = opendir("/dev");
    if (dir == NULL)
        return err_set(why, errno, "/dev cannot be read: %s", strerror(errno)), false;
    for (const struct dirent *d = readdir(dir); d != NULL; d = readdir(dir)) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        if (!entry_ok(dirfd(dir), d->d_name))
            return err_set(why, 0, "/dev/%.64s should not be there", d->d_name), false;
    }
    return true;
}

bool wall_root_writable(struct err *why)
{
    static const char name[] = "/.sandbox-self-test";
    cleanup_fd int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(why, errno, "a file cannot be made in /: %s", strerror(errno)), false;
    if (unlink(name) < 0)
        return err_set(why, errno, "a file cannot be removed from /: %s", strerror(errno)), false;
    return true;
}
