// hostile: attacks from inside a sandbox, as its root, on what is around it (test_escape.c) and on what it shares with others
// (test_hostile.c).  Static, so that it runs in any template.
//
// `escapes` tries ways out and prints a line for each that worked; it is quiet behind a good wall.  The other subcommands use
// something up; those that hold on to it say "holding" and wait to be killed.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static int open_ways;

static void way(bool is_open, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void way(bool is_open, const char *format, ...)
{
    if (!is_open)
        return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf(" (errno %d)\n", errno);
    open_ways++;
}

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

// ---- ways out -----------------------------------------------------------------------------------------------------------

// Bytes put into a terminal as if somebody had typed them.
static void terminals(void)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), unlock = 0, number = 0;
    if (master < 0 || ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCGPTN, &number) < 0) {
        way(true, "no terminal to try");
        return;
    }
    if (fork() == 0) {
        char name[32], letter = 'x';
        snprintf(name, sizeof name, "/dev/pts/%d", number);
        setsid();
        int slave = open(name, O_RDWR);
        ioctl(slave, TIOCSCTTY, 0);
        static const unsigned long requests[] = {TIOCSTI, TIOCSTI + (1UL << 32), TIOCLINUX, TIOCLINUX + (1UL << 32)};
        for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
            // Not EIO: that is a kernel without this call, and proves nothing about the wall.
            int r = (int)syscall(SYS_ioctl, slave, requests[i], &letter);
            way(r >= 0 || errno != EPERM, "terminal request %#lx", requests[i]);
        }
        for (int discipline = 1; discipline < 30; discipline++)
            way(ioctl(slave, TIOCSETD, &discipline) >= 0 || errno != EPERM, "line discipline %d", discipline);
        _exit(open_ways > 0);
    }
    int status = 0;
    wait(&status);
    open_ways += status != 0;
}

static void sockets(void)
{
    for (int family = 0; family < 46; family++)
        for (int pair = 0; pair < 2; pair++) {
            static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
            for (size_t i = 0; i < 4; i++) {
                int fds[2] = {-1, -1};
                int r = pair ? socketpair(family, types[i], 0, fds) : (fds[0] = socket(family, types[i], 0));
                bool fine = family == AF_UNIX || (!pair && (family == AF_INET || family == AF_INET6 || family == AF_NETLINK));
                way(r >= 0 && !fine, "%s of family %d", pair ? "pair" : "socket", family);
                close(fds[0]);
                close(fds[1]);
            }
        }
    for (int protocol = 0; protocol < 300; protocol++) {
        bool plain = protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP ||
                     protocol == IPPROTO_ICMPV6;
        int stream = socket(AF_INET, SOCK_STREAM, protocol), datagram = socket(AF_INET6, SOCK_DGRAM, protocol);
        way((stream >= 0 || datagram >= 0) && !plain, "protocol %d", protocol);
        close(stream);
        close(datagram);
        int netlink = socket(AF_NETLINK, SOCK_RAW, protocol);
        way(netlink >= 0 && protocol != 0, "netlink protocol %d", protocol);
        close(netlink);
    }
    for (int type = 1; type <= 3; type += 2)
        way(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0, "raw socket");
    int s = socket(AF_INET, SOCK_STREAM, 0);
    way(setsockopt(s, IPPROTO_TCP, 31 /* TCP_ULP */, "tls", 3) == 0 || errno != ENOPROTOOPT, "upper layer protocol");
    struct linger wait = {1, 600}, got = {0};
    socklen_t size = sizeof got;
    setsockopt(s, SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
    getsockopt(s, SOL_SOCKET, SO_LINGER, &got, &size);
    way(got.l_onoff != 0, "socket whose close waits");
    int room = 0, more = 64 << 20;
    size = sizeof room;
    getsockopt(s, SOL_SOCKET, SO_RCVBUF, &room, &size);
    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &more, sizeof more);
    getsockopt(s, SOL_SOCKET, SO_RCVBUF, &more, &size);
    way(more > room, "a bigger receive buffer");
    static const unsigned long loading[] = {0x8940, 0x8941, 0x89A0, 0x89A1, 0x8982, 0x8983};
    for (size_t i = 0; i < sizeof loading / sizeof loading[0]; i++)
        way(syscall(SYS_ioctl, s, loading[i], 0) >= 0 || errno != EPERM, "socket request %#lx", loading[i]);
    close(s);
}

