#include "agent/spawn.h"

#include "agent/child_filter.h"
#include "agent/groups.h"
#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

static _Noreturn void fail(const struct spawn *s, enum spawn_step step, int negative_errno)
{
    struct spawn_failure f = {.step = step, .error = -negative_errno};
    ssize_t n;
    do
        n = write(s->report, &f, sizeof f);
    while (n < 0 && errno == EINTR);
    _exit(127);
}

static struct rlimit files_of_children;

void spawn_keep_limits(void)
{
    if (getrlimit(RLIMIT_NOFILE, &files_of_children) < 0)
        return;
    const struct rlimit most = {files_of_children.rlim_max, files_of_children.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
}

// Signals as a new program expects them: nothing blocked, nothing ignored, whatever this process was started with.
static void reset_signals(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int number = 1; number < 65; number++)
        sigaction(number, &plain, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

// The agent may be protected from the out-of-memory killer; what it starts must not be.
static void be_killable(void)
{
    cleanup_fd int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    char text[16];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;
    if (n > 0 && text[0] == '-')
        n = pwrite(fd, "0", 1, 0);
}

static const char *path_variable(char *const *envp)
{
    for (size_t i = 0; envp[i] != NULL; i++)
        if (strncmp(envp[i], "PATH=", 5) == 0)
            return envp[i] + 5;
    return "";
}

// execve of argv[0], searched like a shell does.  Returns a negative errno.
static int search_and_exec(const struct spawn *s)
{
    const char *name = s->argv[0];
    if (strchr(name, '/') != NULL) {
        execve(name, s->argv, s->envp);
        return -errno;
    }
    bool denied = false;
    const char *at = path_variable(s->envp);
    for (;;) {
        size_t n = strcspn(at, ":");
        char file[PATH_BYTES_MAX + 1];
        int len = snprintf(file, sizeof file, "%.*s%s%s", (int)n, at, n > 0 ? "/" : "./", name);
        if (len > 0 && (size_t)len < sizeof file) {
            execve(file, s->argv, s->envp);
            if (errno == EACCES)
                denied = true;
            else if (errno != ENOENT && errno != ENOTDIR)
                return -errno;
        }
        if (at[n] == '\0')
            return denied ? -EACCES : -ENOENT;
        at += n + 1;
    }
}

// Installs the filter, and hands over what answers it.
static int filter(const struct spawn *s)
{
    cleanup_fd int listener = -1;
    int r = child_filter_install(&listener);
    if (r < 0)
        return r;
    static const struct spawn_failure none = {.step = SPAWN_NONE};
    ssize_t n = fdpass_send(s->report, &none, sizeof none, &listener, 1);
    return n < 0 ? (int)n : 0;
}

static _Noreturn void child(const struct spawn *s, bool cloned_into_v2)
{
    setsid();
    reset_signals();
    be_killable();
    int r = slot_join(s->slot, cloned_into_v2);
    if (r < 0)
        fail(s, SPAWN_GROUP, r);
    for (int i = 0; i < 3; i++)
        if (dup2(s->fds[i], i) < 0)
            fail(s, SPAWN_FORK, -errno);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    if (s->terminal && ioctl(0, TIOCSCTTY, 0) < 0)
        fail(s, SPAWN_FORK, -errno);
    if (chdir(s->cwd) < 0)
        fail(s, SPAWN_CWD, -errno);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail(s, SPAWN_FILTER, -errno);
    r = s->filter ? filter(s) : 0;
    if (r < 0)
        fail(s, SPAWN_FILTER, r);
    // Last: until the exec all descriptors of the agent are still there, and the filter's would be one too many.
    if (files_of_children.rlim_max != 0 && setrlimit(RLIMIT_NOFILE, &files_of_children) < 0)
        fail(s, SPAWN_FORK, -errno);
    if (s->run != NULL) {
        syscall(SYS_close_range, 3U, ~0U, 0U);
        s->run(s->run_arg);
        _exit(1);
    }
    fail(s, SPAWN_EXEC, search_and_exec(s));
}

// A fork straight into the slot's v2 group: the child never runs outside it, and no migration is paid for.
static pid_t clone_into(int group)
{
    struct clone_args args = {
        .flags = CLONE_INTO_CGROUP,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)group,
    };
    long pid = syscall(SYS_clone3, &args, sizeof args);
    return pid < 0 ? -errno : (pid_t)pid;
}

int spawn(const struct spawn *s, pid_t *ret_pid)
{
    cleanup_fd int group = slot_open_v2(s->slot);
    bool into = group >= 0;
    pid_t pid = into ? clone_into(group) : -ENOSYS;
    if (pid == -ENOSYS || pid == -EPERM || pid == -EOPNOTSUPP) {
        into = false;
        pid = fork();
        if (pid < 0)
            pid = -errno;
    }
    if (pid < 0)
        return pid;
    if (pid == 0)
        child(s, into);
    *ret_pid = pid;
    return 0;
}
