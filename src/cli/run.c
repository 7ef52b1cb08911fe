// sandbox-cli run: one sandbox, from its creation to its end.
//
// The main thread makes the calls; a thread takes SIGINT and SIGTERM (watch.h).  A sandbox dies with its connection, so
// whatever way this program ends, nothing is left behind.
#include "cli.h"
#include "lines.h"
#include "live.h"
#include "run_options.h"
#include "scripts.h"
#include "watch.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// How often a held sandbox is looked at, to notice an engine that went away.
enum { HOLD_LOOK_MS = 1000 };

static const char help[] =
    "Usage: sandbox-cli run --template NAME [OPTION]... [--exec SCRIPT]...\n"
    "\n"
    "Makes one sandbox.  Without --exec it prints {\"event\":\"created\",...} and holds the sandbox until SIGINT or SIGTERM,\n"
    "then destroys it.  With --exec it runs each script with sh -c, one after the other, also when one fails; prints what\n"
    "they write to stdout and stderr, and after each a line {\"event\":\"exec\",\"index\":0,\"exit_code\":N,...}; then "
    "destroys\n"
    "the sandbox.  A newline is added to a script's stdout if it does not end with one, so each JSON object has its line.\n"
    "\n"
    "  --template NAME        what to start from: a template or an alias (sandbox-cli template list)\n"
    "  --exec SCRIPT          run this; up to 16 times\n"
    "  --tty                  give each script a terminal that stands for this one: keys, size and all\n"
    "  --stdin                give this command's standard input (at most 64 KiB) to the first script\n"
    "  --timeout MS           kill a script, and all it started, after this long (default and most: one hour)\n"
    "  --env NAME=VALUE       a variable for the scripts; may be given again\n"
    "  --memory MIB           memory limit (default 512)\n"
    "  --vcpus N              processors (default 1)\n"
    "  --disk MIB             size of the writable disk (default: the engine's)\n"
    "  --min-isolation TIER   process, container, kernel or vm: fail rather than run behind a weaker wall\n"
    "  --session-key KEY      keep /workspace under this name across runs\n"
    "  --egress HOST[:PORT]   the sandbox may reach this host, through the broker; up to 16 times; *.example.org matches\n"
    "                         subdomains.  Proxy variables are set in it\n"
    "  --grant PROFILE        the scripts may call the routes of this profile, through $HOST_API_SOCKET, until the last\n"
    "                         has ended; what they called is the line {\"event\":\"grant\",...}\n"
    "  --no-egress            it may reach nothing; without either, the engine's policy applies\n"
    "  --wait MS              how long to wait for a sandbox if none is free (default 5000)\n"
    "  --socket PATH          the engine's socket (default $SANDBOX_SOCKET, else " SANDBOX_DEFAULT_SOCKET ")\n"
    "  --help                 this text\n"
    "\n"
    "In the created line, start is \"pool\" for a sandbox that was kept warm, \"cold\" for one that was started for this run;\n"
    "network is there where the sandbox may reach anything: the entries of its policy (egress), and its addresses.\n"
    "In the exec line, exit_code is what the script adds to this program's exit code: its own, 128 + N when signal N ended\n"
    "it (term_signal is N then), 124 when --timeout did.  Output is printed as the script writes it, all of it;\n"
    "stdout_bytes and stderr_bytes say how much there was.\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli run --template debian --exec 'python3 -c \"print(6 * 7)\"'\n"
    "  sandbox-cli run --template debian --no-egress --timeout 5000 --stdin --exec 'cat > job.sh; sh job.sh' < job.sh\n"
    "  sandbox-cli run --template debian --tty --exec bash\n"
    "\n"
    "Exit codes: with --exec the first exit_code that is not 0; else 0.  1 when the sandbox could not be made or a call\n"
    "failed, 2 usage, 130 or 143 when SIGINT or SIGTERM came during --exec, or before the sandbox was there.\n";

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// Until a signal comes, or the sandbox can no longer be seen.
static int hold(const struct command *command, sandbox_handle_t *sandbox)
{
    watch_mode(WATCH_NOTE);
    while (watch_wait(HOLD_LOOK_MS) == 0) {
        sandbox_status_t status;
        if (sandbox_inspect(sandbox, &status) != SANDBOX_OK)
            return api_error(command, "the sandbox is gone");
    }
    return CLI_OK;
}

// What the sandbox's grant was used for; it ends with this.
static void show_grant(sandbox_handle_t *sandbox)
{
    sandbox_grant_trace_t *trace = NULL;
    if (sandbox_grant_id(sandbox) == 0 || output_error() != 0 ||
        sandbox_grant_trace(sandbox, sandbox_grant_id(sandbox), &trace) != SANDBOX_OK)
        return;
    line_grant(trace);
    sandbox_grant_trace_free(trace);
}

static int use(const struct command *command, const struct run_options *o, sandbox_handle_t *sandbox, const struct input *in)
{
    double since = now_ms();
    uint32_t id = sandbox_id(sandbox);
    int status = CLI_OK;
    if (output_error() == 0)
        status = o->n_exec > 0 ? run_scripts(command, sandbox, o, in, NULL) : hold(command, sandbox);
    if (status == CLI_OK || o->n_exec > 0)
        show_grant(sandbox);
    bool destroyed = sandbox_destroy(sandbox) == SANDBOX_OK;
    if (!destroyed && status == CLI_OK)
        status = api_error(command, "destroying the sandbox");
    if (o->n_exec == 0 && destroyed)
        line_destroyed(id, now_ms() - since);
    return status;
}

static int create_and_use(const struct command *command, const struct run_options *o, const struct input *in)
{
    if (sandbox_init(socket_or_default(o->socket)) != SANDBOX_OK)
        return api_error(command, "no engine");
    watch_mode(WATCH_CLEANUP);
    double before = now_ms();
    sandbox_handle_t *sandbox = NULL;
    if (sandbox_create(&o->spec, &sandbox) != SANDBOX_OK)
        return watch_signal() != 0 ? CLI_FAILED : api_error(command, "no sandbox");
    line_created(sandbox, o->spec.template_name, now_ms() - before);
    int status = use(command, o, sandbox, in);
    sandbox_cleanup();
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    static struct run_options o;
    static struct input in;
    int r = parse_run_options(command, argc, argv, &o);
    if (r != CLI_OK)
        return r == CLI_USAGE ? CLI_USAGE : CLI_OK;
    // A reader that went away shows as a failed write, after which the sandbox is destroyed.
    signal(SIGPIPE, SIG_IGN);
    if (o.terminal)
        live_prepare();
    if (watch_start() < 0 || (o.pass_stdin && read_stdin(command, &in) != CLI_OK))
        return CLI_FAILED;
    int status = create_and_use(command, &o, &in);
    int signal_came = watch_signal();
    if (signal_came != 0)
        watch_wait(UINT_MAX);
    // A held sandbox is meant to be ended by a signal.
    if (signal_came != 0 && (o.n_exec > 0 || status != CLI_OK))
        return CLI_SIGNAL_BASE + signal_came;
    if (output_error() != 0) {
        fprintf(stderr, "sandbox-cli %s: standard output cannot be written: %s\n", command->name, strerror(output_error()));
        return CLI_FAILED;
    }
    return status;
}

const struct command run_command = {"run", "make a sandbox and run scripts in it, or hold it", help, run};