static void spaces(void)
{
    static const struct {
        const char *name;
        unsigned long flag;
    } kinds[] = {{"user", 0x10000000}, {"mnt", 0x00020000}, {"pid", 0x20000000},    {"net", 0x40000000},
                 {"ipc", 0x08000000},  {"uts", 0x04000000}, {"cgroup", 0x02000000}, {"time", 0x80}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(syscall(SYS_unshare, kinds[i].flag) == 0);
        int status = 0;
        waitpid(child, &status, 0);
        way(status != 0, "unshare %s", kinds[i].name);
        for (int high = 0; high < 2 && kinds[i].flag != 0x80; high++) {
            long pid = syscall(SYS_clone, kinds[i].flag | SIGCHLD | (high ? 1UL << 33 : 0), 0, 0, 0, 0);
            if (pid == 0)
                _exit(0);
            way(pid > 0, "clone %s", kinds[i].name);
            if (pid > 0)
                waitpid((pid_t)pid, NULL, 0);
        }
        uint64_t args[11] = {kinds[i].flag, 0, 0, 0, SIGCHLD};
        long pid = syscall(435 /* clone3 */, args, sizeof args);
        if (pid == 0)
            _exit(0);
        way(pid > 0 || errno != ENOSYS, "clone3 %s", kinds[i].name);
        for (int whose = 0; whose < 2; whose++) {
            char path[64], limit[64];
            snprintf(path, sizeof path, "/proc/%s/ns/%s", whose ? "1" : "self", kinds[i].name);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            way(fd >= 0 && whose == 1, "namespace of the agent");
            way(fd >= 0 && syscall(SYS_setns, fd, 0) == 0, "setns %s", kinds[i].name);
            if (fd >= 0)
                close(fd);
            snprintf(limit, sizeof limit, "/proc/sys/user/max_%s_namespaces", kinds[i].name);
            way(write_text(limit, "1000"), "%s", limit);
        }
    }
    way(write_text("/proc/self/uid_map", "0 0 1"), "a second uid map");
    way(write_text("/proc/self/setgroups", "allow"), "setgroups");
}

// The agent has our uid, and pid 1.
static void agent(void)
{
    for (int what = 0; what < 16; what++)
        for (int high = 0; high < 2; high++) {
            struct rlimit limit = {1000, 1000};
            long pid = 1 + (high ? 1L << 32 : 0);
            way(syscall(SYS_prlimit64, pid, (long)what, &limit, NULL) == 0 && what != RLIMIT_CORE, "limit %d of the agent",
                what);
        }
    struct rlimit now = {0}, core = {0, 0};
    setrlimit(RLIMIT_CORE, &core);
    core = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    syscall(SYS_setrlimit, RLIMIT_CORE, &core);
    syscall(SYS_prlimit64, 0, RLIMIT_CORE, &core, NULL);
    core = (struct rlimit){0, 0};
    syscall(SYS_setrlimit, RLIMIT_CORE, &core);
    syscall(SYS_prlimit64, 0, RLIMIT_CORE, &core, NULL);
    syscall(SYS_prlimit64, 0, RLIMIT_CORE | 1L << 32, &core, NULL);
    getrlimit(RLIMIT_CORE, &now);
    way(now.rlim_cur != 1 || now.rlim_max != 1, "core limit %lu", (unsigned long)now.rlim_cur);
    // Others, like oom_score_adj, belong to the namespace's root, but only make the sandbox itself worse off.
    static const char *const files[] = {"mem", "comm", "loginuid", "timerslack_ns", "attr/current", "uid_map"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/1/%s", files[i]);
        way(write_text(path, "1"), "%s", path);
    }
    int pidfd = (int)syscall(434 /* pidfd_open */, 1, 0);
    for (int fd = 0; fd < 40; fd++)
        way(syscall(438 /* pidfd_getfd */, pidfd, fd, 0) >= 0, "descriptor %d of the agent", fd);
    way(ptrace(PTRACE_ATTACH, 1, 0, 0) == 0, "ptrace of the agent");
    way(ptrace(0x4206 /* PTRACE_SEIZE */, 1, 0, 0) == 0, "ptrace of the agent");
    char byte;
    struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
    way(syscall(SYS_process_vm_readv, 1, &here, 1, &there, 1, 0) >= 0, "memory of the agent");
    way(syscall(SYS_process_vm_writev, 1, &here, 1, &there, 1, 0) >= 0, "memory of the agent");
    for (int number = 1; number < 65; number++)
        kill(1, number);
    for (int number = 34; number < 65; number++)
        for (int i = 0; i < 10; i++)
            sigqueue(1, number, (union sigval){.sival_int = i});
    way(kill(1, 0) < 0 && errno == ESRCH, "the agent is gone");
}

