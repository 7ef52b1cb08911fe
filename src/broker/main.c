// sandbox-broker: the one way out of sandboxes.
#include "base/cleanup.h"
#include "base/log.h"
#include "broker/api_line.h"
#include "broker/broker.h"
#include "broker/check_route.h"
#include "broker/confine.h"
#include "broker/control.h"
#include "broker/grant.h"
#include "broker/grant_metrics.h"
#include "broker/grants.h"
#include "broker/guard.h"
#include "broker/lookup.h"
#include "broker/metrics_server.h"
#include "broker/pool.h"
#include "broker/sandbox.h"
#include "http/tls.h"
#include "sys/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, STOP_TURNS = 4 };

static void print_help(void)
{
    printf(
        "Usage: sandbox-broker [--config FILE] [--set KEY=VALUE]...\n"
        "       sandbox-broker [--config FILE] [--set KEY=VALUE]... check-route PROFILE METHOD TARGET\n"
        "\n"
        "Relays what sandboxes send out: to the hosts of their policies, with the credentials on file; and calls the routes\n"
        "that runs are granted.\n"
        "\n"
        "check-route says what would become of a call, and by which rule: \"FORWARD METHOD /template\" with exit status 0, or\n"
        "the rule that refuses it with exit status 1.  With - for METHOD, calls are read from standard input, a line each:\n"
        "the method, a space, and the target's bytes in hexadecimal.\n"
        "\n"
        "  --config FILE     read settings from the section [broker] of FILE\n"
        "  --set KEY=VALUE   one setting; wins over the file and the environment; may be given again\n"
        "  --check-config    check settings, credentials and profiles and exit: 0 when good, %d with a sentence when not\n"
        "  --version         print the version and exit\n"
        "  --help            print this and exit\n"
        "\n"
        "SIGHUP: read credentials, profiles and the guard's certificate again.  SIGTERM, SIGINT: stop.\n"
        "\n"
        "Settings, also as variables SANDBOX_BROKER_ and the name in capitals:\n",
        EXIT_CONFIG);
    config_print_options(stdout);
}

