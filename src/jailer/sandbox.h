// One jailed sandbox: its ids, cgroups, disk, volume and first process, which is the agent, or on the vm tier the monitor.
//
// States: entering (its child joins its cgroups, its line is made) -> building (the child has its order: mounts, root, limits)
// -> live (the agent runs) -> ending (the first process is gone, cgroups are removed and the volume comes free, with patience)
// -> freed.  Where its disk is a copy of a layer, copying comes before building.  A failure at any step goes straight to
// ending. Starting is several short steps on the loop, so that one start does not hold up another, nor an end: the long part,
// building the root, is done by the child itself.
#ifndef JAILER_SANDBOX_H
#define JAILER_SANDBOX_H

#include "jailer/host.h"
#include "jailer/vm.h"
#include "sys/cgroup.h"
#include "sys/jail.h"

#include <stdint.h>

struct sandbox;

struct sandbox_plan {
    const struct jail_start *start;
    const uint8_t *volume;             // JAIL_VOLUME_ID bytes: what /workspace is, or NULL
    uint32_t line;                     // JAIL_LINE_*, or 0: no network
    const struct jail_layers *layers;  // what is between its disk and the template
    int template_mount;                // attached in this process's mount namespace; a copy is made
    int control_fd;                    // the agent's end of its control line
    int log_fd;                        // stderr of a self-test, or -1
    bool self_test;
    const struct vm_plan *vm;  // not NULL: the vm tier; template, control, log and self_test above are not used
};

struct sandbox_handler {
    // Once: the agent runs (0), or the start failed (negative errno, with a sentence part in `detail`) and nothing of it is
    // left; in that case the object is freed after the call.
    void (*on_started)(void *arg, int error, const char *detail);
    // Once, if it started: nothing is left; the object is freed after the call.  `out_of_memory`: the agent was killed for it.
    void (*on_gone)(void *arg, int wait_status, bool out_of_memory);
};

// Begins; on_started follows from the loop.  What the plan points to need not outlive the call.  0, or a negative errno with a
// sentence part in `detail`: then nothing is left, and nothing is called.
int sandbox_start(struct host *host, const struct sandbox_plan *plan, const struct sandbox_handler *handler, void *arg,
                  struct sandbox **ret_sandbox, char detail[JAIL_DETAIL_MAX]);

// Kills everything inside, frozen, starting or not, before it returns; on_gone (or on_started with an error) follows.
void sandbox_kill(struct sandbox *sandbox);
int sandbox_freeze(struct sandbox *sandbox, bool freeze);

// Keeps its disk as the layer `id` (disk_copy.h).  0: `done` follows, before on_gone, with -ECANCELED if the sandbox ended
// meanwhile; the layer is there if it is told 0, and only then.  -EBUSY: there is one under way; -EOPNOTSUPP: it is a machine.
typedef void sandbox_snapshot_fn(void *arg, int error, const struct jail_taken *taken);
int sandbox_snapshot(struct sandbox *sandbox, const uint8_t id[static JAIL_VOLUME_ID], sandbox_snapshot_fn *done, void *arg);
// -ENOENT: there is none under way.
int sandbox_snapshot_cancel(struct sandbox *sandbox);
int sandbox_stats(const struct sandbox *sandbox, struct cgroup_stats *ret_stats);
// Its line, which is ready once on_started has been called; NULL: it has none.
struct line *sandbox_line(const struct sandbox *sandbox);

#endif
