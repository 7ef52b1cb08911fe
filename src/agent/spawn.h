// Starting a command: from fork to execve, and how a failure on the way comes back.
#ifndef AGENT_SPAWN_H
#define AGENT_SPAWN_H

#include <stdbool.h>
#include <sys/types.h>

struct slot;

enum spawn_step { SPAWN_NONE, SPAWN_FORK, SPAWN_GROUP, SPAWN_FILTER, SPAWN_CWD, SPAWN_EXEC };

// What the child sends when it could not become the command; or, with SPAWN_NONE, with the listener of its filter.
struct spawn_failure {
    int step;  // enum spawn_step
    int error;
};

struct spawn {
    // Instead of a program: called in the child with descriptors 0, 1 and 2 and no others, never to return.
    void (*run)(const void *arg);
    const void *run_arg;
    char *const *argv;  // argv[0] without a slash is looked for in envp's PATH, from `cwd`
    char *const *envp;
    const char *cwd;
    int fds[3];  // become 0, 1 and 2; all above 2
    int report;  // one end of a close-on-exec SOCK_SEQPACKET pair, above 2
    const struct slot *slot;
    bool terminal;  // fds are a terminal's, which becomes the controlling one
    bool filter;    // install the second seccomp filter (child_filter.h)
};

// Once, at the start: this process may have as many descriptors as it can get, because each command, each process in the
// background and each pipe that one left behind takes some; children begin with what this process began with.
void spawn_keep_limits(void);

// Forks a child in a session of its own, in the slot's groups, with clean signals and no new privileges.  0 and *ret_pid, or a
// negative errno if there is no child.  What the child meets later comes through `report`: nothing there after the child's
// end or its execve means that it ran.
int spawn(const struct spawn *s, pid_t *ret_pid);

#endif
