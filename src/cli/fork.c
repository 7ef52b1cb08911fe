// sandbox-cli fork: sandboxes that begin as a snapshot was, and what is run in each.
#include "cli.h"
#include "lines.h"
#include "run_options.h"
#include "scripts.h"
#include "watch.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT_MAX = 512, TIMEOUT_MAX_MS = 3600 * 1000, HOLD_LOOK_MS = 1000 };

static const char help[] =
    "Usage: sandbox-cli fork SNAPSHOT [--count N] [OPTION]... [--exec SCRIPT]...\n"
    "\n"
    "Makes N sandboxes that begin as the snapshot was: all of them, or none.  Prints {\"event\":\"forked\",...} for each.\n"
    "With --exec it runs the scripts in each, one sandbox after the other; they find the sandbox's number, from 0, in\n"
    "FORK_INDEX.  Without, it holds them until SIGINT or SIGTERM.  Then it destroys them.\n"
    "\"memory\":false in a line: the sandbox has the snapshot's files, and none of its processes; true: what ran in the\n"
    "background goes on in it.\n"
    "\n"
    "  --count N          how many (default 1; the engine allows 64 as shipped)\n"
    "  --exec SCRIPT      run this; up to 16 times\n"
    "  --timeout MS       kill a script, and all it started, after this long (default and most: one hour)\n"
    "  --env NAME=VALUE   a variable, beside or in place of those the snapshot's sandbox had; may be given again\n"
    "  --socket PATH      the engine's socket (default $SANDBOX_SOCKET, else " SANDBOX_DEFAULT_SOCKET ")\n"
    "  --help             this text\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli fork snp_0123456789abc --count 10 --exec 'python3 try.py --seed $FORK_INDEX'\n"
    "\n"
    "Exit codes: with --exec the first exit code of a script that is not 0; else 0.  1 when the forks could not be made or a\n"
    "call failed, 2 usage, 130 or 143 when SIGINT or SIGTERM came during --exec, or before the sandboxes were there.\n";

struct fork_options {
    const char *snapshot;
    uint64_t count;
    struct run_options run;  // exec, timeout_ms, env and socket
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static bool take(const struct command *command, int option, struct fork_options *o)
{
    uint64_t number;
    switch (option) {
    case 'n':
        return parse_number(command, "--count", optarg, 1, COUNT_MAX, &o->count);
    case 'o':
        if (!parse_number(command, "--timeout", optarg, 1, TIMEOUT_MAX_MS, &number))
            return false;
        o->run.timeout_ms = (uint32_t)number;
        return true;
    case 's':
        o->run.socket = optarg;
        return true;
    case 'x':
        if (o->run.n_exec == RUN_EXEC_MAX) {
            usage_error(command, "--exec may be given %d times", RUN_EXEC_MAX);
            return false;
        }
        o->run.exec[o->run.n_exec++] = optarg;
        return true;
    default:
        if (strchr(optarg, '=') == NULL || optarg[0] == '=') {
            usage_error(command, "--env takes NAME=VALUE, not '%s'", optarg);
            return false;
        }
        o->run.env[o->run.n_env++] = optarg;
        return true;
    }
}

// CLI_OK: go on.  CLI_USAGE: complained.  -1: --help was answered.
static int parse(const struct command *command, int argc, char **argv, struct fork_options *o)
{
    static const struct option options[] = {{"count", required_argument, NULL, 'n'},
                                            {"exec", required_argument, NULL, 'x'},
                                            {"timeout", required_argument, NULL, 'o'},
                                            {"env", required_argument, NULL, 'v'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    *o = (struct fork_options){.count = 1};
    o->run.env = calloc((size_t)argc + 1, sizeof *o->run.env);
    if (o->run.env == NULL)
        return CLI_USAGE;
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option == 'h')
            return -1;
        if (option == '?' || !take(command, option, o))
            return CLI_USAGE;
    }
    if (optind == argc)
        return usage_error(command, "the id of a snapshot is needed; sandbox-cli snapshot list shows which there are");
    o->snapshot = argv[optind++];
    if (o->run.n_exec == 0 && o->run.timeout_ms > 0)
        return usage_error(command, "--timeout is for --exec, and there is none");
    return no_arguments(command, argc, argv);
}

static int run_in_all(const struct command *command, const struct fork_options *o, sandbox_handle_t **forks)
{
    static const struct input nothing;
    int first = CLI_OK;
    for (unsigned i = 0; i < o->count && watch_signal() == 0 && output_error() == 0; i++) {
        char variable[32];
        snprintf(variable, sizeof variable, "FORK_INDEX=%u", i);
        const char *const env[] = {variable, NULL};
        int status = run_scripts(command, forks[i], &o->run, &nothing, env);
        if (first == CLI_OK)
            first = status;
    }
    return first;
}

static int hold(const struct command *command, const struct fork_options *o, sandbox_handle_t **forks)
{
    watch_mode(WATCH_NOTE);
    while (watch_wait(HOLD_LOOK_MS) == 0) {
        sandbox_status_t status;
        for (unsigned i = 0; i < o->count; i++)
            if (sandbox_inspect(forks[i], &status) != SANDBOX_OK)
                return api_error(command, "a sandbox is gone");
    }
    return CLI_OK;
}

static int fork_and_use(const struct command *command, const struct fork_options *o, sandbox_handle_t **forks)
{
    if (sandbox_init(socket_or_default(o->run.socket)) != SANDBOX_OK)
        return api_error(command, "no engine");
    watch_mode(WATCH_CLEANUP);
    const sandbox_fork_spec_t spec = {.env_vars = o->run.n_env > 0 ? o->run.env : NULL};
    double before = now_ms();
    if (sandbox_fork(NULL, o->snapshot, &spec, (uint32_t)o->count, forks) != SANDBOX_OK)
        return watch_signal() != 0 ? CLI_FAILED : api_error(command, "no forks");
    double took = now_ms() - before;
    sandbox_details_t details;
    for (unsigned i = 0; i < o->count; i++) {
        if (sandbox_details(forks[i], &details) != SANDBOX_OK)
            return watch_signal() != 0 ? CLI_FAILED : api_error(command, "a sandbox is gone");
        line_forked(forks[i], i, o->snapshot, details.memory, took);
    }
    int status = o->run.n_exec > 0 ? run_in_all(command, o, forks) : hold(command, o, forks);
    for (unsigned i = 0; i < o->count; i++)
        if (sandbox_destroy(forks[i]) != SANDBOX_OK && status == CLI_OK)
            status = api_error(command, "destroying a sandbox");
    sandbox_cleanup();
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    static struct fork_options o;
    static sandbox_handle_t *forks[COUNT_MAX];
    int r = parse(command, argc, argv, &o);
    if (r != CLI_OK)
        return r == CLI_USAGE ? CLI_USAGE : CLI_OK;
    signal(SIGPIPE, SIG_IGN);
    if (watch_start() < 0)
        return CLI_FAILED;
    int status = fork_and_use(command, &o, forks);
    int signal_came = watch_signal();
    if (signal_came != 0)
        watch_wait(UINT_MAX);
    if (signal_came != 0 && (o.run.n_exec > 0 || status != CLI_OK))
        return CLI_SIGNAL_BASE + signal_came;
    if (output_error() != 0) {
        fprintf(stderr, "sandbox-cli %s: standard output cannot be written: %s\n", command->name, strerror(output_error()));
        return CLI_FAILED;
    }
    return status;
}

const struct command fork_command = {"fork", "make sandboxes that begin as a snapshot was", help, run};
