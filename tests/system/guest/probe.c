// probe: what the system tests run inside a sandbox to look at its walls from there.
//
// One static program (musl), so that it runs in any template and on any tier.  It is written to /workspace/probe by the
// tests.  Each subcommand prints plain lines; `denied` prints one `NAME ERRNO` line for each call, 0 where it went through.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif

// ---- system calls that must be refused -------------------------------------------------------------------------------

struct call {
    const char *name;
    long number;
    long args[6];
};

static char byte_here;
static const struct iovec here = {&byte_here, 1}, there = {(void *)0x10000, 1};

// Arguments are such that a kernel which let the call through would fail with another errno, or do no harm.
static const struct call calls[] = {
    {"mount", SYS_mount, {(long)"none", (long)"/tmp", (long)"tmpfs", 0, 0}},
    {"umount", SYS_umount2, {(long)"/proc", 2}},
    {"pivot_root", SYS_pivot_root, {(long)"/tmp", (long)"/tmp"}},
    {"unshare-user", SYS_unshare, {CLONE_NEWUSER}},
    {"unshare-mount", SYS_unshare, {CLONE_NEWNS}},
    {"unshare-net", SYS_unshare, {CLONE_NEWNET}},
    {"unshare-pid", SYS_unshare, {CLONE_NEWPID}},
    {"unshare-cgroup", SYS_unshare, {CLONE_NEWCGROUP}},
    {"clone-user", SYS_clone, {CLONE_NEWUSER | SIGCHLD}},
    {"clone3", SYS_clone3, {0, 0}},
    {"setns", SYS_setns, {-1, 0}},
    {"open_tree", SYS_open_tree, {AT_FDCWD, (long)"/", 1}},
    {"move_mount", SYS_move_mount, {-1, (long)"", AT_FDCWD, (long)"/tmp", 4}},
    {"fsopen", SYS_fsopen, {(long)"tmpfs", 0}},
    {"mount_setattr", SYS_mount_setattr, {AT_FDCWD, (long)"/", 0, 0, 0}},
    {"keyctl", SYS_keyctl, {0, -3, 1}},
    {"add_key", SYS_add_key, {(long)"user", (long)"probe", (long)"x", 1, -3}},
    {"request_key", SYS_request_key, {(long)"user", (long)"probe", 0, -3}},
    {"bpf", SYS_bpf, {0, 0, 0}},
    {"io_uring_setup", SYS_io_uring_setup, {1, 0}},
    {"perf_event_open", SYS_perf_event_open, {0, 0, -1, -1, 0}},
    {"userfaultfd", SYS_userfaultfd, {0}},
    {"ptrace-attach-1", SYS_ptrace, {16, 1, 0, 0}},
    {"ptrace-seize-1", SYS_ptrace, {0x4206, 1, 0, 0}},
    {"process_vm_readv-1", SYS_process_vm_readv, {1, (long)&here, 1, (long)&there, 1, 0}},
    {"kexec_load", SYS_kexec_load, {0, 0, 0, 0}},
    {"init_module", SYS_init_module, {0, 0, (long)""}},
    {"finit_module", SYS_finit_module, {-1, (long)"", 0}},
    {"delete_module", SYS_delete_module, {(long)"probe-no-such-module", 0}},
    {"swapon", SYS_swapon, {(long)"/no-such-swap", 0}},
    {"open_by_handle_at", SYS_open_by_handle_at, {-1, 0, 0}},
    {"fanotify_init", SYS_fanotify_init, {0, 0}},
    {"acct", SYS_acct, {(long)"/no-such-file"}},
    {"quotactl", SYS_quotactl, {0, 0, 0, 0}},
    {"iopl", SYS_iopl, {3}},
    {"ioperm", SYS_ioperm, {0x80, 1, 1}},
    {"syslog", SYS_syslog, {3, 0, 0}},
    {"vhangup", SYS_vhangup, {0}},
    {"mknod-block", SYS_mknod, {(long)"/workspace/probe-block", S_IFBLK | 0600, 0x700}},
    {"mknod-char", SYS_mknod, {(long)"/workspace/probe-char", S_IFCHR | 0600, 0x101}},
    {"sethostname", SYS_sethostname, {(long)"probe", 5}},
};

