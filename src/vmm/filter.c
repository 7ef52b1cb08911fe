#include "vmm/filter.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int devices_calls[] = {
    // waiting and locks
    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(futex),
    SCMP_SYS(sched_yield),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(poll),
    // descriptors that are there
    SCMP_SYS(read),
    SCMP_SYS(readv),
    SCMP_SYS(pread64),
    SCMP_SYS(preadv),
    SCMP_SYS(preadv2),
    SCMP_SYS(write),
    SCMP_SYS(writev),
    SCMP_SYS(pwrite64),
    SCMP_SYS(pwritev),
    SCMP_SYS(pwritev2),
    SCMP_SYS(lseek),
    SCMP_SYS(fsync),
    SCMP_SYS(fdatasync),
    SCMP_SYS(fallocate),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fstat),
    SCMP_SYS(close),
    // local sockets
    SCMP_SYS(accept4),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(shutdown),
    // memory
    SCMP_SYS(munmap),
    SCMP_SYS(brk),
    SCMP_SYS(madvise),
    SCMP_SYS(mremap),
    // itself
    SCMP_SYS(getpid),
    SCMP_SYS(gettid),
    SCMP_SYS(getrandom),
    SCMP_SYS(getrusage),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(rseq),
    SCMP_SYS(set_robust_list),
#ifdef __SANITIZE_ADDRESS__
    SCMP_SYS(sigaltstack),
    SCMP_SYS(sched_getaffinity),
#endif
};

static const int vcpu_calls[] = {
    SCMP_SYS(futex),          // locks
    SCMP_SYS(write),          // eventfds
    SCMP_SYS(rt_sigreturn),   // of the signal that pauses it
    SCMP_SYS(clock_gettime),  // where the vDSO has no clock
    SCMP_SYS(restart_syscall),
#ifdef __SANITIZE_ADDRESS__
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(madvise),
    SCMP_SYS(sched_yield),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(gettid),
    SCMP_SYS(getpid),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
#endif
};

static int allow_all(scmp_filter_ctx ctx, const int *calls, size_t n)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < n; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, calls[i], 0);
    return r;
}

static int allow_kvm_run(scmp_filter_ctx ctx)
{
    return seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, KVM_RUN));
}

// Calls whose arguments are part of the permission.
static int allow_devices_details(scmp_filter_ctx ctx)
{
    int r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, SCMP_A0(SCMP_CMP_EQ, AF_UNIX));
    if (r == 0)  // to pause vCPUs: this process's threads only
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
    if (r == 0)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(newfstatat), 1, SCMP_A3(SCMP_CMP_EQ, AT_EMPTY_PATH));
    if (r == 0)  // a stricter filter on top
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(seccomp), 1, SCMP_A0(SCMP_CMP_EQ, SECCOMP_SET_MODE_FILTER));
    return r;
}

// Saving a parked machine, and setting a restored one's clocks.  Nothing that could change what a running guest is or has.
static const unsigned long snapshot_requests[] = {
    KVM_CHECK_EXTENSION, KVM_GET_MSR_INDEX_LIST, KVM_GET_MP_STATE, KVM_GET_REGS,      KVM_GET_SREGS,
    KVM_GET_XSAVE,       KVM_GET_XSAVE2,         KVM_GET_XCRS,     KVM_GET_DEBUGREGS, KVM_GET_LAPIC,
    KVM_GET_MSRS,        KVM_GET_VCPU_EVENTS,    KVM_GET_TSC_KHZ,  KVM_GET_CPUID2,    KVM_GET_IRQCHIP,
    KVM_GET_CLOCK,       KVM_SET_CLOCK,          KVM_SET_MSRS,     KVM_KVMCLOCK_CTRL,
};

static int allow_snapshots(scmp_filter_ctx ctx)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < sizeof snapshot_requests / sizeof snapshot_requests[0]; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1, SCMP_A1(SCMP_CMP_EQ, snapshot_requests[i]));
    return r;
}

static int add_rules(scmp_filter_ctx ctx, enum filter_kind kind)
{
    int r = allow_kvm_run(ctx);
    if (r < 0)
        return r;
    if (kind == FILTER_VCPU)
        return allow_all(ctx, vcpu_calls, sizeof vcpu_calls / sizeof vcpu_calls[0]);
    r = allow_all(ctx, devices_calls, sizeof devices_calls / sizeof devices_calls[0]);
    if (r == 0)
        r = allow_devices_details(ctx);
    return r < 0 ? r : allow_snapshots(ctx);
}

// libseccomp writes a program to a descriptor only.
static int export_program(scmp_filter_ctx ctx, struct sock_fprog *ret_program)
{
    cleanup_fd int fd = memfd_create("filter", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = seccomp_export_bpf(ctx, fd);
    if (r < 0)
        return r;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    size_t n = (size_t)st.st_size / sizeof(struct sock_filter);
    if (n == 0 || n > BPF_MAXINSNS)
        return -E2BIG;
    cleanup_free struct sock_filter *code = calloc(n, sizeof *code);
    if (code == NULL)
        return -ENOMEM;
    if (pread(fd, code, n * sizeof *code, 0) != (ssize_t)(n * sizeof *code))
        return -EIO;
    *ret_program = (struct sock_fprog){.len = (unsigned short)n, .filter = take_ptr(&code)};
    return 0;
}

int filter_compile(enum filter_kind kind, struct sock_fprog *ret_program)
{
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (ctx == NULL)
        return -ENOMEM;
    // By default, calls of another table would end their thread only.
    int r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (r == 0)
        r = add_rules(ctx, kind);
    if (r == 0)
        r = export_program(ctx, ret_program);
    seccomp_release(ctx);
    return r;
}

int filter_install(const struct sock_fprog *program, enum filter_scope scope)
{
    // Allowed by no list: a vCPU thread has it already, from the filter that all threads got.
    if (scope == FILTER_ALL_THREADS && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    unsigned flags = scope == FILTER_ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    long r = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program);
    if (r < 0)
        return -errno;
    return r > 0 ? -ESRCH : 0;  // the id of a thread that could not be given it
}
