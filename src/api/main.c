// sandbox-api: the program.
#include "api/api.h"
#include "api/engine_link.h"
#include "api/listeners.h"
#include "api/metrics.h"
#include "api/replay.h"
#include "api/route.h"
#include "api/session.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/standard_fds.h"
#include "sys/notify.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    DRAIN_LOOK_US = 20000,
    DRAIN_LAST_S = 2,  // behind drain_ms, for the last answers to be taken
    STOP_MOST_S = 5,   // behind that, for threads to come back from an engine that does not answer
};
#define DEFAULT_TOKENS "/etc/sandbox-engine/api-tokens.conf"

static void print_help(void)
{
    printf("Usage: sandbox-api [--socket PATH] [--listen HOST:PORT] [--tokens FILE] [--engine PATH] [OPTION]...\n"
           "       sandbox-api new-token NAME [--tokens FILE]\n"
           "       sandbox-api token list [--tokens FILE]\n"
           "       sandbox-api token revoke NAME [--tokens FILE]\n"
           "\n"
           "Serves the engine over HTTP.\n"
           "\n"
           "  --config FILE     read settings from the sections [api] and [listener.NAME] of FILE\n"
           "  --set KEY=VALUE   one setting; wins over the file; may be given again\n"
           "  --check-config    check the settings and exit: 0 when they are good, %d with a sentence when not\n"
           "  --version         print the version and exit\n"
           "  --help            print this and exit\n"
           "\n"
           "SIGTERM, SIGINT: end what runs, then stop; a second one: stop at once.\n"
           "\n"
           "Settings; --socket, --listen, --tokens, --idle, --max-running, --max-connections, --max-sessions,\n"
           "--allow-public-bind, --engine, --tls-cert, --tls-key and --log-level are some of them:\n",
           EXIT_CONFIG);
    options_print(stdout);
}

// ---- the command line ----

