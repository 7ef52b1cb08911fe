#include "jailer/disk.h"

#include "base/cleanup.h"
#include "sys/loopdev.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SIZES_MAX = 16,    // formatted sizes kept; the least recently used goes
    MKFS_UID = 65534,  // nobody: mkfs needs no right but to the one descriptor
    COPY_CHUNK = 1024 * 1024,
};

struct blank {
    enum disk_kind kind;
    uint64_t mib;
    int fd;  // a memfd with the formatted image
    uint64_t used;
};

struct disk_store {
    int dir_fd;
    struct blank blanks[SIZES_MAX];
    int count;
    uint64_t clock;
};

int disk_store_new(int state_dir_fd, struct disk_store **ret_store)
{
    struct disk_store *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->dir_fd = state_dir_fd;
    *ret_store = s;
    return 0;
}

struct disk_store *disk_store_free(struct disk_store *store)
{
    if (store == NULL)
        return NULL;
    for (int i = 0; i < store->count; i++)
        close_fd(&store->blanks[i].fd);
    free(store);
    return NULL;
}

static const char *const features[] = {
    [DISK_SCRATCH] = "^has_journal,^metadata_csum,^resize_inode,uninit_bg",
    [DISK_VOLUME] = "has_journal,metadata_csum,64bit,^resize_inode",
};

static void exec_mkfs(int image, enum disk_kind kind)
{
    // Descriptors 0 to 2 go nowhere; 3 is the image.
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || dup2(image, 3) < 0)
        _exit(126);
    if (setresgid(MKFS_UID, MKFS_UID, MKFS_UID) < 0 || setresuid(MKFS_UID, MKFS_UID, MKFS_UID) < 0)
        _exit(126);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (close_range(4, ~0U, 0) < 0)
        _exit(126);
    const char *const argv[] = {"mkfs.ext4",
                                "-q",
                                "-F",
                                "-m",
                                "0",
                                "-b",
                                "4096",
                                "-I",
                                "256",
                                "-O",
                                features[kind],
                                "-E",
                                "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0",
                                "/proc/self/fd/3",
                                NULL};
    static const char *const env[] = {"PATH=/usr/sbin:/sbin:/usr/bin:/bin", NULL};
    execve("/usr/sbin/mkfs.ext4", (char *const *)argv, (char *const *)env);
    execve("/sbin/mkfs.ext4", (char *const *)argv, (char *const *)env);
    _exit(127);
}

static int run_mkfs(int image, enum disk_kind kind)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        exec_mkfs(image, kind);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return -ENOENT;
    return status == 0 ? 0 : -EIO;
}

static int format(enum disk_kind kind, uint64_t mib, int *ret_fd)
{
    cleanup_fd int fd = memfd_create("blank-disk", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)(mib << 20)) < 0 || fchown(fd, MKFS_UID, MKFS_UID) < 0)
        return -errno;
    int r = run_mkfs(fd, kind);
    if (r < 0)
        return r;
    *ret_fd = take_fd(&fd);
    return 0;
}

static struct blank *find_blank(struct disk_store *store, enum disk_kind kind, uint64_t mib)
{
    for (int i = 0; i < store->count; i++)
        if (store->blanks[i].kind == kind && store->blanks[i].mib == mib)
            return &store->blanks[i];
    return NULL;
}

// The place for a new size: a free one, or that of the least recently used.
static struct blank *blank_place(struct disk_store *store)
{
    if (store->count < SIZES_MAX) {
        struct blank *b = &store->blanks[store->count++];
        b->fd = -1;
        return b;
    }
    struct blank *oldest = &store->blanks[0];
    for (int i = 1; i < store->count; i++)
        if (store->blanks[i].used < oldest->used)
            oldest = &store->blanks[i];
    close_fd(&oldest->fd);
    return oldest;
}

