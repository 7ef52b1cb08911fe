// The unprivileged engine as the jailer's child.
#ifndef JAILER_ENGINE_PROCESS_H
#define JAILER_ENGINE_PROCESS_H

#include <sys/types.h>

struct engine_plan {
    const char *path;
    char *const *args;  // behind the program's name, NULL-terminated
    uid_t uid;          // never 0
    gid_t gid;
    int channel;        // becomes descriptor 3 (sys/jail.h)
    int run_dir;        // 4
    int templates_dir;  // 5
    int state_dir;      // 6
};

// Starts it: no privileges, no_new_privs, a clean environment (NOTIFY_SOCKET,
// SANDBOX_WORKSPACE_MAX_TTL and sanitizer options are kept), dies with the
// jailer.  Its pidfd, or a negative errno.
int engine_start(const struct engine_plan *plan, pid_t *ret_pid);

#endif
