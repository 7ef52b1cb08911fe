#include "agent/machine.h"
#include "base/num.h"

#include <getopt.h>
#include <string.h>

bool machine_wanted(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "--vm") == 0;
}

bool machine_hostname_good(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= JAIL_HOSTNAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

bool machine_options_parse(int argc, char **argv, struct machine_options *ret_options)
{
    enum {
        VM = 1,
        MEMORY,
        DISK,
        PIDS,
        VCPUS,
        HOSTNAME,
        VOLUME,
        ALL = (1 << VM) | (1 << MEMORY) | (1 << DISK) | (1 << PIDS) | (1 << VCPUS) | (1 << HOSTNAME)
    };
    static const struct option table[] = {
        {"vm", no_argument, NULL, VM},
        {"memory-mib", required_argument, NULL, MEMORY},
        {"disk-mib", required_argument, NULL, DISK},
        {"pids", required_argument, NULL, PIDS},
        {"vcpus", required_argument, NULL, VCPUS},
        {"hostname", required_argument, NULL, HOSTNAME},
        {"volume", no_argument, NULL, VOLUME},
        {0},
    };
    struct machine_options o = {0};
    unsigned seen = 0;
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        bool good = c == VM || c == VOLUME;
        if (c == MEMORY)
            good = parse_u64(optarg, JAIL_MEMORY_MIB_MIN, JAIL_MEMORY_MIB_MAX, &o.memory_mib) == 0;
        else if (c == DISK)
            good = parse_u64(optarg, JAIL_DISK_MIB_MIN, JAIL_DISK_MIB_MAX, &o.disk_mib) == 0;
        else if (c == PIDS)
            good = parse_u64(optarg, 1, JAIL_PIDS_MAX, &o.pids_max) == 0;
        else if (c == VCPUS)
            good = parse_u64(optarg, 1, JAIL_VCPUS_MAX, &o.vcpus) == 0;
        else if (c == HOSTNAME && machine_hostname_good(optarg))
            good = strcpy(o.hostname, optarg) != NULL;
        if (!good || (seen & (1U << c)) != 0)
            return false;
        seen |= 1U << c;
    }
    o.volume = (seen & (1U << VOLUME)) != 0;
    if ((seen & ALL) != ALL || optind < argc)
        return false;
    *ret_options = o;
    return true;
}
