// The file-descriptor mount interface (fsopen, fsmount, open_tree, move_mount, mount_setattr) in the few forms used here.
// Mounts are detached until mount_attach; a detached mount goes away with its descriptor.
#ifndef SYS_MOUNT_FD_H
#define SYS_MOUNT_FD_H

#include <stdint.h>

struct mount_option {
    const char *key;
    const char *value;  // NULL: a flag
};

// A new filesystem of `type` with options ending in {0}, its mount having `attributes` (MOUNT_ATTR_*).
// A device that somebody else has claimed is tried for 100 ms: another program that looks for a free loop device claims the
// ones it tries for a moment, also one that is in use.  The detached mount, or a negative errno (-EBUSY after that time).
int mount_new(const char *type, const struct mount_option *options, uint64_t attributes);

// A detached copy of the mount (or file, or directory) at dir_fd/path.
int mount_clone(int dir_fd, const char *path);

// Adds `attributes` to a detached mount (and, for `recursive`, those below it).  0 or a negative errno.
int mount_restrict(int mount, uint64_t attributes);

// Maps ids of a detached mount through a user namespace: what is id N on disk belongs to N of that namespace.
int mount_idmap(int mount, int userns_fd);

// Attaches onto what `target_fd` is (an O_PATH descriptor, so that no path is looked up again).
int mount_attach(int mount, int target_fd);
int mount_attach_at(int mount, int dir_fd, const char *path);

// Takes an attached mount out of the tree; what still uses it keeps it alive.
int mount_detach(int mount);
// The same of the topmost mount at `path`, also where /proc is not this process's.  0, -EINVAL (nothing is mounted there), or
// another negative errno.
int mount_detach_path(const char *path);

#endif
