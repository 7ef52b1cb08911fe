// The sandbox's root filesystem, built by its first process inside its own mount namespace (see enter.h).
//
// Functions are called once each, in the order they stand here.  0 or a negative errno.
#ifndef ENTER_ROOT_H
#define ENTER_ROOT_H

#include <stdint.h>

// Cuts propagation and mounts a small private tmpfs over /tmp, where the parts are put together.
int root_stage(void);
int root_attach_template(int mount);
// In place of template, disk and overlay: `mount` is the root, as it is.
int root_attach_whole(int mount);
// Attaches what lies on the template, uppermost first.
int root_attach_layers(const int *mounts, uint32_t count);
// Attaches the disk and makes the overlay's two directories on it; one that is a copy of a sandbox's has them.
int root_attach_disk(int mount);
// The overlay is mounted by this process, inside the user namespace: one that host root mounts over an id-mapped upper layer
// silently becomes read-only.
int root_overlay(void);
// Opens proc, sys, dev, tmp and workspace in the new root, making what is missing; a link there is -ELOOP.
int root_mount_points(void);
// Covers /workspace.
int root_attach_volume(int mount);
// Attaches /dev (dev.h), and mounts its terminals and shared memory.
int root_dev(int mount, uint64_t shm_bytes);
int root_proc(void);
int root_sys(void);
// Leaves the host's mounts behind.
int root_pivot(void);
// No namespace can be made below this one, whatever a system call filter may have missed.  Last, because the kernel counts
// the detached mounts made above as namespaces.
int root_forbid_namespaces(void);
// A network device of this namespace has and takes no IPv6.
int root_forbid_ipv6(const char *device);
// The same, for who has not built this root: `settings` is the folder sys/net/ipv6/conf of a /proc that can be written.
int root_forbid_ipv6_in(int settings, const char *device);

#endif
