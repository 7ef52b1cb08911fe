#include "run_options.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_MEMORY_MIB = 512, DEFAULT_VCPUS = 1, DEFAULT_WAIT_MS = 5000, TIMEOUT_MAX_MS = 60 * 60 * 1000 };

static const struct option options[] = {{"template", required_argument, NULL, 't'},
                                        {"socket", required_argument, NULL, 's'},
                                        {"memory", required_argument, NULL, 'm'},
                                        {"vcpus", required_argument, NULL, 'c'},
                                        {"wait", required_argument, NULL, 'w'},
                                        {"session-key", required_argument, NULL, 'k'},
                                        {"exec", required_argument, NULL, 'x'},
                                        {"egress", required_argument, NULL, 'e'},
                                        {"no-egress", no_argument, NULL, 'n'},
                                        {"env", required_argument, NULL, 'v'},
                                        {"min-isolation", required_argument, NULL, 'i'},
                                        {"grant", required_argument, NULL, 'g'},
                                        {"disk", required_argument, NULL, 'd'},
                                        {"timeout", required_argument, NULL, 'o'},
                                        {"stdin", no_argument, NULL, 'p'},
                                        {"tty", no_argument, NULL, 'y'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static bool take_u32(const struct command *command, const char *option, uint32_t least, uint32_t most, uint32_t *ret)
{
    uint64_t value;
    if (!parse_number(command, option, optarg, least, most, &value))
        return false;
    *ret = (uint32_t)value;
    return true;
}

static bool take_tier(const struct command *command, uint32_t *ret)
{
    for (uint32_t tier = SANDBOX_ISOLATION_PROCESS; tier <= SANDBOX_ISOLATION_VM; tier++) {
        if (strcmp(optarg, sandbox_isolation_name((sandbox_isolation_t)tier)) == 0) {
            *ret = tier;
            return true;
        }
    }
    usage_error(command, "--min-isolation takes process, container, kernel or vm, not '%s'", optarg);
    return false;
}

static bool take_member(const struct command *command, const char *option, const char **list, unsigned most, unsigned *n)
{
    if (*n == most) {
        usage_error(command, "%s may be given %u times at most", option, most);
        return false;
    }
    list[(*n)++] = optarg;
    return true;
}

static bool take_env(const struct command *command, struct run_options *o)
{
    if (strchr(optarg, '=') == NULL || optarg[0] == '=') {
        usage_error(command, "--env takes NAME=VALUE, not '%s'", optarg);
        return false;
    }
    o->env[o->n_env++] = optarg;
    return true;
}

static bool take(const struct command *command, int option, struct run_options *o)
{
    sandbox_spec_t *spec = &o->spec;
    switch (option) {
    case 't':
        spec->template_name = optarg;
        return true;
    case 's':
        o->socket = optarg;
        return true;
    case 'm':
        return parse_number(command, "--memory", optarg, 1, UINT32_MAX, &spec->memory_mib);
    case 'c':
        return take_u32(command, "--vcpus", 1, UINT32_MAX, &spec->vcpu_count);
    case 'w':
        return take_u32(command, "--wait", 0, UINT32_MAX, &spec->pool_wait_ms);
    case 'k':
        spec->session_key = optarg;
        return true;
    case 'x':
        return take_member(command, "--exec", o->exec, RUN_EXEC_MAX, &o->n_exec);
    case 'e':
        return take_member(command, "--egress", o->egress, RUN_EGRESS_MAX, &o->n_egress);
    case 'n':
        spec->egress_deny_all = 1;
        return true;
    case 'v':
        return take_env(command, o);
    case 'i':
        return take_tier(command, &spec->min_isolation);
    case 'g':
        spec->grant_profile = optarg;
        return true;
    case 'd':
        return parse_number(command, "--disk", optarg, 1, UINT32_MAX, &spec->disk_mib);
    case 'o':
        return take_u32(command, "--timeout", 1, TIMEOUT_MAX_MS, &o->timeout_ms);
    case 'y':
        o->terminal = true;
        return true;
    default:
        o->pass_stdin = true;
        return true;
    }
}

static int check(const struct command *command, const struct run_options *o)
{
    if (o->spec.template_name == NULL)
        return usage_error(command, "--template is needed; sandbox-cli template list shows which there are");
    if (o->spec.session_key != NULL && o->spec.session_key[0] == '\0')
        return usage_error(command, "--session-key is empty: leave it out for a sandbox that keeps nothing");
    if (o->spec.grant_profile != NULL && o->spec.grant_profile[0] == '\0')
        return usage_error(command, "--grant is empty: name a profile");
    if (o->n_egress > 0 && o->spec.egress_deny_all)
        return usage_error(command, "--egress and --no-egress contradict each other");
    if (o->n_exec == 0 && (o->pass_stdin || o->terminal || o->timeout_ms > 0))
        return usage_error(command, "%s is for --exec, and there is none",
                           o->pass_stdin ? "--stdin"
                           : o->terminal ? "--tty"
                                         : "--timeout");
    if (o->pass_stdin && o->terminal)
        return usage_error(command, "--stdin and --tty contradict each other: the terminal is the standard input");
    return CLI_OK;
}

int parse_run_options(const struct command *command, int argc, char **argv, struct run_options *o)
{
    *o = (struct run_options){
        .spec = {.memory_mib = DEFAULT_MEMORY_MIB, .vcpu_count = DEFAULT_VCPUS, .pool_wait_ms = DEFAULT_WAIT_MS}};
    o->env = calloc((size_t)argc + 1, sizeof *o->env);
    if (o->env == NULL)
        return CLI_USAGE;
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option == 'h')
            return -1;
        if (option == '?' || !take(command, option, o))
            return CLI_USAGE;
    }
    if (optind < argc)
        return usage_error(command, "unexpected argument: %s (what to run is one argument of --exec: --exec 'COMMAND')",
                           argv[optind]);
    o->spec.env_vars = o->n_env > 0 ? o->env : NULL;
    o->spec.egress_allow = o->n_egress > 0 ? o->egress : NULL;
    return check(command, o);
}