static void privileges(void)
{
    struct {
        uint32_t version;
        int pid;
    } head = {0x20080522, 0};
    uint32_t all[6] = {~0U, ~0U, ~0U, ~0U, ~0U, ~0U};
    way(syscall(SYS_capset, &head, all) == 0, "all capabilities");
    for (int cap = 0; cap < 41; cap++)
        way(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) == 0 && cap > 18, "ambient capability %d", cap);
    way(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0, "new privileges");
    way(prctl(PR_SET_SECCOMP, 0, 0, 0, 0) == 0, "no filter");
    way(prctl(PR_SET_MM, 1, 0, 0, 0) == 0, "memory map");
    struct sched_param top = {.sched_priority = 1};
    way(syscall(SYS_sched_setscheduler, 0, SCHED_FIFO, &top) == 0, "real-time scheduling");
    errno = 0;
    way(setpriority(PRIO_PROCESS, 0, -5) == 0, "a better nice value");
    way(write_text("/proc/self/oom_score_adj", "-1"), "protection from the out-of-memory killer");
    way(write_text("/proc/self/oom_score_adj", "-1000"), "protection from the out-of-memory killer");
    struct rlimit limit;
    for (int what = 0; what < 16; what++)
        if (getrlimit(what, &limit) == 0 && limit.rlim_max != RLIM_INFINITY && what != RLIMIT_CORE) {
            limit.rlim_max++;
            way(setrlimit(what, &limit) == 0, "more of limit %d", what);
        }
    struct timeval now;
    gettimeofday(&now, NULL);
    way(settimeofday(&now, NULL) == 0, "the clock");
    way(mmap(NULL, 2 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | 0x40000, -1, 0) != MAP_FAILED, "huge pages by mmap");
    way(syscall(SYS_memfd_create, "x", 4U) >= 0, "huge pages by memfd");
    way(shmget(IPC_PRIVATE, 2 << 20, 04000 | IPC_CREAT | 0600) >= 0, "huge pages by shmget");
    unsigned long context = 0;
    way(syscall(SYS_io_setup, 8, &context) == 0, "aio");
}

