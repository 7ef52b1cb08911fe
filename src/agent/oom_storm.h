// The end of a command, or of what an ended one left, that does nothing but run out of memory.
//
// Why: a fork bomb in a full memory group is killed one process at a time and forks as fast.  The kernel can stay in that for
// minutes, with a lock held of each process that waits for memory, on which also the host's readers of /proc (ps) then wait.
//
// Each slot has a level: every kill for memory adds one, and OOM_KILLS_PER_S drain away each second.  Above OOM_KILLS_BURST the
// slot is killed whole.  So a command may lose some of its workers to its memory limit, or one now and then for ever.
//
// States: idle (no slot has processes) -> looking, once a second -> idle.  Leftovers that are being killed are looked at every
// few milliseconds until they are gone.
#ifndef AGENT_OOM_STORM_H
#define AGENT_OOM_STORM_H

struct agent;
struct slot;
struct oom_storm;

enum { OOM_KILLS_BURST = 40, OOM_KILLS_PER_S = 1 };

// 0 or a negative errno.
int oom_storm_new(struct agent *agent, struct oom_storm **ret_storm);
struct oom_storm *oom_storm_free(struct oom_storm *storm);

// A command begins in `slot`.
void oom_storm_watch(struct oom_storm *storm, const struct slot *slot);

#endif
