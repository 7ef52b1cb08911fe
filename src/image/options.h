// The command line.
#ifndef IMAGE_OPTIONS_H
#define IMAGE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum command { COMMAND_BUILD, COMMAND_LIST, COMMAND_SHOW, COMMAND_RM, COMMAND_VERIFY };

enum {
    ALIASES_MAX = 16,
    HEADROOM_DEFAULT_MIB = 1024,
    HEADROOM_MAX_MIB = 1024 * 1024,
};

struct options {
    enum command command;
    bool kernel;  // of the store of kernels, which is `kernels` in the store of templates
    const char *store;
    const char *name;                         // NULL for list
    const char *from_dir, *from_tar, *suite;  // of build: exactly one is set
    const char *include, *mirror;
    const char *from_deb, *vmlinuz, *modules;  // of kernel build
    const char *agent;                         // of kernel build: never NULL there
    const char *alias[ALIASES_MAX];
    unsigned aliases;
    uint64_t headroom_mib;
    uint64_t staging_mib;  // 0: 80 % of memory
    bool replace, force, json;
};

// Reads the command line.  Prints what was asked for (--help, --version) or what was wrong, and exits with 0 or 2 then.
void options_parse(int argc, char **argv, struct options *ret_options);

#endif