static void devices(void)
{
    static const char *const folders[] = {"/workspace", "/dev", "/dev/shm", "/tmp", "/dev/pts"};
    static const struct {
        mode_t type;
        unsigned major, minor;
    } nodes[] = {{S_IFCHR, 1, 1}, {S_IFCHR, 1, 11}, {S_IFCHR, 10, 200}, {S_IFCHR, 10, 229}, {S_IFCHR, 10, 237},
                 {S_IFCHR, 5, 1}, {S_IFBLK, 7, 0},  {S_IFBLK, 253, 0},  {S_IFBLK, 8, 0},    {S_IFCHR, 0, 0}};
    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++)
        for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++) {
            char path[128];
            snprintf(path, sizeof path, "%s/escape-node", folders[f]);
            if (mknod(path, nodes[i].type | 0666, makedev(nodes[i].major, nodes[i].minor)) == 0) {
                int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
                way(fd >= 0, "device %u:%u in %s", nodes[i].major, nodes[i].minor, folders[f]);
                close(fd);
                unlink(path);
            }
        }
    // The nodes that are there are the host's: their modes and owners too.
    static const char *const shared[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"};
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        way(chmod(shared[i], 0666) == 0, "chmod of %s", shared[i]);
        way(chown(shared[i], 0, 0) == 0, "chown of %s", shared[i]);
        way(setxattr(shared[i], "user.x", "x", 1, 0) == 0, "xattr of %s", shared[i]);
        way(unlink(shared[i]) == 0, "unlink of %s", shared[i]);
    }
}

// What the overlay stores in attributes must not be a guest's to write; or if it is, mean nothing.
static void overlay(void)
{
    static const char *const names[] = {"trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.redirect",
                                        "user.overlay.opaque",      "user.overlay.metacopy",  "user.overlay.origin",
                                        "user.overlay.whiteout",    "user.overlay.nlink"};
    mkdir("/workspace/ovl", 0755);
    mkdir("/workspace/ovl/empty", 0755);
    close(open("/workspace/ovl/file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = strstr(names[i], "redirect") != NULL ? "/etc" : "y";
        setxattr("/workspace/ovl/empty", names[i], value, strlen(value), 0);
        setxattr("/workspace/ovl/file", names[i], value, strlen(value), 0);
        way(strncmp(names[i], "trusted.", 8) == 0 && getxattr("/workspace/ovl/empty", names[i], NULL, 0) >= 0, "%s", names[i]);
    }
    rename("/workspace/ovl/empty", "/workspace/ovl/moved");
    way(access("/workspace/ovl/moved/passwd", F_OK) == 0, "a redirected folder");
    static const char caps[20] = {1, 0, 0, 2, -1, -1, -1, -1, -1, -1, -1, -1};
    setxattr("/workspace/ovl/file", "security.capability", caps, sizeof caps, 0);
}

static void roots(void)
{
    struct stat root, up;
    stat("/", &root);
    mkdir("/workspace/jail", 0755);
    int out = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        if (chroot("/workspace/jail") < 0 || fchdir(out) < 0)
            _exit(0);
        for (int i = 0; i < 64; i++)
            if (chdir("..") < 0)
                _exit(0);
        if (chroot(".") < 0 || stat("/", &up) < 0)
            _exit(0);
        _exit(up.st_ino != root.st_ino || up.st_dev != root.st_dev);
    }
    int status = 0;
    waitpid(child, &status, 0);
    way(status != 0, "chroot and fchdir");
    way(readlink("/proc/1/root", (char[8]){0}, 8) >= 0, "the agent's root");
    for (int fd = 3; fd < 1024; fd++)
        way(fcntl(fd, F_GETFD) >= 0 && fd != out, "inherited descriptor %d", fd);
    close(out);
}

// A filter of the guest's own that allows everything, and a tracer, take nothing away.
static void filters(void)
{
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(syscall(SYS_mount, "none", "/tmp", "tmpfs", 0, 0) == 0 || errno != EPERM);
    }
    int status = 0;
    waitpid(child, &status, 0);
    way(ptrace(0x4200 /* PTRACE_SETOPTIONS */, child, 0, 1L << 21 /* SUSPEND_SECCOMP */) == 0, "a suspended filter");
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    way(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "mount in a traced process");
}

static int escapes(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    roots();
    terminals();
    sockets();
    spaces();
    agent();
    privileges();
    devices();
    overlay();
    filters();
    return open_ways > 0;
}

// ---- using up --------------------------------------------------------------------------------------------------------------

static _Noreturn int hold(long got)
{
    printf("holding %ld\n", got);
    fflush(stdout);
    for (;;)
        pause();
}

