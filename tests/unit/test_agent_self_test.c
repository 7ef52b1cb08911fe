// agent: --self-test, in a small jail of the test's own.  With all walls up it must be silent and exit 0; with one wall taken
// away it must say which.  Needs root.
#include "agent_rig.h"
#include "base/cleanup.h"
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum hole {
    NO_HOLE,
    HOLE_IDENTITY_MAP,
    HOLE_CAPABILITIES,
    HOLE_NO_FILTER,
    HOLE_NO_NEW_PRIVS,
    HOLE_UNSHARE,
    HOLE_CLONE,
    HOLE_KEYCTL,
    HOLE_WRITABLE_PROC,
    HOLE_DEVICE,
    HOLE_FALSE_DEVICE,
    HOLE_READ_ONLY_ROOT,
    HOLE_INTERFACE,
    HOLE_ADDRESS,
};

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    dprintf(2, "jail: %s: %s\n", what, strerror(errno));
    _exit(99);
}

static void bind_mount(const char *from, const char *to)
{
    must(mount(from, to, NULL, MS_BIND | MS_REC, NULL) == 0, to);
}

static void bind_read_only(const char *path)
{
    bind_mount(path, path);
    must(mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, path);
}

static void make_device(const char *from, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "dev/%s", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    must(fd >= 0, path);
    close(fd);
    bind_mount(from, path);
}

static void make_devices(enum hole hole)
{
    static const char *const names[] = {"null", "zero", "full", "random", "urandom", "tty"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char from[32];
        snprintf(from, sizeof from, "/dev/%s", names[i]);
        make_device(hole == HOLE_FALSE_DEVICE && i == 1 ? "/dev/urandom" : from, names[i]);
    }
    if (hole == HOLE_DEVICE)
        make_device("/dev/zero", "kvm");
    must(mkdir("dev/pts", 0755) == 0 && mkdir("dev/shm", 01777) == 0, "dev/pts");
    must(mount("devpts", "dev/pts", "devpts", 0, "newinstance,ptmxmode=0666") == 0, "devpts");
    must(symlink("pts/ptmx", "dev/ptmx") == 0 && symlink("/proc/self/fd", "dev/fd") == 0, "dev/ptmx");
}

static void make_root(const char *root, enum hole hole)
{
    must(mount("root", root, "tmpfs", 0, NULL) == 0 && chdir(root) == 0, "root");
    static const char *const dirs[] = {"usr", "proc", "dev", "old"};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        must(mkdir(dirs[i], 0755) == 0, dirs[i]);
    must(symlink("usr/lib", "lib") == 0 && symlink("usr/lib64", "lib64") == 0, "lib");
    bind_mount("/usr", "usr");
    must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0, "proc");
    make_devices(hole);
    must(syscall(SYS_pivot_root, ".", "old") == 0 && chdir("/") == 0, "pivot_root");
    must(umount2("/old", MNT_DETACH) == 0 && rmdir("/old") == 0, "leaving the host");
    if (hole != HOLE_WRITABLE_PROC)
        bind_read_only("/proc/sys");
    bind_read_only("/proc/irq");
    if (access("/proc/sysrq-trigger", F_OK) == 0)
        bind_read_only("/proc/sysrq-trigger");
    static const char *const secrets[] = {"/proc/kcore", "/proc/keys", "/proc/kmsg"};  // a kernel may be built without
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
        if (access(secrets[i], F_OK) == 0)
            bind_mount("/dev/null", secrets[i]);
    if (hole == HOLE_READ_ONLY_ROOT)
        must(mount(NULL, "/", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) == 0, "read-only root");
}

// Everything stays within the jail's own network namespace: an address on its lo, or a dummy interface.
static void open_network(enum hole hole)
{
    if (hole == HOLE_INTERFACE)
        must(system("ip link add way0 type veth peer name way1 && ip link set way1 up && ip addr add 198.51.100.1/24 dev way0 "
                    "&& ip link set way0 up") == 0,
             "way0");
    if (hole != HOLE_ADDRESS)
        return;
    cleanup_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {.ifr_name = "lo"};
    struct sockaddr_in address = {.sin_family = AF_INET};
    inet_pton(AF_INET, "192.0.2.1", &address.sin_addr);
    memcpy(&r.ifr_addr, &address, sizeof address);
    must(ioctl(fd, SIOCSIFADDR, &r) == 0, "address");
    r.ifr_flags = IFF_UP;
    must(ioctl(fd, SIOCSIFFLAGS, &r) == 0, "lo up");
}

static void drop_capabilities(void)
{
    for (int c = 0; c <= 63; c++)
        prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    must(syscall(SYS_capset, &head, none) == 0, "capset");
}

static void install_filter(enum hole hole)
{
#define DENY(number, unless)                                                                                                   \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unless) ? 0xFFFF : (number), 0, 1),                                                   \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(SYS_mount, false),
        DENY(SYS_unshare, hole == HOLE_UNSHARE),
        DENY(SYS_setns, false),
        DENY(SYS_keyctl, hole == HOLE_KEYCTL),
        DENY(SYS_bpf, false),
        DENY(SYS_ptrace, false),
        DENY(SYS_io_uring_setup, false),
        DENY(SYS_perf_event_open, false),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, hole == HOLE_CLONE ? 0xFFFF : SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_NEWUSER, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof program / sizeof program[0], .filter = program};
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0, "filter");
}

