// Copying a disk's image in a process of its own, because it takes long and the jailer has one thread.
//
// A plain copy is of an image that nobody writes.  A snapshot is of the disk of a sandbox that runs:
//
//     helper: bring the disk's file up to date, copy what is there while the sandbox goes on (this can be torn)
//     helper: FREEZE?      jailer: stops the sandbox's processes; GO
//     helper: freezes the filesystem, copies what has changed since, thaws it
//     helper: THAWED       jailer: lets the processes go on
//     helper: writes the copy to the host's disk; DONE
//
// so that a sandbox stands still only for a comparison of its disk with the copy, or, where the host's filesystem can share
// blocks between files, hardly at all.
//
// A pause is at most DISK_COPY_PAUSE_MAX_S long, and all of it takes at most DISK_COPY_MAX_S; beyond, it fails with -ETIMEDOUT.
//
// A filesystem that stays frozen would hold everything that writes to it, even while it dies.  It is thawed by the helper,
// which goes on when the jailer dies; by the jailer whenever the helper ends, whatever ended it; and where both are killed at
// once, by the next start (disk_thaw_strays).  Neither trusts anything in the image: it is bytes to both.
#ifndef JAILER_DISK_COPY_H
#define JAILER_DISK_COPY_H

#include "sys/loop.h"

#include <stdbool.h>
#include <stdint.h>

enum { DISK_COPY_PAUSE_MAX_S = 20, DISK_COPY_MAX_S = 600 };

struct disk_copy;

struct disk_copy_plan {
    int from;      // the image
    int to;        // empty, and as long
    int mount;     // of the filesystem in `from`: a snapshot; -1: a plain copy
    bool durable;  // the copy is on the host's disk when it is done
};

struct disk_copy_handler {
    // A snapshot's filesystem is about to be frozen.  0, or a negative errno that ends the copy.  May be NULL for plain ones.
    int (*on_freeze)(void *arg);
    // It goes on.  Called once if on_freeze was called, before on_done; may be NULL likewise.
    void (*on_thawed)(void *arg);
    // The end: `bytes` is what the copy takes.  The object is freed after the call.  A negative errno: -ECANCELED, -ETIMEDOUT,
    // -ENOSPC ...
    void (*on_done)(void *arg, int error, uint64_t bytes);
};

// The plan's descriptors stay the caller's, and may be closed.  0 or a negative errno, then nothing is called.
int disk_copy_start(struct loop *loop, const struct disk_copy_plan *plan, const struct disk_copy_handler *handler, void *arg,
                    struct disk_copy **ret_copy);
// on_done follows from the loop, with -ECANCELED unless it was done.  A frozen filesystem is thawed already when this returns,
// or as soon as the kernel lets go of the helper.
void disk_copy_cancel(struct disk_copy *copy);
// For the end of the process: cancels, waits, calls nothing.  NULL is fine; returns NULL.
struct disk_copy *disk_copy_free(struct disk_copy *copy);

// Thaws filesystems that a jailer and its helper, killed at once, left frozen: of loop devices whose file lies in `state_dir`
// (absolute) and has no name any more.  How many, or a negative errno.
int disk_thaw_strays(const char *state_dir);

#endif