static void all_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int take_inotify(void)
{
    all_descriptors();
    long n = 0;
    while (n < 100000 && inotify_init1(0) >= 0)
        n++;
    return hold(n);
}

static int take_terminals(void)
{
    all_descriptors();
    long n = 0;
    while (n < 100000 && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0)
        n++;
    return hold(n);
}

// Signals nobody takes, from as many users as there are.
static int take_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    long n = 0;
    pid_t sink = getpid();
    for (uid_t uid = 1; uid <= 20; uid++) {
        int ends[2];
        if (pipe(ends) < 0)
            break;
        if (fork() == 0) {
            if (setresuid(uid, uid, 0) < 0)
                _exit(1);
            long mine = 0;
            for (; mine < 10000 && sigqueue(getpid(), 40, (union sigval){0}) == 0; mine++)
                ;
            if (write(ends[1], &mine, sizeof mine) != sizeof mine)
                _exit(1);
            for (;;)
                pause();
        }
        long theirs = 0;
        if (read(ends[0], &theirs, sizeof theirs) == sizeof theirs)
            n += theirs;
        close(ends[0]);
        close(ends[1]);
    }
    (void)sink;
    return hold(n);
}

static int take_queues(void)
{
    long n = 0;
    for (uid_t uid = 0; uid < 4; uid++)
        if (fork() == 0) {
            if (setresuid(uid, uid, 0) < 0)
                _exit(1);
            for (;; n++) {
                char name[32];
                snprintf(name, sizeof name, "/q-%u-%ld", uid, n);
                if (mq_open(name, O_RDWR | O_CREAT, 0600, NULL) == (mqd_t)-1)
                    break;
            }
            for (;;)
                pause();
        }
    return hold(n);
}

static int take_tcp(void)
{
    all_descriptors();
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    if (bind(listener, (struct sockaddr *)&a, size) < 0 || listen(listener, 4096) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &size) < 0)
        return 1;
    static char block[65536];
    long n = 0;
    for (; n < 600; n++) {
        int s = socket(AF_INET, SOCK_STREAM, 0), big = 4 << 20;
        setsockopt(s, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
        fcntl(s, F_SETFL, O_NONBLOCK);
        connect(s, (struct sockaddr *)&a, size);
        struct pollfd p = {.fd = s, .events = POLLOUT};
        if (poll(&p, 1, 100) != 1)
            break;
        while (send(s, block, sizeof block, MSG_NOSIGNAL) > 0)
            ;
    }
    return hold(n);
}

// As many answers nobody reads as one netlink socket takes: "tell me about interface 1".
static void fill_netlink(int s)
{
    struct {  // nlmsghdr and ifinfomsg, which this libc has no headers for
        uint32_t length;
        uint16_t type, flags;
        uint32_t sequence, port;
        uint8_t family, unused;
        uint16_t kind;
        int32_t index;
        uint32_t interface_flags, change;
    } ask = {.length = sizeof ask, .type = 18 /* RTM_GETLINK */, .flags = 1 /* NLM_F_REQUEST */, .index = 1};
    int big = 1 << 30;
    setsockopt(s, SOL_SOCKET, SO_RCVBUF, &big, sizeof big);
    for (int i = 0; i < 2000 && send(s, &ask, sizeof ask, MSG_DONTWAIT) > 0; i++)
        ;
}

// Netlink sockets, from several processes at once, in two kinds: full ones, and ones that were never used.
static int take_netlinks(void)
{
    enum { TAKERS = 8, EACH = 200 };
    int ends[2];
    if (pipe(ends) < 0)
        return 1;
    for (int i = 0; i < TAKERS; i++) {
        if (fork() != 0)
            continue;
        long mine = 0;
        for (int s; mine < EACH && (s = socket(AF_NETLINK, SOCK_RAW, 0 /* NETLINK_ROUTE */)) >= 0; mine++)
            if (i % 2 == 0)
                fill_netlink(s);
        if ((mine < EACH && errno != ENOBUFS) || write(ends[1], &mine, sizeof mine) != sizeof mine)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    long n = 0, one;
    for (int i = 0; i < TAKERS && read(ends[0], &one, sizeof one) == sizeof one; i++)
        n += one;
    return hold(n);
}

// Every descriptor of as many processes as there may be.
static int take_files(void)
{
    all_descriptors();
    long n = 0;
    for (; n < 10000; n++) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child == 0) {
            while (open("/dev/zero", O_RDONLY) >= 0)
                ;
            for (;;)
                pause();
        }
    }
    return hold(n);
}

