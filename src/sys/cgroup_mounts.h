// Where the host has its cgroup hierarchies, and where this process is in them.
#ifndef SYS_CGROUP_MOUNTS_H
#define SYS_CGROUP_MOUNTS_H

#include <stdbool.h>

enum { CGROUP_MOUNTS_MAX = 16, CGROUP_MOUNT_PATH = 512 };

struct cgroup_mount {
    char mount[CGROUP_MOUNT_PATH];  // "" if there is none
    char own[CGROUP_MOUNT_PATH];    // this process's group, relative to the mount, without a leading '/'
    char controllers[128];          // v1: "cpu,cpuacct"
};

struct cgroup_mounts {
    struct cgroup_mount v2;
    bool v2_has_controllers;  // memory, pids and cpu
    bool v2_has_kill;         // cgroup.kill (kernel 5.14)
    int v1_count;
    struct cgroup_mount v1[CGROUP_MOUNTS_MAX];
};

// 0 or a negative errno.
int cgroup_mounts_read(struct cgroup_mounts *ret_mounts);

// The v1 hierarchy that has `controller`, or NULL.
const struct cgroup_mount *cgroup_mounts_find(const struct cgroup_mounts *mounts, const char *controller);

#endif
