#include "scripts.h"

#include "lines.h"
#include "live.h"
#include "watch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int read_stdin(const struct command *command, struct input *in)
{
    while (in->len < sizeof in->bytes) {
        ssize_t n = read(STDIN_FILENO, in->bytes + in->len, sizeof in->bytes - in->len);
        if (n == 0)
            return CLI_OK;
        if (n < 0 && errno != EINTR) {
            fprintf(stderr, "sandbox-cli %s: reading standard input: %s\n", command->name, strerror(errno));
            return CLI_FAILED;
        }
        in->len += n > 0 ? (size_t)n : 0;
    }
    fprintf(stderr, "sandbox-cli %s: standard input has more than %u bytes, the most a script can be given\n", command->name,
            SANDBOX_MAX_STDIN);
    return CLI_FAILED;
}

// What a script adds to the exit status.
static int status_of(const sandbox_exec_result_t *r)
{
    if (r->timed_out)
        return CLI_TIMED_OUT;
    return r->term_signal != 0 ? CLI_SIGNAL_BASE + r->term_signal : r->exit_code;
}

static int exec_one(const struct command *command, sandbox_handle_t *sandbox, const struct run_options *o, unsigned index,
                    const struct input *in, const char *const *env)
{
    sandbox_exec_spec_t spec = {.command = o->exec[index], .timeout_ms = o->timeout_ms, .env = env};
    if (index == 0 && in->len > 0) {
        spec.stdin_data = in->bytes;
        spec.stdin_len = in->len;
    }
    sandbox_exec_result_t result = {0};
    if (live_exec(sandbox, &spec, o->terminal, &result) != SANDBOX_OK) {
        char what[64];
        snprintf(what, sizeof what, "script %u", index);
        return watch_signal() != 0 ? CLI_FAILED : api_error(command, what);
    }
    int status = status_of(&result);
    line_exec(index, status, &result);
    sandbox_exec_result_free(&result);
    return status;
}

int run_scripts(const struct command *command, sandbox_handle_t *sandbox, const struct run_options *o, const struct input *in,
                const char *const *env)
{
    int first = CLI_OK;
    for (unsigned i = 0; i < o->n_exec && output_error() == 0 && watch_signal() == 0; i++) {
        int status = exec_one(command, sandbox, o, i, in, env);
        if (first == CLI_OK)
            first = status;
    }
    return first;
}