// `n` files in one folder; says how many there are.
static int many_files(const char *folder, const char *most)
{
    long n = 0, limit = atol(most);
    mkdir(folder, 0755);
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (; n < limit; n++) {
        char name[32];
        snprintf(name, sizeof name, "f%ld", n);
        int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd < 0)
            break;
        close(fd);
    }
    printf("%ld %s\n", n, n < limit ? strerror(errno) : "all");
    return 0;
}

static int deep(const char *levels)
{
    long n = 0, limit = atol(levels);
    while (n < limit && mkdir("d", 0755) == 0 && chdir("d") == 0)
        n++;
    printf("%ld\n", n);
    return 0;
}

// Names that are not there: each is remembered by the kernel.
static int names(const char *count)
{
    struct stat st;
    for (long i = 0, n = atol(count); i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "/workspace/no-such-name-%ld", i);
        stat(name, &st);
    }
    puts("done");
    return 0;
}

static int timers(void)
{
    all_descriptors();
    struct itimerspec fast = {{0, 1000}, {0, 1000}};
    timer_t timer;
    struct sigevent nothing = {.sigev_notify = SIGEV_NONE};
    for (int i = 0; i < 5000; i++) {
        if (timer_create(CLOCK_MONOTONIC, &nothing, &timer) == 0)
            timer_settime(timer, 0, &fast, NULL);
        int fd = timerfd_create(CLOCK_MONOTONIC, 0);
        if (fd >= 0)
            timerfd_settime(fd, 0, &fast, NULL);
    }
    return hold(0);
}

static int epolls(void)
{
    all_descriptors();
    int pipes[2];
    if (pipe(pipes) < 0)
        return 1;
    struct epoll_event e = {.events = EPOLLIN};
    for (int i = 0; i < 15000; i++) {
        int fd = epoll_create1(0);
        if (fd < 0 || epoll_ctl(fd, EPOLL_CTL_ADD, pipes[0], &e) < 0)
            break;
    }
    return hold(0);
}

// Shared memory that outlives whoever made it.
static int segments(void)
{
    for (int i = 0; i < 64; i++) {
        int id = shmget(IPC_PRIVATE, 64 << 20, IPC_CREAT | 0600);
        char *p = id >= 0 ? shmat(id, NULL, 0) : (void *)-1;
        if (p == (void *)-1)
            break;
        for (size_t at = 0; at < 64 << 20; at += 4096)
            p[at] = 1;
    }
    return hold(0);
}

// ---- standing in the way ---------------------------------------------------------------------------------------------------

static pid_t detach(void)
{
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child != 0)
            _exit(0);
        setsid();
    }
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    return getpid();
}

// Left behind by its command: stops whatever else starts, for `ms`.
static int stopper(const char *ms)
{
    detach();
    for (long i = 0, n = atol(ms); i < n; i++) {
        kill(-1, SIGSTOP);
        poll(NULL, 0, 1);
    }
    kill(-1, SIGCONT);
    return 0;
}

// Left behind: traces what has `mark` in its command line, so that its real parent, the agent, is not told of its end.
static int tracer(const char *mark, const char *ms)
{
    detach();
    for (long i = 0, n = atol(ms); i < n; i++, poll(NULL, 0, 1)) {
        for (pid_t pid = 2; pid < 400; pid++) {
            char path[64], text[512] = "";
            snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
            if (fd >= 0)
                close(fd);
            for (ssize_t c = 0; c < got; c++)
                if (text[c] == '\0')
                    text[c] = ' ';
            if (pid != getpid() && strstr(text, mark) != NULL && strstr(text, "tracer") == NULL)
                ptrace(0x4206 /* PTRACE_SEIZE */, pid, 0, 0);
        }
    }
    return 0;
}

