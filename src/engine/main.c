// sandbox-engine: owns sandboxes and serves clients.  Started by sandbox-jailer, which hands it its descriptors.
#include "base/cleanup.h"
#include "base/log.h"
#include "engine/config.h"
#include "engine/engine.h"
#include "sys/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { EXIT_USAGE = 2 };

static void print_help(void)
{
    printf("Usage: sandbox-engine [--config FILE] [--set KEY=VALUE]...\n"
           "\n"
           "Owns sandboxes and serves clients (libsandbox, sandbox-cli) on a Unix socket.  It is started by sandbox-jailer,\n"
           "which hands it a channel (descriptor %d), the run directory (%d), the folder of templates (%d) and one for its\n"
           "database (%d).\n"
           "\n"
           "  --config FILE     read settings from the section [engine] of FILE\n"
           "  --set KEY=VALUE   one setting; wins over the file; may be given again\n"
           "  --check-config    check the settings and exit: 0 when they are good, %d with a sentence when not\n"
           "  --version         print the version and exit\n"
           "  --help            print this and exit\n"
           "\n"
           "Settings:\n",
           ENGINE_FD_JAILER, ENGINE_FD_RUN_DIR, ENGINE_FD_TEMPLATES_DIR, ENGINE_FD_STATE_DIR, EXIT_CONFIG);
    config_print_options(stdout);
}

// Settings of the command line must wait until the file has been read, wherever they stand.
static int read_settings(int argc, char **argv, struct config *config, bool *ret_check_only, struct err *err)
{
    static const struct option longs[] = {
        {"config", required_argument, NULL, 'c'}, {"set", required_argument, NULL, 's'},
        {"check-config", no_argument, NULL, 'C'}, {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    const char *file = NULL;
    bool check_only = false;
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (o == 'c')
            file = optarg;
        else if (o == 'C')
            check_only = true;
        else if (o == 'V')
            printf("sandbox-engine %s\n", ENGINE_VERSION), exit(EXIT_SUCCESS);
        else if (o == 'h')
            print_help(), exit(EXIT_SUCCESS);
        else if (o != 's')
            exit(EXIT_USAGE);
    }
    if (optind < argc)
        return err_set(err, -EINVAL, "unexpected argument \"%.100s\"; try --help", argv[optind]);
    int r = file != NULL ? config_load(config, file, err) : 0;
    if (r == 0)
        r = config_environment(config, err);
    optind = 1;
    for (int o; r == 0 && (o = getopt_long(argc, argv, "", longs, NULL)) != -1;)
        if (o == 's')
            r = config_set(config, optarg, err);
    if (r == 0)
        r = config_finish(config, err);
    *ret_check_only = check_only;
    return r;
}

static const char *wrong_channel(int fd)
{
    int type, domain;
    socklen_t n = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_SEQPACKET)
        return "descriptor 3 is not a channel to sandbox-jailer";
    n = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain != AF_UNIX)
        return "descriptor 3 is not a Unix socket";
    return NULL;
}

static bool is_directory(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
}

// NULL, or what is wrong with how the program was started.
static const char *wrong_start(void)
{
    if (geteuid() == 0 || getuid() == 0)
        return "it must not run as root";
    const char *wrong = wrong_channel(ENGINE_FD_JAILER);
    if (wrong != NULL)
        return wrong;
    if (!is_directory(ENGINE_FD_RUN_DIR))
        return "descriptor 4 is not the run directory";
    if (!is_directory(ENGINE_FD_TEMPLATES_DIR))
        return "descriptor 5 is not the folder of templates";
    if (!is_directory(ENGINE_FD_STATE_DIR))
        return "descriptor 6 is not the engine's state folder";
    return NULL;
}

// A connection, a sandbox and a guest operation take a descriptor each.
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

struct signals {
    int fd;
    struct watch *watch;
    struct engine *engine;
};

static void on_signal(void *arg, uint32_t events)
{
    (void)events;
    struct signals *s = arg;
    struct signalfd_siginfo info;
    if (read(s->fd, &info, sizeof info) == (ssize_t)sizeof info)
        engine_stop(s->engine);
}

// SIGTERM and SIGINT become events of the loop, from before the first thread exists.
static int block_signals(int *ret_fd)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

static int run(const struct config *config)
{
    struct loop *loop = NULL;
    struct signals signals = {.fd = -1};
    int r = loop_new(&loop);
    if (r == 0)
        r = block_signals(&signals.fd);
    if (r == 0)
        r = engine_new(loop, config, &signals.engine);
    if (r == 0)
        r = watch_add(loop, signals.fd, EPOLLIN, on_signal, &signals, &signals.watch);
    if (r == 0)
        r = loop_run(loop);
    if (r < 0)
        log_error("failed", log_errno(r));
    watch_remove(signals.watch);
    engine_free(signals.engine);
    loop_free(loop);
    close_fd(&signals.fd);
    log_info("stopped", log_i64("status", r < 0 ? EXIT_FAILURE : r));
    return r < 0 ? EXIT_FAILURE : r;
}

int main(int argc, char **argv)
{
    static struct config config;  // too large for a stack
    struct err err;
    bool check_only = false;
    config_init(&config);
    if (read_settings(argc, argv, &config, &check_only, &err) < 0) {
        fprintf(stderr, "sandbox-engine: %s\n", err.text);
        return EXIT_CONFIG;
    }
    if (check_only)
        return EXIT_SUCCESS;
    const char *wrong = wrong_start();
    if (wrong != NULL) {
        fprintf(stderr,
                "sandbox-engine: %s.  This program is not started by hand: start sandbox-jailer, which starts it with what it "
                "needs.\n",
                wrong);
        return EXIT_USAGE;
    }
    log_init("sandbox-engine", (enum log_level)config.log_level);
    raise_descriptor_limit();
    return run(&config);
}
