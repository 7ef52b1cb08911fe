// The system calls that are left to the monitor's threads: each forbidden one ends the process, each needed one works.
#include "unit.h"
#include "vmm/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/futex.h>
#include <linux/kvm.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALL_ARGS = 6, CHILD_DONE = 42 };
enum { DEVICES_CALLS = 49, VCPU_CALLS = 5, DEVICES_IOCTLS = 20 };

struct call {
    const char *name;
    long number;
    long arg[CALL_ARGS];
};

static struct sock_fprog devices, vcpu;

static int compile(void **state)
{
    return filter_compile(FILTER_DEVICES, &devices) != 0 || filter_compile(FILTER_VCPU, &vcpu) != 0;
}

static int release(void **state)
{
    free(devices.filter);
    free(vcpu.filter);
    return 0;
}

// Makes one call in a child behind the filters.  The child's wait status; exit code CHILD_DONE if it lived on.
static int status_of(const struct call *c, bool on_vcpu)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        if (filter_install(&devices, FILTER_ALL_THREADS) != 0 || (on_vcpu && filter_install(&vcpu, FILTER_THIS_THREAD) != 0))
            _exit(1);
        syscall(c->number, c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4], c->arg[5]);
        // A vCPU's thread cannot end its process in good order either.
        if (on_vcpu)
            for (;;)
                syscall(SYS_futex, &child, FUTEX_WAIT, 0, NULL, NULL, 0);
        _exit(CHILD_DONE);
    }
    int status;
    if (on_vcpu) {
        // Either it is killed, or it waits for ever: then it is seen waiting, in its futex.
        char path[64], text[64] = "";
        snprintf(path, sizeof path, "/proc/%d/syscall", child);
        while (waitpid(child, &status, WNOHANG) == 0) {
            int fd = open(path, O_RDONLY);
            ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
            close(fd);
            text[n > 0 ? n : 0] = '\0';
            if (strtol(text, NULL, 10) == SYS_futex && strncmp(text, "running", 7) != 0) {
                kill(child, SIGKILL);
                waitpid(child, &status, 0);
                return CHILD_DONE << 8;
            }
        }
        return status;
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static bool was_killed(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
}

static const char path[] = "/";
static char some[64];
#define PTR(p) ((long)(uintptr_t)(p))

// What neither kind of thread may do.
static const struct call *forbidden(size_t *ret_count)
{
    static struct call calls[40];
    const struct call list[] = {
        {"openat", SYS_openat, {AT_FDCWD, PTR(path), O_RDONLY}},
        {"open", SYS_open, {PTR(path), O_RDONLY}},
        {"openat2", SYS_openat2, {AT_FDCWD, PTR(path)}},
        {"execve", SYS_execve, {PTR(path)}},
        {"execveat", SYS_execveat, {0, PTR(path)}},
        {"fork", SYS_fork, {0}},
        {"clone", SYS_clone, {SIGCHLD}},
        {"clone3", SYS_clone3, {PTR(some), sizeof some}},
        {"socket", SYS_socket, {AF_UNIX, SOCK_STREAM}},
        {"socket inet", SYS_socket, {AF_INET, SOCK_STREAM}},
        {"socketpair inet", SYS_socketpair, {AF_INET, SOCK_STREAM, 0, PTR(some)}},
        {"connect", SYS_connect, {0, PTR(some), 16}},
        {"bind", SYS_bind, {0, PTR(some), 16}},
        {"listen", SYS_listen, {0, 1}},
        {"ptrace", SYS_ptrace, {0}},
        {"process_vm_writev", SYS_process_vm_writev, {1}},
        {"kill", SYS_kill, {1, 0}},
        {"tgkill of another", SYS_tgkill, {1, 1, 0}},
        {"prctl", SYS_prctl, {PR_SET_DUMPABLE, 1}},
        {"mmap to execute", SYS_mmap, {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0}},
        {"mprotect to execute", SYS_mprotect, {0, 4096, PROT_EXEC}},
        {"KVM_CREATE_VM", SYS_ioctl, {0, (long)KVM_CREATE_VM}},
        {"KVM_SET_REGS", SYS_ioctl, {0, (long)KVM_SET_REGS}},
        {"KVM_SET_USER_MEMORY_REGION", SYS_ioctl, {0, (long)KVM_SET_USER_MEMORY_REGION}},
        {"TIOCSTI", SYS_ioctl, {0, TIOCSTI}},
        {"unshare", SYS_unshare, {0}},
        {"setns", SYS_setns, {0}},
        {"mount", SYS_mount, {0}},
        {"chdir", SYS_chdir, {PTR(path)}},
        {"unlinkat", SYS_unlinkat, {AT_FDCWD, PTR("/nonexistent")}},
        {"bpf", SYS_bpf, {0}},
        {"io_uring_setup", SYS_io_uring_setup, {1, PTR(some)}},
        {"userfaultfd", SYS_userfaultfd, {0}},
        {"pidfd_getfd", SYS_pidfd_getfd, {0}},
        {"memfd_create", SYS_memfd_create, {PTR(path), 0}},
        {"setuid", SYS_setuid, {0}},
        {"keyctl", SYS_keyctl, {0}},
        {"perf_event_open", SYS_perf_event_open, {PTR(some)}},
    };
    _Static_assert(sizeof list <= sizeof calls, "room");
    memcpy(calls, list, sizeof list);
    *ret_count = sizeof list / sizeof list[0];
    return calls;
}

static void forbidden_calls_end_the_process(void **state)
{
    size_t n;
    const struct call *calls = forbidden(&n);
    for (size_t i = 0; i < n; i++) {
        for (int on_vcpu = 0; on_vcpu <= 1; on_vcpu++) {
            int status = status_of(&calls[i], on_vcpu != 0);
            if (!was_killed(status))
                fail_msg("%s (%s): status 0x%x", calls[i].name, on_vcpu ? "vCPU" : "devices", status);
        }
    }
}

static void vcpu_threads_may_do_little(void **state)
{
    const struct call only_devices[] = {
        {"read", SYS_read, {-1, PTR(some), 1}},
        {"pread64", SYS_pread64, {-1, PTR(some), 1}},
        {"pwrite64", SYS_pwrite64, {-1, PTR(some), 1}},
        {"recvmsg", SYS_recvmsg, {-1, PTR(some)}},
        {"sendmsg", SYS_sendmsg, {-1, PTR(some)}},
        {"accept4", SYS_accept4, {-1}},
        {"socketpair", SYS_socketpair, {AF_UNIX, SOCK_STREAM, 0, PTR(some)}},
        {"close", SYS_close, {-1}},
        {"fallocate", SYS_fallocate, {-1}},
        {"ftruncate", SYS_ftruncate, {-1, 0}},
        {"epoll_ctl", SYS_epoll_ctl, {-1}},
        {"getrandom", SYS_getrandom, {PTR(some), 1, 0}},
        {"brk", SYS_brk, {0}},
        {"seccomp", SYS_seccomp, {1, 0, 0}},
    };
    for (size_t i = 0; i < sizeof only_devices / sizeof only_devices[0]; i++) {
        int status = status_of(&only_devices[i], false);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != CHILD_DONE)
            fail_msg("%s (devices): status 0x%x", only_devices[i].name, status);
#ifndef __SANITIZE_ADDRESS__
        status = status_of(&only_devices[i], true);
        if (!was_killed(status))
            fail_msg("%s (vCPU): status 0x%x", only_devices[i].name, status);
#endif
    }
    const struct call both[] = {
        {"KVM_RUN", SYS_ioctl, {-1, KVM_RUN}},
        {"write", SYS_write, {-1, PTR(some), 1}},
    };
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++)
        for (int on_vcpu = 0; on_vcpu <= 1; on_vcpu++) {
            int status = status_of(&both[i], on_vcpu != 0);
            if (!WIFEXITED(status) || WEXITSTATUS(status) != CHILD_DONE)
                fail_msg("%s: status 0x%x", both[i].name, status);
        }
}

