#include "image/confine.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int write_map(pid_t pid, const char *file)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int n = snprintf(text, sizeof text, "0 %d %d\n", CONFINE_HOST_ID, CONFINE_IDS);
    cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)n) != n)
        return -errno;
    return 0;
}

// In the child, once its ids are mapped.
static int enter(uint64_t scratch_mib)
{
    if (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0)
        return -errno;
    // After the change of ids, which clears it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    umask(022);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return -errno;
    char options[64] = "mode=0755,size=80%";
    if (scratch_mib > 0)
        snprintf(options, sizeof options, "mode=0755,size=%" PRIu64 "m", scratch_mib);
    if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, options) < 0 || chdir("/tmp") < 0)
        return -errno;
    return 0;
}

static void close_others(const struct confine *how, int go)
{
    int limit = sysconf(_SC_OPEN_MAX) > 0 ? (int)sysconf(_SC_OPEN_MAX) : 1024;
    for (int from = STDERR_FILENO + 1; from < limit;) {
        // The next descriptor to keep, and everything before it goes.
        int next = go >= from ? go : limit;
        for (size_t i = 0; i < how->keeps; i++)
            if (how->keep[i] >= from && how->keep[i] < next)
                next = how->keep[i];
        if (next > from)
            close_range((unsigned)from, next == limit ? ~0U : (unsigned)next - 1, 0);
        from = next + 1;
    }
}

__attribute__((noreturn)) static void child(const struct confine *how, int go)
{
    // SIGINT of a terminal reaches every process of it; who started us decides what is torn down.
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    close_others(how, go);
    char ready;
    if (read(go, &ready, 1) != 1)
        _exit(1);
    close(go);
    int r = enter(how->scratch_mib);
    if (r < 0) {
        dprintf(STDERR_FILENO, "sandbox-image: the build's namespaces cannot be set up: %s\n", strerror(-r));
        _exit(1);
    }
    _exit(how->fn(how->arg));
}

int confine_start(const struct confine *how, pid_t *ret_pid, struct err *err)
{
    int go[2];
    if (pipe2(go, O_CLOEXEC) < 0)
        return err_set(err, -errno, "no pipe: %s", strerror(errno));
    unsigned long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | (how->network ? 0 : CLONE_NEWNET);
    // The bare system call, without a stack: as fork(2).
    pid_t pid = (pid_t)syscall(SYS_clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        child(how, go[0]);
    int r = pid < 0 ? -errno : 0;
    close(go[0]);
    if (r == 0)
        r = write_map(pid, "gid_map");
    if (r == 0)
        r = write_map(pid, "uid_map");
    if (r == 0 && write(go[1], "", 1) != 1)
        r = -errno;
    close(go[1]);
    if (r < 0) {
        confine_kill(&pid);
        return err_set(err, r, "no user namespace for the build: %s (it needs root, and user.max_user_namespaces above 0)",
                       strerror(-r));
    }
    *ret_pid = pid;
    return 0;
}

int confine_wait(pid_t *pid)
{
    int status = 0;
    while (waitpid(*pid, &status, 0) < 0 && errno == EINTR)
        ;
    *pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

void confine_kill(pid_t *pid)
{
    if (*pid <= 0)
        return;
    kill(*pid, SIGKILL);
    confine_wait(pid);
}