// Settings of the command line must wait until the file has been read, wherever they stand.
static int read_settings(int argc, char **argv, struct config *config, bool *ret_check_only, int *ret_rest, struct err *err)
{
    static const struct option longs[] = {
        {"config", required_argument, NULL, 'c'}, {"set", required_argument, NULL, 's'},
        {"check-config", no_argument, NULL, 'C'}, {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    const char *file = NULL;
    *ret_check_only = false;
    for (int o; (o = getopt_long(argc, argv, "+", longs, NULL)) != -1;) {
        if (o == 'c')
            file = optarg;
        else if (o == 'C')
            *ret_check_only = true;
        else if (o == 'V')
            printf("sandbox-broker %s\n", BROKER_VERSION), exit(EXIT_SUCCESS);
        else if (o == 'h')
            print_help(), exit(EXIT_SUCCESS);
        else if (o != 's')
            exit(EXIT_USAGE);
    }
    *ret_rest = optind;
    if (optind < argc && strcmp(argv[optind], "check-route") != 0)
        return err_set(err, -EINVAL, "unexpected argument \"%.100s\"; try --help", argv[optind]);
    int r = file != NULL ? config_load(config, file, err) : 0;
    if (r == 0)
        r = config_environment(config, err);
    optind = 1;
    for (int o; r == 0 && (o = getopt_long(argc, argv, "+", longs, NULL)) != -1;)
        if (o == 's')
            r = config_set(config, optarg, err);
    return r;
}

// ---- the files that are read again ----

// A file whose folder stays open: a reload opens the file in it by name.
struct reread {
    int dir;  // -1: no file
    char name[CONFIG_PATH_MAX + 1];
};

struct files {
    struct reread credentials, grants;
    int guard_certificate, guard_key;  // their folders, which stay readable; -1: there is no guard
    struct broker *broker;
};

static int open_folder(const char *setting, struct reread *file, struct err *err)
{
    char path[CONFIG_PATH_MAX + 1], name[CONFIG_PATH_MAX + 1];
    if (setting[0] == '\0')
        return 0;
    strcpy(path, setting);
    strcpy(name, setting);
    strcpy(file->name, basename(name));
    file->dir = open(dirname(path), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (file->dir < 0)
        return err_set(err, -errno, "the folder of \"%.200s\" cannot be opened: %s", setting, strerror(errno));
    return 0;
}

// Where the file is that the setting leads to: what renews certificates often leaves links.
static int open_real_folder(const char *setting, int *ret_fd, struct err *err)
{
    cleanup_free char *path = realpath(setting, NULL);
    *ret_fd = path != NULL ? open(dirname(path), O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (path != NULL && *ret_fd < 0)
        return err_set(err, -errno, "the folder of \"%.200s\" cannot be opened: %s", setting, strerror(errno));
    return 0;  // one that is not there is complained of when it is read
}

static int open_folders(const struct config *config, struct files *files, struct err *err)
{
    int r = open_folder(config->credentials, &files->credentials, err);
    if (r == 0)
        r = open_folder(config->grants, &files->grants, err);
    if (r == 0 && config->guard_listen[0] != '\0')
        r = open_real_folder(config->guard_certificate, &files->guard_certificate, err);
    if (r == 0 && config->guard_listen[0] != '\0')
        r = open_real_folder(config->guard_key, &files->guard_key, err);
    return r;
}

static void close_folders(struct files *files)
{
    close_fd(&files->credentials.dir);
    close_fd(&files->grants.dir);
    close_fd(&files->guard_certificate);
    close_fd(&files->guard_key);
}

static int read_credentials(const struct reread *file, struct credentials **ret, struct err *err)
{
    if (file->dir < 0)
        return credentials_none(ret) < 0 ? err_set(err, -ENOMEM, "no memory") : 0;
    return credentials_read(file->dir, file->name, ret, err);
}

static int read_grants(const struct reread *file, struct grants **ret, struct err *err)
{
    if (file->dir < 0)
        return grants_none(ret) < 0 ? err_set(err, -ENOMEM, "no memory") : 0;
    return grants_read(file->dir, file->name, ret, err);
}

// Both, or neither.
static int read_files(const struct files *files, struct credentials **ret_credentials, struct grants **ret_grants,
                      struct err *err)
{
    struct credentials *credentials;
    int r = read_credentials(&files->credentials, &credentials, err);
    if (r < 0)
        return r;
    r = read_grants(&files->grants, ret_grants, err);
    if (r < 0)
        credentials_unref(credentials);
    else
        *ret_credentials = credentials;
    return r;
}

// Whoever is authenticated may use such a profile; that should not be so by accident.
static void warn_open_profiles(const struct grants *g)
{
    for (unsigned i = 0; i < grants_count(g); i++)
        if (grants_at(g, i)->any_caller)
            log_warn("profile_for_everybody", log_str("profile", grants_at(g, i)->name));
}

// Requests and grants under way keep what they began with; what is idle is not used again with another (pool.h).
static void on_reload(evutil_socket_t signal, short what, void *arg)
{
    struct files *files = arg;
    struct broker *b = files->broker;
    struct credentials *credentials;
    struct grants *grants;
    SSL_CTX *guard = NULL;
    struct err err;
    (void)signal;
    (void)what;
    if ((b->guard != NULL && guard_read_tls(&b->config, &guard, &err) < 0) ||
        read_files(files, &credentials, &grants, &err) < 0) {
        SSL_CTX_free(guard);
        b->metrics.reloads_failed++;
        log_error("reload_failed", log_str("error", err.text), log_str("kept", "what was read before"));
        return;
    }
    credentials_unref(b->credentials);
    grants_unref(b->grants);
    b->credentials = credentials;
    b->grants = grants;
    if (b->guard != NULL)
        guard_use(b->guard, guard);
    b->metrics.reloads++;
    log_info("reloaded", log_u64("credentials", credentials_count(credentials)), log_u64("profiles", grants_count(grants)));
    warn_open_profiles(grants);
    grants_overtaken(b);
}

static void on_stop(evutil_socket_t signal, short what, void *arg)
{
    (void)signal;
    (void)what;
    event_base_loopbreak(arg);
}

// ---- life ----

struct parts {
    struct control *control;
    struct metrics_server *metrics;
    struct event *reload, *term, *interrupt;
};

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static struct event *add_signal(struct broker *b, int number, event_callback_fn fn, void *arg)
{
    struct event *e = evsignal_new(b->base, number, fn, arg);
    if (e != NULL)
        evsignal_add(e, NULL);
    return e;
}

static int start(struct broker *b, struct files *files, struct parts *parts, struct err *err)
{
    b->base = event_base_new();
    b->sandboxes = calloc(1, sizeof *b->sandboxes);
    b->grant_list = calloc(1, sizeof *b->grant_list);
    b->api_lines = calloc(1, sizeof *b->api_lines);
    if (b->base == NULL || b->sandboxes == NULL || b->grant_list == NULL || b->api_lines == NULL || pool_new(b, &b->pool) < 0 ||
        grant_metrics_new(&b->grant_metrics) < 0)
        return err_set(err, -ENOMEM, "no memory");
    int r = tls_client_context(b->config.ca_file, &b->tls, err);
    if (r == 0)
        r = lookups_new(b, &b->lookups, err);
    if (r == 0)
        r = control_new(b, &parts->control, err);
    if (r == 0 && b->config.guard_listen[0] != '\0')
        r = guard_new(b, &b->guard, err);
    if (r == 0 && b->config.metrics_socket[0] != '\0')
        r = metrics_server_new(b, &parts->metrics, err);
    if (r < 0)
        return r;
    parts->reload = add_signal(b, SIGHUP, on_reload, files);
    parts->term = add_signal(b, SIGTERM, on_stop, b->base);
    parts->interrupt = add_signal(b, SIGINT, on_stop, b->base);
    return 0;
}

static void stop(struct broker *b, struct parts *parts)
{
    control_free(parts->control);
    b->guard = guard_free(b->guard);
    metrics_server_free(parts->metrics);
    struct event *signals[] = {parts->reload, parts->term, parts->interrupt};
    for (size_t i = 0; i < 3; i++)
        if (signals[i] != NULL)
            event_free(signals[i]);
    b->pool = pool_free(b->pool);
    b->lookups = lookups_free(b->lookups);
    SSL_CTX_free(b->tls);
    b->credentials = credentials_unref(b->credentials);
    b->grants = grants_unref(b->grants);
    b->grant_metrics = grant_metrics_free(b->grant_metrics);
    free(b->grant_list);
    free(b->api_lines);
    free(b->sandboxes);
    if (b->base != NULL) {
        // Callbacks that were put off hold on to what was freed above; each lets go of it in its turn.
        for (int i = 0; i < STOP_TURNS; i++)
            event_base_loop(b->base, EVLOOP_NONBLOCK);
        event_base_free(b->base);
    }
    libevent_global_shutdown();
}

static int serve(struct broker *b, const struct files *files, struct err *err)
{
    struct confined confined = {0};
    const int folders[CONFINE_FOLDERS] = {files->credentials.dir, files->grants.dir, files->guard_certificate,
                                          files->guard_key};
    int r = confine(folders, &confined);
    if (r < 0)
        return err_set(err, r, "it cannot be confined: %s", strerror(-r));
    log_info("started", log_str("version", BROKER_VERSION), log_u64("credentials", credentials_count(b->credentials)),
             log_u64("profiles", grants_count(b->grants)), log_bool("landlock", confined.landlock),
             log_bool("filter", confined.filter), log_bool("allow_private_upstream", b->config.allow_private_upstream != 0));
    warn_open_profiles(b->grants);
    notify_state("READY=1");
    event_base_dispatch(b->base);
    notify_state("STOPPING=1");
    return 0;
}

static int complain(const struct err *err)
{
    fprintf(stderr, "sandbox-broker: %s\n", err->text);
    return EXIT_CONFIG;
}

// Needs the profiles and nothing else.
static int run_check_route(const struct config *config, int argc, char **argv)
{
    struct reread file = {.dir = -1};
    struct grants *grants = NULL;
    struct err err;
    if (open_folder(config->grants, &file, &err) < 0 || read_grants(&file, &grants, &err) < 0)
        return complain(&err);
    int r = check_route(grants, argc, argv);
    grants_unref(grants);
    close_fd(&file.dir);
    return r;
}

int main(int argc, char **argv)
{
    static struct broker broker;
    struct files files = {.credentials.dir = -1, .grants.dir = -1, .guard_certificate = -1, .guard_key = -1, .broker = &broker};
    struct parts parts = {0};
    struct err err;
    bool check_only = false;
    int rest = argc;
    config_init(&broker.config);
    if (read_settings(argc, argv, &broker.config, &check_only, &rest, &err) < 0)
        return complain(&err);
    if (rest < argc)
        return run_check_route(&broker.config, argc - rest - 1, argv + rest + 1);
    if (open_folders(&broker.config, &files, &err) < 0 || read_files(&files, &broker.credentials, &broker.grants, &err) < 0)
        return complain(&err);
    if (check_only) {
        credentials_unref(broker.credentials);
        grants_unref(broker.grants);
        return EXIT_SUCCESS;
    }
    if (geteuid() == 0 || getuid() == 0) {
        fprintf(stderr, "sandbox-broker: it must not run as root; give it a user of its own\n");
        return EXIT_USAGE;
    }
    enum log_level level = LOG_LEVEL_INFO;
    log_level_parse(broker.config.log_level, &level);
    log_init("sandbox-broker", level);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    int r = start(&broker, &files, &parts, &err);
    if (r == 0)
        r = serve(&broker, &files, &err);
    if (r < 0)
        fprintf(stderr, "sandbox-broker: %s\n", err.text);
    else
        log_info("stopped");
    stop(&broker, &parts);
    close_folders(&files);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
