#include "jailer/cpus.h"

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

void cpus_take(struct host *host, uint32_t vcpus, struct cpus_taken *ret_taken, cpu_set_t *ret_set)
{
    CPU_ZERO(ret_set);
    ret_taken->count = 0;
    if (vcpus >= (uint32_t)host->cpu_count)
        return;
    for (uint32_t i = 0; i < vcpus; i++) {
        int index = least_used(host, ret_set);
        CPU_SET(host->cpus[index], ret_set);
        host->cpu_users[index]++;
        ret_taken->index[ret_taken->count++] = (uint16_t)index;
    }
}

void cpus_give(struct host *host, struct cpus_taken *taken)
{
    for (int i = 0; i < taken->count; i++)
        host->cpu_users[taken->index[i]]--;
    taken->count = 0;
}
