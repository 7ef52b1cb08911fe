// A table of walls.  Each is tried by doing what it forbids, or read from the kernel's own account.
//
// None of the attempts may do harm where it succeeds: the addresses are reserved for documentation (RFC 5737, RFC 3849),
// nothing is mounted or written, namespaces made end with the child that made them.  All the same, outside a pid and a user
// namespace of our own (somebody started this by hand on a host) nothing further is tried.
#include "agent/self_test.h"

#include "agent/self_test_walls.h"

#include <stdio.h>

struct wall {
    const char *name;
    wall_fn *stands;
    bool needed_by_rest;
};

static const struct wall walls[] = {
    {"process 1 of its own pid namespace", wall_pid_one, true},
    {"root inside, somebody else outside", wall_user_namespace, true},
    {"no dangerous capability", wall_capabilities},
    {"system call filter and no new privileges", wall_seccomp},
    {"forbidden system calls", wall_syscalls},
    {"read-only kernel settings", wall_kernel_files},
    {"only harmless devices", wall_devices},
    {"a writable root of its own", wall_root_writable},
    {"no network interface but lo", wall_interfaces},
    {"no route", wall_routes},
    {"no connection to anywhere", wall_connections},
};

bool self_test(void)
{
    bool all = true;
    for (size_t i = 0; i < sizeof walls / sizeof walls[0]; i++) {
        struct err why = {0};
        if (walls[i].stands(&why))
            continue;
        all = false;
        dprintf(2, "self-test: %s: %s\n", walls[i].name, why.text);
        if (walls[i].needed_by_rest)
            break;
    }
    return all;
}
