// Control groups of sandboxes, the same on cgroup v2 and on hybrid v1 hosts.
//
// Every sandbox has one group per hierarchy with two children (where v2 is for tracking only, the agent is in NAME itself):
//     PARENT/sandbox-engine-INSTANCE/NAME/agent    the agent, outside the guest's limits, so that a full memory, a fork bomb
//                                                  or a spinning processor never takes away the hand that kills
//     PARENT/sandbox-engine-INSTANCE/NAME/guest    everything the guest runs: memory, pids and cpu limits; delegated to the
//                                                  agent, which makes exec-N below it
// The guest cannot see or reach any of this: no cgroup filesystem is mounted in a sandbox.
//
// Layouts: CGROUP_V2 (one hierarchy with memory, pids, cpu); CGROUP_HYBRID (those three on v1, and a v2 hierarchy without
// them that is used for tracking: cgroup.kill, cgroup.freeze); CGROUP_V1 (no usable v2: tracking by the freezer).
//
// Not thread-safe.  All functions: 0 or a negative errno unless said otherwise.
#ifndef SYS_CGROUP_H
#define SYS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum cgroup_layout { CGROUP_V2, CGROUP_HYBRID, CGROUP_V1 };

// What a hierarchy is used for; the order is that of cgroup_role_name and of the agent's --group kinds.
enum cgroup_role {
    CGROUP_UNIFIED,
    CGROUP_TRACK,
    CGROUP_FREEZER,
    CGROUP_MEMORY,
    CGROUP_PIDS,
    CGROUP_CPU,
    CGROUP_IO,
    CGROUP_ROLES
};

struct cgroup_tree;   // where this instance's groups are
struct cgroup_group;  // one sandbox's

struct cgroup_limits {
    uint64_t memory_bytes;
    uint32_t vcpus;
    uint32_t pids_max;
    bool one_process;  // they are for the process in agent/ itself; guest/ stays empty
};

// Of each direction, reading and writing; 0: no limit.
struct cgroup_disk_speed {
    uint64_t bytes_per_s;
    uint64_t ops_per_s;
};

struct cgroup_stats {
    uint64_t memory_bytes;
    uint64_t private_bytes;  // of these: anonymous memory
    uint64_t shared_bytes;   // of these: pages of files and shared memory
    uint64_t page_faults;
    uint64_t oom_kills;        // of guest processes
    uint64_t agent_oom_kills;  // the agent itself: then the sandbox is gone
    uint64_t cpu_us;
    uint64_t pids;
};

// Finds the host's layout and makes sandbox-engine-`instance` in each hierarchy needed: below this process's own group where
// that can be delegated, else at the top; `parent` (NULL: choose) names a group, relative to the mount, to use instead.
// `allow_v2_tracking` false leaves a hybrid host's v2 hierarchy unused (for tests of the freezer).
// The groups are this process's alone until it closes them or dies: -EWOULDBLOCK when another one has them (for a second: what
// a killed process had may be held a moment longer).  -ENOENT or -EOPNOTSUPP when a needed controller is missing.  *ret_why
// (static text) says which.
int cgroup_tree_open(const char *instance, const char *parent, bool allow_v2_tracking, struct cgroup_tree **ret_tree,
                     const char **ret_why);
enum cgroup_layout cgroup_tree_layout(const struct cgroup_tree *tree);
// Kills what is in this instance's groups and removes all groups below them: what an earlier life left.  Waits up to
// `wait_ms` for the processes to go; returns how many groups were removed, or a negative errno.
int cgroup_tree_sweep(struct cgroup_tree *tree, unsigned wait_ms);
// Removes the instance's own groups too, if they are empty and this process's.  NULL is fine; returns NULL.
struct cgroup_tree *cgroup_tree_close(struct cgroup_tree *tree);

// Makes NAME with its children; with those for cgroup_group_limit_disk only if asked, and where the host has them.  Nothing is
// left behind on failure.
int cgroup_group_new(struct cgroup_tree *tree, const char *name, bool limits_disk, struct cgroup_group **ret_group);

// The way in, for a child that is still to be made: it is cloned into NAME's v2 group, and takes itself into those of v1.
// Moving it from outside, by its pid, makes every fork and exit of the machine wait, and the mover for an RCU grace period
// each time: that was most of what a start cost.
//
// The order: clone3 with CLONE_INTO_CGROUP into `into`; in the child cgroup_entry_join(e, CGROUP_NAME), unshare of the cgroup
// namespace (whose root that makes NAME), cgroup_entry_join(e, CGROUP_AGENT); in the parent cgroup_group_settle.
struct cgroup_entry {
    int into;                   // for clone3; -1: there is no v2 group
    int join[2][CGROUP_ROLES];  // [CGROUP_NAME], [CGROUP_AGENT]; -1: nothing to join there
};
enum { CGROUP_NAME, CGROUP_AGENT };
#define CGROUP_ENTRY_INIT                                                                                                      \
    {                                                                                                                          \
        .into = -1, .join = { [0 ... 1] = {[0 ... CGROUP_ROLES - 1] = -1} }                                                    \
    }
// Opens the way.  It is opened by one who may, because the kernel looks at the rights of the opener; the child needs none.
int cgroup_entry_open(const struct cgroup_group *group, struct cgroup_entry *ret_entry);
void cgroup_entry_close(struct cgroup_entry *entry);
// In the child, which must have one thread.
int cgroup_entry_join(const struct cgroup_entry *entry, int where);

// Sets the limits, and hands guest/ over to `owner`; where v2 has the controllers, also moves `pid` from NAME to NAME/agent.
int cgroup_group_settle(struct cgroup_group *group, pid_t pid, const struct cgroup_limits *limits, uid_t owner);
// Limits how fast the guest's processes use a block device (of its own: a loop device), after cgroup_group_settle.  Where v1
// has the controller, what the kernel writes back later on its own is not theirs, and not limited.  -EOPNOTSUPP: this host
// cannot.
int cgroup_group_limit_disk(const struct cgroup_group *group, dev_t device, const struct cgroup_disk_speed *speed);
// A descriptor of guest/ in the hierarchy with that role, or -ENOENT if the layout has none.  The caller's.
int cgroup_group_guest_fd(const struct cgroup_group *group, enum cgroup_role role);
// The agent's --group kind: "v2", "v2track", "v1freezer", "v1memory", "v1join".
const char *cgroup_role_kind(enum cgroup_role role);

// Freezes or thaws everything of the sandbox, and waits (up to a second) until it is so.  -ETIMEDOUT.
int cgroup_group_freeze(struct cgroup_group *group, bool freeze);
// Sends SIGKILL to every process of the sandbox at once, where the kernel has cgroup.kill; else does nothing.
void cgroup_group_kill(const struct cgroup_group *group);
int cgroup_group_stats(const struct cgroup_group *group, struct cgroup_stats *ret_stats);
// Removes the groups.  -EBUSY while a process or zombie is still inside: call again later.
int cgroup_group_remove(struct cgroup_group *group);
// Frees the object; the groups stay unless removed.  NULL is fine; returns NULL.
struct cgroup_group *cgroup_group_free(struct cgroup_group *group);

#endif
