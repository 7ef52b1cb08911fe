// sandbox-cli: which subcommand, and nothing else.
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libsandbox.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct command *const commands[] = {&run_command,    &snapshot_command, &fork_command,  &template_command,
                                                 &verify_command, &status_command,   &doctor_command};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static const char intro[] = "Usage: sandbox-cli COMMAND [OPTION]...\n"
                            "\n"
                            "Runs code nobody trusts in sandboxes that sandbox-engine makes and watches.\n"
                            "\n"
                            "Commands:\n";
static const char outro[] =
    "\n"
    "sandbox-cli COMMAND --help explains each, with examples.\n"
    "\n"
    "Environment:\n"
    "  SANDBOX_SOCKET     the engine's socket (default " SANDBOX_DEFAULT_SOCKET ")\n"
    "  SANDBOX_TEMPLATES  the folder of templates (default /var/lib/sandbox-engine/templates)\n"
    "  NO_COLOR           any value: no colours\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli doctor\n"
    "  sandbox-cli run --template debian --exec 'echo hello from $(hostname)'\n"
    "\n"
    "Exit codes: 0 success, 1 failure, 2 usage; run --exec gives the first exit code of a script that is not 0.\n";

static void print_help(FILE *to)
{
    fputs(intro, to);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs(outro, to);
}

// The number of a closed standard stream would be the engine's socket's, and what is printed would go into that.  Each gets
// /dev/null, opened so that using it fails as before.
static bool hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return false;
    return true;
}

// What is still in stdout's buffer is written; a success that could not be told is none.
static int finish(const char *name, int status)
{
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || status != CLI_OK)
        return status;
    fprintf(stderr, "sandbox-cli %s: standard output cannot be written%s%s\n", name, errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    return CLI_FAILED;
}

int main(int argc, char **argv)
{
    if (!hold_standard_streams())
        return CLI_FAILED;
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sandbox-cli %d.%d.%d\n", SANDBOX_VERSION_MAJOR, SANDBOX_VERSION_MINOR, SANDBOX_VERSION_PATCH);
        return CLI_OK;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            return finish(commands[i]->name, commands[i]->run(commands[i], argc - 1, argv + 1));
    fprintf(stderr, "sandbox-cli: there is no command '%s'; sandbox-cli --help lists them\n", argv[1]);
    return CLI_USAGE;
}
