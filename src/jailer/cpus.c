#include "jailer/cpus.h"

#include <errno.h>
#include <sched.h>

static int least_used(const struct host *host, const cpu_set_t *chosen)
{
    int best = -1;
    for (int i = 0; i < host->cpu_count; i++) {
        if (CPU_ISSET(host->cpus[i], chosen))
            continue;
        if (best < 0 || host->cpu_users[i] < host->cpu_users[best])
            best = i;
    }
    return best;
}

int cpus_take(struct host *host, uint32_t vcpus, pid_t pid, struct cpus_taken *ret_taken)
{
    ret_taken->count = 0;
    if (vcpus >= (uint32_t)host->cpu_count)
        return 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    struct cpus_taken taken = {0};
    for (uint32_t i = 0; i < vcpus; i++) {
        int index = least_used(host, &set);
        CPU_SET(host->cpus[index], &set);
        taken.index[taken.count++] = (uint16_t)index;
    }
    if (sched_setaffinity(pid, sizeof set, &set) < 0)
        return -errno;
    for (int i = 0; i < taken.count; i++)
        host->cpu_users[taken.index[i]]++;
    *ret_taken = taken;
    return 0;
}

void cpus_give(struct host *host, struct cpus_taken *taken)
{
    for (int i = 0; i < taken->count; i++)
        host->cpu_users[taken->index[i]]--;
    taken->count = 0;
}
