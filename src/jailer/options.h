// The jailer's command line.
#ifndef JAILER_OPTIONS_H
#define JAILER_OPTIONS_H

#include "jailer/host.h"

#include <stdbool.h>
#include <sys/types.h>

struct options {
    struct host_options host;
    const char *engine_path;
    const char *run_dir;
    const char *templates_dir;
    const char *engine_state_dir;  // NULL: beside state_dir, with "-engine" behind its name
    uid_t uid;
    gid_t gid;
    bool probe;
    char *const *engine_args;
};

enum { OPTIONS_RUN = 0, OPTIONS_DONE = 1, OPTIONS_BAD = 2 };

// OPTIONS_RUN: *ret_options is complete.  OPTIONS_DONE: help or version was printed.  OPTIONS_BAD: a sentence is on stderr.
int options_parse(int argc, char **argv, struct options *ret_options);

#endif
