// One jailed sandbox: its ids, cgroups, disk and first process.
//
// sandbox_start does all of it in one go (a few milliseconds); the end comes as an event, when the first process is gone:
// then the cgroups are removed, with patience, and `on_gone` is called last.
#ifndef JAILER_SANDBOX_H
#define JAILER_SANDBOX_H

#include "jailer/host.h"
#include "sys/cgroup.h"
#include "sys/jail.h"

#include <stdint.h>

struct sandbox;

struct sandbox_plan {
    const struct jail_start *start;
    int template_mount;  // attached in this process's mount namespace; a copy is made
    int control_fd;      // the agent's end of its control line
    int log_fd;          // stderr of a self-test, or -1
    bool self_test;
};

// `on_gone(arg, wait status of the first process, whether the agent was killed for memory)` is called once, from the loop, when
// nothing is left; the object is freed after it.
typedef void sandbox_gone_fn(void *arg, int wait_status, bool out_of_memory);

// 0, or a negative errno with a sentence part about the step that failed in `detail`; then nothing is left behind.
int sandbox_start(struct host *host, const struct sandbox_plan *plan, sandbox_gone_fn *on_gone, void *arg,
                  struct sandbox **ret_sandbox, char detail[JAIL_DETAIL_MAX]);

// Kills everything inside, frozen or not.  on_gone follows.
void sandbox_kill(struct sandbox *sandbox);
int sandbox_freeze(struct sandbox *sandbox, bool freeze);
int sandbox_stats(const struct sandbox *sandbox, struct cgroup_stats *ret_stats);

#endif
