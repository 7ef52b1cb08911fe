// sandbox-cli snapshot: take one of a sandbox that scripts have set up, list, inspect, delete.
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

static const char help[] =
    "Usage: sandbox-cli snapshot create --template NAME [OPTION]... [--exec SCRIPT]...\n"
    "       sandbox-cli snapshot list [--socket PATH]\n"
    "       sandbox-cli snapshot inspect ID [--socket PATH]\n"
    "       sandbox-cli snapshot delete ID [--socket PATH]\n"
    "\n"
    "A snapshot is a sandbox as it was at one moment; sandbox-cli fork makes sandboxes that begin there.  It stays until it "
    "is\n"
    "deleted, and belongs to the user who took it.  \"memory\":false in what is printed: it holds the files and no process;\n"
    "true: its processes, too.\n"
    "\n"
    "create makes a sandbox, runs the scripts in it, takes the snapshot, destroys the sandbox, and prints a line\n"
    "{\"event\":\"snapshot\",\"id\":\"snp_...\",...}.  If a script fails, no snapshot is taken.  Its options are those of\n"
    "sandbox-cli run.  What a --session-key keeps is not part of a snapshot.\n"
    "list and inspect print one JSON object a line.\n"
    "\n"
    "  --socket PATH  the engine's socket (default $SANDBOX_SOCKET, else " SANDBOX_DEFAULT_SOCKET ")\n"
    "  --help         this text\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli snapshot create --template debian --exec 'mkdir /data; date > /data/made'\n"
    "  sandbox-cli fork snp_0123456789abc --count 3 --exec 'cat /data/made'\n"
    "  sandbox-cli snapshot delete snp_0123456789abc\n"
    "\n"
    "Exit codes: 0; create: the first exit code of a script that is not 0; 1 when a call failed, 2 usage, 130 or 143 when\n"
    "SIGINT or SIGTERM came during create.\n";

// ---- create ----

static int set_up(const struct command *command, const struct run_options *o, const struct input *in, sandbox_handle_t *sandbox)
{
    int status = run_scripts(command, sandbox, o, in, NULL);
    if (status != CLI_OK || watch_signal() != 0 || output_error() != 0)
        return status;
    sandbox_snapshot_t snapshot;
    if (sandbox_snapshot_create(sandbox, &snapshot) != SANDBOX_OK)
        return watch_signal() != 0 ? CLI_FAILED : api_error(command, "no snapshot");
    line_snapshot(&snapshot, true);
    return CLI_OK;
}

static int create_in(const struct command *command, const struct run_options *o, const struct input *in)
{
    if (sandbox_init(socket_or_default(o->socket)) != SANDBOX_OK)
        return api_error(command, "no engine");
    watch_mode(WATCH_CLEANUP);
    sandbox_handle_t *sandbox = NULL;
    if (sandbox_create(&o->spec, &sandbox) != SANDBOX_OK)
        return watch_signal() != 0 ? CLI_FAILED : api_error(command, "no sandbox");
    int status = set_up(command, o, in, sandbox);
    if (sandbox_destroy(sandbox) != SANDBOX_OK && status == CLI_OK)
        status = api_error(command, "destroying the sandbox");
    sandbox_cleanup();
    return status;
}

static int create(const struct command *command, int argc, char **argv)
{
    static struct run_options o;
    static struct input in;
    int r = parse_run_options(command, argc, argv, &o);
    if (r != CLI_OK)
        return r == CLI_USAGE ? CLI_USAGE : CLI_OK;
    signal(SIGPIPE, SIG_IGN);
    if (watch_start() < 0 || (o.pass_stdin && read_stdin(command, &in) != CLI_OK))
        return CLI_FAILED;
    int status = create_in(command, &o, &in);
    int signal_came = watch_signal();
    if (signal_came != 0) {
        watch_wait(UINT_MAX);
        return CLI_SIGNAL_BASE + signal_came;
    }
    if (output_error() != 0) {
        fprintf(stderr, "sandbox-cli %s: standard output cannot be written: %s\n", command->name, strerror(output_error()));
        return CLI_FAILED;
    }
    return status;
}

// ---- the others ----

// The socket, and one id where `wants_id`.  CLI_OK, CLI_USAGE after a complaint, or -1: --help was answered.
static int parse(const struct command *command, int argc, char **argv, bool wants_id, const char **ret_socket,
                 const char **ret_id)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option != 's')
            return option == 'h' ? -1 : CLI_USAGE;
        *ret_socket = optarg;
    }
    if (wants_id && optind == argc)
        return usage_error(command, "the id of a snapshot is needed; sandbox-cli snapshot list shows which there are");
    if (wants_id)
        *ret_id = argv[optind++];
    return no_arguments(command, argc, argv);
}

static int list_all(const struct command *command)
{
    sandbox_snapshot_t *list = NULL;
    size_t count = 0;
    if (sandbox_snapshot_list(NULL, &list, &count) != SANDBOX_OK)
        return api_error(command, "no list");
    for (size_t i = 0; i < count; i++)
        line_snapshot(&list[i], false);
    free(list);
    return CLI_OK;
}

static int inspect_one(const struct command *command, const char *id)
{
    sandbox_snapshot_t snapshot;
    if (sandbox_snapshot_inspect(NULL, id, &snapshot) != SANDBOX_OK)
        return api_error(command, id);
    line_snapshot(&snapshot, false);
    return CLI_OK;
}

static int delete_one(const struct command *command, const char *id)
{
    return sandbox_snapshot_delete(NULL, id) == SANDBOX_OK ? CLI_OK : api_error(command, id);
}

static int snapshot(const struct command *command, int argc, char **argv)
{
    if (argc < 2)
        return usage_error(command, "what to do is missing: create, list, inspect or delete");
    const char *what = argv[1], *socket = NULL, *id = NULL;
    if (strcmp(what, "create") == 0)
        return create(command, argc - 1, argv + 1);
    bool list = strcmp(what, "list") == 0, inspect = strcmp(what, "inspect") == 0, gone = strcmp(what, "delete") == 0;
    bool help_only = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    if (!list && !inspect && !gone && !help_only)
        return usage_error(command, "there is no '%s': it is create, list, inspect or delete", what);
    int shift = help_only ? 0 : 1;
    int r = parse(command, argc - shift, argv + shift, inspect || gone, &socket, &id);
    if (r != CLI_OK)
        return r == CLI_USAGE ? CLI_USAGE : CLI_OK;
    if (sandbox_init(socket_or_default(socket)) != SANDBOX_OK)
        return api_error(command, "no engine");
    int status = list ? list_all(command) : inspect ? inspect_one(command, id) : delete_one(command, id);
    sandbox_cleanup();
    return status;
}

const struct command snapshot_command = {"snapshot", "keep sandboxes as they are: create, list, inspect, delete", help,
                                         snapshot};
