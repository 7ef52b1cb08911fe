// Children that touch what we do not trust: archives, package scripts, mkfs.
//
// Such a child is root of a user namespace whose 65536 ids are host ids nobody else has, never the host's root.  It has its
// own mount, process and IPC namespaces, no capability outside, cannot gain privilege, has a private tmpfs on /tmp, and dies
// with its parent.  Everything it hands back is bytes on descriptors, which the parent treats as such.
#ifndef IMAGE_CONFINE_H
#define IMAGE_CONFINE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    CONFINE_HOST_ID = 0x7f000000,  // the host's uid and gid of the child's root
    CONFINE_IDS = 65536,
};

struct confine {
    bool network;          // the host's network (package downloads); without, one that has no interface
    uint64_t scratch_mib;  // the size of its /tmp, which is its working directory; 0 is 80 % of this machine's memory
    int (*fn)(void *arg);  // what it runs; the result is its exit status
    void *arg;
    const int *keep;  // descriptors it has, besides the standard ones; all others are closed
    size_t keeps;
};

// Starts a child.  0 with *ret_pid, or a negative errno with a sentence in `err`.
int confine_start(const struct confine *how, pid_t *ret_pid, struct err *err);

// Waits for a child.  Its exit status 0-255, or 256 + the signal that ended it.  Forgets it (*pid = -1).
int confine_wait(pid_t *pid);

// Kills and reaps, if there is one: for __attribute__((cleanup)).
void confine_kill(pid_t *pid);

#define cleanup_child __attribute__((cleanup(confine_kill)))

#endif
