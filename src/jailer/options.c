#include "jailer/options.h"

#include "base/num.h"

#include <getopt.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "Usage: sandbox-jailer [OPTION]... [-- ENGINE-ARGUMENT...]\n"
    "       sandbox-jailer --probe\n"
    "\n"
    "The privileged hand of sandbox-engine.  Runs as root, starts the engine as an ordinary user, and does for it the\n"
    "few things only root can do: namespaces, mounts, cgroups, starting and ending sandboxes.  It parses nothing that\n"
    "came from a client or a guest.  When it ends, every sandbox ends.\n"
    "\n"
    "  --user USER[:GROUP]   whom the engine runs as: names or numbers, not root (default sandbox-engine)\n"
    "  --engine PATH         the engine's program\n"
    "  --agent PATH          the agent's program, static; copied into memory at start\n"
    "  --vmm PATH            the microVM monitor, static; copied into memory at start; without it there is no vm tier\n"
    "  --run DIR             for sockets; made if missing, given to USER (default /run/sandbox-engine)\n"
    "  --state DIR           for disks and volumes; made if missing, root's alone (default /var/lib/sandbox-engine/state)\n"
    "  --engine-state DIR    for the engine's database; made if missing, given to USER (default: --state with -engine)\n"
    "  --templates DIR       where templates are (default /var/lib/sandbox-engine/templates)\n"
    "  --instance NAME       several jailers on one host need different names: a-z, 0-9, '-' (default main)\n"
    "  --cgroup PATH|auto    below which cgroup, relative to the cgroup mounts (default auto)\n"
    "  --network-pool A.B.C.D/N|none  addresses for the sandboxes' ends of their networks, four for each sandbox; 16 to 30\n"
    "                        bits (default 169.254.0.0/16, without .0, .169 and .255); none: no sandbox can have one\n"
    "  --v1-freezer          on a hybrid host, do without the v2 hierarchy\n"
    "  --probe               say which isolation tiers work here, as JSON, and why not\n"
    "  --help, --version\n"
    "\n"
    "Exit codes: 0 ended on SIGTERM or SIGINT; 1 could not start, or the engine failed; 2 usage.\n"
    "\n"
    "Example:\n"
    "  sandbox-jailer --user sandbox-engine -- --config /etc/sandbox-engine/engine.conf\n";

static int bad(const char *sentence, const char *value)
{
    fprintf(stderr, "sandbox-jailer: ");
    fprintf(stderr, "%s '%s'; see sandbox-jailer --help\n", sentence, value);
    return OPTIONS_BAD;
}

