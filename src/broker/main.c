// sandbox-broker: the one way out of sandboxes.
#include "base/cleanup.h"
#include "base/log.h"
#include "broker/broker.h"
#include "broker/confine.h"
#include "broker/control.h"
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

enum { EXIT_USAGE = 2 };

static void print_help(void)
{
    printf("Usage: sandbox-broker [--config FILE] [--set KEY=VALUE]...\n"
           "\n"
           "Relays what sandboxes send out: to the hosts of their policies, with the credentials on file.\n"
           "\n"
           "  --config FILE     read settings from the section [broker] of FILE\n"
           "  --set KEY=VALUE   one setting; wins over the file and the environment; may be given again\n"
           "  --check-config    check settings and credentials and exit: 0 when they are good, %d with a sentence when not\n"
           "  --version         print the version and exit\n"
           "  --help            print this and exit\n"
           "\n"
           "SIGHUP: read the credentials again.  SIGTERM, SIGINT: stop.\n"
           "\n"
           "Settings, also as variables SANDBOX_BROKER_ and the name in capitals:\n",
           EXIT_CONFIG);
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
    *ret_check_only = false;
    for (int o; (o = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
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
    if (optind < argc)
        return err_set(err, -EINVAL, "unexpected argument \"%.100s\"; try --help", argv[optind]);
    int r = file != NULL ? config_load(config, file, err) : 0;
    if (r == 0)
        r = config_environment(config, err);
    optind = 1;
    for (int o; r == 0 && (o = getopt_long(argc, argv, "", longs, NULL)) != -1;)
        if (o == 's')
            r = config_set(config, optarg, err);
    return r;
}

// ---- credentials ----

// The file's folder stays open: a reload opens the file in it by name.
struct files {
    int dir;  // -1: no file
    char name[CONFIG_PATH_MAX + 1];
    struct broker *broker;
};

static int open_folder(const struct config *config, struct files *files, struct err *err)
{
    char path[CONFIG_PATH_MAX + 1], name[CONFIG_PATH_MAX + 1];
    files->dir = -1;
    if (config->credentials[0] == '\0')
        return 0;
    strcpy(path, config->credentials);
    strcpy(name, config->credentials);
    strcpy(files->name, basename(name));
    files->dir = open(dirname(path), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (files->dir < 0)
        return err_set(err, -errno, "the folder of \"%.200s\" cannot be opened: %s", config->credentials, strerror(errno));
    return 0;
}

static int read_credentials(const struct files *files, struct credentials **ret, struct err *err)
{
    if (files->dir < 0)
        return credentials_none(ret) < 0 ? err_set(err, -ENOMEM, "no memory") : 0;
    return credentials_read(files->dir, files->name, ret, err);
}

// Requests under way keep what they began with; what is idle is not used again with another (pool.h).
static void on_reload(evutil_socket_t signal, short what, void *arg)
{
    struct files *files = arg;
    struct broker *b = files->broker;
    struct credentials *new;
    struct err err;
    (void)signal;
    (void)what;
    if (read_credentials(files, &new, &err) < 0) {
        b->metrics.reloads_failed++;
        log_error("reload_failed", log_str("error", err.text), log_str("kept", "the credentials that were read before"));
        return;
    }
    credentials_unref(b->credentials);
    b->credentials = new;
    b->metrics.reloads++;
    log_info("reloaded", log_u64("credentials", credentials_count(new)));
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
    if (b->base == NULL || b->sandboxes == NULL || pool_new(b, &b->pool) < 0)
        return err_set(err, -ENOMEM, "no memory");
    int r = tls_client_context(b->config.ca_file, &b->tls, err);
    if (r == 0)
        r = lookups_new(b, &b->lookups, err);
    if (r == 0)
        r = control_new(b, &parts->control, err);
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
    metrics_server_free(parts->metrics);
    struct event *signals[] = {parts->reload, parts->term, parts->interrupt};
    for (size_t i = 0; i < 3; i++)
        if (signals[i] != NULL)
            event_free(signals[i]);
    b->pool = pool_free(b->pool);
    b->lookups = lookups_free(b->lookups);
    SSL_CTX_free(b->tls);
    b->credentials = credentials_unref(b->credentials);
    free(b->sandboxes);
    if (b->base != NULL)
        event_base_free(b->base);
    libevent_global_shutdown();
}

static int serve(struct broker *b, const struct files *files, struct err *err)
{
    struct confined confined = {0};
    int r = confine(files->dir, &confined);
    if (r < 0)
        return err_set(err, r, "it cannot be confined: %s", strerror(-r));
    log_info("started", log_str("version", BROKER_VERSION), log_u64("credentials", credentials_count(b->credentials)),
             log_bool("landlock", confined.landlock), log_bool("filter", confined.filter),
             log_bool("allow_private_upstream", b->config.allow_private_upstream != 0));
    notify_state("READY=1");
    event_base_dispatch(b->base);
    notify_state("STOPPING=1");
    return 0;
}

int main(int argc, char **argv)
{
    static struct broker broker;
    struct files files = {.dir = -1, .broker = &broker};
    struct parts parts = {0};
    struct err err;
    bool check_only = false;
    config_init(&broker.config);
    if (read_settings(argc, argv, &broker.config, &check_only, &err) < 0 || open_folder(&broker.config, &files, &err) < 0 ||
        read_credentials(&files, &broker.credentials, &err) < 0) {
        fprintf(stderr, "sandbox-broker: %s\n", err.text);
        return EXIT_CONFIG;
    }
    if (check_only) {
        credentials_unref(broker.credentials);
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
    close_fd(&files.dir);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