static _Noreturn void jail(enum hole hole, const char *root, int binary, int go, int err)
{
    char byte;
    must(read(go, &byte, 1) == 1, "go");
    must(setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0, "root");
    open_network(hole);
    make_root(root, hole);
    must(dup2(err, 2) == 2, "stderr");
    if (hole != HOLE_NO_NEW_PRIVS)
        must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    if (hole == HOLE_NO_NEW_PRIVS)  // only somebody with SYS_ADMIN may install a filter without
        install_filter(hole);
    if (hole != HOLE_CAPABILITIES)
        drop_capabilities();
    if (hole != HOLE_NO_FILTER && hole != HOLE_NO_NEW_PRIVS)
        install_filter(hole);
    const char *const argv[] = {"sandbox-agent", "--self-test", NULL};
    const char *const envp[] = {NULL};
    syscall(SYS_execveat, binary, "", argv, envp, AT_EMPTY_PATH);
    must(false, "exec");
    _exit(99);
}

static void write_map(pid_t pid, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

// Runs the self-test with one hole; its exit code and what it wrote.
static int run(enum hole hole, char *said, size_t room)
{
    cleanup_fd int binary = open(getenv("AGENT_BINARY"), O_PATH | O_CLOEXEC);
    assert_true(binary >= 0);
    char root[] = "/tmp/agent-jail-XXXXXX";
    assert_non_null(mkdtemp(root));
    int go[2], err[2];
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    assert_int_equal(chmod(root, 0755), 0);
    fflush(NULL);
    unsigned long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC | SIGCHLD;
    pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    assert_true(pid >= 0);
    if (pid == 0)
        jail(hole, root, binary, go[0], err[1]);
    const char *map = hole == HOLE_IDENTITY_MAP ? "0 0 65536" : "0 1000000 65536";
    write_map(pid, "uid_map", map);
    write_map(pid, "gid_map", map);
    assert_int_equal(write(go[1], "x", 1), 1);
    close(err[1]);
    size_t n = 0;
    for (ssize_t r; n + 1 < room && (r = read(err[0], said + n, room - 1 - n)) > 0;)
        n += (size_t)r;
    said[n] = '\0';
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(err[0]);
    close(go[0]);
    close(go[1]);
    rmdir(root);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void all_walls_up_is_silence(void **state)
{
    char said[4096];
    int code = run(NO_HOLE, said, sizeof said);
    assert_string_equal(said, "");
    assert_int_equal(code, 0);
}

static void each_missing_wall_is_named(void **state)
{
    static const struct {
        enum hole hole;
        const char *said;
        unsigned lines;
    } cases[] = {
        {HOLE_IDENTITY_MAP, "self-test: root inside, somebody else outside: uid 0 inside is uid 0 outside\n", 1},
        {HOLE_CAPABILITIES, "self-test: no dangerous capability: CapEff contains CAP_SYS_ADMIN\n", 1},
        {HOLE_NO_FILTER, "self-test: system call filter and no new privileges: Seccomp is 0, not 2 (filter)\n", 2},
        {HOLE_NO_NEW_PRIVS, "self-test: system call filter and no new privileges: NoNewPrivs is 0, not 1\n", 1},
        {HOLE_UNSHARE, "self-test: forbidden system calls: unshare(CLONE_NEWUSER) succeeds\n", 1},
        {HOLE_CLONE, "self-test: forbidden system calls: clone(CLONE_NEWUSER) succeeds\n", 1},
        {HOLE_KEYCTL, "self-test: forbidden system calls: keyctl succeeds\n", 1},
        {HOLE_WRITABLE_PROC, "self-test: read-only kernel settings: /proc/sys is not mounted read-only\n", 1},
        {HOLE_DEVICE, "self-test: only harmless devices: /dev/kvm should not be there\n", 1},
        {HOLE_FALSE_DEVICE, "self-test: only harmless devices: /dev/zero should not be there\n", 1},
        {HOLE_READ_ONLY_ROOT, "self-test: a writable root of its own: a file cannot be made in /: Read-only file system\n", 1},
        {HOLE_INTERFACE, "self-test: no route: /proc/net/route has a route: way0", 2},
        {HOLE_INTERFACE, "self-test: no network interface but lo: there is an interface way", 2},
        {HOLE_ADDRESS, "self-test: no connection to anywhere: TCP to 192.0.2.1:80: not refused at once but: ", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char said[4096];
        int code = run(cases[i].hole, said, sizeof said);
        unsigned lines = 0;
        for (const char *c = said; *c != '\0'; c++)
            lines += *c == '\n';
        if (strstr(said, cases[i].said) == NULL || lines != cases[i].lines || code != 1)
            fail_msg("hole %d: exit %d, said: %s", cases[i].hole, code, said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_walls_up_is_silence),
        cmocka_unit_test(each_missing_wall_is_named),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_self_test", tests, NULL, NULL);
}
