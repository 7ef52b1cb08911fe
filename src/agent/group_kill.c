#include "agent/group_kill.h"

#include "agent/group_file.h"
#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

enum {
    FREEZE_STEPS_MAX = 20,   // a group that will not freeze (a process in an uninterruptible call) is killed as it is
    PROCS_MAX = 128 * 1024,  // processes signalled in one step
};

struct group_path {
    char text[96];
};

static struct group_path in_group(const char *group, const char *file)
{
    struct group_path p;
    snprintf(p.text, sizeof p.text, "%s%s", group, file);
    return p;
}

static int open_procs(int dir, const char *path)
{
    return openat(dir, in_group(path, "cgroup.procs").text, O_RDONLY | O_CLOEXEC);
}

bool group_empty(int dir, const char *path, enum kill_way way)
{
    if (way == KILL_V2) {
        uint64_t populated = 1;
        return group_read_key(dir, in_group(path, "cgroup.events").text, "populated", &populated) == 0 && populated == 0;
    }
    cleanup_fd int fd = open_procs(dir, path);
    char first;
    return fd >= 0 && read(fd, &first, 1) == 0;
}

// Signals every process listed in cgroup.procs.  (0 stands for one outside this pid namespace, 1 is the agent.)
void group_signal(int dir, const char *path, int number)
{
    cleanup_fd int fd = open_procs(dir, path);
    char text[4096];
    long pid = 0;
    ssize_t n;
    for (size_t killed = 0; fd >= 0 && killed < PROCS_MAX && (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            if (pid > 1 && pid != getpid()) {
                kill((pid_t)pid, number);
                killed++;
            }
            pid = 0;
        }
}

static bool v1_frozen(int dir, const char *path)
{
    char state[16];
    return group_read(dir, in_group(path, "freezer.state").text, state, sizeof state) == 0 && strncmp(state, "FROZEN", 6) == 0;
}

static bool v2_frozen(int dir, const char *path)
{
    uint64_t frozen = 0;
    return group_read_key(dir, in_group(path, "cgroup.events").text, "frozen", &frozen) == 0 && frozen == 1;
}

// Asks for the freeze, and once it holds (or has been waited for long enough) signals everything and thaws.
static void freeze_and_kill(int dir, const char *path, bool v2, struct kill_state *state)
{
    struct group_path control = in_group(path, v2 ? "cgroup.freeze" : "freezer.state");
    if (!state->freezing) {
        state->freezing = true;
        state->waited = 0;
        group_write(dir, control.text, v2 ? "1" : "FROZEN");
    }
    if (!(v2 ? v2_frozen(dir, path) : v1_frozen(dir, path)) && ++state->waited < FREEZE_STEPS_MAX)
        return;
    group_signal(dir, path, SIGKILL);
    group_write(dir, control.text, v2 ? "0" : "THAWED");
    state->freezing = false;
}

// A group found empty in the middle of a freeze must not stay frozen for the next command.
static void leave_thawed(int dir, const char *path, enum kill_way way, struct kill_state *state)
{
    if (!state->freezing)
        return;
    struct group_path control = in_group(path, way == KILL_V2 ? "cgroup.freeze" : "freezer.state");
    group_write(dir, control.text, way == KILL_V2 ? "0" : "THAWED");
    state->freezing = false;
}

bool group_kill_step(int dir, const char *path, enum kill_way way, struct kill_state *state)
{
    if (group_empty(dir, path, way)) {
        leave_thawed(dir, path, way, state);
        return true;
    }
    if (way == KILL_V2 && !state->no_kill_file)
        state->no_kill_file = group_write(dir, in_group(path, "cgroup.kill").text, "1") == -ENOENT;
    if (way == KILL_V2 && state->no_kill_file)
        freeze_and_kill(dir, path, true, state);
    else if (way == KILL_V1_FREEZER)
        freeze_and_kill(dir, path, false, state);
    else if (way == KILL_PROCS)
        group_signal(dir, path, SIGKILL);
    return !state->freezing && group_empty(dir, path, way);
}
