// sandbox-agent: PID 1 of a sandbox; and, with --vm, what a virtual machine runs first (machine.h), which then starts a second
// one of these as PID 1 of the sandbox in it.
//
// Actors: the engine, at the other end of the control line, says what to do and is trusted for that, though every length it
// sends is checked; the guest's processes share our pid namespace and file system, and are hostile.
//
// What the guest cannot do to us: signals from inside a pid namespace do not reach its PID 1 unless handled; we are not
// dumpable, so that our memory and descriptors cannot be had through /proc or ptrace; every descriptor is close-on-exec; we
// live in a control group beside the guest's, so that its limits are not ours.
//
// States: started -> configured (control.c) -> serving lines (lines.c) -> the control line ends: we exit, and everything in
// the namespace dies with PID 1.
#include "agent/agent.h"
#include "agent/control.h"
#include "agent/drains.h"
#include "agent/groups.h"
#include "agent/lines.h"
#include "agent/machine.h"
#include "agent/netlink_gate.h"
#include "agent/oom_storm.h"
#include "agent/processes.h"
#include "agent/reap.h"
#include "agent/self_test.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

enum { EXIT_USAGE = 2 };

struct options {
    int control;
    bool self_test;
    bool far;
};

static int usage(const char *what)
{
    fprintf(stderr,
            "sandbox-agent: %s\n"
            "usage: sandbox-agent --control FD [--far] [--group KIND=FD]... | --self-test | --vm ...\n"
            "KIND is v2, v2track, v1freezer, v1memory or v1join.  Started by sandbox-jailer, or with --vm by the kernel of a\n"
            "virtual machine, not by hand.\n",
            what);
    return EXIT_USAGE;
}

// 0 or an exit code.
static int parse_options(int argc, char **argv, struct groups *groups, struct options *o)
{
    static const struct option table[] = {
        {"control", required_argument, NULL, 'c'},
        {"group", required_argument, NULL, 'g'},
        {"self-test", no_argument, NULL, 's'},
        {"far", no_argument, NULL, 'f'},
        {0},
    };
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        uint64_t fd;
        if (c == 'c' && parse_u64(optarg, 3, INT_MAX, &fd) == 0)
            o->control = (int)fd;
        else if (c == 'g' && groups_add(groups, optarg) == 0)
            continue;
        else if (c == 's')
            o->self_test = true;
        else if (c == 'f')
            o->far = true;
        else
            return usage(c == 'g' ? "--group is not KIND=FD with the descriptor of a directory" : "unknown or bad option");
    }
    if (optind < argc || (o->control < 0) != o->self_test)
        return usage("give either --control or --self-test");
    return 0;
}

// 0, 1 and 2 always lead somewhere, so that no other descriptor can take their place.
static void open_standard_files(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd <= 2);
    close_fd(&fd);
    while ((fd = open("/", O_PATH | O_CLOEXEC)) >= 0 && fd <= 2)  // a root without /dev/null
        ;
    close_fd(&fd);
}

// All but those by which the kernel reports our own faults.
static void block_signals(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&set, faults[i]);
    sigprocmask(SIG_SETMASK, &set, NULL);
}

static void harden(void)
{
    open_standard_files();
    prctl(PR_SET_DUMPABLE, 0);
    syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
    block_signals();
    umask(022);
    spawn_keep_limits();
    if (getpid() != 1)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
}

// What the agent needs besides its options.  0 or a negative errno.
static int start_parts(struct agent *a, int control)
{
    a->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int r = loop_new(&a->loop);
    if (r == 0)
        r = reaper_new(a->loop, &a->reaper);
    if (r == 0)
        r = drains_new(a->loop, &a->drains);
    if (r == 0)
        r = netlink_gate_new(a->loop, &a->gate);
    if (r == 0)
        r = oom_storm_new(a, &a->storm);
    if (r == 0)
        r = lines_new(a, &a->lines);
    if (r == 0)
        r = processes_new(a, &a->processes);
    if (r == 0)
        r = control_start(a, control);
    return r;
}

int main(int argc, char **argv)
{
    harden();
    if (machine_wanted(argc, argv))
        machine_run(argc, argv);
    struct agent a = {.null_fd = -1};
    TAILQ_INIT(&a.execs);
    struct options o = {.control = -1};
    int r = groups_new(&a.groups);
    if (r == 0) {
        int code = parse_options(argc, argv, a.groups, &o);
        if (code != 0)
            _exit(code);
    }
    if (r == 0 && o.self_test)
        _exit(self_test() ? 0 : 1);
    a.far = o.far;
    if (r == 0)
        r = start_parts(&a, o.control);
    if (r == 0)
        groups_prepare(a.groups);
    if (r == 0)
        r = loop_run(a.loop);
    if (r < 0)
        fprintf(stderr, "sandbox-agent: cannot serve: %s\n", strerror(-r));
    // Nothing is put away: when PID 1 goes, the kernel ends everything at once, and that is what closing the line asks for.
    _exit(r < 0 ? 1 : 0);
}
