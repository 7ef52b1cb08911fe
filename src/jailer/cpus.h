// Which processors a sandbox runs on: as many as it has vCPUs, the least used ones, so that a program that counts processors
// sees what it was given.  The cpu cgroup enforces the amount; this only makes it visible.
#ifndef JAILER_CPUS_H
#define JAILER_CPUS_H

#include "jailer/host.h"

#include <sched.h>
#include <stdint.h>

struct cpus_taken {
    int count;  // 0: not pinned, because the sandbox may use them all
    uint16_t index[JAIL_VCPUS_MAX];
};

// Chooses; *ret_set is empty when the sandbox need not be pinned.  The sandbox's first process pins itself.
void cpus_take(struct host *host, uint32_t vcpus, struct cpus_taken *ret_taken, cpu_set_t *ret_set);
void cpus_give(struct host *host, struct cpus_taken *taken);

#endif
