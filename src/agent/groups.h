// The control groups of commands: one sub-directory `exec-N` per running command in every hierarchy that was handed over, so
// that a whole command, with everything it started however detached, can be killed and its deaths for memory be counted.
//
// Actors: the jailer hands the directory descriptors of the sandbox's guest group (--group KIND=FD); the agent makes, joins
// and empties the sub-directories; guest processes cannot reach any of it (no cgroup file system in their mounts).
//
// A slot is the number N with its sub-directories.  Directories are made when a number is first used (the first one's:
// before) and used again once empty, so that any number of commands leaves at most SLOTS_MAX of them.
//
// States of a slot: free -> (slots_take) -> in use -> (slot_release) -> free; a free slot whose group still has processes
// (children left by a command that ended normally) is passed over until they are gone.
#ifndef AGENT_GROUPS_H
#define AGENT_GROUPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SLOTS_MAX = 256 };

struct groups;
struct slot;

int groups_new(struct groups **ret_groups);
struct groups *groups_free(struct groups *groups);

// One "KIND=FD" of the command line: v2, v2track, v1freezer, v1memory or v1join (proto/agent.proto tells the engine's side).
// Takes over the descriptor on success.  0; -EINVAL: unknown kind or not a directory descriptor; -ENOSPC: too many.
int groups_add(struct groups *groups, const char *text);
// Whether there is any, which also says that this is the container tier.
bool groups_any(const struct groups *groups);

// Makes the directories of the first slot, so that the first command need not wait for it.  What fails is tried again then.
void groups_prepare(struct groups *groups);

// A slot whose group is empty, with its directories made.  0; -EBUSY: all SLOTS_MAX are taken; or another negative errno.
int slot_take(struct groups *groups, struct slot **ret_slot);
void slot_release(struct slot *slot);

// For clone3(CLONE_INTO_CGROUP): a new descriptor of the slot's v2 directory; -ENOENT if there is no v2 hierarchy.
int slot_open_v2(const struct slot *slot);
// In the child, before it runs anything of the guest: joins every group that the clone did not.  0 or a negative errno.
int slot_join(const struct slot *slot, bool cloned_into_v2);

// Kills all processes of the slot: call slot_kill until it returns true (nothing is left), a few milliseconds apart.  Each
// call does a bounded amount of work.  Without any group it kills process group `pgid` (when > 0) and returns true.
bool slot_kill(struct slot *slot, pid_t pgid);

// Sends a signal to every process of the slot; without any group to process group `pgid`.
void slot_signal(const struct slot *slot, pid_t pgid, int number);

// How many processes of this slot have been killed for memory, ever; compare before and after.
uint64_t slot_oom_kills(const struct slot *slot);

#endif
