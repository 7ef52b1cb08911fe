#include "cli.h"

#include <errno.h>
#include <libsandbox.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int next_option(const struct command *command, int argc, char **argv, const struct option *options)
{
    opterr = 0;
    // ':' first: a missing value is told apart from an unknown option.
    int option = getopt_long(argc, argv, ":h", options, NULL);
    if (option == 'h') {
        fputs(command->help, stdout);
    } else if (option == ':') {
        usage_error(command, "%s needs a value", argv[optind - 1]);
        return '?';
    } else if (option == '?') {
        usage_error(command, "unknown option or value: %s", argv[optind - 1]);
    }
    return option;
}

int usage_error(const struct command *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "sandbox-cli %s: ", command->name);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\nsandbox-cli %s --help says how it is used\n", command->name);
    va_end(args);
    return CLI_USAGE;
}

int no_arguments(const struct command *command, int argc, char **argv)
{
    return optind < argc ? usage_error(command, "unexpected argument: %s", argv[optind]) : CLI_OK;
}

bool parse_number(const struct command *command, const char *option, const char *text, uint64_t least, uint64_t most,
                  uint64_t *ret_value)
{
    errno = 0;
    unsigned long long value = text[strspn(text, "0123456789")] == '\0' && text[0] != '\0' ? strtoull(text, NULL, 10) : 0;
    if (text[0] == '\0' || text[strspn(text, "0123456789")] != '\0') {
        usage_error(command, "%s takes a number, not '%s'", option, text);
        return false;
    }
    if (errno == ERANGE || value < least || value > most) {
        usage_error(command, "%s takes %llu to %llu, not %s", option, (unsigned long long)least, (unsigned long long)most,
                    text);
        return false;
    }
    *ret_value = value;
    return true;
}

static const char *or_environment(const char *given, const char *variable, const char *otherwise)
{
    if (given != NULL)
        return given;
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' ? value : otherwise;
}

const char *socket_or_default(const char *socket)
{
    return or_environment(socket, "SANDBOX_SOCKET", SANDBOX_DEFAULT_SOCKET);
}

const char *store_or_default(const char *store)
{
    return or_environment(store, "SANDBOX_TEMPLATES", "/var/lib/sandbox-engine/templates");
}

// The library names the fields of its structures; who typed a command knows its options.
static const char *option_of_field(const char *message)
{
    static const struct {
        const char *field, *option;
    } names[] = {{"template_name", "--template"}, {"memory_mib", "--memory"},         {"vcpu_count", "--vcpus"},
                 {"disk_mib", "--disk"},          {"pool_wait_ms", "--wait"},         {"min_isolation", "--min-isolation"},
                 {"timeout_ms", "--timeout"},     {"session_key", "--session-key"},   {"egress_allow", "--egress"},
                 {"env_vars", "--env"},           {"egress_deny_all", "--no-egress"}, {"argv", "--exec"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strstr(message, names[i].field) != NULL)
            return names[i].option;
    return NULL;
}

int api_error(const struct command *command, const char *what)
{
    const char *message = sandbox_last_error();
    const char *option = option_of_field(message);
    if (option != NULL)
        fprintf(stderr, "sandbox-cli %s: %s: %s (%s)\n", command->name, what, message, option);
    else
        fprintf(stderr, "sandbox-cli %s: %s: %s\n", command->name, what, message);
    return CLI_FAILED;
}
