// The stack as the host sees it: its processes, mounts, loop devices and control groups.
#include "system.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static ssize_t slurp(const char *path, char *text, size_t size)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    for (ssize_t r; fd >= 0 && n < size - 1 && (r = read(fd, text + n, size - 1 - n)) > 0;)
        n += (size_t)r;
    text[n] = '\0';
    return fd < 0 ? -1 : (ssize_t)n;
}

// Whether the kernel's short name of the process is that of the program that `command_line` begins with.
static bool runs(pid_t pid, const char *command_line)
{
    enum { COMM_MAX = 15 };
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if (slurp(path, text, sizeof text) <= 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    size_t n = strcspn(command_line, " ");
    while (memchr(command_line, '/', n) != NULL)
        command_line++, n--;
    return strlen(text) == (n < COMM_MAX ? n : COMM_MAX) && strncmp(text, command_line, strlen(text)) == 0;
}

// Only of a process that runs the right program: the arguments are read from its memory, and that of somebody else's guest,
// which may be fighting for memory, would be waited for.
static bool command_line_has(pid_t pid, const char *needle)
{
    if (!runs(pid, needle))
        return false;
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    ssize_t n = slurp(path, text, sizeof text);
    for (ssize_t i = 0; i < n; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return n > 0 && strstr(text, needle) != NULL;
}

// Calls `each` for every process; the sum of what it returns.
static int for_processes(int (*each)(pid_t pid, void *arg), void *arg)
{
    int sum = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc != NULL && (e = readdir(proc)) != NULL;) {
        pid_t pid = (pid_t)atoi(e->d_name);
        if (pid > 0 && pid != getpid())
            sum += each(pid, arg);
    }
    if (proc != NULL)
        closedir(proc);
    return sum;
}

struct search {
    const char *needle;
    pid_t first;
};

static int matches(pid_t pid, void *arg)
{
    struct search *s = arg;
    if (!command_line_has(pid, s->needle))
        return 0;
    if (s->first == 0)
        s->first = pid;
    return 1;
}

int host_processes(const char *needle, pid_t *ret_pid)
{
    struct search s = {.needle = needle};
    int n = for_processes(matches, &s);
    if (ret_pid != NULL && n > 0)
        *ret_pid = s.first;
    return n;
}

struct one {
    const char *needle;
    pid_t pid;
};

static bool there_is_one(void *arg)
{
    struct one *one = arg;
    pid_t pid = 0;
    if (host_processes(one->needle, &pid) != 1)
        return false;
    one->pid = pid;
    return true;
}

// Between a fork and its exec a child still has its shell's name.
pid_t one_host_process(const char *needle)
{
    struct one one = {.needle = needle};
    if (!eventually(there_is_one, &one, 10000))
        fail_msg("there is not one host process '%s', but %d", needle, host_processes(needle, NULL));
    return one.pid;
}

bool a_host_process(void *needle)
{
    return host_processes(needle, NULL) > 0;
}

bool no_host_process(void *needle)
{
    return host_processes(needle, NULL) == 0;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (slurp(path, text, sizeof text) <= 0)
        return 0;
    const char *after = strrchr(text, ')');
    int parent = 0;
    return after != NULL && sscanf(after + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

enum { FIRST_GUEST_UID = 0x70000000 };

static long uid_of(pid_t pid)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    const char *line = slurp(path, text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
    long uid = -1;
    return line != NULL && sscanf(line, "\nUid: %ld", &uid) == 1 ? uid : -1;
}

static int is_of_stack(pid_t pid, void *arg)
{
    for (pid_t p = pid; p > 1; p = parent_of(p))
        if (p == setting()->jailer)
            return 1;
    return 0;
}

static int is_engine(pid_t pid, void *arg)
{
    if (parent_of(pid) != setting()->jailer || !runs(pid, "sandbox-engine"))
        return 0;
    *(pid_t *)arg = pid;
    return 1;
}

static bool is_holder(pid_t pid)
{
    return parent_of(pid) == setting()->jailer && uid_of(pid) >= FIRST_GUEST_UID;
}

static int kill_holder(pid_t pid, void *arg)
{
    return is_holder(pid) && kill(pid, SIGKILL) == 0;
}

void kill_holders(void)
{
    if (for_processes(kill_holder, NULL) == 0)
        fail_msg("no sandbox runs under the jailer %d", setting()->jailer);
}

struct newest {
    unsigned long long born;
    pid_t pid;
};

static int is_newer(pid_t pid, void *arg)
{
    struct newest *n = arg;
    char path[64], text[4096];
    unsigned long long born = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const char *after = is_holder(pid) && slurp(path, text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
    if (after == NULL ||
        sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &born) != 1 ||
        born < n->born)
        return 0;
    *n = (struct newest){.born = born, .pid = pid};
    return 1;
}

pid_t newest_holder(void)
{
    struct newest n = {0};
    if (for_processes(is_newer, &n) == 0)
        fail_msg("no sandbox runs under the jailer %d", setting()->jailer);
    return n.pid;
}

static int count_entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d != NULL)
        closedir(d);
    return n;
}

static int open_files(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    return count_entries(path);
}

// Mounts in the jailer's own view, where a sandbox's would be left over.
static int mounts(void)
{
    char path[64], line[4096];
    snprintf(path, sizeof path, "/proc/%d/mountinfo", setting()->jailer);
    cleanup_file FILE *f = fopen(path, "re");
    int n = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        n++;
    return n;
}

// Loop devices over files of this stack; a deleted file keeps its old name here.
static int loops(void)
{
    int n = 0;
    DIR *d = opendir("/sys/block");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[300], text[4096];
        snprintf(path, sizeof path, "/sys/block/%s/loop/backing_file", e->d_name);
        n += strncmp(e->d_name, "loop", 4) == 0 && slurp(path, text, sizeof text) > 0 &&
             strstr(text, setting()->stack_dir) != NULL;
    }
    if (d != NULL)
        closedir(d);
    return n;
}

