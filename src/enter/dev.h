// A sandbox's /dev, made by its parent: its own device nodes, which a user namespace could not make.
//
// Binding the host's nodes instead would share their inodes: a watch (inotify) on /dev/null inside would see whenever a process
// of the host, or of another sandbox, opens or writes its own.
#ifndef ENTER_DEV_H
#define ENTER_DEV_H

#include <sys/types.h>

// A detached tmpfs with null, zero, full, random, urandom, tty, the usual links, and the empty folders pts and shm to mount on;
// all of it belongs to `owner` (the sandbox's root).  No other node can appear in it: making one needs the host's CAP_MKNOD.
// 0 or a negative errno (-EPERM where this process may not make nodes).
int dev_new(uid_t owner, int *ret_mount);

#endif
