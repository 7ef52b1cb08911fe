#include "jailer/privileges.h"

#include <cap-ng.h>
#include <errno.h>
#include <stddef.h>

// Over files and processes of its own ids only.  No SYS_ADMIN, SYS_PTRACE, NET_ADMIN, NET_RAW, MKNOD, SYS_RESOURCE.
static const int inside[] = {
    CAP_CHOWN,         // package managers, tar
    CAP_DAC_OVERRIDE,  // root reads and writes its own system's files
    CAP_FOWNER,        // and changes their modes and times
    CAP_FSETID,        // keeps set-id bits it means to keep
    CAP_KILL,          // signals between its users
    CAP_SETGID,        // servers that give up root
    CAP_SETUID,
    CAP_SETPCAP,           // and drop more than that
    CAP_NET_BIND_SERVICE,  // ports below 1024 of its own network
    CAP_SYS_CHROOT,        // build tools
};

static const int jailer[] = {
    CAP_SYS_ADMIN,  // namespaces, mounts, loop devices
    CAP_SETUID,     // id maps, the engine's uid
    CAP_SETGID,
    CAP_SETPCAP,       // to drop the rest
    CAP_CHOWN,         // run folder, delegated cgroups
    CAP_DAC_OVERRIDE,  // folders of the engine's
    CAP_FOWNER,
    CAP_KILL,          // sandboxes, the engine
    CAP_SYS_PTRACE,    // to open a child's user namespace under /proc
    CAP_SYS_RESOURCE,  // limits of children
};

static int keep_only(const int *list, size_t count)
{
    capng_clear(CAPNG_SELECT_ALL);
    for (size_t i = 0; i < count; i++)
        if (capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_BOUNDING_SET, (unsigned)list[i]) < 0)
            return -EINVAL;
    return capng_apply(CAPNG_SELECT_ALL) < 0 ? -EPERM : 0;
}

int privileges_drop_inside(void)
{
    return keep_only(inside, sizeof inside / sizeof inside[0]);
}

int privileges_drop_jailer(void)
{
    return keep_only(jailer, sizeof jailer / sizeof jailer[0]);
}
