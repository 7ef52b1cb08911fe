#include "jailer/volume.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "jailer/id_files.h"
#include "sys/loopdev.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { ST_BLOCK = 512 };

// What a sandbox sees of the filesystem: neither lost+found nor anything else of ours.
static const char guest_dir[] = "workspace";
static const char mount_point[] = "volume";

// A volume that a sandbox has, as something that may still grow.
struct mounted {
    LIST_ENTRY(mounted) link;
    uint8_t id[JAIL_VOLUME_ID];
    int file;  // O_PATH: this must not be the open file that the lock is of
};

LIST_HEAD(mounted_list, mounted);

struct volumes {
    int dir;
    int mounts;
    struct disk_store *disks;
    struct mounted_list mounted;
};

// Who mounts it.
enum kind { HOST, MACHINE, KINDS };

static const char *const suffixes[KINDS] = {[HOST] = "", [MACHINE] = ".vm"};

struct name {
    char text[ID_DIGITS + sizeof ".vm"];
};

static struct name name_of(const uint8_t id[static JAIL_VOLUME_ID], enum kind kind)
{
    struct name name;
    hex_encode(id, JAIL_VOLUME_ID, name.text);
    strcpy(name.text + ID_DIGITS, suffixes[kind]);
    return name;
}

int volumes_open(int state_fd, int mounts_fd, struct disk_store *disks, struct volumes **ret_volumes)
{
    if (mkdirat(state_fd, "volumes", 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int dir = openat(state_fd, "volumes", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (dir < 0 || fstat(dir, &st) < 0)
        return -errno;
    // Who could have written an image here could have the kernel read it.
    if (st.st_uid != 0 || (st.st_mode & 077) != 0)
        return -EPERM;
    struct volumes *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    *v = (struct volumes){.dir = take_fd(&dir), .mounts = mounts_fd, .disks = disks};
    LIST_INIT(&v->mounted);
    *ret_volumes = v;
    return 0;
}

static struct mounted *find(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    struct mounted *m;
    LIST_FOREACH(m, &v->mounted, link)
    if (memcmp(m->id, id, JAIL_VOLUME_ID) == 0)
        return m;
    return NULL;
}

static void forget(struct mounted *m)
{
    LIST_REMOVE(m, link);
    close_fd(&m->file);
    free(m);
}

struct volumes *volumes_close(struct volumes *v)
{
    if (v == NULL)
        return NULL;
    while (!LIST_EMPTY(&v->mounted))
        forget(LIST_FIRST(&v->mounted));
    close_fd(&v->dir);
    free(v);
    return NULL;
}

// ---- room on the host ----

static uint64_t may_grow(const struct stat *st)
{
    uint64_t size = (uint64_t)st->st_size, used = (uint64_t)st->st_blocks * ST_BLOCK;
    return size > used ? size - used : 0;
}

// Whether there is room for `more` bytes beside what those in use may still take.
static int check_room(const struct volumes *v, uint64_t more)
{
    const struct mounted *m;
    LIST_FOREACH(m, &v->mounted, link)
    {
        struct stat st;
        if (fstat(m->file, &st) == 0)
            more += may_grow(&st);
    }
    struct statvfs fs;
    if (fstatvfs(v->dir, &fs) < 0)
        return -errno;
    return (uint64_t)fs.f_bavail * fs.f_frsize < more ? -ENOSPC : 0;
}

// ---- making and removing ----

static int fill(struct volumes *v, int file, uint64_t mib)
{
    cleanup_fd int blank = -1;
    int r = disk_blank(v->disks, DISK_VOLUME, mib, &blank);
    if (r == 0 && ftruncate(file, (off_t)(mib << 20)) < 0)
        r = -errno;
    if (r == 0)
        r = disk_copy(blank, file, mib);
    if (r == 0 && fsync(file) < 0)
        r = -errno;
    return r;
}

int volume_create(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], uint64_t mib, bool machine)
{
    // The name itself is linked only if it is free.
    struct name name = name_of(id, machine ? MACHINE : HOST), other = name_of(id, machine ? HOST : MACHINE);
    if (faccessat(v->dir, other.text, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
        return -EEXIST;
    int r = check_room(v, mib << 20);
    if (r < 0)
        return r;
    cleanup_fd int file = openat(v->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return -errno;
    r = fill(v, file, mib);
    if (r < 0)
        return r;
    char unnamed[32];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file);
    if (linkat(AT_FDCWD, unnamed, v->dir, name.text, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    if (fsync(v->dir) == 0)
        return 0;
    r = -errno;
    unlinkat(v->dir, name.text, 0);
    return r;
}

// The volume's file, locked by its open file.  -EBUSY when another open file has the lock.
static int open_locked(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], enum kind kind)
{
    struct name name = name_of(id, kind);
    cleanup_fd int file = openat(v->dir, name.text, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (file < 0 || fstat(file, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & 077) != 0)
        return -EPERM;
    if (flock(file, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : -errno;
    return take_fd(&file);
}

// Of one that there is.
static enum kind kind_of(const struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    struct name name = name_of(id, MACHINE);
    return faccessat(v->dir, name.text, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ? MACHINE : HOST;
}

int volume_delete(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    enum kind kind = kind_of(v, id);
    cleanup_fd int file = open_locked(v, id, kind);
    if (file < 0)
        return file;
    struct name name = name_of(id, kind);
    if (unlinkat(v->dir, name.text, 0) < 0 || fsync(v->dir) < 0)
        return -errno;
    return 0;
}

// ---- listing ----

int volume_list(struct volumes *v, const uint8_t after[static JAIL_VOLUME_ID],
                uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID])
{
    return id_files_list(v->dir, suffixes[MACHINE], after, ret_ids);
}

// ---- mounting ----

static int mount_volume(int file)
{
    cleanup_fd int device = -1;
    char path[LOOPDEV_PATH_MAX];
    int r = loopdev_attach(file, false, &device, path);
    if (r < 0)
        return r;
    // Barriers are on, as they are unless said otherwise: what a guest has synced is on the host's disk.  discard: what it
    // deletes is room on the host again.
    const struct mount_option options[] = {
        {"source", path}, {"noinit_itable", NULL}, {"discard", NULL}, {"errors", "remount-ro"}, {0}};
    return mount_new("ext4", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
}

// The top of the filesystem is ours: no guest ever sees it.
static int make_guest_dir(int mount)
{
    if (mkdirat(mount, guest_dir, 0755) < 0)
        return errno == EEXIST ? 0 : -errno;
    return fchmodat(mount, guest_dir, 0755, 0) < 0 ? -errno : 0;
}

// A mount of the guest's directory alone.  Only of something that is attached can a part be taken.
static int guest_part(struct volumes *v, int mount, int userns_fd)
{
    if (mkdirat(v->mounts, mount_point, 0700) < 0 && errno != EEXIST)
        return -errno;
    int r = mount_attach_at(mount, v->mounts, mount_point);
    if (r < 0)
        return r;
    cleanup_fd int part = mount_clone(mount, guest_dir);
    r = mount_detach(mount);
    if (part < 0)
        return part;
    if (r == 0)
        r = mount_idmap(part, userns_fd);
    return r < 0 ? r : take_fd(&part);
}

// ---- lending ----

static int reserve(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], enum kind kind, struct mounted **ret_mounted)
{
    struct name name = name_of(id, kind);
    cleanup_fd int file = openat(v->dir, name.text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (file < 0 || fstat(file, &st) < 0)
        return -errno;
    int r = check_room(v, may_grow(&st));
    if (r < 0)
        return r;
    struct mounted *m = malloc(sizeof *m);
    if (m == NULL)
        return -ENOMEM;
    *m = (struct mounted){.file = take_fd(&file)};
    memcpy(m->id, id, sizeof m->id);
    LIST_INSERT_HEAD(&v->mounted, m, link);
    *ret_mounted = m;
    return 0;
}

int volume_attach(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], int userns_fd, int *ret_mount)
{
    cleanup_fd int file = open_locked(v, id, HOST);
    if (file < 0)
        return file;
    struct mounted *m = NULL;
    int r = reserve(v, id, HOST, &m);
    if (r < 0)
        return r;
    cleanup_fd int mount = mount_volume(file);
    r = mount < 0 ? mount : make_guest_dir(mount);
    if (r == 0)
        r = guest_part(v, mount, userns_fd);
    if (r < 0) {
        forget(m);
        return r;
    }
    *ret_mount = r;
    return 0;
}

int volume_lend(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID], int *ret_file, uint64_t *ret_mib)
{
    cleanup_fd int file = open_locked(v, id, MACHINE);
    struct stat st;
    if (file < 0 || fstat(file, &st) < 0)
        return file < 0 ? file : -errno;
    struct mounted *m = NULL;
    int r = reserve(v, id, MACHINE, &m);
    if (r < 0)
        return r;
    *ret_mib = (uint64_t)st.st_size >> 20;
    *ret_file = take_fd(&file);
    return 0;
}

void volume_forget(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    struct mounted *m = find(v, id);
    if (m != NULL)
        forget(m);
}

int volume_released(struct volumes *v, const uint8_t id[static JAIL_VOLUME_ID])
{
    cleanup_fd int file = open_locked(v, id, kind_of(v, id));
    if (file < 0 && file != -ENOENT)
        return file;
    volume_forget(v, id);
    return 0;
}
