#include "enter/seccomp_policy.h"

#include "base/cleanup.h"
#include "enter/seccomp_exceptions.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// Allowed whatever the arguments are.  Sorted; grouped by letter.  A call is here because ordinary programs (language
// runtimes, compilers, package managers, databases) use it and it gives no way to the host that another call here does not.
// Not here, and so unknown: aio (io_setup), whose contexts come out of one number for the whole host (fs.aio-max-nr).
static const char *const allowed[] = {
    "accept",
    "accept4",
    "access",
    "adjtimex",
    "alarm",
    "arch_prctl",
    "bind",
    "brk",
    "cachestat",
    "capget",
    "capset",
    "chdir",
    "chmod",
    "chown",
    "chroot",
    "clock_getres",
    "clock_gettime",
    "clock_nanosleep",
    "close",
    "close_range",
    "connect",
    "copy_file_range",
    "creat",
    "dup",
    "dup2",
    "dup3",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "eventfd",
    "eventfd2",
    "execve",
    "execveat",
    "exit",
    "exit_group",
    "faccessat",
    "faccessat2",
    "fadvise64",
    "fallocate",
    "fchdir",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "fchown",
    "fchownat",
    "fcntl",
    "fdatasync",
    "fgetxattr",
    "flistxattr",
    "flock",
    "fork",
    "fremovexattr",
    "fsetxattr",
    "fstat",
    "fstatfs",
    "fsync",
    "ftruncate",
    "futex",
    "futex_requeue",
    "futex_wait",
    "futex_waitv",
    "futex_wake",
    "futimesat",
    "getcpu",
    "getcwd",
    "getdents",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpeername",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getrandom",
    "getresgid",
    "getresuid",
    "getrlimit",
    "get_robust_list",
    "getrusage",
    "getsid",
    "getsockname",
    "getsockopt",
    "get_thread_area",
    "gettid",
    "gettimeofday",
    "getuid",
    "getxattr",
    "inotify_add_watch",
    "inotify_init",
    "inotify_init1",
    "inotify_rm_watch",
    "ioctl",
    "ioprio_get",
    "ioprio_set",
    "kill",
    "landlock_add_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "lchown",
    "lgetxattr",
    "link",
    "linkat",
    "listen",
    "listxattr",
    "llistxattr",
    "lremovexattr",
    "lseek",
    "lsetxattr",
    "lstat",
    "madvise",
    "map_shadow_stack",
    "membarrier",
    "memfd_create",
    "mincore",
    "mkdir",
    "mkdirat",
    "mknod",
    "mknodat",
    "mlock",
    "mlock2",
    "mlockall",
    "mmap",
    "mprotect",
    "mq_getsetattr",
    "mq_notify",
    "mq_open",
    "mq_timedreceive",
    "mq_timedsend",
    "mq_unlink",
    "mremap",
    "mseal",
    "msgctl",
    "msgget",
    "msgrcv",
    "msgsnd",
    "msync",
    "munlock",
    "munlockall",
    "munmap",
    "nanosleep",
    "newfstatat",
    "open",
    "openat",
    "openat2",
    "pause",
    "pidfd_getfd",
    "pidfd_open",
    "pidfd_send_signal",
    "pipe",
    "pipe2",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
    "poll",
    "ppoll",
    "prctl",
    "pread64",
    "preadv",
    "preadv2",
    "prlimit64",
    "process_madvise",
    "process_mrelease",
    "process_vm_readv",
    "process_vm_writev",
    "pselect6",
    "ptrace",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readahead",
    "readlink",
    "readlinkat",
    "readv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "remap_file_pages",
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "restart_syscall",
    "rmdir",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigqueueinfo",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "rt_tgsigqueueinfo",
    "sched_getaffinity",
    "sched_getattr",
    "sched_getparam",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getscheduler",
    "sched_rr_get_interval",
    "sched_setaffinity",
    "sched_setattr",
    "sched_setparam",
    "sched_setscheduler",
    "sched_yield",
    "seccomp",
    "select",
    "semctl",
    "semget",
    "semop",
    "semtimedop",
    "sendfile",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setfsgid",
    "setfsuid",
    "setgid",
    "setgroups",
    "setitimer",
    "setpgid",
    "setpriority",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setrlimit",
    "set_robust_list",
    "setsid",
    "setsockopt",
    "set_thread_area",
    "set_tid_address",
    "setuid",
    "setxattr",
    "shmat",
    "shmctl",
    "shmdt",
    "shmget",
    "shutdown",
    "sigaltstack",
    "signalfd",
    "signalfd4",
    "splice",
    "stat",
    "statfs",
    "statx",
    "symlink",
    "symlinkat",
    "sync_file_range",
    "syncfs",
    "sysinfo",
    "tee",
    "tgkill",
    "time",
    "timer_create",
    "timer_delete",
    "timerfd_create",
    "timerfd_gettime",
    "timerfd_settime",
    "timer_getoverrun",
    "timer_gettime",
    "timer_settime",
    "times",
    "tkill",
    "truncate",
    "umask",
    "uname",
    "unlink",
    "unlinkat",
    "utime",
    "utimensat",
    "utimes",
    "vfork",
    "vmsplice",
    "wait4",
    "waitid",
    "write",
    "writev",
    // Flags lie behind a pointer that a filter cannot read.  It is allowed for the agent, which starts each command right in
    // its cgroup with it; the agent takes it away (ENOSYS) from every command before it runs.
    "clone3",
};

