// evil_agent: an agent that the guest has taken over, in the place of the real one (sandbox-jailer --agent).
//
// It is what the engine, the jailer and the client library must survive, and it tries to leave its sandbox with what an agent
// holds and a guest does not: its control line, its operation lines and the descriptors of its cgroups.
//
// On the vm tier the attack comes from one wall further inside: init is the real one.
//
// What it does is chosen by the client: by the variable EVIL of the create for the handshake, and by a command "evil:NAME" for
// everything after.  Attacks that have something to tell answer like a command that printed it.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

enum { CONTROL = 3, FIRST_GROUP = 4, LINE_MAX_BYTES = 2 << 20, RESULT_MAX = 60 * 1024 };

static uint8_t packet[128 * 1024];
static char said[32 * 1024];
static size_t said_len;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(said + said_len, sizeof said - said_len, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < sizeof said - said_len)
        said_len += (size_t)n;
}

// ---- just enough protobuf ----------------------------------------------------------------------------------------------

struct bytes {
    uint8_t data[64 * 1024];
    size_t len;
};

static void put_varint(struct bytes *b, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        b->data[b->len++] = (uint8_t)(v | 128);
    b->data[b->len++] = (uint8_t)v;
}

static void put_number(struct bytes *b, unsigned field, uint64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_bytes(struct bytes *b, unsigned field, const void *data, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    memcpy(b->data + b->len, data, n);
    b->len += n;
}

// Report.configured
static void send_configured(unsigned protocol, unsigned error, const char *message, size_t n)
{
    static struct bytes inner, outer;
    inner.len = outer.len = 0;
    put_number(&inner, 1, protocol);
    put_number(&inner, 2, error);
    if (n > 0)
        put_bytes(&inner, 3, message, n);
    put_bytes(&outer, 1, inner.data, inner.len);
    send(CONTROL, outer.data, outer.len, MSG_NOSIGNAL);
}

static void send_all(int line, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = send(line, (const char *)data + done, n - done, MSG_NOSIGNAL);
        if (r <= 0)
            return;
        done += (size_t)r;
    }
}

static void send_frame(int line, const void *body, size_t n)
{
    uint32_t head = htonl((uint32_t)n);
    send_all(line, &head, sizeof head);
    send_all(line, body, n);
}

// guest.Result with an ExecResult that exited with 0.
static void answer(int line, const char *out, size_t n)
{
    static struct bytes exec, result;
    exec.len = result.len = 0;
    put_bytes(&exec, 5, out, n);
    put_number(&exec, 7, n);
    put_bytes(&result, 10, exec.data, exec.len);
    send_frame(line, result.data, result.len);
}

// ---- what it tries with its descriptors ---------------------------------------------------------------------------------

// From a directory it was given, upwards to where it must not be.
static void walk(void)
{
    for (int fd = 0; fd < 64; fd++) {
        struct stat own, up;
        if (fd == CONTROL || fstat(fd, &own) < 0)
            continue;
        if (!S_ISDIR(own.st_mode))
            continue;
        if (fstatat(fd, "..", &up, 0) == 0 && (up.st_ino != own.st_ino || up.st_dev != own.st_dev))
            say("out of %d by ..\n", fd);
        char path[200] = "";
        for (int depth = 0; depth < 20; depth++) {
            strcat(path, "../");
            char file[256];
            snprintf(file, sizeof file, "%sproc/1/comm", path);
            int at = openat(fd, file, O_RDONLY);
            char name[64] = "";
            if (at >= 0 && read(at, name, sizeof name - 1) > 0)
                say("read %s of the host from %d: %s\n", file, fd, name);
            if (at >= 0)
                close(at);
        }
        int here = openat(fd, ".", O_RDONLY | O_DIRECTORY);
        if (here >= 0 && fchdir(here) == 0 && chroot(".") == 0) {
            if (stat("..", &up) == 0 && up.st_ino != own.st_ino)
                say("out of %d by chroot\n", fd);
        }
        close(here);
    }
}

