// The command line of sandbox-cli run.
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "cli.h"

#include <libsandbox.h>

// Spec 000, "CLI".
enum { RUN_EXEC_MAX = 16, RUN_EGRESS_MAX = 16 };

struct run_options {
    const char *socket;
    sandbox_spec_t spec;  // its lists point at the members below
    const char *egress[RUN_EGRESS_MAX + 1];
    const char **env;  // as many as there are; freed by the end of the process
    unsigned n_env, n_egress, n_exec;
    const char *exec[RUN_EXEC_MAX];
    uint32_t timeout_ms;
    bool pass_stdin, terminal;
};

// CLI_OK: go on.  CLI_USAGE: complained.  -1: --help was answered.  `o` must stay where it is.
int parse_run_options(const struct command *command, int argc, char **argv, struct run_options *o);

#endif
