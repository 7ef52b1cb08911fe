// The parts sandbox-cli's subcommands share.  The CLI is a user of the public library like any other: it includes
// <libsandbox.h>, jansson and the C library, nothing internal.
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_TIMED_OUT = 124, CLI_SIGNAL_BASE = 128 };

struct command {
    const char *name;
    const char *summary;                                               // one line for the list of subcommands
    const char *help;                                                  // what --help prints
    int (*run)(const struct command *command, int argc, char **argv);  // argv[0] is the subcommand; gives the exit code
};

extern const struct command run_command, verify_command, template_command, status_command, doctor_command, snapshot_command,
    fork_command;

// ---- Options (options.c) ----

// As getopt_long over all of argv, but an unknown option or a missing value prints one line that names it, and gives '?'.
// Values of `options` are 'h' for --help (prints the help and gives 'h') and whatever the subcommand likes.  -1: no more.
int next_option(const struct command *command, int argc, char **argv, const struct option *options);
// Prints "sandbox-cli NAME: ..." and where to read more; gives CLI_USAGE.
int usage_error(const struct command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Complains about what is left after the options.  CLI_OK or CLI_USAGE.
int no_arguments(const struct command *command, int argc, char **argv);
// Decimal digits only, least <= value <= most; complains with the option's name.  False: complained.
bool parse_number(const struct command *command, const char *option, const char *text, uint64_t least, uint64_t most,
                  uint64_t *ret_value);
// --socket, else $SANDBOX_SOCKET, else the library's default.
const char *socket_or_default(const char *socket);
// --store, else $SANDBOX_TEMPLATES, else /var/lib/sandbox-engine/templates.
const char *store_or_default(const char *store);

// Prints "sandbox-cli NAME: WHAT: " and the library's sentence for its last error; gives CLI_FAILED.
int api_error(const struct command *command, const char *what);

// ---- Programs beside this one (program.c) ----

// A program of this product: $VARIABLE, else ../libexec/sandbox-engine/NAME or ../FOLDER/NAME (a build tree) from the folder
// of this executable, else where it was configured to be installed.  False if none of them can be executed.
bool find_companion(const char *name, const char *folder, const char *variable, char *path, size_t room);
// Runs argv[0] with nothing on its standard input, for at most `timeout_s`, and gives what it wrote to stdout, at most `room`-1
// bytes and a NUL.  Its exit code, or -1 if it could not be run, was too slow or said too much.
int run_and_read(char *const argv[], unsigned timeout_s, char *output, size_t room);

// ---- Colours (paint.c) ----

enum paint { PAINT_GOOD, PAINT_BAD, PAINT_WARN, PAINT_HEAD };
// `text` in a colour, padded to `width`, on stdout; without colour unless stdout is a terminal and NO_COLOR is not set.
// Control bytes come out as '?'.
void paint(enum paint how, int width, const char *text);
// Without colour, likewise.
void put_plain(int width, const char *text);

#endif