static int blank_of(struct disk_store *store, enum disk_kind kind, uint64_t mib, int *ret_fd)
{
    struct blank *b = find_blank(store, kind, mib);
    if (b == NULL) {
        int fd = -1;
        int r = format(kind, mib, &fd);
        if (r < 0)
            return r;
        b = blank_place(store);
        *b = (struct blank){.kind = kind, .mib = mib, .fd = fd};
    }
    b->used = ++store->clock;
    *ret_fd = b->fd;
    return 0;
}

int disk_blank(struct disk_store *store, enum disk_kind kind, uint64_t mib, int *ret_file_fd)
{
    int fd;
    int r = blank_of(store, kind, mib, &fd);
    if (r < 0)
        return r;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0)
        return -errno;
    *ret_file_fd = copy;
    return 0;
}

static int copy_range(int from, int to, off_t at, off_t end, char *chunk)
{
    while (at < end) {
        size_t want = end - at < COPY_CHUNK ? (size_t)(end - at) : COPY_CHUNK;
        ssize_t n = pread(from, chunk, want, at);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        for (ssize_t done = 0; done < n;) {
            ssize_t w = pwrite(to, chunk + done, (size_t)(n - done), at + done);
            if (w < 0)
                return -errno;
            done += w;
        }
        at += n;
    }
    return 0;
}

int disk_copy(int from, int to, uint64_t mib)
{
    off_t size = (off_t)(mib << 20);
    cleanup_free char *chunk = malloc(COPY_CHUNK);
    if (chunk == NULL)
        return -ENOMEM;
    for (off_t at = 0; at < size;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno;
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        int r = copy_range(from, to, data, hole, chunk);
        if (r < 0)
            return r;
        at = hole;
    }
    return 0;
}

static int mount_ext4(const char *device, const struct mount_option *extra, uint64_t attributes)
{
    struct mount_option options[8] = {{"source", device}};
    size_t n = 1;
    for (; extra->key != NULL; extra++)
        options[n++] = *extra;
    return mount_new("ext4", options, attributes);
}

int disk_begin(struct disk_store *store, uint64_t mib, int *ret_file, struct disk_device *ret_device)
{
    cleanup_fd int file = openat(store->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return -errno;
    if (ftruncate(file, (off_t)(mib << 20)) < 0)
        return -errno;
    // Before anything is written: the loop device writes to the drive what it finds unwritten when it is set up, which nobody
    // needs.
    int r = loopdev_attach(file, false, &ret_device->fd, ret_device->path);
    if (r == 0)
        *ret_file = take_fd(&file);
    return r;
}

int disk_mount(const struct disk_device *device, int *ret_mount)
{
    // Who looks at every new block device may have looked at this one while it was empty.
    if (ioctl(device->fd, BLKFLSBUF, 0) < 0)
        return -errno;
    // noinit_itable: the kernel would otherwise write the whole inode table of every disk in the background.
    static const struct mount_option options[] = {{"noinit_itable", NULL}, {"nobarrier", NULL}, {"errors", "remount-ro"}, {0}};
    int mount = mount_ext4(device->path, options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
    if (mount < 0)
        return mount;
    *ret_mount = mount;
    return 0;
}

int disk_new(struct disk_store *store, uint64_t mib, int *ret_mount, int *ret_file)
{
    int blank;
    int r = blank_of(store, DISK_SCRATCH, mib, &blank);
    if (r < 0)
        return r;
    cleanup_fd int file = -1;
    struct disk_device device;
    r = disk_begin(store, mib, &file, &device);
    if (r < 0)
        return r;
    r = disk_copy(blank, file, mib);
    if (r == 0)
        r = disk_mount(&device, ret_mount);
    close_fd(&device.fd);
    if (r == 0)
        *ret_file = take_fd(&file);
    return r;
}

int disk_mount_image(int file_fd, int *ret_mount)
{
    cleanup_fd int device = -1;
    char path[LOOPDEV_PATH_MAX];
    int r = loopdev_attach(file_fd, true, &device, path);
    if (r < 0)
        return r;
    static const struct mount_option options[] = {{"ro", NULL}, {"noload", NULL}, {0}};
    int mount = mount_ext4(path, options, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
    if (mount < 0)
        return mount;
    *ret_mount = mount;
    return 0;
}
