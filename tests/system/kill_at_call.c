// Kills processes at a chosen system call of another, so that a crash "at each step" needs no hook in what is tested.
//     kill-at-call TRACED COUNT WHICH VICTIM...
// Traces TRACED (its main thread) and every process it forks from now on; where WHICH is "threads", the threads that it has.
// Says "ready"; from then on counts the entries to and exits from system calls of WHICH: "threads", "all" of them, "self"
// (TRACED) or "child" (the forked ones).  At number COUNT, before the kernel does what was asked, it kills each VICTIM (a pid,
// or "child": the forked one that is at it), says "killed NUMBER", the number of the system call, and ends, which sets the
// others free.  On SIGTERM before that it says "total N" and ends.
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

static volatile sig_atomic_t asked_to_end;

static void on_term(int number)
{
    (void)number;
    asked_to_end = 1;
}

static bool counts(const char *which, pid_t pid, pid_t traced)
{
    if (strcmp(which, "all") == 0 || strcmp(which, "threads") == 0)
        return true;
    return (strcmp(which, "self") == 0) == (pid == traced);
}

static int seize(pid_t thread)
{
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
    return ptrace(PTRACE_SEIZE, thread, NULL, options) < 0 || ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) < 0 ? -errno : 0;
}

// One that ends meanwhile is none.
static int seize_threads(pid_t traced)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)traced);
    DIR *threads = opendir(path);
    int r = threads == NULL ? -errno : 0;
    for (struct dirent *e; r == 0 && (e = readdir(threads)) != NULL;) {
        pid_t thread = (pid_t)atoi(e->d_name);
        r = thread > 0 && thread != traced ? seize(thread) : 0;
        r = r == -ESRCH ? 0 : r;
    }
    if (threads != NULL)
        closedir(threads);
    return r;
}

static void kill_victims(char **victims, pid_t at)
{
    struct user_regs_struct regs;
    long call = ptrace(PTRACE_GETREGS, at, NULL, &regs) == 0 ? (long)regs.orig_rax : -1;
    for (; *victims != NULL; victims++)
        kill(strcmp(*victims, "child") == 0 ? at : (pid_t)atoi(*victims), SIGKILL);
    printf("killed %ld\n", call);
}

// What a stop other than that of a system call is resumed with.
static int signal_of(int status)
{
    int number = WSTOPSIG(status);
    bool event = status >> 16 != 0;
    return event || number == SIGTRAP || number == SIGSTOP ? 0 : number;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    pid_t traced = (pid_t)atoi(argv[1]);
    long count = atol(argv[2]), seen = 0;
    struct sigaction term = {.sa_handler = on_term};  // not restarted: waitpid must come back
    sigaction(SIGTERM, &term, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int r = seize(traced);
    if (r == 0 && strcmp(argv[3], "threads") == 0)
        r = seize_threads(traced);
    if (r < 0) {
        printf("cannot trace %d: %s\n", traced, strerror(-r));
        return 1;
    }
    bool ready = false;
    for (int status;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0 || asked_to_end)
            break;
        if (!WIFSTOPPED(status))
            continue;
        bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
        if (call && ready && counts(argv[3], pid, traced) && ++seen == count) {
            kill_victims(argv + 4, pid);
            return 0;
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, call ? 0 : signal_of(status));
        if (!ready) {
            ready = true;
            printf("ready\n");
        }
    }
    printf("total %ld\n", seen);
    return 0;
}