static void spaces(void)
{
    static const struct {
        const char *name;
        uint64_t flag;
    } kinds[] = {{"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID},      {"net", CLONE_NEWNET},
                 {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS},  {"cgroup", CLONE_NEWCGROUP}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (int with_user = 0; with_user < 2; with_user++) {
            uint64_t args[8] = {kinds[i].flag | (with_user ? CLONE_NEWUSER : 0), 0, 0, 0, SIGCHLD};
            long pid = syscall(SYS_clone3, args, sizeof args);
            if (pid == 0)
                _exit(0);
            if (pid > 0) {
                say("made a %s namespace by clone3\n", kinds[i].name);
                waitpid((pid_t)pid, NULL, 0);
            }
        }
}

// Files of the groups that set limits: none may be its to write.
static void limits(void)
{
    static const char *const files[] = {
        "memory.max",
        "memory.high",
        "memory.swap.max",
        "memory.limit_in_bytes",
        "memory.oom_control",
        "memory.memsw.limit_in_bytes",
        "memory.kmem.tcp.limit_in_bytes",
        "pids.max",
        "cpu.max",
        "cpu.weight",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "cgroup.max.descendants",
        "cgroup.max.depth",
        "notify_on_release",
        "../memory.max",
        "../pids.max",
        "../agent/cgroup.procs",
    };
    for (int fd = FIRST_GROUP; fd < FIRST_GROUP + 8; fd++)
        for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
            int file = openat(fd, files[i], O_WRONLY);
            if (file >= 0) {
                say("%d: %s is writable\n", fd, files[i]);
                close(file);
            }
        }
}

// As many groups as it can have, and as deep as it can; the jailer must still be able to remove them all.
static void dig(int deep, int wide)
{
    for (int fd = FIRST_GROUP; fd < FIRST_GROUP + 8; fd++) {
        int at = openat(fd, ".", O_RDONLY | O_DIRECTORY);
        if (at < 0)
            continue;
        int made = 0;
        for (; made < deep && mkdirat(at, "d", 0755) == 0; made++) {
            int next = openat(at, "d", O_RDONLY | O_DIRECTORY);
            close(at);
            at = next;
        }
        close(at);
        int more = 0;
        for (; more < wide; more++) {
            char name[32];
            snprintf(name, sizeof name, "w%d", more);
            if (mkdirat(fd, name, 0755) < 0)
                break;
        }
        say("%d: depth %d, width %d\n", fd, made, more);
    }
}

static uint64_t cpu_ms(const struct rusage *u)
{
    return (uint64_t)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1000 +
           (uint64_t)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1000;
}

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// Processes beside the guest's limits: how many it gets, and how much processor time.
static void storm(void)
{
    int n = 0;
    uint64_t start = now_ms();
    for (; n < 5000; n++) {
        pid_t pid = fork();
        if (pid < 0)
            break;
        if (pid == 0) {
            while (now_ms() < start + 2000)
                ;
            _exit(0);
        }
    }
    while (wait(NULL) > 0)
        ;
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    say("%d %llu %llu\n", n, (unsigned long long)cpu_ms(&u), (unsigned long long)(now_ms() - start));
}

// ---- what it sends -------------------------------------------------------------------------------------------------------

// A connected socket whose last close waits until bytes that nobody takes are taken: closing it is left to whoever gets it.
static int lingering(void)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    if (bind(listener, (struct sockaddr *)&a, size) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&a, &size) < 0 || connect(client, (struct sockaddr *)&a, size) < 0)
        return -1;
    struct linger wait = {.l_onoff = 1, .l_linger = 600};
    setsockopt(client, SOL_SOCKET, SO_LINGER, &wait, sizeof wait);
    static char block[65536];
    fcntl(client, F_SETFL, O_NONBLOCK);
    while (send(client, block, sizeof block, MSG_NOSIGNAL) > 0)
        ;
    fcntl(client, F_SETFL, 0);
    return client;  // the listener stays open and never accepts
}

// `n` copies of `fd` beside `bytes`; whether the kernel took them.
static bool send_fds(int line, const void *bytes, size_t len, int fd, int n)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * 253)];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {(void *)bytes, len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space};
    m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
    for (int i = 0; i < n; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof fd, &fd, sizeof fd);
    return sendmsg(line, &m, MSG_NOSIGNAL) >= 0;
}

static void forever(void)
{
    for (;;)
        pause();
}

static void drip(int line)
{
    uint32_t head = htonl(RESULT_MAX);
    send_all(line, &head, sizeof head);
    for (;;) {
        if (send(line, "x", 1, MSG_NOSIGNAL) != 1)
            _exit(0);
        poll(NULL, 0, 50);
    }
}

static void flood_control(const void *bytes, size_t n)
{
    while (send(CONTROL, bytes, n, MSG_NOSIGNAL) >= 0)
        ;
}

