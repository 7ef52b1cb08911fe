#include "enter/privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    CAP_MKNOD,         // a sandbox's own /dev/null and its kin
    CAP_SYS_PTRACE,    // to open a child's user namespace under /proc
    CAP_SYS_RESOURCE,  // limits of children
    CAP_SYS_NICE,      // to move a child, which has all capabilities in its own namespace, into a v2 group below cpuset
};

static const int network[] = {
    CAP_NET_ADMIN,         // devices, addresses, rules, listeners that take what was sent to other addresses
    CAP_NET_BIND_SERVICE,  // port 53
};

static const int network_begin[] = {
    CAP_NET_ADMIN, CAP_NET_BIND_SERVICE,
    CAP_SYS_ADMIN,  // its namespace
    CAP_SETPCAP,    // to drop both
};

// Two system calls with a stable layout: a library would be more to read in a root process than this.
static int keep_only(const int *list, size_t count)
{
    uint64_t kept = 0;
    for (size_t i = 0; i < count; i++)
        kept |= UINT64_C(1) << list[i];
    // The bounding set first: dropping from it needs CAP_SETPCAP.  The kernel may know more capabilities than this header.
    for (unsigned cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; cap++)
        if ((cap >= 64 || (kept & (UINT64_C(1) << cap)) == 0) && prctl(PR_CAPBSET_DROP, cap) < 0)
            return -errno;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        return -errno;
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &head, data) < 0)
        return -errno;
    // What was never had (in a container, say) cannot be kept.
    for (int i = 0; i < 2; i++) {
        data[i].permitted &= (uint32_t)(kept >> (32 * i));
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

int privileges_drop_inside(void)
{
    return keep_only(inside, sizeof inside / sizeof inside[0]);
}

int privileges_drop_all(void)
{
    return keep_only(NULL, 0);
}

int privileges_drop_jailer(void)
{
    return keep_only(jailer, sizeof jailer / sizeof jailer[0]);
}

int privileges_drop_network(void)
{
    return keep_only(network, sizeof network / sizeof network[0]);
}

int privileges_drop_network_begin(void)
{
    return keep_only(network_begin, sizeof network_begin / sizeof network_begin[0]);
}