static void *open_a_file(void *arg)
{
    char byte;
    ssize_t n = read(*(int *)arg, &byte, 1);  // until the filter is there
    syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
    return n > 0 ? arg : NULL;
}

static void all_threads_get_it(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        int line[2];
        pthread_t thread;
        if (pipe(line) != 0 || pthread_create(&thread, NULL, open_a_file, &line[0]) != 0)
            _exit(1);
        if (filter_install(&devices, FILTER_ALL_THREADS) != 0 || write(line[1], "", 1) != 1)
            _exit(1);
        pthread_join(thread, NULL);
        _exit(CHILD_DONE);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(was_killed(status));
}

// ---- what the lists hold, by reading them as the kernel does ----

// What the kernel would do: SECCOMP_RET_ALLOW or another action.
static uint32_t decide(const struct sock_fprog *program, const struct seccomp_data *data)
{
    uint32_t a = 0;
    for (unsigned pc = 0; pc < program->len; pc++) {
        const struct sock_filter *op = &program->filter[pc];
        bool taken;
        switch (op->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            assert_true(op->k + sizeof a <= sizeof *data && op->k % sizeof a == 0);
            memcpy(&a, (const char *)data + op->k, sizeof a);
            continue;
        case BPF_ALU | BPF_AND | BPF_K:
            a &= op->k;
            continue;
        case BPF_RET | BPF_K:
            return op->k;
        case BPF_JMP | BPF_JA:
            pc += op->k;
            continue;
        case BPF_JMP | BPF_JEQ | BPF_K:
            taken = a == op->k;
            break;
        case BPF_JMP | BPF_JGT | BPF_K:
            taken = a > op->k;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            taken = a >= op->k;
            break;
        default:
            fail_msg("instruction %x is not known here", op->code);
            return 0;
        }
        pc += taken ? op->jt : op->jf;
    }
    fail_msg("the filter has no end");
    return 0;
}

