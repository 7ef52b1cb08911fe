// From a fresh process in fresh namespaces to the agent behind its walls: what the first process of a sandbox does before it
// execs.  The same on both tiers that run Linux programs, which is why they behave alike: on the container tier the parent is
// the jailer, on the vm tier the machine's own init (agent/machine.h).
//
// Actors: the parent and this child, forked from it, which still is the parent's program and trusted, but already has only the
// rights of the sandbox's own user namespace.  What it meets and must not trust is the template: its folders
// may be symbolic links, so nothing in it is ever found by a path that could leave it.
//
// The two talk over a SOCK_SEQPACKET pair: the child joins its cgroups, unshares their namespace and says so; the parent sets
// limits and id maps, and sends `enter_order` with the descriptors; the child builds the root and execs.  A failure is one
// `enter_failure` packet; success is the end of the line (it is close-on-exec).
#ifndef ENTER_ENTER_H
#define ENTER_ENTER_H

#include "enter/filter.h"
#include "enter/guest_line.h"
#include "sys/cgroup.h"
#include "sys/jail.h"

#include <sched.h>
#include <stdint.h>

enum enter_step {
    ENTER_CGROUPS,
    ENTER_LINE,
    ENTER_ORDER,
    ENTER_IDS,
    ENTER_STAGE,
    ENTER_TEMPLATE,
    ENTER_DISK,
    ENTER_OVERLAY,
    ENTER_MOUNT_POINTS,
    ENTER_VOLUME,
    ENTER_DEV,
    ENTER_PROC,
    ENTER_SYS,
    ENTER_PIVOT,
    ENTER_NAMESPACES,
    ENTER_NETWORK,
    ENTER_NAME,
    ENTER_LIMITS,
    ENTER_DESCRIPTORS,
    ENTER_PRIVILEGES,
    ENTER_SECCOMP,
    ENTER_EXEC,
    ENTER_STEPS,
};

enum { ENTER_GROUPS_MAX = 8 };

// Descriptors that come with the order, in this order; then `groups` descriptors of guest cgroups, then `layers` of
// mounts, uppermost first, which lie between disk and template.  Without a volume,
// a disk or a log, anything stands in its place.
enum {
    ENTER_FD_TEMPLATE,
    ENTER_FD_DISK,
    ENTER_FD_VOLUME,
    ENTER_FD_DEV,
    ENTER_FD_AGENT,
    ENTER_FD_CONTROL,
    ENTER_FD_LOG,
    ENTER_FDS
};

struct enter_order {
    uint32_t groups;
    char group_kind[ENTER_GROUPS_MAX][12];
    cpu_set_t cpus;  // to pin itself to; none: not pinned
    uint64_t shm_bytes;
    char hostname[JAIL_HOSTNAME_MAX + 1];
    uint32_t layers;      // at most JAIL_LAYERS_MAX
    uint32_t volume;      // there is one
    uint32_t whole_root;  // the template is the sandbox's own, writable root: no disk comes, no overlay is made
    uint32_t self_test;   // run the agent's self-test instead of serving
    uint32_t far;         // what the host says to the agent is under way for a while
    struct guest_line line;
};

struct enter_failure {
    uint32_t step;
    int32_t error;  // negative errno
};

// The size of a sandbox's /dev/shm: half its memory, at most 64 MiB.
uint64_t enter_shm_bytes(uint64_t memory_mib);

// A sentence part for a step: "mounting the template".
const char *enter_step_text(enum enter_step step);

// The child's whole life; never returns.  `line` is its end of the pair, `groups` the way into its cgroups.
void enter_main(int line, const struct cgroup_entry *groups, const struct filter *filter) __attribute__((noreturn));

#endif
