#include "enter/root.h"

#include "base/cleanup.h"
#include "sys/jail.h"
#include "sys/mount_fd.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

// <sys/mount.h> and <linux/mount.h> cannot be included together; these are the calls and flags needed of the former.
extern int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
extern int umount2(const char *target, int flags);
enum { MS_NOSUID_ = 2, MS_NODEV_ = 4, MS_REC_ = 16384, MS_PRIVATE_ = 1 << 18, MNT_DETACH_ = 2 };

static const char stage_dir[] = "/tmp";
static const char template_dir[] = "/tmp/template";
static const char disk_dir[] = "/tmp/disk";
static const char root_dir[] = "/tmp/root";
static const char sysfs_dir[] = "/tmp/sysfs";
enum { LAYER_DIR_MAX = sizeof "/tmp/layer" + 10 };

enum mount_point { POINT_PROC, POINT_SYS, POINT_DEV, POINT_TMP, POINT_WORKSPACE, POINTS };

static uint32_t layer_count;
static int root_fd = -1;
static int namespace_limits = -1;
static int network_settings = -1;
static int point_fd[POINTS];

int root_stage(void)
{
    if (mount(NULL, "/", NULL, MS_REC_ | MS_PRIVATE_, NULL) < 0)
        return -errno;
    static const struct mount_option options[] = {{"size", "1m"}, {"mode", "0711"}, {0}};
    cleanup_fd int fs = mount_new("tmpfs", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (fs < 0)
        return fs;
    int r = mount_attach_at(fs, AT_FDCWD, stage_dir);
    if (r < 0)
        return r;
    if (mkdir(template_dir, 0755) < 0 || mkdir(disk_dir, 0755) < 0 || mkdir(root_dir, 0755) < 0)
        return -errno;
    return 0;
}

int root_attach_template(int mount_fd)
{
    return mount_attach_at(mount_fd, AT_FDCWD, template_dir);
}

int root_attach_whole(int mount_fd)
{
    return mount_attach_at(mount_fd, AT_FDCWD, root_dir);
}

static void layer_dir(uint32_t layer, char path[static LAYER_DIR_MAX])
{
    snprintf(path, LAYER_DIR_MAX, "/tmp/layer%u", layer);
}

int root_attach_layers(const int *mounts, uint32_t count)
{
    for (layer_count = 0; layer_count < count; layer_count++) {
        char path[LAYER_DIR_MAX];
        layer_dir(layer_count, path);
        if (mkdir(path, 0755) < 0)
            return -errno;
        int r = mount_attach_at(mounts[layer_count], AT_FDCWD, path);
        if (r < 0)
            return r;
    }
    return 0;
}

// The mark that an overlay has not been synced as a whole.  The disk of a sandbox that is kept was, as a filesystem.
static int remove_mark(int disk)
{
    static const struct {
        const char *path;
        int flags;
    } marks[] = {{"incompat/volatile/dirty", 0}, {"incompat/volatile", AT_REMOVEDIR}, {"incompat", AT_REMOVEDIR}};
    // What the kernel makes of an overlay's work directory is one of the same name in it.
    cleanup_fd int work = openat(disk, "work", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    cleanup_fd int kernels = work < 0 ? -1 : openat(work, "work", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (kernels < 0)
        return errno == ENOENT ? 0 : -errno;
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (unlinkat(kernels, marks[i].path, marks[i].flags) < 0 && errno != ENOENT)
            return -errno;
    return 0;
}

int root_attach_disk(int mount_fd)
{
    int r = mount_attach_at(mount_fd, AT_FDCWD, disk_dir);
    if (r < 0)
        return r;
    cleanup_fd int disk = open(disk_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (disk < 0)
        return -errno;
    static const char *const dirs[] = {"upper", "work"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        if (mkdirat(disk, dirs[i], 0755) < 0 && errno != EEXIST)
            return -errno;
    return remove_mark(disk);
}

int root_overlay(void)
{
    char options[256 + JAIL_LAYERS_MAX * LAYER_DIR_MAX];
    size_t n = (size_t)snprintf(options, sizeof options, "lowerdir=");
    for (uint32_t i = 0; i < layer_count; i++) {
        char path[LAYER_DIR_MAX];
        layer_dir(i, path);
        n += (size_t)snprintf(options + n, sizeof options - n, "%s:", path);
    }
    snprintf(options + n, sizeof options - n, "%s,upperdir=%s/upper,workdir=%s/work,userxattr,volatile", template_dir, disk_dir,
             disk_dir);
    return mount("overlay", root_dir, "overlay", MS_NOSUID_ | MS_NODEV_, options) < 0 ? -errno : 0;
}

// Opens `path` below `dir` without following any link.  O_PATH.
static int open_beneath(int dir, const char *path, uint64_t extra_flags)
{
    struct open_how how = {
        .flags = O_PATH | O_CLOEXEC | extra_flags,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
    return fd < 0 ? -errno : fd;
}

int root_mount_points(void)
{
    static const struct {
        const char *name;
        mode_t mode;
    } points[POINTS] = {
        [POINT_PROC] = {"proc", 0555},
        [POINT_SYS] = {"sys", 0555},
        [POINT_DEV] = {"dev", 0755},
        [POINT_TMP] = {"tmp", 01777},
        [POINT_WORKSPACE] = {"workspace", 0755},
    };
    root_fd = open(root_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0)
        return -errno;
    for (int i = 0; i < POINTS; i++) {
        int made = mkdirat(root_fd, points[i].name, points[i].mode);
        if (made < 0 && errno != EEXIST)
            return -errno;
        // The umask cut the mode.
        if (made == 0 && fchmodat(root_fd, points[i].name, points[i].mode, 0) < 0)
            return -errno;
        point_fd[i] = open_beneath(root_fd, points[i].name, O_DIRECTORY);
        if (point_fd[i] < 0)
            return point_fd[i];
    }
    return 0;
}

int root_attach_volume(int mount_fd)
{
    return mount_attach(mount_fd, point_fd[POINT_WORKSPACE]);
}

static int mount_in_dev(int dev, const char *name, const char *type, const struct mount_option *options)
{
    cleanup_fd int fs = mount_new(type, options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV);
    return fs < 0 ? fs : mount_attach_at(fs, dev, name);
}

static int mount_shm(int dev, uint64_t bytes)
{
    char size[32];
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    const struct mount_option options[] = {{"size", size}, {"mode", "1777"}, {0}};
    return mount_in_dev(dev, "shm", "tmpfs", options);
}

// Terminals come out of one number for the whole host (kernel.pty.max, 4096).
#define PTYS_MAX "64"

static int mount_pts(int dev)
{
    static const struct mount_option options[] = {{"newinstance", NULL}, {"ptmxmode", "0666"}, {"mode", "0620"},
                                                  {"gid", "5"},          {"max", PTYS_MAX},    {0}};
    // A terminal is a device: no MOUNT_ATTR_NODEV here.
    cleanup_fd int fs = mount_new("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return fs < 0 ? fs : mount_attach_at(fs, dev, "pts");
}

int root_dev(int mount_fd, uint64_t shm_bytes)
{
    int r = mount_attach(mount_fd, point_fd[POINT_DEV]);
    if (r < 0)
        return r;
    cleanup_fd int dev = openat(root_fd, "dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dev < 0)
        return -errno;
    r = mount_pts(dev);
    return r < 0 ? r : mount_shm(dev, shm_bytes);
}

// Makes `path` below `base` read-only by covering it with a read-only view of itself.  What this kernel has not is fine.
static int make_read_only(int base, const char *path)
{
    cleanup_fd int target = open_beneath(base, path, 0);
    if (target < 0)
        return target == -ENOENT ? 0 : target;
    cleanup_fd int view = mount_clone(base, path);
    if (view < 0)
        return view;
    int r = mount_restrict(view, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    return r < 0 ? r : mount_attach(view, target);
}

// Hides a file behind /dev/null, a directory behind an empty read-only one.
static int hide(int base, const char *path)
{
    cleanup_fd int target = open_beneath(base, path, 0);
    if (target < 0)
        return target == -ENOENT ? 0 : target;
    struct stat st;
    if (fstat(target, &st) < 0)
        return -errno;
    static const struct mount_option options[] = {{"size", "4k"}, {"mode", "0555"}, {0}};
    cleanup_fd int cover = S_ISDIR(st.st_mode)
                               ? mount_new("tmpfs", options, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
                               : mount_clone(root_fd, "dev/null");
    return cover < 0 ? cover : mount_attach(cover, target);
}

static int each(int base, const char *const *paths, size_t count, int (*fn)(int base, const char *path))
{
    for (size_t i = 0; i < count; i++) {
        int r = fn(base, paths[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

int root_proc(void)
{
    static const struct mount_option options[] = {{0}};
    cleanup_fd int fs = mount_new("proc", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (fs < 0)
        return fs;
    int r = mount_attach(fs, point_fd[POINT_PROC]);
    if (r < 0)
        return r;
    cleanup_fd int proc = openat(root_fd, "proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (proc < 0)
        return -errno;
    // Kept from before /proc/sys becomes read-only, for root_forbid_namespaces.
    namespace_limits = openat(proc, "sys/user", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (namespace_limits < 0)
        return -errno;
    // Likewise, for root_forbid_ipv6; a kernel may be without.
    network_settings = openat(proc, "sys/net/ipv6/conf", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    static const char *const read_only[] = {"bus", "irq", "sys", "sysrq-trigger"};
    // fs, diskstats, partitions and swaps name the host's disks and those of other sandboxes, with how much they are used.
    static const char *const hidden[] = {"acpi",          "asound",     "cmdline",     "diskstats", "dynamic_debug", "fs",
                                         "interrupts",    "kallsyms",   "kcore",       "keys",      "key-users",     "kmsg",
                                         "latency_stats", "modules",    "partitions",  "pressure",  "sched_debug",   "scsi",
                                         "swaps",         "timer_list", "timer_stats", "schedstat"};
    r = each(proc, read_only, sizeof read_only / sizeof read_only[0], make_read_only);
    return r < 0 ? r : each(proc, hidden, sizeof hidden / sizeof hidden[0], hide);
}

// The parts of sysfs a sandbox sees: what runtimes ask about processors and memory, and its own network interfaces.  All
// else is about the host's hardware, or, under block and fs, about other sandboxes.
static const char *const sys_shown[] = {"class/net", "devices/system/cpu", "devices/system/node", "devices/virtual/net"};

// The empty folders of /sys, in an order that makes parents first.
static int make_sys_folders(int sys)
{
    static const char *const folders[] = {
        "class",           "class/net",           "devices", "devices/system", "devices/system/cpu", "devices/system/node",
        "devices/virtual", "devices/virtual/net", "fs",      "fs/cgroup",
    };
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (mkdirat(sys, folders[i], 0555) < 0)
            return -errno;
    return 0;
}

// Takes the parts from a whole sysfs, which stays behind on the stage.
static int show_sys(int sys, uint64_t attributes)
{
    static const struct mount_option none[] = {{0}};
    cleanup_fd int whole = mount_new("sysfs", none, attributes);
    // Where the engine itself runs in a container whose /sys is partly hidden, the kernel refuses a new one: the empty folders
    // are then the safe answer.
    if (whole < 0)
        return 0;
    if (mkdir(sysfs_dir, 0755) < 0)
        return -errno;
    int r = mount_attach_at(whole, AT_FDCWD, sysfs_dir);
    for (size_t i = 0; i < sizeof sys_shown / sizeof sys_shown[0] && r == 0; i++) {
        cleanup_fd int part = mount_clone(whole, sys_shown[i]);
        r = part >= 0 ? mount_attach_at(part, sys, sys_shown[i]) : part == -ENOENT ? 0 : part;
    }
    return r;
}

int root_sys(void)
{
    static const struct mount_option options[] = {{"size", "4k"}, {"mode", "0555"}, {0}};
    uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    cleanup_fd int fs = mount_new("tmpfs", options, attributes);
    if (fs < 0)
        return fs;
    int r = mount_attach(fs, point_fd[POINT_SYS]);
    if (r < 0)
        return r;
    cleanup_fd int sys = openat(root_fd, "sys", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (sys < 0)
        return -errno;
    r = make_sys_folders(sys);
    if (r == 0)
        r = show_sys(sys, attributes | MOUNT_ATTR_RDONLY);
    return r < 0 ? r : mount_restrict(fs, MOUNT_ATTR_RDONLY);
}

int root_pivot(void)
{
    if (fchdir(root_fd) < 0)
        return -errno;
    // The old root is stacked under the new one, and then taken away with all that hangs on it.
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return -errno;
    if (umount2(".", MNT_DETACH_) < 0 || chdir("/") < 0)
        return -errno;
    close_fd(&root_fd);
    for (int i = 0; i < POINTS; i++)
        close_fd(&point_fd[i]);
    return 0;
}

int root_forbid_ipv6_in(int settings, const char *device)
{
    char path[64];
    snprintf(path, sizeof path, "%s/disable_ipv6", device);
    int r = file_write_at(settings, path, "1");
    snprintf(path, sizeof path, "%s/accept_ra", device);
    return r == 0 ? file_write_at(settings, path, "0") : r;
}

int root_forbid_ipv6(const char *device)
{
    int r = network_settings >= 0 ? root_forbid_ipv6_in(network_settings, device) : 0;
    close_fd(&network_settings);
    return r;
}

int root_forbid_namespaces(void)
{
    static const char *const limits[] = {
        "max_user_namespaces", "max_mnt_namespaces", "max_pid_namespaces",    "max_net_namespaces",
        "max_ipc_namespaces",  "max_uts_namespaces", "max_cgroup_namespaces", "max_time_namespaces",
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        int r = file_write_at(namespace_limits, limits[i], "0");
        if (r < 0 && r != -ENOENT)
            return r;
    }
    close_fd(&namespace_limits);
    return 0;
}
