// What a clone has and its template had not: a line, a volume, or both.  The devices were there, with nothing behind them; the
// monitor of a clone that has a line was given a tap, that of one with a volume its file.  The sandbox inside was built
// without, and is given them here, while nothing but the agent runs in it, which is waiting to hear from its host.
//
// A clone that has no line comes by none of this: its network device stays down in the machine's own network namespace, which
// no process of the sandbox can get into.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "enter/root.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// In a child, which never comes back from the sandbox's namespaces.
static int inside(const struct machine_sandbox *sandbox, int namespaces, int (*run)(const void *arg), const void *arg)
{
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(setns(sandbox->pidfd, namespaces) < 0 ? errno : -run(arg));
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -EPIPE;
}

// ---- the line ----

// The machine's /proc, which can be written, shows the settings of the network namespace of whoever opens them.
static int line_up(const void *arg)
{
    cleanup_fd int settings = open("/proc/sys/net/ipv6/conf", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (settings < 0 && errno != ENOENT)  // a kernel may be without IPv6
        return -errno;
    int r = settings >= 0 ? root_forbid_ipv6_in(settings, GUEST_LINE_DEVICE) : 0;
    return r < 0 ? r : guest_line_up(arg);
}

static int give_line(const struct guest_line *line, const struct machine_sandbox *sandbox)
{
    int r = machine_move_line(sandbox->pid);
    return r < 0 ? r : inside(sandbox, CLONE_NEWNET, line_up, line);
}

// ---- the volume ----

// The folder was made when the sandbox was built (enter/root.h); a link in its place is not followed.
static int attach(const void *arg)
{
    const int *volume = arg;
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                           .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV};
    cleanup_fd int target = (int)syscall(SYS_openat2, AT_FDCWD, "/" MACHINE_VOLUME_DIR, &how, sizeof how);
    return target < 0 ? -errno : mount_attach(*volume, target);
}

static int give_volume(struct machine_sandbox *sandbox)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)sandbox->pid);
    cleanup_fd int userns = open(path, O_RDONLY | O_CLOEXEC);
    if (userns < 0)
        return -errno;
    int r = machine_mount_volume(&sandbox->volume);
    if (r < 0)
        return r;
    cleanup_fd int mapped = machine_map_mount(sandbox->volume, MACHINE_VOLUME_DIR, userns);
    return mapped < 0 ? mapped : inside(sandbox, CLONE_NEWNS, attach, &mapped);
}

int machine_give_devices(const struct machine_identity *identity, struct machine_sandbox *sandbox, const char **ret_step)
{
    *ret_step = "giving the sandbox its line";
    int r = identity->line.kind != 0 ? give_line(&identity->line, sandbox) : 0;
    if (r < 0 || !identity->volume)
        return r;
    *ret_step = "giving the sandbox its volume";
    return give_volume(sandbox);
}
