// Which processors a sandbox runs on: as many as it has vCPUs, the least used ones, so that a program that counts processors
// sees what it was given.  The cpu cgroup enforces the amount; this only makes it visible.
#ifndef JAILER_CPUS_H
#define JAILER_CPUS_H

#include "jailer/host.h"

#include <stdint.h>
#include <sys/types.h>

struct cpus_taken {
    int count;  // 0: not pinned, because the sandbox may use them all
    uint16_t index[JAIL_VCPUS_MAX];
};

// Pins `pid`.  0 or a negative errno.
int cpus_take(struct host *host, uint32_t vcpus, pid_t pid, struct cpus_taken *ret_taken);
void cpus_give(struct host *host, struct cpus_taken *taken);

#endif
