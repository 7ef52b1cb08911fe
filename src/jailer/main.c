// sandbox-jailer: the engine's only privileged hand.
//
// Process picture: systemd (or scripts/stack) starts this program as root; it starts the engine as an ordinary user with one
// end of a socket pair (sys/jail.h); every sandbox's first process is its child.  If the engine goes, all sandboxes go and
// this program ends; if this program goes, the kernel kills its children (PR_SET_PDEATHSIG), and the engine sees the end of
// its channel.  What a dead jailer left (only cgroups: disks have no names, mounts are in a dead namespace) the next start
// removes; volumes, snapshots and the engine's database are meant to stay.
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/standard_fds.h"
#include "enter/privileges.h"
#include "jailer/engine_process.h"
#include "jailer/host.h"
#include "jailer/network_helper.h"
#include "jailer/options.h"
#include "jailer/probe.h"
#include "jailer/release.h"
#include "jailer/server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENGINE_STOP_WAIT_MS = 20000 };

struct jailer {
    struct loop *loop;
    struct host *host;
    struct server *server;
    pid_t engine_pid;
    int engine_pidfd;
    struct watch *engine_watch;
    int signal_fd;
    struct watch *signal_watch;
    struct timer stop_timer;
    bool asked_to_stop;
    bool engine_gone;
    bool server_gone;
    int engine_status;
};

static void signal_engine(struct jailer *j, int signal_number)
{
    if (!j->engine_gone)
        syscall(SYS_pidfd_send_signal, j->engine_pidfd, signal_number, NULL, 0);
}

static void end_if_all_gone(struct jailer *j)
{
    if (!j->engine_gone || !j->server_gone)
        return;
    bool clean = WIFEXITED(j->engine_status) && WEXITSTATUS(j->engine_status) == 0;
    loop_stop(j->loop, clean && j->asked_to_stop ? 0 : 1);
}

// The channel has ended and no sandbox is left.  An engine that still runs is of no use any more.
static void on_server_end(void *arg)
{
    struct jailer *j = arg;
    j->server_gone = true;
    if (!j->asked_to_stop)
        signal_engine(j, SIGTERM);
    timer_set(j->loop, &j->stop_timer, mono_ns() + ENGINE_STOP_WAIT_MS * NS_PER_MS);
    end_if_all_gone(j);
}

static void on_engine_exit(void *arg, uint32_t events)
{
    (void)events;
    struct jailer *j = arg;
    j->engine_watch = watch_remove(j->engine_watch);
    while (waitpid(j->engine_pid, &j->engine_status, 0) < 0 && errno == EINTR)
        ;
    j->engine_gone = true;
    bool clean = WIFEXITED(j->engine_status) && WEXITSTATUS(j->engine_status) == 0;
    log_emit(clean ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR, "engine_ended",
             LOG_FIELDS(log_i64("exit_code", WIFEXITED(j->engine_status) ? WEXITSTATUS(j->engine_status) : -1),
                        log_i64("signal", WIFSIGNALED(j->engine_status) ? WTERMSIG(j->engine_status) : 0)));
    if (j->server_gone)
        end_if_all_gone(j);
    else
        server_stop(j->server);
}

static void on_stop_timeout(void *arg)
{
    struct jailer *j = arg;
    log_error("engine_killed", log_str("reason", "it did not end in time"));
    signal_engine(j, SIGKILL);
}

static void on_signal(void *arg, uint32_t events)
{
    (void)events;
    struct jailer *j = arg;
    struct signalfd_siginfo info;
    if (read(j->signal_fd, &info, sizeof info) != sizeof info)
        return;
    log_info("stopping", log_u64("signal", info.ssi_signo));
    j->asked_to_stop = true;
    signal_engine(j, SIGTERM);
    timer_set(j->loop, &j->stop_timer, mono_ns() + ENGINE_STOP_WAIT_MS * NS_PER_MS);
}

static int watch_signals(struct jailer *j)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    j->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return j->signal_fd < 0 ? -errno : watch_add(j->loop, j->signal_fd, EPOLLIN, on_signal, j, &j->signal_watch);
}

// A folder that is the engine's own.
static int open_folder(const struct options *o, const char *path, mode_t mode)
{
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fchown(fd, o->uid, o->gid) < 0 || fchmod(fd, mode) < 0)
        return -errno;
    return take_fd(&fd);
}

// Where none is named, beside the jailer's.
static int open_engine_state(const struct options *o)
{
    char path[PATH_MAX];
    int n = o->engine_state_dir != NULL ? snprintf(path, sizeof path, "%s", o->engine_state_dir)
                                        : snprintf(path, sizeof path, "%s-engine", o->host.state_dir);
    return n < (int)sizeof path ? open_folder(o, path, 0700) : -ENAMETOOLONG;
}

