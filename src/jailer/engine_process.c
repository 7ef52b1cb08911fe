#include "jailer/engine_process.h"

#include "base/cleanup.h"
#include "sys/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ARGS_MAX = 256, MOVE_ABOVE = 32 };

static const char *const kept_variables[] = {
    "NOTIFY_SOCKET", "SANDBOX_WORKSPACE_MAX_TTL", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"};

enum { HANDED_OVER = 4, KEPT = sizeof kept_variables / sizeof kept_variables[0] };

static void make_environment(char *env[KEPT + 2], char text[KEPT][512])
{
    size_t n = 0;
    env[n++] = (char *)"PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    for (size_t i = 0; i < KEPT; i++) {
        const char *value = getenv(kept_variables[i]);
        if (value != NULL && snprintf(text[i], sizeof text[i], "%s=%s", kept_variables[i], value) < (int)sizeof text[i])
            env[n++] = text[i];
    }
    env[n] = NULL;
}

static int place_descriptors(const struct engine_plan *plan)
{
    const int wanted[] = {plan->channel, plan->run_dir, plan->templates_dir, plan->state_dir};
    int moved[HANDED_OVER];
    for (int i = 0; i < HANDED_OVER; i++) {
        moved[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, MOVE_ABOVE);
        if (moved[i] < 0)
            return -errno;
    }
    for (int i = 0; i < HANDED_OVER; i++)
        if (dup2(moved[i], ENGINE_FD_JAILER + i) < 0)
            return -errno;
    return close_range(ENGINE_FD_STATE_DIR + 1, ~0U, CLOSE_RANGE_CLOEXEC) < 0 ? -errno : 0;
}

static int become(const struct engine_plan *plan)
{
    if (setgroups(0, NULL) < 0 || setresgid(plan->gid, plan->gid, plan->gid) < 0 ||
        setresuid(plan->uid, plan->uid, plan->uid) < 0)
        return -errno;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) < 0)
        return -errno;
    return 0;
}

static void run_engine(const struct engine_plan *plan, int program) __attribute__((noreturn));
static void run_engine(const struct engine_plan *plan, int program)
{
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    char *argv[ARGS_MAX + 2] = {(char *)"sandbox-engine"};
    for (size_t i = 0; i < ARGS_MAX && plan->args[i] != NULL; i++)
        argv[i + 1] = plan->args[i];
    char *env[KEPT + 2];
    char text[KEPT][512];
    make_environment(env, text);
    program = fcntl(program, F_DUPFD_CLOEXEC, MOVE_ABOVE);
    int r = program < 0 ? -errno : place_descriptors(plan);
    if (r == 0)
        r = become(plan);
    if (r == 0) {
        // By descriptor, so that the folders above the program need not be open to the engine's uid.
        syscall(SYS_execveat, program, "", argv, env, AT_EMPTY_PATH);
        r = -errno;
    }
    fprintf(stderr, "sandbox-jailer: cannot start %s: %s\n", plan->path, strerror(-r));
    _exit(1);
}

int engine_start(const struct engine_plan *plan, pid_t *ret_pid)
{
    cleanup_fd int program = open(plan->path, O_RDONLY | O_CLOEXEC);
    if (program < 0)
        return -errno;
    pid_t pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0)
        run_engine(plan, program);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0) {
        int r = -errno;
        kill(pid, SIGKILL);
        return r;
    }
    *ret_pid = pid;
    return pidfd;
}
