#include "jailer/layer.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "jailer/disk.h"
#include "jailer/id_files.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

// Of the image: where the overlay of the sandbox that wrote it had what differs from the layers below (enter/root.c).
static const char upper_dir[] = "upper";

struct layer {
    LIST_ENTRY(layer) link;
    struct layers *layers;
    uint8_t id[JAIL_VOLUME_ID];
    unsigned users;
    int mount;
};

LIST_HEAD(layer_list, layer);

struct layers {
    int dir;
    int mounts;
    struct releases *releases;
    struct layer_list mounted;
};

struct name {
    char text[ID_DIGITS + 1];
};

static struct name name_of(const uint8_t id[static JAIL_VOLUME_ID])
{
    struct name name;
    hex_encode(id, JAIL_VOLUME_ID, name.text);
    return name;
}

int layers_open(int state_fd, int mounts_fd, struct layers **ret_layers)
{
    if (mkdirat(state_fd, "snapshots", 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int dir = openat(state_fd, "snapshots", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (dir < 0 || fstat(dir, &st) < 0)
        return -errno;
    // Who could have written an image here could have the kernel read it.
    if (st.st_uid != 0 || (st.st_mode & 077) != 0)
        return -EPERM;
    struct layers *l = calloc(1, sizeof *l);
    if (l == NULL)
        return -ENOMEM;
    *l = (struct layers){.dir = take_fd(&dir), .mounts = mounts_fd};
    LIST_INIT(&l->mounted);
    *ret_layers = l;
    return 0;
}

struct layers *layers_close(struct layers *layers)
{
    if (layers == NULL)
        return NULL;
    while (!LIST_EMPTY(&layers->mounted)) {
        struct layer *last = LIST_FIRST(&layers->mounted);
        last->users = 1;
        layer_give(last);
    }
    close_fd(&layers->dir);
    free(layers);
    return NULL;
}

void layers_release_with(struct layers *layers, struct releases *releases)
{
    layers->releases = releases;
}

// ---- files ----

int layer_begin(struct layers *layers, uint64_t bytes)
{
    cleanup_fd int file = openat(layers->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) < 0)
        return -errno;
    return take_fd(&file);
}

int layer_commit(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], int file)
{
    struct name name = name_of(id);
    char unnamed[32];
    snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", file);
    if (linkat(AT_FDCWD, unnamed, layers->dir, name.text, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    if (fsync(layers->dir) == 0)
        return 0;
    int r = -errno;
    unlinkat(layers->dir, name.text, 0);
    return r;
}

int layer_delete(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID])
{
    struct name name = name_of(id);
    return unlinkat(layers->dir, name.text, 0) < 0 || fsync(layers->dir) < 0 ? -errno : 0;
}

int layer_list(struct layers *layers, const uint8_t after[static JAIL_VOLUME_ID],
               uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID])
{
    return id_files_list(layers->dir, "", after, ret_ids);
}

static int open_file(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], struct stat *ret_stat)
{
    struct name name = name_of(id);
    cleanup_fd int file = openat(layers->dir, name.text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 || fstat(file, ret_stat) < 0)
        return -errno;
    if (!S_ISREG(ret_stat->st_mode) || ret_stat->st_uid != 0 || (ret_stat->st_mode & 077) != 0)
        return -EPERM;
    return take_fd(&file);
}

int layer_open(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], uint64_t bytes)
{
    struct stat st;
    cleanup_fd int file = open_file(layers, id, &st);
    if (file < 0)
        return file;
    return (uint64_t)st.st_size == bytes ? take_fd(&file) : -EINVAL;
}

// ---- mounts ----

static struct layer *find(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID])
{
    struct layer *l;
    LIST_FOREACH(l, &layers->mounted, link)
    if (memcmp(l->id, id, JAIL_VOLUME_ID) == 0)
        return l;
    return NULL;
}

// Only of something that is attached can a part be taken.
static int mount_layer(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], int *ret_mount)
{
    struct stat st;
    cleanup_fd int file = open_file(layers, id, &st);
    if (file < 0)
        return file;
    struct name name = name_of(id);
    if (mkdirat(layers->mounts, name.text, 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int mount = -1;
    int r = disk_mount_image(file, &mount);
    if (r == 0)
        r = mount_attach_at(mount, layers->mounts, name.text);
    if (r < 0) {
        unlinkat(layers->mounts, name.text, AT_REMOVEDIR);
        return r;
    }
    *ret_mount = take_fd(&mount);
    return 0;
}

int layer_take(struct layers *layers, const uint8_t id[static JAIL_VOLUME_ID], struct layer **ret_layer)
{
    struct layer *l = find(layers, id);
    if (l == NULL) {
        cleanup_free struct layer *fresh = calloc(1, sizeof *fresh);
        if (fresh == NULL)
            return -ENOMEM;
        int r = mount_layer(layers, id, &fresh->mount);
        if (r < 0)
            return r;
        l = take_ptr(&fresh);
        l->layers = layers;
        memcpy(l->id, id, sizeof l->id);
        LIST_INSERT_HEAD(&layers->mounted, l, link);
    }
    l->users++;
    *ret_layer = l;
    return 0;
}

struct layer *layer_give(struct layer *layer)
{
    if (layer == NULL || --layer->users > 0)
        return NULL;
    struct name name = name_of(layer->id);
    LIST_REMOVE(layer, link);
    mount_detach(layer->mount);
    unlinkat(layer->layers->mounts, name.text, AT_REMOVEDIR);
    release(layer->layers->releases, take_fd(&layer->mount));
    free(layer);
    return NULL;
}

int layer_view(const struct layer *layer, int userns_fd)
{
    cleanup_fd int view = mount_clone(layer->mount, upper_dir);
    if (view < 0)
        return view;
    int r = mount_restrict(view, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (r == 0)
        r = mount_idmap(view, userns_fd);
    return r < 0 ? r : take_fd(&view);
}