static int cgroups_found;

static int count_cgroup(const char *path, const struct stat *st, int type, struct FTW *where)
{
    cgroups_found += type == FTW_D && strstr(path, setting()->instance) != NULL;
    return 0;
}

static int cgroups(void)
{
    cgroups_found = 0;
    nftw("/sys/fs/cgroup", count_cgroup, 16, FTW_PHYS);
    return cgroups_found;
}

pid_t engine_pid(void)
{
    pid_t engine = 0;
    for_processes(is_engine, &engine);
    if (engine == 0)
        fail_msg("no engine runs under the jailer %d", setting()->jailer);
    return engine;
}

void look_at_holdings(struct holdings *ret_holdings)
{
    *ret_holdings = (struct holdings){.processes = for_processes(is_of_stack, NULL),
                                      .mounts = mounts(),
                                      .loops = loops(),
                                      .cgroups = cgroups(),
                                      .jailer_fds = open_files(setting()->jailer),
                                      .engine_fds = open_files(engine_pid())};
}

bool same_holdings(const struct holdings *a, const struct holdings *b)
{
    // Fewer mounts are no leak: the jailer's view has the host's of its start, and those go with the folders they are on.
    return a->processes == b->processes && b->mounts <= a->mounts && a->loops == b->loops && a->cgroups == b->cgroups &&
           a->jailer_fds == b->jailer_fds && a->engine_fds == b->engine_fds;
}

void look_when_calm(struct holdings *ret_holdings)
{
    // The pool is filled, disks are freed and connections are closed behind the calls.
    const uint64_t calm_ms = patient(250) > 500 ? patient(250) : 500;
    struct holdings now;
    look_at_holdings(ret_holdings);
    uint64_t end = now_ms() + patient(20000);
    for (uint64_t since = now_ms(); now_ms() - since < calm_ms; wait_ms(50)) {
        if (now_ms() > end)
            fail_msg("what the stack holds never comes to rest");
        look_at_holdings(&now);
        if (!same_holdings(ret_holdings, &now)) {
            *ret_holdings = now;
            since = now_ms();
        }
    }
}

static bool settled(void *arg)
{
    struct holdings now;
    look_at_holdings(&now);
    return same_holdings(arg, &now);
}

void assert_settles(const struct holdings *before)
{
    struct holdings copy = *before;
    if (eventually(settled, &copy, 10000))
        return;
    struct holdings n;
    look_at_holdings(&n);
    fail_msg("left over: processes %d -> %d, mounts %d -> %d, loops %d -> %d, control groups %d -> %d, the jailer's files "
             "%d -> %d, the engine's %d -> %d",
             before->processes, n.processes, before->mounts, n.mounts, before->loops, n.loops, before->cgroups, n.cgroups,
             before->jailer_fds, n.jailer_fds, before->engine_fds, n.engine_fds);
}

static bool settled_beside(void *arg)
{
    const struct holdings *b = arg;
    struct holdings now;
    look_at_holdings(&now);
    return now.mounts <= b->mounts && now.loops <= b->loops && now.cgroups <= b->cgroups && now.jailer_fds <= b->jailer_fds;
}

void assert_settles_beside(const struct holdings *before)
{
    struct holdings copy = *before;
    if (!eventually(settled_beside, &copy, 10000))
        assert_settles(before);
}
