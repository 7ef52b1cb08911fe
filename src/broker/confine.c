#include "broker/confine.h"

#include "base/cleanup.h"

#include <errno.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static const int calls[] = {
    // waiting
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_pwait2),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(poll),
    SCMP_SYS(futex),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(timerfd_settime),
    SCMP_SYS(timerfd_create),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(time),
    SCMP_SYS(nanosleep),
    SCMP_SYS(clock_nanosleep),
    // descriptors that are there
    SCMP_SYS(read),
    SCMP_SYS(readv),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(close),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(lseek),
    SCMP_SYS(fcntl),
    SCMP_SYS(splice),
    SCMP_SYS(pipe2),
    // credentials.conf, grants.json and what is beside it, below Landlock
    SCMP_SYS(openat),
    SCMP_SYS(openat2),
    // what the engine is handed
    SCMP_SYS(memfd_create),
    // sockets; socket(2) by family, below
    SCMP_SYS(accept4),
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(sendmmsg),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(shutdown),
    // memory
    SCMP_SYS(brk),
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    // signals and the end
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(tgkill),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getrandom),
};

static int add_calls(scmp_filter_ctx f)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof calls / sizeof calls[0]; i++)
        r = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[i], 0);
    static const int families[] = {AF_INET, AF_INET6, AF_UNIX};
    for (size_t i = 0; r == 0 && i < sizeof families / sizeof families[0]; i++)
        r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (uint64_t)families[i]));
    // How much there is to read, and nothing else of the kind.
    if (r == 0)
        r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, FIONREAD));
    // Memory that is not code.
    if (r == 0)
        r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, 4, 0));
    if (r == 0)
        r = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, 4, 0));
    return r;
}

static int filter_calls(void)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (f == NULL)
        return -ENOMEM;
    int r = add_calls(f);
    if (r == 0)
        r = seccomp_load(f);
    seccomp_release(f);
    return r;
}

// What Landlock's first version knows, and so every kernel that has it.
static const uint64_t file_rights = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE |
                                    LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                                    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                                    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                                    LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;

static int restrict_files(const int dir_fd[static CONFINE_FOLDERS], bool *ret_landlock)
{
    const struct landlock_ruleset_attr attr = {.handled_access_fs = file_rights};
    *ret_landlock = false;
    cleanup_fd int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
    if (rules < 0)
        return errno == ENOSYS || errno == EOPNOTSUPP ? 0 : -errno;
    for (int i = 0; i < CONFINE_FOLDERS; i++) {
        const struct landlock_path_beneath_attr below = {.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE,
                                                         .parent_fd = dir_fd[i]};
        if (dir_fd[i] >= 0 && syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0) < 0)
            return -errno;
    }
    if (syscall(SYS_landlock_restrict_self, rules, 0) < 0)
        return -errno;
    *ret_landlock = true;
    return 0;
}

// Builds that look for leaks trace themselves at their end, which neither lets them.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool traced = true;
#else
static const bool traced = false;
#endif

int confine(const int dir_fd[static CONFINE_FOLDERS], struct confined *ret)
{
    const struct rlimit none = {0, 0};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setrlimit(RLIMIT_CORE, &none) < 0 ||
        (!traced && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0))
        return -errno;
    int r = traced ? 0 : restrict_files(dir_fd, &ret->landlock);
    if (r < 0 || traced)
        return r;
    ret->filter = true;
    return filter_calls();
}
