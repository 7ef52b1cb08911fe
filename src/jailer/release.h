// Letting go of a dead sandbox's disk, beside the loop.
//
// The last reference to a disk's file system unmounts it, detaches its loop device and frees its file's blocks, which the
// host's file system may tell the drive one by one (the mount option discard): milliseconds, or many of them.  Were that
// reference the sandbox's own, its first process could not end before, and with it no destroy be answered.  So the jailer holds
// one more, and drops it on another thread once the sandbox is gone.
#ifndef JAILER_RELEASE_H
#define JAILER_RELEASE_H

#include "sys/workers.h"

struct releases;

// Starts the threads, which have the privileges of the caller at this moment.  0 or a negative errno.
int releases_new(struct loop *loop, struct releases **ret_releases);
// Waits until all is released.  NULL is fine; returns NULL.
struct releases *releases_free(struct releases *releases);

// Takes `fd` over and closes it soon; at once where there is no memory, too much is waiting already, or `releases` is NULL.
// A negative `fd` is fine.
void release(struct releases *releases, int fd);

#endif
