// Letting go of a dead sandbox's disk and mount namespace, in another process.
//
// The last reference to a disk's file system unmounts it, detaches its loop device and frees its file's blocks, which the
// host's file system may tell the drive one by one (the mount option discard): milliseconds, or many of them.  Were that
// reference the sandbox's own, its first process could not end before, and with it no destroy be answered.  The end of a mount
// namespace, too, waits for an RCU grace period.  So the jailer holds one more reference to each, and passes it, once the
// sandbox's processes are gone, to a helper that does nothing but close what it is given.
//
// A process and no thread: the jailer's children go on running its code after clone3 without libc's knowledge, which is safe
// only while it has a single thread.  The helper is this program again, without any capability.  When the jailer dies it is
// killed, and the kernel closes what it and the socket held.
#ifndef JAILER_RELEASE_H
#define JAILER_RELEASE_H

// The only argument of the helper.
#define RELEASE_HELPER "--release-helper"

struct releases;

// Starts the helper.  0 or a negative errno.
int releases_new(struct releases **ret_releases);
// Waits until all is released.  NULL is fine; returns NULL.
struct releases *releases_free(struct releases *releases);

// Takes `fd` over and lets go of it soon; at once where the helper has too much to do already, or `releases` is NULL.  A
// negative `fd` is fine.
void release(struct releases *releases, int fd);

// The helper's main.
int release_helper(void);

#endif
