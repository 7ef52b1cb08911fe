// What every operation of the jailer stands on: one object per jailer, made once at start.
#ifndef JAILER_HOST_H
#define JAILER_HOST_H

#include "enter/seccomp_policy.h"
#include "jailer/disk.h"
#include "jailer/layer.h"
#include "jailer/network.h"
#include "jailer/release.h"
#include "jailer/uid_slots.h"
#include "jailer/volume.h"
#include "sys/cgroup.h"
#include "sys/jail.h"
#include "sys/loop.h"

#include <sched.h>

enum { HOST_CPUS_MAX = CPU_SETSIZE };

struct host {
    struct loop *loop;
    struct cgroup_tree *cgroups;
    struct slots *uids;
    struct disk_store *disks;
    struct volumes *volumes;
    struct network *network;
    struct layers *layers;
    struct releases *releases;  // NULL: none, what is let go is closed at once
    struct filter filter;
    int agent_fd;   // the agent's program: a sealed copy, so that nothing a sandbox does to its file reaches the host's
    int vmm_fd;     // the monitor's, likewise; -1: none
    int mounts_fd;  // a private tmpfs: where template mounts are attached
    int state_fd;   // the state folder, locked
    int cpus[HOST_CPUS_MAX];            // processors this host lets us use
    unsigned cpu_users[HOST_CPUS_MAX];  // sandboxes pinned to each, by index in `cpus`
    int cpu_count;
};

struct host_options {
    const char *instance;
    const char *agent_path;
    const char *vmm_path;       // there need not be one: then there is no vm tier
    const char *state_dir;      // made if missing, root's alone
    const char *cgroup;         // NULL: choose
    struct address_range pool;  // of sandboxes' lines
    bool v1_freezer;            // leave a hybrid host's v2 hierarchy alone
};

// Builds everything; on failure *ret_why (static text, or the path that failed) says what.  0 or a negative errno.
int host_open(struct loop *loop, const struct host_options *options, struct host **ret_host, const char **ret_why);
// All sandboxes must be gone.  NULL is fine; returns NULL.
struct host *host_close(struct host *host);

#endif
