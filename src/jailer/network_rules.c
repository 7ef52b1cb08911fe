#include "jailer/network_rules.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NFT_MEMORY = 512 << 20 };

static const char nft_path[] = "/usr/sbin/nft";

uint16_t network_redirect_port(uint16_t proxy_port)
{
    return proxy_port < JAIL_PORT_MAX ? (uint16_t)(proxy_port + 1) : (uint16_t)(proxy_port - 1);
}

// ---- the text ----

// nft's own alphabet for names has no '-'.
static void table_name(const char *instance, char name[static 80])
{
    snprintf(name, 80, "sandbox_%.64s", instance);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
}

// Text that fits goes to *at, which moves on.  The sizes that must be larger were counted when this says so.
#define ADD(...)                                                                                                               \
    do {                                                                                                                       \
        int n_ = snprintf(*at, (size_t)(end - *at), __VA_ARGS__);                                                              \
        if (n_ < 0 || n_ >= end - *at)                                                                                         \
            return -E2BIG;                                                                                                     \
        *at += n_;                                                                                                             \
    } while (0)

static int write_arrival(const struct jail_network *how, char **at, const char *end)
{
    ADD("  chain arrive {\n"
        "    type filter hook prerouting priority mangle; policy drop;\n"
        "    fib saddr . iif oif missing counter drop\n");
    if (how->synthetic_prefix > 0)
        ADD("    iifgroup & %d == %d ip daddr %d.%d.%d.%d/%d meta l4proto tcp tproxy ip to :%d accept\n", JAIL_LINE_TRANSPARENT,
            JAIL_LINE_TRANSPARENT, how->synthetic[0], how->synthetic[1], how->synthetic[2], how->synthetic[3],
            how->synthetic_prefix, network_redirect_port(how->port));
    ADD("    fib daddr . iif type != local counter drop\n"
        "    iifgroup & %d == %d tcp dport %d accept\n",
        JAIL_LINE_PROXY, JAIL_LINE_PROXY, how->port);
    ADD("    iifgroup & %d == %d meta l4proto { tcp, udp } th dport %d accept\n", JAIL_LINE_TRANSPARENT, JAIL_LINE_TRANSPARENT,
        DNS_PORT);
    ADD("    iifgroup & %d == %d tcp flags & (syn | ack) != syn accept\n"
        "    counter\n"
        "  }\n",
        JAIL_LINE_PUBLISH, JAIL_LINE_PUBLISH);
    return 0;
}

static int write_departure(const struct jail_network *how, char **at, const char *end)
{
    ADD("  chain depart {\n"
        "    type filter hook output priority filter; policy drop;\n"
        "    oifgroup & %d == %d tcp sport %d accept\n",
        JAIL_LINE_PROXY, JAIL_LINE_PROXY, how->port);
    ADD("    oifgroup & %d == %d meta l4proto { tcp, udp } th sport %d accept\n", JAIL_LINE_TRANSPARENT, JAIL_LINE_TRANSPARENT,
        DNS_PORT);
    if (how->synthetic_prefix > 0)
        ADD("    oifgroup & %d == %d ip saddr %d.%d.%d.%d/%d meta l4proto tcp accept\n", JAIL_LINE_TRANSPARENT,
            JAIL_LINE_TRANSPARENT, how->synthetic[0], how->synthetic[1], how->synthetic[2], how->synthetic[3],
            how->synthetic_prefix);
    ADD("    oifgroup & %d == %d meta l4proto tcp accept\n"
        "    counter\n"
        "  }\n",
        JAIL_LINE_PUBLISH, JAIL_LINE_PUBLISH);
    return 0;
}

static int write_table(const char *name, const struct jail_network *how, char **at, const char *end)
{
    ADD("table inet %s {\n}\ndelete table inet %s\ntable inet %s {\n", name, name, name);
    int r = write_arrival(how, at, end);
    if (r < 0)
        return r;
    ADD("  chain pass {\n    type filter hook forward priority filter; policy drop;\n    counter\n  }\n");
    r = write_departure(how, at, end);
    if (r < 0)
        return r;
    ADD("}\n");
    return 0;
}

int network_rules_write(const char *instance, const struct jail_network *how, char *text, size_t room)
{
    char name[80], *at = text;
    table_name(instance, name);
    return write_table(name, how, &at, text + room);
}

// ---- nft ----

static int rules_file(const char *text)
{
    cleanup_fd int fd = memfd_create("rules", MFD_CLOEXEC);
    size_t n = strlen(text);
    if (fd < 0)
        return -errno;
    if (write(fd, text, n) != (ssize_t)n || lseek(fd, 0, SEEK_SET) < 0)
        return errno != 0 ? -errno : -EIO;
    return take_fd(&fd);
}

// It has the rights of this process, which are over this namespace's network and nothing else.
static void run_nft(int rules, int words) __attribute__((noreturn));
static void run_nft(int rules, int words)
{
    const struct rlimit memory = {NFT_MEMORY, NFT_MEMORY}, no_file = {0, 0};
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    char *argv[] = {(char *)"nft", (char *)"-f", (char *)"-", NULL};
    char *env[] = {NULL};
    if (dup2(rules, STDIN_FILENO) >= 0 && dup2(words, STDOUT_FILENO) >= 0 && dup2(words, STDERR_FILENO) >= 0 &&
        syscall(SYS_close_range, 3U, ~0U, 0U) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && setrlimit(RLIMIT_AS, &memory) == 0 && setrlimit(RLIMIT_FSIZE, &no_file) == 0)
        execve(nft_path, argv, env);
    _exit(errno == ENOENT ? 127 : 126);
}

// The first line of what it said.
static void read_words(int words, char *text, size_t room)
{
    ssize_t n = read(words, text, room - 1);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

static int await(pid_t pid, int *ret_status)
{
    cleanup_fd int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    bool late = pidfd >= 0;
    for (int step = 0; late && step < NETWORK_NFT_STEPS; step++)
        late = poll(&ended, 1, NETWORK_NFT_STEP_MS) == 0;
    if (late)
        kill(pid, SIGKILL);
    while (waitpid(pid, ret_status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return late ? -ETIMEDOUT : 0;
}

int network_rules_apply(const char *text, char *detail, size_t room)
{
    cleanup_fd int rules = rules_file(text);
    int ends[2], status = 0;
    if (rules < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return rules < 0 ? rules : -errno;
    cleanup_fd int words = ends[0], theirs = ends[1];
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        run_nft(rules, theirs);
    int r = await(pid, &status);
    if (r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    char said[128];
    read_words(words, said, sizeof said);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        snprintf(detail, room, "%s is missing: install the package nftables", nft_path);
    else
        snprintf(detail, room, "%s refused the rules: %s", nft_path, r < 0 ? strerror(-r) : said);
    return -ENETDOWN;
}