static void lie(int line)
{
    static struct bytes exec, result;
    exec.len = result.len = 0;
    put_number(&exec, 1, UINT64_MAX);
    put_number(&exec, 2, UINT64_MAX);
    put_number(&exec, 3, 77);
    put_bytes(&exec, 5, "abc", 3);
    put_number(&exec, 7, UINT64_MAX);
    put_number(&exec, 8, UINT64_MAX);
    put_number(&exec, 9, UINT64_MAX);
    put_number(&result, 1, 12345);
    put_bytes(&result, 2, "\033]0;owned\007\033[2J\xff\xfe", 15);
    put_bytes(&result, 10, exec.data, exec.len);
    send_frame(line, result.data, result.len);
}

static void nested(int line)
{
    // Length after length, each inside the one before.
    static uint8_t body[RESULT_MAX];
    for (size_t i = 0; i + 3 < sizeof body; i += 3) {
        size_t left = sizeof body - i - 3;
        body[i] = 10 << 3 | 2;
        body[i + 1] = (uint8_t)(left | 128);
        body[i + 2] = (uint8_t)(left >> 7);
    }
    send_frame(line, body, sizeof body);
}

static void noise(int line, size_t n)
{
    static uint8_t body[RESULT_MAX];
    uint32_t x = 2463534242U;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        body[i] = (uint8_t)x;
    }
    send_frame(line, body, n);
}

static void stat_answer(int line)
{
    static struct bytes stat_result, result;
    stat_result.len = result.len = 0;
    put_number(&stat_result, 1, 4000000000U);
    put_bytes(&result, 13, stat_result.data, stat_result.len);
    send_frame(line, result.data, result.len);
}

static void do_linger(int line, int where)
{
    int fd = lingering();
    bool taken = fd >= 0 && send_fds(where, "\xff", 1, fd, 1);
    close(fd);
    if (where == line && taken)
        shutdown(line, SHUT_RDWR);
    if (!taken)
        answer(line, "refused", 7);
}

