#include "enter/seccomp_exceptions.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

struct exception {
    const char *call;
    int error;  // what the call fails with; 0: it seems to succeed and does nothing
    struct scmp_arg_cmp when[2];
};

#define INT_IS(arg, value) SCMP_CMP(arg, SCMP_CMP_MASKED_EQ, 0xFFFFFFFFU, (uint32_t)(value))
#define HAS_FLAG(arg, value) SCMP_CMP(arg, SCMP_CMP_MASKED_EQ, value, value)
#define NOT_NULL(arg) SCMP_CMP(arg, SCMP_CMP_NE, 0)

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif

enum {
    SHM_HUGETLB_ = 04000,
    PID_OF_AGENT = 1,
    TCP_ULP_ = 31,
    SIOCGIFBR_ = 0x8940,
    SIOCSIFBR_ = 0x8941,
    SIOCGIFVLAN_ = 0x8982,
    SIOCSIFVLAN_ = 0x8983,
    SIOCBRADDBR_ = 0x89A0,
    SIOCBRDELBR_ = 0x89A1,
};

static const struct exception exceptions[] = {
    // Terminal injection.
    {"ioctl", EPERM, {INT_IS(1, TIOCSTI)}},
    {"ioctl", EPERM, {INT_IS(1, TIOCLINUX)}},
    // These load kernel modules before they ask who wants them: line disciplines, bridge, 8021q.
    {"ioctl", EPERM, {INT_IS(1, TIOCSETD)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCGIFBR_)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCSIFBR_)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCBRADDBR_)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCBRDELBR_)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCGIFVLAN_)}},
    {"ioctl", EPERM, {INT_IS(1, SIOCSIFVLAN_)}},
    // Huge pages are the host's, all sandboxes' together, and no memory limit counts them.
    {"mmap", ENOMEM, {HAS_FLAG(3, MAP_HUGETLB)}},
    {"memfd_create", EINVAL, {HAS_FLAG(1, MFD_HUGETLB)}},
    {"shmget", EPERM, {HAS_FLAG(2, SHM_HUGETLB_)}},
    // The agent has the guest's uid, which is all that setting its limits would need.
    {"prlimit64", EPERM, {INT_IS(0, PID_OF_AGENT), NOT_NULL(2)}},
    // No core is ever written.  The limit stays 1, whatever is asked for (src/enter/enter.c says why).
    {"prlimit64", 0, {INT_IS(1, RLIMIT_CORE), NOT_NULL(2)}},
    {"setrlimit", 0, {INT_IS(0, RLIMIT_CORE)}},
    // A socket whose close waits would stop whoever it was passed to, and the engine closes what an agent sends.
    {"setsockopt", 0, {INT_IS(1, SOL_SOCKET), INT_IS(2, SO_LINGER)}},
    // What a netlink socket has received counts in no memory limit, and the host may allow megabytes of it: as it is born.
    {"setsockopt", 0, {INT_IS(1, SOL_SOCKET), INT_IS(2, SO_RCVBUF)}},
    // TLS and other protocols in the kernel, above TCP.
    {"setsockopt", ENOPROTOOPT, {INT_IS(1, IPPROTO_TCP), INT_IS(2, TCP_ULP_)}},
};

static int add(scmp_filter_ctx ctx, const struct exception *e)
{
    int nr = seccomp_syscall_resolve_name(e->call);
    unsigned count = e->when[1].op != _SCMP_CMP_MIN ? 2 : 1;
    return nr == __NR_SCMP_ERROR || nr < 0
               ? 0
               : seccomp_rule_add_array(ctx, SCMP_ACT_ERRNO((unsigned)e->error), nr, count, e->when);
}

int seccomp_exceptions_add(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; i < sizeof exceptions / sizeof exceptions[0] && r == 0; i++)
        r = add(ctx, &exceptions[i]);
    return r;
}