static int fail(const char *what, int error)
{
    log_error("cannot_start", log_str("what", what), log_errno(error));
    return error;
}

static int start_engine(struct jailer *j, const struct options *o, int run_dir, int templates_dir, int state_dir)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return fail("the engine's channel", -errno);
    cleanup_fd int ours = pair[0], theirs = pair[1];
    struct engine_plan plan = {.path = o->engine_path,
                               .args = o->engine_args,
                               .uid = o->uid,
                               .gid = o->gid,
                               .channel = theirs,
                               .run_dir = run_dir,
                               .templates_dir = templates_dir,
                               .state_dir = state_dir};
    j->engine_pidfd = engine_start(&plan, &j->engine_pid);
    if (j->engine_pidfd < 0)
        return fail(o->engine_path, j->engine_pidfd);
    int r = watch_add(j->loop, j->engine_pidfd, EPOLLIN, on_engine_exit, j, &j->engine_watch);
    if (r == 0)
        r = server_new(j->host, ours, on_server_end, j, &j->server);
    if (r < 0)
        return fail("serving the engine", r);
    take_fd(&ours);
    return 0;
}

static int start(struct jailer *j, const struct options *o)
{
    int r = loop_new(&j->loop);
    if (r < 0)
        return fail("the event loop", r);
    r = watch_signals(j);
    if (r < 0)
        return fail("signals", r);
    // Before the mount namespace is ours alone: these three are the host's.
    cleanup_fd int run_dir = open_folder(o, o->run_dir, 0755);
    if (run_dir < 0)
        return fail(o->run_dir, run_dir);
    cleanup_fd int templates = open(o->templates_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (templates < 0)
        return fail(o->templates_dir, -errno);
    cleanup_fd int engine_state = open_engine_state(o);
    if (engine_state < 0)
        return fail("the engine's state folder", engine_state);
    const char *why = "";
    r = host_open(j->loop, &o->host, &j->host, &why);
    if (r < 0)
        return fail(why, r);
    r = start_engine(j, o, run_dir, templates, engine_state);
    if (r < 0)
        return r;
    r = privileges_drop_jailer();
    if (r < 0)
        return fail("dropping capabilities", r);
    r = releases_new(&j->host->releases);
    if (r < 0)
        return fail("starting the helper", r);
    layers_release_with(j->host->layers, j->host->releases);
    return 0;
}

static void tear_down(struct jailer *j)
{
    if (j->engine_pidfd >= 0 && !j->engine_gone)
        signal_engine(j, SIGKILL);
    if (j->loop != NULL)
        timer_cancel(j->loop, &j->stop_timer);
    j->engine_watch = watch_remove(j->engine_watch);
    j->signal_watch = watch_remove(j->signal_watch);
    j->server = server_free(j->server);
    j->host = host_close(j->host);
    close_fd(&j->engine_pidfd);
    close_fd(&j->signal_fd);
    j->loop = loop_free(j->loop);
}

static int probe(const struct options *o)
{
    char state[] = "/tmp/sandbox-probe-XXXXXX";
    char instance[32];
    snprintf(instance, sizeof instance, "probe-%d", (int)getpid());
    if (mkdtemp(state) == NULL) {
        fprintf(stderr, "sandbox-jailer: cannot make a folder in /tmp: %s\n", strerror(errno));
        return 1;
    }
    struct host_options host = o->host;
    host.state_dir = state;
    host.instance = instance;
    host.pool = (struct address_range){0};
    int code = probe_report(&host);
    char path[sizeof state + 16];
    static const char *const inside[] = {"mounts", "snapshots", "volumes"};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", state, inside[i]);
        rmdir(path);
    }
    rmdir(state);
    return code;
}

// Each sandbox takes a handful of descriptors.
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    if (standard_fds_hold() < 0)
        return 1;
    if (argc == 2 && strcmp(argv[1], RELEASE_HELPER) == 0)
        return release_helper();
    if (argc == 3 && strcmp(argv[1], NETWORK_HELPER) == 0)
        return network_helper(argv[2]);
    struct options o;
    int r = options_parse(argc, argv, &o);
    if (r != OPTIONS_RUN)
        return r == OPTIONS_DONE ? 0 : 2;
    if (geteuid() != 0) {
        fputs("sandbox-jailer: must be run as root: it makes namespaces, mounts and cgroups for the engine\n", stderr);
        return 1;
    }
    log_init("sandbox-jailer", LOG_LEVEL_INFO);
    if (o.probe)
        return probe(&o);
    raise_descriptor_limit();
    struct jailer j = {.engine_pidfd = -1, .signal_fd = -1};
    timer_init(&j.stop_timer, on_stop_timeout, &j);
    int code = start(&j, &o) < 0 ? 1 : loop_run(j.loop);
    tear_down(&j);
    return code;
}