// Its parent waits for it in the kernel until it execs, which it never does.
static int vforked(void)
{
    if (vfork() == 0)
        for (;;)
            pause();
    return 0;
}

static int zombies(void)
{
    signal(SIGCHLD, SIG_DFL);
    long n = 0;
    for (; n < 10000; n++) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child == 0)
            _exit(0);
    }
    return hold(n);
}

// Forks for ever, in processes that want nothing to do with each other.
static _Noreturn int bomb(void)
{
    for (int i = 1; i < 65; i++)
        signal(i, SIG_IGN);
    for (;;)
        if (fork() == 0)
            setsid();
}

// Both streams at once, as fast as they take it.
static int flood(void)
{
    static char block[65536];
    memset(block, 'x', sizeof block);
    int fd = fork() == 0 ? 2 : 1;
    for (;;)
        if (write(fd, block, sizeof block) < 0)
            return 1;
}

// Exchanges `d` and a link to `target` in the current folder until `stop` is there.
static int swap(const char *target)
{
    detach();
    if (symlink(target, "other") < 0)
        return 1;
    while (access("stop", F_OK) < 0)
        for (int i = 0; i < 64; i++)
            syscall(SYS_renameat2, AT_FDCWD, "d", AT_FDCWD, "other", 2 /* RENAME_EXCHANGE */);
    return 0;
}

static _Noreturn int spin(const char *processes)
{
    for (long n = atol(processes); n > 1; n--)
        if (fork() == 0)
            break;
    for (;;)
        ;
}

static _Noreturn int eat(void)
{
    for (;;) {
        char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED)
            memset(p, 1, 1 << 20);
    }
}

static int arguments(void)
{
    static char *argv[40], *envp[40];
    for (int i = 0; i < 38; i++) {
        argv[i] = malloc(120000);
        memset(argv[i], 'a', 119999);
        argv[i][119999] = '\0';
        envp[i] = argv[i];
    }
    pid_t child = fork();
    if (child == 0) {
        execve("/workspace/hostile", argv, envp);
        _exit(errno == E2BIG ? 3 : 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    puts("done");
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    const char *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "";
    static const struct {
        const char *verb;
        int (*run)(void);
        int (*run1)(const char *a);
        int (*run2)(const char *a, const char *b);
    } verbs[] = {
        {"escapes", escapes, 0, 0},
        {"inotify", take_inotify, 0, 0},
        {"terminals", take_terminals, 0, 0},
        {"signals", take_signals, 0, 0},
        {"queues", take_queues, 0, 0},
        {"tcp", take_tcp, 0, 0},
        {"netlinks", take_netlinks, 0, 0},
        {"files", take_files, 0, 0},
        {"many", 0, 0, many_files},
        {"deep", 0, deep, 0},
        {"names", 0, names, 0},
        {"timers", timers, 0, 0},
        {"epolls", epolls, 0, 0},
        {"segments", segments, 0, 0},
        {"stopper", 0, stopper, 0},
        {"tracer", 0, 0, tracer},
        {"vforked", vforked, 0, 0},
        {"zombies", zombies, 0, 0},
        {"bomb", bomb, 0, 0},
        {"flood", flood, 0, 0},
        {"swap", 0, swap, 0},
        {"spin", 0, spin, 0},
        {"eat", eat, 0, 0},
        {"arguments", arguments, 0, 0},
    };
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(verb, verbs[i].verb) == 0)
            return verbs[i].run != NULL ? verbs[i].run() : verbs[i].run1 != NULL ? verbs[i].run1(a) : verbs[i].run2(a, b);
    fprintf(stderr, "hostile: what?\n");
    return 2;
}