static int denied(void)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        const long *a = calls[i].args;
        // In a child: some of these would change it, and a filter may kill it.
        pid_t child = fork();
        if (child == 0) {
            errno = 0;
            long r = syscall(calls[i].number, a[0], a[1], a[2], a[3], a[4], a[5]);
            if (r == 0 && calls[i].number == SYS_clone)
                _exit(0);
            _exit(r < 0 ? errno : 0);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0)
            return 1;
        printf("%s %d\n", calls[i].name, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    }
    return 0;
}

// A copy of one of the agent's own descriptors.
static int take_descriptor(void)
{
    int pidfd = (int)syscall(SYS_pidfd_open, 1, 0);
    if (pidfd < 0 || syscall(SYS_pidfd_getfd, pidfd, 3, 0) < 0) {
        puts(strerror(errno));
        return 1;
    }
    puts("taken");
    return 0;
}

// The other two ways into an x86-64 kernel: a filter that only looks at numbers lets them through.
static int other_abis(void)
{
    pid_t child = fork();
    if (child == 0) {
        long r = 20;  // getpid on i386
        __asm__ volatile("int $0x80" : "+a"(r) : : "memory", "r8", "r9", "r10", "r11");
        _exit(r > 0 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("i386 %s\n", WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "open" : "closed");
    child = fork();
    if (child == 0)
        _exit(syscall(0x40000000 | SYS_getpid) > 0 ? 0 : 1);
    waitpid(child, &status, 0);
    printf("x32 %s\n", WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "open" : "closed");
    return 0;
}

// ---- network -----------------------------------------------------------------------------------------------------------

static int interfaces(void)
{
    struct if_nameindex *list = if_nameindex();
    for (struct if_nameindex *i = list; i != NULL && i->if_index != 0; i++)
        printf("%s\n", i->if_name);
    return list == NULL;
}

static int report_connect(int fd, const void *address, socklen_t size)
{
    if (fd < 0 || connect(fd, address, size) < 0) {
        printf("%s\n", strerror(errno));
        return 1;
    }
    puts("connected");
    return 0;
}

static int connect_ip(const char *host, const char *port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1)
        return report_connect(socket(AF_INET, SOCK_STREAM, 0), &v4, sizeof v4);
    if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1)
        return report_connect(socket(AF_INET6, SOCK_STREAM, 0), &v6, sizeof v6);
    return 2;
}

static int connect_abstract(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    if (n > sizeof a.sun_path - 1)
        return 2;
    memcpy(a.sun_path + 1, name, n);
    return report_connect(socket(AF_UNIX, SOCK_STREAM, 0), &a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n));
}

static int raw_sockets(void)
{
    static const struct {
        const char *name;
        int domain, type, protocol;
    } kinds[] = {{"packet", AF_PACKET, SOCK_RAW, 0x0300}, {"vsock", 40, SOCK_STREAM, 0}, {"alg", 38, SOCK_SEQPACKET, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        printf("%s %s\n", kinds[i].name, socket(kinds[i].domain, kinds[i].type, kinds[i].protocol) < 0 ? "closed" : "open");
    return 0;
}

// ---- resources ---------------------------------------------------------------------------------------------------------

static int alloc(const char *mib)
{
    size_t bytes = (size_t)strtoull(mib, NULL, 10) << 20;
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 1;
    for (size_t at = 0; at < bytes; at += 4096)
        p[at] = (char)(at >> 12 | 1);
    printf("allocated\n");
    return 0;
}

// As many children as can be had, up to `most`; prints how many, then ends them.
static int forks(const char *most)
{
    long n = 0, limit = atol(most);
    for (; n < limit; n++) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child == 0)
            for (;;)
                pause();
    }
    printf("%ld %s\n", n, n < limit ? strerror(errno) : "no limit met");
    fflush(stdout);
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    return 0;
}