static const struct option longs[] = {
    {"engine", required_argument, NULL, 'f'},
    {"socket", required_argument, NULL, 'f'},
    {"listen", required_argument, NULL, 'f'},
    {"tokens", required_argument, NULL, 'f'},
    {"idle", required_argument, NULL, 'f'},
    {"max-running", required_argument, NULL, 'f'},
    {"max-connections", required_argument, NULL, 'f'},
    {"max-sessions", required_argument, NULL, 'f'},
    {"keepalive", required_argument, NULL, 'f'},
    {"allow-public-bind", no_argument, NULL, 'f'},
    {"tls-cert", required_argument, NULL, 'f'},
    {"tls-key", required_argument, NULL, 'f'},
    {"log-level", required_argument, NULL, 'f'},
    {"config", required_argument, NULL, 'c'},
    {"set", required_argument, NULL, 's'},
    {"check-config", no_argument, NULL, 'C'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

// The file first, wherever it stands; then the rest in order.
static int read_settings(int argc, char **argv, struct options *o, bool *ret_check_only, struct err *err)
{
    int r = 0, index = 0;
    for (int c; r == 0 && (c = getopt_long(argc, argv, "", longs, &index)) != -1;) {
        if (c == 'c')
            r = options_load(o, optarg, err);
        else if (c == 'C')
            *ret_check_only = true;
        else if (c == 'V')
            printf("sandbox-api %s\n", API_VERSION), exit(EXIT_SUCCESS);
        else if (c == 'h')
            print_help(), exit(EXIT_SUCCESS);
        else if (c != 's' && c != 'f')
            exit(EXIT_USAGE);
    }
    optind = 1;
    for (int c; r == 0 && (c = getopt_long(argc, argv, "", longs, &index)) != -1;) {
        if (c == 's')
            r = options_set(o, optarg, err);
        else if (c == 'f')
            r = options_flag(o, longs[index].name, optarg, err);
    }
    return r;
}

static int usage(const char *what)
{
    fprintf(stderr, "sandbox-api: %s; try --help\n", what);
    return EXIT_USAGE;
}

// What stands before the options.  -1: nothing does, and it is to serve.
static int run_command(int argc, char **argv, const struct options *o, struct err *err)
{
    char **words = argv + optind;
    int n = argc - optind, r;
    if (n == 0)
        return -1;
    const char *path = o->tokens[0] != '\0' ? o->tokens : DEFAULT_TOKENS;
    if (strcmp(words[0], "new-token") == 0) {
        if (n != 2)
            return usage("new-token wants one NAME");
        r = tokens_command_new(o->tokens, words[1], err);
    } else if (strcmp(words[0], "token") == 0 && n == 2 && strcmp(words[1], "list") == 0) {
        r = tokens_command_list(path, stdout, err);
    } else if (strcmp(words[0], "token") == 0 && n == 3 && strcmp(words[1], "revoke") == 0) {
        r = tokens_command_revoke(path, words[2], err);
    } else {
        return usage(strcmp(words[0], "token") == 0 ? "token wants list, or revoke NAME" : "there is no such command");
    }
    if (r < 0)
        fprintf(stderr, "sandbox-api: %s\n", err->text);
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

// ---- the loop ----

struct parts {
    struct listeners *listeners;
    struct event *term, *interrupt, *done[LANES];
};

static void on_last_over(evutil_socket_t fd, short what, void *arg)
{
    struct api *api = arg;
    (void)fd;
    (void)what;
    event_base_loopbreak(api->base);
}

// What still runs has had its time: who waits for it is told, and has a moment to take that.
static void on_drain_over(evutil_socket_t fd, short what, void *arg)
{
    struct api *api = arg;
    (void)fd;
    (void)what;
    log_info("drain_over", log_u64("connections", http_server_connections(api->server)));
    sessions_end_uses(api->sessions);
    event_base_once(api->base, -1, EV_TIMEOUT, on_last_over, api, &(struct timeval){.tv_sec = DRAIN_LAST_S});
}

static void on_drain_tick(evutil_socket_t fd, short what, void *arg)
{
    struct api *api = arg;
    (void)fd;
    (void)what;
    if (http_server_connections(api->server) == 0)
        event_base_loopbreak(api->base);
}

void api_stop(struct api *api, int exit_code)
{
    if (api->exit_code == 0)
        api->exit_code = exit_code;
    if (api->stopping || exit_code != 0) {
        api->stopping = true;
        event_base_loopbreak(api->base);
        return;
    }
    api->stopping = true;
    notify_state("STOPPING=1");
    log_info("draining", log_u64("connections", http_server_connections(api->server)));
    http_server_drain(api->server);
    event_add(api->drained, &(struct timeval){.tv_usec = DRAIN_LOOK_US});
    const struct timeval all = {.tv_sec = (time_t)(api->options.drain_ms / 1000),
                                .tv_usec = (suseconds_t)(api->options.drain_ms % 1000 * 1000)};
    event_base_once(api->base, -1, EV_TIMEOUT, on_drain_over, api, &all);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    (void)number;
    (void)what;
    api_stop(arg, 0);
}

static void on_done(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    workers_collect(arg);
}

static int start_lanes(struct api *api, struct parts *parts)
{
    static const unsigned threads[LANES] = {[LANE_CALLS] = CALL_THREADS, [LANE_SANDBOXES] = SANDBOX_THREADS};
    for (int i = 0; i < LANES; i++) {
        int r = workers_new(NULL, threads[i], &api->lanes[i]);
        if (r < 0)
            return r;
        parts->done[i] = event_new(api->base, workers_fd(api->lanes[i]), EV_READ | EV_PERSIST, on_done, api->lanes[i]);
        if (parts->done[i] == NULL || event_add(parts->done[i], NULL) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int start(struct api *api, struct parts *parts, struct err *err)
{
    const struct options *o = &api->options;
    const struct http_server_limits limits = {.head_ms = o->head_ms,
                                              .idle_ms = o->keep_ms,
                                              .progress_ms = o->progress_ms,
                                              .max_connections = (unsigned)o->max_connections};
    api->base = event_base_new();
    api->metrics = calloc(1, sizeof *api->metrics);
    if (api->base == NULL || api->metrics == NULL || start_lanes(api, parts) < 0 || replays_new(api, &api->replays) < 0 ||
        sessions_new(api, &api->sessions) < 0 || engine_link_new(api, &api->engine) < 0 ||
        http_server_new(api->base, &limits, &route_handler, api, &api->server) < 0)
        return err_set(err, -ENOMEM, "it cannot start: no memory, or no threads");
    parts->term = evsignal_new(api->base, SIGTERM, on_signal, api);
    parts->interrupt = evsignal_new(api->base, SIGINT, on_signal, api);
    api->drained = event_new(api->base, -1, EV_PERSIST, on_drain_tick, api);
    if (parts->term == NULL || parts->interrupt == NULL || api->drained == NULL)
        return err_set(err, -ENOMEM, "no memory");
    evsignal_add(parts->term, NULL);
    evsignal_add(parts->interrupt, NULL);
    return listeners_open(api, &parts->listeners, err);
}

static void free_event(struct event *e)
{
    if (e != NULL)
        event_free(e);
}

static void stop(struct api *api, struct parts *parts)
{
    api->server = http_server_free(api->server);
    for (int i = 0; i < LANES; i++) {
        free_event(parts->done[i]);
        api->lanes[i] = workers_free(api->lanes[i]);
    }
    api->sessions = sessions_free(api->sessions);
    api->replays = replays_free(api->replays);
    api->engine = engine_link_free(api->engine);
    listeners_free(parts->listeners);
    api->tokens = tokens_free(api->tokens);
    free_event(parts->term);
    free_event(parts->interrupt);
    free_event(api->drained);
    free(api->metrics);
    if (api->base != NULL)
        event_base_free(api->base);
    libevent_global_shutdown();
}

static int forced_exit_code;

static void on_stop_over(int number)
{
    (void)number;
    _exit(forced_exit_code);
}

// Threads may be waiting for an engine that says nothing.  All that is left to do is to free memory and to let go of sandboxes,
// which end with the connections anyway.
static void bound_stop(int exit_code)
{
    forced_exit_code = exit_code;
    signal(SIGALRM, on_stop_over);
    alarm(STOP_MOST_S);
}

static int serve(struct api *api)
{
    struct parts parts = {0};
    struct err err;
    int r = start(api, &parts, &err);
    if (r == 0) {
        log_info("started", log_str("version", API_VERSION), log_str("engine", api->options.engine),
                 log_u64("tokens", api->tokens != NULL ? tokens_count(api->tokens) : 0));
        notify_state("READY=1");
        event_base_dispatch(api->base);
        log_info("stopped", log_i64("exit_code", api->exit_code));
    } else {
        fprintf(stderr, "sandbox-api: %s\n", err.text);
    }
    bound_stop(r < 0 ? EXIT_FAILURE : api->exit_code);
    stop(api, &parts);
    return r < 0 ? EXIT_FAILURE : api->exit_code;
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

// Tokens are needed where a listener asks for them.
static int read_tokens(struct api *api, struct err *err)
{
    bool wanted = false;
    for (unsigned i = 0; i < api->options.n_listeners; i++)
        wanted = wanted || api->options.listeners[i].auth == AUTH_TOKEN;
    if (!wanted && api->options.tokens[0] == '\0')
        return 0;
    int r = tokens_new(api->options.tokens, &api->tokens, err);
    if (r == 0 && wanted && tokens_count(api->tokens) == 0)
        return err_set(err, -EINVAL, "%.200s holds no token, and nobody could call over TCP; sandbox-api new-token makes one",
                       api->options.tokens);
    return r;
}

int main(int argc, char **argv)
{
    static struct api api;
    struct err err;
    bool check_only = false;
    standard_fds_hold();
    options_init(&api.options);
    if (read_settings(argc, argv, &api.options, &check_only, &err) < 0) {
        fprintf(stderr, "sandbox-api: %s\n", err.text);
        return EXIT_CONFIG;
    }
    int command = run_command(argc, argv, &api.options, &err);
    if (command >= 0)
        return command;
    enum log_level level = LOG_LEVEL_INFO;
    int r = options_finish(&api.options, &err);
    if (r == 0 && log_level_parse(api.options.log_level, &level) < 0)
        r = err_set(&err, -EINVAL, "log_level is \"%.60s\"; it must be debug, info, warn or error", api.options.log_level);
    if (r == 0)
        r = read_tokens(&api, &err);
    if (r < 0) {
        fprintf(stderr, "sandbox-api: %s\n", err.text);
        return EXIT_CONFIG;
    }
    if (check_only)
        return EXIT_SUCCESS;
    if (geteuid() == 0 || getuid() == 0)
        return usage("it must not run as root; give it a user of its own");
    log_init("sandbox-api", level);
    signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    return serve(&api);
}
