// Who we are, what we may do, and which system calls are closed.
#include "agent/self_test_walls.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

bool wall_pid_one(struct err *why)
{
    if (getpid() == 1)
        return true;
    return err_set(why, 0, "this is process %d", (int)getpid()), false;
}

bool wall_user_namespace(struct err *why)
{
    if (getuid() != 0 || geteuid() != 0)
        return err_set(why, 0, "the uid inside is %u, not 0", (unsigned)geteuid()), false;
    cleanup_file FILE *f = fopen("/proc/self/uid_map", "re");
    unsigned inside, outside, count;
    if (f == NULL || fscanf(f, "%u %u %u", &inside, &outside, &count) != 3)
        return err_set(why, 0, "/proc/self/uid_map cannot be read"), false;
    do
        if (outside == 0 || (inside == outside && count > 0))
            return err_set(why, 0, "uid %u inside is uid %u outside", inside, outside), false;
    while (fscanf(f, "%u %u %u", &inside, &outside, &count) == 3);
    return true;
}

// One line of /proc/self/status as a number.
static bool status_number(const char *key, int base, uint64_t *ret_value)
{
    cleanup_file FILE *f = fopen("/proc/self/status", "re");
    char line[512];
    size_t n = strlen(key);
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            *ret_value = strtoull(line + n + 1, NULL, base);
            return true;
        }
    return false;
}

bool wall_capabilities(struct err *why)
{
    static const struct {
        const char *name;
        unsigned bit;
    } dangerous[] = {{"SYS_ADMIN", CAP_SYS_ADMIN},
                     {"SYS_PTRACE", CAP_SYS_PTRACE},
                     {"NET_ADMIN", CAP_NET_ADMIN},
                     {"SYS_MODULE", CAP_SYS_MODULE},
                     {"SYS_RAWIO", CAP_SYS_RAWIO}};
    static const char *const sets[] = {"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"};
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        uint64_t set;
        if (!status_number(sets[s], 16, &set))
            return err_set(why, 0, "/proc/self/status has no %s", sets[s]), false;
        for (size_t i = 0; i < sizeof dangerous / sizeof dangerous[0]; i++)
            if ((set >> dangerous[i].bit & 1) != 0)
                return err_set(why, 0, "%s contains CAP_%s", sets[s], dangerous[i].name), false;
    }
    return true;
}

bool wall_seccomp(struct err *why)
{
    uint64_t mode = 0, no_new_privs = 0;
    if (!status_number("Seccomp", 10, &mode) || mode != 2)
        return err_set(why, 0, "Seccomp is %u, not 2 (filter)", (unsigned)mode), false;
    if (!status_number("NoNewPrivs", 10, &no_new_privs) || no_new_privs != 1)
        return err_set(why, 0, "NoNewPrivs is %u, not 1", (unsigned)no_new_privs), false;
    return true;
}

// The kernel looks at the permission first and at the type after it: with a type that does not exist nothing is ever mounted,
// and any other answer than a refusal means that we may mount.
static long try_mount(void)
{
    long r = mount("none", "/", "sandbox-no-such-type", 0, NULL);
    return r < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS) ? -1 : 0;
}

static long try_unshare_user(void)
{
    return unshare(CLONE_NEWUSER);
}

static long try_clone_user(void)
{
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid;
}

static long try_setns(void)
{
    cleanup_fd int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -1 : setns(fd, CLONE_NEWNET);
}

static long try_keyctl(void)
{
    return syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* session keyring */, 1);
}

static long try_bpf(void)
{
    uint32_t attributes[16] = {1 /* hash map */, 4, 4, 1};
    return syscall(SYS_bpf, 0 /* BPF_MAP_CREATE */, attributes, sizeof attributes);
}

static long try_io_uring(void)
{
    uint32_t parameters[30] = {0};
    return syscall(SYS_io_uring_setup, 1, parameters);
}

static long try_ptrace(void)
{
    return syscall(SYS_ptrace, 0x4206 /* PTRACE_SEIZE: does not stop it */, getppid(), 0, 0);
}

static long try_perf(void)
{
    uint32_t attributes[32] = {1 /* software */, sizeof attributes};
    return syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0);
}

// Each attempt is made in a child, so that one that succeeds, or is answered by a signal, does not disturb the next.
// True if it failed.
static bool attempt_fails(long (*attempt)(void))
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(attempt() < 0 ? 0 : 1);
    int status;
    pid_t waited;
    do
        waited = waitpid(pid, &status, 0);
    while (waited < 0 && errno == EINTR);
    return waited == pid && (WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

bool wall_syscalls(struct err *why)
{
    static const struct {
        const char *name;
        long (*attempt)(void);
    } closed[] = {
        {"mount", try_mount},
        {"unshare(CLONE_NEWUSER)", try_unshare_user},
        {"clone(CLONE_NEWUSER)", try_clone_user},
        {"setns", try_setns},
        {"keyctl", try_keyctl},
        {"bpf", try_bpf},
        {"ptrace of the agent", try_ptrace},
        {"io_uring_setup", try_io_uring},
        {"perf_event_open", try_perf},
    };
    for (size_t i = 0; i < sizeof closed / sizeof closed[0]; i++)
        if (!attempt_fails(closed[i].attempt))
            return err_set(why, 0, "%s succeeds", closed[i].name), false;
    return true;
}