static uint64_t monotonic_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// `processes` busy loops for `ms` of wall time; prints the processor time they all got and the wall time, in ms.
static int spin(const char *processes, const char *ms)
{
    uint64_t start = monotonic_ms(), end = start + strtoull(ms, NULL, 10);
    for (long n = atol(processes); n > 0; n--)
        if (fork() == 0) {
            while (monotonic_ms() < end)
                ;
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    uint64_t used =
        (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
    printf("%llu %llu\n", (unsigned long long)used, (unsigned long long)(monotonic_ms() - start));
    return 0;
}

// Writes zeroes until it cannot, at most `mib`; prints the bytes and why it ended.
static int fill(const char *path, const char *mib)
{
    static char block[1 << 16];
    memset(block, 'x', sizeof block);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) {
        printf("0 %s\n", strerror(errno));
        return 1;
    }
    uint64_t most = strtoull(mib, NULL, 10) << 20, n = 0;
    ssize_t r = 0;
    while (n < most && (r = write(fd, block, sizeof block)) > 0)
        n += (uint64_t)r;
    printf("%llu %s\n", (unsigned long long)n, r < 0 ? strerror(errno) : "no limit met");
    return 0;
}

// ---- processes ---------------------------------------------------------------------------------------------------------

// Leaves the session and the process group, twice removed from whoever started it, holding nothing of its streams.
static int daemonise(void)
{
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child > 0)
            return 0;
        setsid();
    }
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    for (;;)
        pause();
}

// How many processes have `needle` in their command line, this one apart.
static int count(const char *needle)
{
    int found = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return 1;
    for (struct dirent *e; (e = readdir(proc)) != NULL;) {
        char path[300], text[4096];
        long pid = atol(e->d_name);
        if (pid <= 0 || pid == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        for (ssize_t i = 0; i < n; i++)
            if (text[i] == '\0')
                text[i] = ' ';
        text[n < 0 ? 0 : n] = '\0';
        if (strstr(text, needle) != NULL)
            found++;
    }
    closedir(proc);
    printf("%d\n", found);
    return 0;
}

static int run_as(const char *uid, char **argv)
{
    uid_t id = (uid_t)strtoul(uid, NULL, 10);
    if (setgroups(0, NULL) < 0 || setresgid(id, id, id) < 0 || setresuid(id, id, id) < 0) {
        perror("probe: run as another user");
        return 125;
    }
    execvp(argv[0], argv);
    perror(argv[0]);
    return 127;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "";
    if (strcmp(verb, "denied") == 0)
        return denied();
    if (strcmp(verb, "take-descriptor") == 0)
        return take_descriptor();
    if (strcmp(verb, "other-abis") == 0)
        return other_abis();
    if (strcmp(verb, "interfaces") == 0)
        return interfaces();
    if (strcmp(verb, "connect") == 0)
        return connect_ip(a, b);
    if (strcmp(verb, "connect-abstract") == 0)
        return connect_abstract(a);
    if (strcmp(verb, "raw-sockets") == 0)
        return raw_sockets();
    if (strcmp(verb, "alloc") == 0)
        return alloc(a);
    if (strcmp(verb, "forks") == 0)
        return forks(a);
    if (strcmp(verb, "spin") == 0)
        return spin(a, b);
    if (strcmp(verb, "fill") == 0)
        return fill(a, b);
    if (strcmp(verb, "daemon") == 0)
        return daemonise();
    if (strcmp(verb, "count") == 0)
        return count(a);
    if (strcmp(verb, "as") == 0 && argc > 3)
        return run_as(a, argv + 3);
    if (strcmp(verb, "ids") == 0)
        return printf("%u %u\n", (unsigned)getuid(), (unsigned)geteuid()) < 0;
    if (strcmp(verb, "kill-all") == 0)
        return kill(-1, SIGKILL) < 0;
    fprintf(stderr, "probe: what?\n");
    return 2;
}
