// Volumes: the /workspace of a session, which outlives its sandboxes.
//
// A volume is an ext4 image in a file of its own below "volumes" in the state folder, which only root can enter.  Only this
// process and the host's ext4 ever write it, so mounting it is safe; a guest sees one directory of it, never the image.  There
// is no half-made volume: it gets its name when all of it is on the disk.  A crash is what its journal is for; no repair
// program runs over it here.
//
// A machine's volume is such an image too, empty when it gets its name, but from then on it is the machine's: the monitor has
// the file, the guest's kernel mounts it and may write anything into it, so the host's kernel never mounts it.  Which kind a
// file is, is in its name, and so in nobody's hands but this process's; there is never one of each kind with the same id.
//
// One writer: the file is locked (flock) by the open file that the loop device keeps, so the kernel itself holds the lock for
// exactly as long as anything is mounted, whatever becomes of this process.  A machine's is locked by the open file its monitor
// has, and so for exactly as long as that lives.
//
// Disk full: volumes are sparse, but one is made or mounted only while there is room on the host for all that it and those
// mounted already may still grow by.
#ifndef JAILER_VOLUME_H
#define JAILER_VOLUME_H

#include "jailer/disk.h"
#include "sys/jail.h"

#include <stdbool.h>
#include <stddef.h>

struct volumes;

// `state_fd` and `mounts_fd` (where a mount can be attached for a moment) stay the caller's and outlive it, as does `disks`.
// 0 or a negative errno.
int volumes_open(int state_fd, int mounts_fd, struct disk_store *disks, struct volumes **ret_volumes);
// NULL is fine; returns NULL.
struct volumes *volumes_close(struct volumes *volumes);

// A new, empty one, durable when this returns 0; `machine`: for machines.  -EEXIST, -ENOSPC, or another negative errno; then
// there is none.
int volume_create(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID], uint64_t mib, bool machine);
// -ENOENT, -EBUSY while a sandbox has it, or another negative errno.
int volume_delete(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID]);
// The first of those behind `after` in order; their number or a negative errno.
int volume_list(struct volumes *volumes, const uint8_t after[static JAIL_VOLUME_ID],
                uint8_t ret_ids[static JAIL_VOLUMES_LISTED][JAIL_VOLUME_ID]);

// Mounts it (one that is not a machine's) for a user namespace: *ret_mount is a detached mount of what a sandbox may see.
// -ENOENT, -EBUSY when it is mounted already, -ENOSPC, or why the kernel refused it.  After 0, volume_released must be called
// until it is 0.
int volume_attach(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID], int userns_fd, int *ret_mount);
// Opens a machine's volume for its monitor: *ret_file is the locked file, *ret_mib its size.  As volume_attach otherwise;
// -ENOENT for one of the host's kernel.
int volume_lend(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID], int *ret_file, uint64_t *ret_mib);
// Every user of it is gone: 0 when the volume is unmounted, and so all of it on the disk, or the monitor has let go of it;
// -EBUSY when not yet.
int volume_released(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID]);
// The volume will be released some time, but nobody waits for it any more.
void volume_forget(struct volumes *volumes, const uint8_t id[static JAIL_VOLUME_ID]);

#endif
