#include "enter/steps.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

enum {
    MOVE_ABOVE = 64,  // descriptors are first moved out of the way of their final numbers
    ARRANGED_MAX = 16,
};

int enter_join_cgroups(const struct cgroup_entry *groups)
{
    int r = cgroup_entry_join(groups, CGROUP_NAME);
    if (r == 0 && unshare(CLONE_NEWCGROUP) < 0)
        r = -errno;
    return r < 0 ? r : cgroup_entry_join(groups, CGROUP_AGENT);
}

// Nothing of the parent's, hundreds of descriptors where hundreds of sandboxes live: least of all its own end of this line,
// without which its death would not be seen.
int enter_keep_line(int *line)
{
    if (*line != ENTER_FIRST_KEPT && dup3(*line, ENTER_FIRST_KEPT, O_CLOEXEC) < 0)
        return -errno;
    *line = ENTER_FIRST_KEPT;
    if (syscall(SYS_close_range, ENTER_FIRST_KEPT + 1U, ~0U, 0U) < 0)
        return -errno;
    return send(*line, "c", 1, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

int enter_take_ids(void)
{
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return -errno;
    umask(022);
    if (setsid() < 0)
        return -errno;
    // The host may serve its service before others; what the service holds does not inherit that.
    if (getpriority(PRIO_PROCESS, 0) < 0 && setpriority(PRIO_PROCESS, 0, 0) < 0)
        return -errno;
    // A keyring of its own, so that nothing of the parent's session is in reach.
    syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL);
    return 0;
}

int enter_bind_to_parent(int line)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    // After every change of credentials, which would clear it.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return -errno;
    struct pollfd parent = {.fd = line, .events = POLLRDHUP};
    return poll(&parent, 1, 0) > 0 ? -EPIPE : 0;
}

static int move_away(int fd)
{
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, MOVE_ABOVE);
    return moved < 0 ? -errno : moved;
}

int enter_arrange(const int *fds, unsigned count, int out, int err, int *const kept[2])
{
    int moved[ARRANGED_MAX], standard[3];
    if (count > ARRANGED_MAX)
        return -E2BIG;
    for (unsigned i = 0; i < count; i++)
        if ((moved[i] = move_away(fds[i])) < 0)
            return moved[i];
    for (int i = 0; i < 2; i++)
        if ((*kept[i] = move_away(*kept[i])) < 0)
            return *kept[i];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    standard[0] = move_away(null);
    standard[1] = out < 0 ? standard[0] : move_away(out);
    standard[2] = err < 0 ? standard[0] : move_away(err);
    for (int i = 0; i < 3; i++)
        if (standard[i] < 0 || dup2(standard[i], i) < 0)
            return -errno;
    for (unsigned i = 0; i < count; i++)
        if (dup2(moved[i], ENTER_FIRST_KEPT + (int)i) < 0)
            return -errno;
    return syscall(SYS_close_range, ENTER_FIRST_KEPT + count, ~0U, CLOSE_RANGE_CLOEXEC) < 0 ? -errno : 0;
}