// In a process of its own, which holds the lines as long as it lives.
static void attack(int line, const char *name)
{
    static const uint32_t huge = UINT32_MAX;
#define IS(text) (strcmp(name, text) == 0)
    if (IS("ok"))
        say("ok");
    else if (IS("walk"))
        walk();
    else if (IS("spaces"))
        spaces();
    else if (IS("limits"))
        limits();
    else if (IS("dig-deep"))
        dig(300, 0);
    else if (IS("dig-wide"))
        dig(0, 3000);
    else if (IS("storm"))
        storm();
    else if (IS("silent"))
        forever();
    else if (IS("close"))
        _exit(0);
    else if (IS("half")) {
        send_all(line, "\0\0\1\0half", 8);
        _exit(0);
    } else if (IS("drip"))
        drip(line);
    else if (IS("oversize")) {
        send_all(line, &huge, sizeof huge);
        forever();
    } else if (IS("empty")) {
        send_frame(line, "", 0);
        _exit(0);
    } else if (IS("noise"))
        for (;;) {
            noise(line, RESULT_MAX);
            if (poll(&(struct pollfd){.fd = line, .events = POLLRDHUP}, 1, 0) > 0)
                _exit(0);
        }
    else if (IS("short-noise")) {
        noise(line, 37);
        _exit(0);
    } else if (IS("nested")) {
        nested(line);
        _exit(0);
    } else if (IS("lie")) {
        lie(line);
        _exit(0);
    } else if (IS("stat")) {
        stat_answer(line);
        _exit(0);
    } else if (IS("twice")) {
        answer(line, "one", 3);
        answer(line, "two", 3);
        _exit(0);
    } else if (IS("descriptors")) {
        bool taken = send_fds(line, "\0\0\0\0", 4, CONTROL, 100);
        say("%s", taken ? "taken" : "refused");
        if (taken)
            _exit(0);
    } else if (IS("control-descriptors")) {
        say("%s", send_fds(CONTROL, "\xff", 1, line, 100) ? "taken" : "refused");
    } else if (IS("linger")) {
        do_linger(line, line);
        forever();
    } else if (IS("control-linger")) {
        do_linger(line, CONTROL);
        forever();
    } else if (IS("control-noise"))
        flood_control("\xff\xff\xff", 3);
    else if (IS("control-empty"))
        send(CONTROL, "", 0, MSG_NOSIGNAL);
    else if (IS("control-configured"))
        send_configured(1, 0, "", 0);
    else if (IS("control-pongs"))
        flood_control("\x12\x02\x08\x01", 4);
    else if (IS("control-questions"))
        flood_control("\x32\x02\x08\x01", 4);
    else if (IS("control-long")) {
        int size = 1 << 20;
        setsockopt(CONTROL, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        send(CONTROL, packet, sizeof packet, MSG_NOSIGNAL);
    } else
        say("unknown attack %s", name);
    answer(line, said, said_len);
    _exit(0);
}

// The word behind `mark`, or an empty one.
static void find_word(const uint8_t *data, size_t n, const char *mark, char word[64])
{
    word[0] = '\0';
    const uint8_t *at = memmem(data, n, mark, strlen(mark));
    if (at == NULL)
        return;
    at += strlen(mark);
    size_t len = 0;
    while (at + len < data + n && len < 63 && ((at[len] >= 'a' && at[len] <= 'z') || at[len] == '-'))
        len++;
    memcpy(word, at, len);
    word[len] = '\0';
}

static void serve_line(int line)
{
    uint32_t head = 0;
    static uint8_t request[LINE_MAX_BYTES];
    if (recv(line, &head, sizeof head, MSG_WAITALL) != sizeof head || ntohl(head) > sizeof request ||
        recv(line, request, ntohl(head), MSG_WAITALL) != (ssize_t)ntohl(head))
        _exit(1);
    char word[64];
    find_word(request, ntohl(head), "evil:", word);
    if (strcmp(word, "exit") == 0) {
        kill(1, SIGUSR1);
        forever();
    }
    if (strcmp(word, "mute") == 0) {
        kill(1, SIGUSR2);
        forever();
    }
    attack(line, word);
}

// ---- the handshake ---------------------------------------------------------------------------------------------------------

static void greet(const uint8_t *command, size_t n)
{
    char word[64];
    find_word(command, n, "EVIL=", word);
    static char long_text[60000];
    if (strcmp(word, "silent") == 0)
        forever();
    if (strcmp(word, "exit") == 0)
        _exit(3);
    if (strcmp(word, "noise") == 0)
        flood_control("\xff\xff", 2);
    if (strcmp(word, "pongs") == 0)
        flood_control("\x12\x02\x08\x01", 4);
    if (strcmp(word, "version") == 0)
        send_configured(4000000, 0, "", 0);
    else if (strcmp(word, "refuse") == 0) {
        for (size_t i = 0; i < sizeof long_text; i++)
            long_text[i] = "\033[2J\xff\n\"\\\t%s%n"[i % 12];
        send_configured(1, 4000000000U, long_text, sizeof long_text);
    } else if (strcmp(word, "twice") == 0) {
        send_configured(1, 0, "", 0);
        send_configured(1, 0, "", 0);
    } else {
        send_configured(1, 0, "", 0);
    }
}

static void on_exit_signal(int number)
{
    if (number == SIGUSR1)
        _exit(7);
    forever();
}

// The real agent's program, REAL_AGENT: what a machine's init does (its option --vm) must be done before there is anything to
// attack, and init starts its own file, which is this one, as the sandbox's agent.
__asm__(".section .rodata\n"
        "real_agent: .incbin \"" REAL_AGENT "\"\n"
        "real_agent_end:\n"
        ".previous\n");
extern const uint8_t real_agent[], real_agent_end[];

static void become_init(char **argv)
{
    static char *no_variables[] = {NULL};
    int fd = (int)syscall(SYS_memfd_create, "init", MFD_CLOEXEC);
    size_t size = (size_t)(real_agent_end - real_agent);
    if (fd >= 0 && write(fd, real_agent, size) == (ssize_t)size)
        syscall(SYS_execveat, fd, "", argv, no_variables, AT_EMPTY_PATH);
    _exit(1);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--self-test") == 0)
        return 0;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--vm") == 0)
            become_init(argv);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGUSR1, on_exit_signal);
    signal(SIGUSR2, on_exit_signal);
    for (;;) {
        union {
            char space[CMSG_SPACE(sizeof(int) * 4)];
            struct cmsghdr align;
        } control;
        struct iovec iov = {packet, sizeof packet};
        struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control};
        ssize_t n = recvmsg(CONTROL, &m, 0);
        if (n <= 0)
            return 0;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (packet[0] == (1 << 3 | 2)) {
            greet(packet, (size_t)n);
        } else if (c != NULL && c->cmsg_type == SCM_RIGHTS) {
            int line;
            memcpy(&line, CMSG_DATA(c), sizeof line);
            if (fork() == 0) {
                signal(SIGCHLD, SIG_DFL);
                serve_line(line);
            }
            close(line);
        } else if (packet[0] == (3 << 3 | 2) && n >= 4) {  // a ping: its nonce is echoed
            uint8_t pong[64] = {2 << 3 | 2};
            if ((size_t)n < sizeof pong) {
                memcpy(pong + 1, packet + 1, (size_t)n - 1);
                send(CONTROL, pong, (size_t)n, MSG_NOSIGNAL);
            }
        }
    }
}