enum { CALLS_MAX = 1024, X32 = 0x40000000 };

static void no_other_call_and_no_other_table_is_let_through(void **state)
{
    static const struct {
        uint32_t arch;
        uint32_t bit;
    } others[] = {{AUDIT_ARCH_I386, 0}, {AUDIT_ARCH_X86_64, X32}, {AUDIT_ARCH_AARCH64, 0}};
    unsigned allowed[2] = {0};
    for (uint32_t nr = 0; nr < CALLS_MAX; nr++) {
        struct seccomp_data data = {.arch = AUDIT_ARCH_X86_64, .nr = (int)nr};
        allowed[0] += decide(&devices, &data) == SECCOMP_RET_ALLOW;
        allowed[1] += decide(&vcpu, &data) == SECCOMP_RET_ALLOW;
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
            data.arch = others[i].arch;
            data.nr = (int)(nr | others[i].bit);
            assert_int_equal(decide(&devices, &data), SECCOMP_RET_KILL_PROCESS);
            assert_int_equal(decide(&vcpu, &data), SECCOMP_RET_KILL_PROCESS);
        }
    }
#ifndef __SANITIZE_ADDRESS__
    // As the lists in filter.c are long (with arguments of 0: mmap and mprotect are let through, ioctl and the like are not).
    assert_int_equal(allowed[0], DEVICES_CALLS);
    assert_int_equal(allowed[1], VCPU_CALLS);
#endif
}

// All requests of KVM that there could be, and those of terminals, sockets and files.
static void only_ioctls_that_save_a_machine_or_run_it_are_let_through(void **state)
{
    enum { DIRECTIONS = 4, KINDS = 256, SIZES = 4096 + 1, FEW = 64 };
    static const uint32_t types[] = {0xAE, 'T', 0x89, 'f', 'X', 0x12};
    unsigned of_devices = 0, of_vcpu = 0;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (uint32_t i = 0; i < KINDS * DIRECTIONS * (t == 0 ? SIZES : FEW); i++) {
            uint32_t kind = i % KINDS, direction = i / KINDS % DIRECTIONS, size = i / KINDS / DIRECTIONS;
            struct seccomp_data data = {.arch = AUDIT_ARCH_X86_64, .nr = SYS_ioctl};
            data.args[1] = direction << 30 | size << 16 | types[t] << 8 | kind;
            if (decide(&vcpu, &data) == SECCOMP_RET_ALLOW) {
                of_vcpu++;
                assert_int_equal(data.args[1], KVM_RUN);
            }
            if (decide(&devices, &data) == SECCOMP_RET_ALLOW) {
                of_devices++;
                assert_int_equal(types[t], 0xAE);
            }
        }
    assert_int_equal(of_vcpu, 1);
    assert_int_equal(of_devices, DEVICES_IOCTLS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forbidden_calls_end_the_process),
        cmocka_unit_test(vcpu_threads_may_do_little),
        cmocka_unit_test(all_threads_get_it),
        cmocka_unit_test(no_other_call_and_no_other_table_is_let_through),
        cmocka_unit_test(only_ioctls_that_save_a_machine_or_run_it_are_let_through),
    };
    return cmocka_run_group_tests_name("vmm_filter", tests, compile, release);
}
