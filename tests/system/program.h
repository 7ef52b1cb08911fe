// Running a host program, such as sandbox-cli, and reading what it says.
#ifndef TESTS_SYSTEM_PROGRAM_H
#define TESTS_SYSTEM_PROGRAM_H

#include <stdbool.h>
#include <sys/types.h>

struct said {
    char *out, *err;
    int exit_code;  // -1 for a signal
};

// Runs argv with its standard input closed, reads both streams to their end (at most 1 MiB each), kills it after a minute.
void run_program(const char *const *argv, struct said *ret_said);
void said_free(struct said *said);
#define cleanup_said __attribute__((cleanup(said_free)))

// Starts argv with its standard output on a pipe; its first line (or "" if it ended before one) to *ret_line, to be freed.
pid_t start_program(const char *const *argv, int *ret_out, char **ret_line);
// Waits for it, at most `ms`; its exit code, -1 for a signal, -2 if it did not end and was killed.
int wait_program(pid_t pid, unsigned ms);

// The path of a program of the build under test: "cli/sandbox-cli".  To be freed.
char *built(const char *name);

#endif