// Refused with EPERM rather than "unknown": programs that ask for these should see that they may not.
static const char *const denied[] = {
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "fanotify_init",
    "fanotify_mark",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "get_mempolicy",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mbind",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "set_mempolicy",
    "sethostname",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "_sysctl",
    "sysfs",
    "syslog",
    "umount2",
    "unshare",
    "userfaultfd",
    "uselib",
    "ustat",
    "vhangup",
    "vm86",
    "vm86old",
};

#define NAMESPACE_FLAGS                                                                                                        \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

static int allow(scmp_filter_ctx ctx, const char *name)
{
    int nr = seccomp_syscall_resolve_name(name);
    // A name this libseccomp or this processor does not have stays unknown, which is ENOSYS.
    return nr == __NR_SCMP_ERROR || nr < 0 ? 0 : seccomp_rule_add(ctx, SCMP_ACT_ALLOW, nr, 0);
}

static int deny(scmp_filter_ctx ctx, const char *name)
{
    int nr = seccomp_syscall_resolve_name(name);
    return nr == __NR_SCMP_ERROR || nr < 0 ? 0 : seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 0);
}

static int add_clone(scmp_filter_ctx ctx)
{
    int r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, NAMESPACE_FLAGS, 0));
    for (unsigned bit = 0; bit < 32 && r == 0; bit++)
        if ((NAMESPACE_FLAGS & (1U << bit)) != 0)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(clone), 1,
                                 SCMP_A0(SCMP_CMP_MASKED_EQ, 1U << bit, 1U << bit));
    return r;
}

// Local, internet and route-netlink sockets.  AF_VSOCK would reach the host past every namespace, AF_ALG and the rest are
// kernel code nobody here needs; so are the other protocols of the internet families (SCTP, MPTCP, L2TP, ...), for which the
// kernel would even load modules.
static int add_sockets(scmp_filter_ctx ctx)
{
    static const int protocols[] = {0, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6};
    static const int families[] = {AF_INET, AF_INET6};
    int r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct scmp_arg_cmp family = SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]);
        for (size_t j = 0; j < sizeof protocols / sizeof protocols[0] && r == 0; j++)
            r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, family,
                                 SCMP_A2(SCMP_CMP_EQ, (scmp_datum_t)protocols[j]));
        if (r == 0)
            r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 2, family,
                                 SCMP_A2(SCMP_CMP_GT, IPPROTO_ICMPV6));
    }
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, SCMP_A0(SCMP_CMP_EQ, AF_NETLINK),
                             SCMP_A2(SCMP_CMP_EQ, 0 /* NETLINK_ROUTE */));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_GT, AF_NETLINK));
    // A pair of another family is a way to that family as well.
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
    return r == 0 ? seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socketpair), 1, SCMP_A0(SCMP_CMP_GT, AF_UNIX))
                  : r;
}