static bool instance_ok(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n <= 64 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

// "name", "number", "name:group", "number:number".
static int parse_user(const char *text, struct options *o)
{
    char user[64];
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    if (n == 0 || n >= sizeof user)
        return -1;
    memcpy(user, text, n);
    user[n] = '\0';
    uint64_t number;
    if (parse_u64(user, 1, UINT32_MAX - 1, &number) == 0) {
        o->uid = (uid_t)number;
        o->gid = (gid_t)number;
    } else {
        const struct passwd *p = getpwnam(user);
        if (p == NULL)
            return -1;
        o->uid = p->pw_uid;
        o->gid = p->pw_gid;
    }
    if (colon != NULL) {
        const struct group *g;
        if (parse_u64(colon + 1, 1, UINT32_MAX - 1, &number) == 0)
            o->gid = (gid_t)number;
        else if ((g = getgrnam(colon + 1)) != NULL)
            o->gid = g->gr_gid;
        else
            return -1;
    }
    return o->uid != 0 && o->gid != 0 ? 0 : -1;
}

enum {
    OPT_USER = 1,
    OPT_ENGINE,
    OPT_AGENT,
    OPT_VMM,
    OPT_RUN,
    OPT_STATE,
    OPT_ENGINE_STATE,
    OPT_TEMPLATES,
    OPT_INSTANCE,
    OPT_CGROUP,
    OPT_POOL,
    OPT_V1,
    OPT_PROBE,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"user", required_argument, NULL, OPT_USER},
    {"engine", required_argument, NULL, OPT_ENGINE},
    {"agent", required_argument, NULL, OPT_AGENT},
    {"vmm", required_argument, NULL, OPT_VMM},
    {"run", required_argument, NULL, OPT_RUN},
    {"state", required_argument, NULL, OPT_STATE},
    {"engine-state", required_argument, NULL, OPT_ENGINE_STATE},
    {"templates", required_argument, NULL, OPT_TEMPLATES},
    {"instance", required_argument, NULL, OPT_INSTANCE},
    {"cgroup", required_argument, NULL, OPT_CGROUP},
    {"network-pool", required_argument, NULL, OPT_POOL},
    {"v1-freezer", no_argument, NULL, OPT_V1},
    {"probe", no_argument, NULL, OPT_PROBE},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static int take(int option, struct options *o, const char **user)
{
    switch (option) {
    case OPT_USER:
        *user = optarg;
        return OPTIONS_RUN;
    case OPT_ENGINE:
        o->engine_path = optarg;
        return OPTIONS_RUN;
    case OPT_AGENT:
        o->host.agent_path = optarg;
        return OPTIONS_RUN;
    case OPT_VMM:
        o->host.vmm_path = optarg;
        return OPTIONS_RUN;
    case OPT_RUN:
        o->run_dir = optarg;
        return OPTIONS_RUN;
    case OPT_STATE:
        o->host.state_dir = optarg;
        return OPTIONS_RUN;
    case OPT_ENGINE_STATE:
        o->engine_state_dir = optarg;
        return OPTIONS_RUN;
    case OPT_TEMPLATES:
        o->templates_dir = optarg;
        return OPTIONS_RUN;
    case OPT_INSTANCE:
        o->host.instance = optarg;
        return instance_ok(optarg) ? OPTIONS_RUN : bad("--instance takes 1 to 64 of a-z, 0-9 and '-', not", optarg);
    case OPT_CGROUP:
        o->host.cgroup = strcmp(optarg, "auto") == 0 ? NULL : optarg;
        return strstr(optarg, "..") == NULL ? OPTIONS_RUN : bad("--cgroup takes a path without '..', not", optarg);
    case OPT_POOL:
        if (address_range_parse(optarg, &o->host.pool) < 0)
            return bad(
                "--network-pool takes A.B.C.D/N, unicast, with N from 16 to 30 and the bits behind N zero, or 'none', not",
                optarg);
        return OPTIONS_RUN;
    case OPT_V1:
        o->host.v1_freezer = true;
        return OPTIONS_RUN;
    case OPT_PROBE:
        o->probe = true;
        return OPTIONS_RUN;
    case OPT_HELP:
        fputs(help, stdout);
        return OPTIONS_DONE;
    case OPT_VERSION:
        puts("sandbox-jailer " PRODUCT_VERSION);
        return OPTIONS_DONE;
    default:
        fputs("see sandbox-jailer --help\n", stderr);
        return OPTIONS_BAD;
    }
}

int options_parse(int argc, char **argv, struct options *ret_options)
{
    struct options o = {
        .host = {.instance = "main",
                 .agent_path = LIBEXEC_DIR "/sandbox-agent",
                 .vmm_path = LIBEXEC_DIR "/sandbox-vmm",
                 .state_dir = "/var/lib/sandbox-engine/state",
                 .pool = {.first = 0xa9fe0000, .prefix = 16}},
        .engine_path = LIBEXEC_DIR "/sandbox-engine",
        .run_dir = "/run/sandbox-engine",
        .templates_dir = "/var/lib/sandbox-engine/templates",
    };
    const char *user = "sandbox-engine";
    int option;
    while ((option = getopt_long(argc, argv, "+", long_options, NULL)) != -1) {
        int r = take(option, &o, &user);
        if (r != OPTIONS_RUN)
            return r;
    }
    if (optind < argc && strcmp(argv[optind - 1], "--") != 0)
        return bad("there is no argument", argv[optind]);
    o.engine_args = argv + optind;
    if (!o.probe && parse_user(user, &o) < 0)
        return bad("--user needs a user (and group) that exists and is not root (useradd --system NAME makes one), not", user);
    *ret_options = o;
    return OPTIONS_RUN;
}
