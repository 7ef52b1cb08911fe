// Writable disks of sandboxes: an ext4 image in a file that has no name, so that nothing is left of it after any crash.
//
// Each size is formatted once, by mkfs.ext4 as an unprivileged user, into memory; a sandbox's disk is a sparse copy of that
// (a few hundred KiB whatever the size).  A disk is only ever written through the host's own ext4, so mounting it is safe.
#ifndef JAILER_DISK_H
#define JAILER_DISK_H

#include "sys/loopdev.h"

#include <stdbool.h>
#include <stdint.h>

struct disk_store;

enum disk_kind {
    DISK_SCRATCH,  // thrown away with its sandbox: no journal
    DISK_VOLUME,   // must survive crashes
};

// Disks are made in `state_dir_fd`, which stays the caller's.  0 or a negative errno.
int disk_store_new(int state_dir_fd, struct disk_store **ret_store);
struct disk_store *disk_store_free(struct disk_store *store);

// A fresh disk of `mib`, mounted: *ret_mount is a detached read-write mount, *ret_file the image.  0 or a negative errno.
int disk_new(struct disk_store *store, uint64_t mib, int *ret_mount, int *ret_file);

// The same in two steps, for one whose image is a copy of another: its file, still empty, on a loop device, and when the file
// has been written, its mount.  0 or a negative errno.
struct disk_device {
    int fd;  // the caller's
    char path[LOOPDEV_PATH_MAX];
};
int disk_begin(struct disk_store *store, uint64_t mib, int *ret_file, struct disk_device *ret_device);
int disk_mount(const struct disk_device *device, int *ret_mount);

// Mounts the ext4 image in `file_fd` read-only, detached.
int disk_mount_image(int file_fd, int *ret_mount);
// A formatted image: *ret_file_fd is to be closed, and must not be written to.
int disk_blank(struct disk_store *store, enum disk_kind kind, uint64_t mib, int *ret_file_fd);
// Copies an image into the file `to`, which is empty and already as long, all but its holes.
int disk_copy(int from, int to, uint64_t mib);

#endif