// On the host it would write out every file system there is, for anybody; a sandbox's own disk does not outlive it, and what is
// written to its session volume is the host kernel's, which does.  In a machine it is as true as anywhere.
static int add_no_sync(scmp_filter_ctx ctx)
{
    return seccomp_rule_add(ctx, SCMP_ACT_ERRNO(0), SCMP_SYS(sync), 0);
}

static int add_personality(scmp_filter_ctx ctx)
{
    static const uint32_t plain[] = {PER_LINUX, PER_LINUX32, UNAME26, PER_LINUX32 | UNAME26, 0xFFFFFFFFU};
    int r = 0;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0] && r == 0; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1, SCMP_A0(SCMP_CMP_EQ, plain[i]));
    return r;
}

static int add_rules(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0] && r == 0; i++)
        r = allow(ctx, allowed[i]);
    for (size_t i = 0; i < sizeof denied / sizeof denied[0] && r == 0; i++)
        r = deny(ctx, denied[i]);
    if (r == 0)
        r = add_clone(ctx);
    if (r == 0)
        r = add_sockets(ctx);
    return r == 0 ? add_personality(ctx) : r;
}

static int add_rules_on_host(scmp_filter_ctx ctx)
{
    int r = add_rules(ctx);
    return r == 0 ? add_no_sync(ctx) : r;
}

static int add_rules_in_machine(scmp_filter_ctx ctx)
{
    int r = add_rules(ctx);
    return r == 0 ? allow(ctx, "sync") : r;
}

static int export_program(scmp_filter_ctx ctx, struct sock_fprog *ret_program)
{
    cleanup_fd int fd = memfd_create("seccomp", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = seccomp_export_bpf(ctx, fd);
    struct stat st;
    if (r == 0 && fstat(fd, &st) < 0)
        r = -errno;
    if (r < 0)
        return r;
    size_t count = (size_t)st.st_size / sizeof(struct sock_filter);
    if (count == 0 || count > BPF_MAXINSNS)
        return -E2BIG;
    struct sock_filter *code = malloc((size_t)st.st_size);
    if (code == NULL)
        return -ENOMEM;
    if (pread(fd, code, (size_t)st.st_size, 0) != st.st_size) {
        free(code);
        return -EIO;
    }
    *ret_program = (struct sock_fprog){.len = (unsigned short)count, .filter = code};
    return 0;
}

// Foreign system call tables (i386, x32) are how filters are bypassed: their use ends the process.
static int build_program(uint32_t otherwise, int (*fill)(scmp_filter_ctx ctx), struct sock_fprog *ret_program)
{
    scmp_filter_ctx ctx = seccomp_init(otherwise);
    if (ctx == NULL)
        return -ENOMEM;
    int r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (r == 0)
        r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);  // a binary tree, not a list
    if (r == 0)
        r = fill(ctx);
    if (r == 0)
        r = export_program(ctx, ret_program);
    seccomp_release(ctx);
    return r;
}

int seccomp_policy_build(enum seccomp_kernel kernel, struct filter *ret_filter)
{
    struct filter filter = {0};
    int r = build_program(SCMP_ACT_ERRNO(ENOSYS), kernel == SECCOMP_KERNEL_HOST ? add_rules_on_host : add_rules_in_machine,
                          &filter.allowed);
    if (r == 0)
        r = build_program(SCMP_ACT_ALLOW, seccomp_exceptions_add, &filter.exceptions);
    if (r < 0)
        seccomp_policy_free(&filter);
    else
        *ret_filter = filter;
    return r;
}

void seccomp_policy_free(struct filter *filter)
{
    free(filter->allowed.filter);
    free(filter->exceptions.filter);
    *filter = (struct filter){0};
}
