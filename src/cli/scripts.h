// The scripts of --exec, run one after the other in a sandbox, and the input of the first.
#ifndef CLI_SCRIPTS_H
#define CLI_SCRIPTS_H

#include "cli.h"
#include "run_options.h"

struct input {
    size_t len;
    char bytes[SANDBOX_MAX_STDIN + 1];
};

// All of standard input.  CLI_OK or CLI_FAILED, after a complaint.
int read_stdin(const struct command *command, struct input *in);

// Runs all of them, also when one fails, until a signal comes.  `env` (NULL: none) are further variables, as of
// sandbox_exec_spec_t.  The first exit code that is not 0.
int run_scripts(const struct command *command, sandbox_handle_t *sandbox, const struct run_options *o, const struct input *in,
                const char *const *env);

#endif
