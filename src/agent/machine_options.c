#include "agent/machine.h"
#include "base/num.h"

#include <arpa/inet.h>
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

// One field of a list; what follows it is at *text afterwards.
static bool take_field(const char **text, char *field, size_t room)
{
    size_t n = strcspn(*text, ",");
    if (n == 0 || n >= room)
        return false;
    memcpy(field, *text, n);
    field[n] = '\0';
    *text += n + ((*text)[n] == ',' && (*text)[n + 1] != '\0');
    return true;
}

static bool take_address(const char **text, uint8_t address[4])
{
    char field[INET_ADDRSTRLEN];
    return take_field(text, field, sizeof field) && inet_pton(AF_INET, field, address) == 1;
}

static bool take_number(const char **text, uint64_t most, uint32_t *ret_number)
{
    char field[16];
    uint64_t number;
    if (!take_field(text, field, sizeof field) || parse_u64(field, 1, most, &number) < 0)
        return false;
    *ret_number = (uint32_t)number;
    return true;
}

static bool line_parse(const char *text, struct guest_line *ret_line)
{
    struct guest_line line = {.kind = 0};
    if (!take_number(&text, JAIL_LINE_ALL_, &line.kind) || !take_address(&text, line.address.host) ||
        !take_address(&text, line.address.guest) || !take_number(&text, 32, &line.address.prefix) || *text != '\0')
        return false;
    *ret_line = line;
    return true;
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
        LINE,
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
        {"line", required_argument, NULL, LINE},
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
        else if (c == LINE)
            good = line_parse(optarg, &o.line);
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
