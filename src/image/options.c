#include "image/options.h"

#include "base/num.h"
#include "sys/template_store.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STORE "/var/lib/sandbox-engine/templates"
#define DEFAULT_AGENT LIBEXEC_DIR "/sandbox-agent"

static const char help[] =
    "Usage: sandbox-image COMMAND [OPTIONS] [NAME]\n"
    "\n"
    "Builds and keeps templates: the read-only root filesystems that sandboxes start from.\n"
    "\n"
    "  build NAME   make a template from exactly one of\n"
    "      --from-dir DIR       a folder, as it is\n"
    "      --from-tar FILE      a tar archive, plain or compressed (gzip, xz, bzip2, zstd); - is standard input\n"
    "      --mmdebstrap SUITE   a minimal Debian of that suite, from this host's package sources if it is that suite\n"
    "        --include P1,P2      and these packages\n"
    "        --mirror WHERE       from this address or apt sources file (*.sources or *.list)\n"
    "    and\n"
    "      --alias NAME         another name for it (may be repeated; an existing alias is moved)\n"
    "      --headroom-mib N     free space and inodes in the image for later use (1024)\n"
    "      --staging-mib N      memory the files may take while the image is built (80 % of this machine's)\n"
    "      --replace            in place of a template of that name; running sandboxes keep the old one\n"
    "  list         what is there\n"
    "  show NAME    one template, its files and digests\n"
    "  verify NAME  hash its files again: 0 if all are as they were built, 1 and the file's name if not\n"
    "  rm NAME      remove an alias or a template\n"
    "      --force              also the aliases that point at it\n"
    "\n"
    "  kernel build NAME   make a kernel for virtual machines from one of\n"
    "      --from-deb FILE      a linux-image package, which is read and never installed\n"
    "      --vmlinuz FILE       a bzImage or an ELF vmlinux\n"
    "        --modules DIR        and the folder of its modules, where its drivers are not built in\n"
    "    and\n"
    "      --agent FILE         the sandbox-agent that its machines start (" DEFAULT_AGENT ")\n"
    "      --replace            in place of a kernel of that name; running machines keep the old one\n"
    "  kernel list, show NAME, verify NAME, rm NAME\n"
    "\n"
    "Options of every command; they may stand before or after NAME:\n"
    "  --store DIR  the template store ($SANDBOX_TEMPLATES, else " DEFAULT_STORE ")\n"
    "  --json       one JSON object a line on standard output\n"
    "  --help, --version\n"
    "\n"
    "Examples:\n"
    "  sandbox-image build debian --mmdebstrap bookworm --include python3 --alias python-agent\n"
    "  docker export CONTAINER | sandbox-image build mine --from-tar -\n"
    "  sandbox-image verify debian\n"
    "\n"
    "Building needs root, for its user namespace; nothing of the input ever runs or is unpacked as the host's root.\n"
    "Exit status: 0 done, 1 it failed, 2 the command line is wrong.\n";

static const char *const commands[] = {
    [COMMAND_BUILD] = "build", [COMMAND_LIST] = "list",     [COMMAND_SHOW] = "show",
    [COMMAND_RM] = "rm",       [COMMAND_VERIFY] = "verify",
};

enum {
    OPT_STORE = 256,
    OPT_FROM_DIR,
    OPT_FROM_TAR,
    OPT_MMDEBSTRAP,
    OPT_INCLUDE,
    OPT_MIRROR,
    OPT_ALIAS,
    OPT_HEADROOM,
    OPT_STAGING,
    OPT_REPLACE,
    OPT_FROM_DEB,
    OPT_VMLINUZ,
    OPT_MODULES,
    OPT_AGENT,
    OPT_FORCE,
    OPT_JSON,
    OPT_HELP,
    OPT_VERSION,
};

static const struct option table[] = {
    {"store", required_argument, NULL, OPT_STORE},
    {"from-dir", required_argument, NULL, OPT_FROM_DIR},
    {"from-tar", required_argument, NULL, OPT_FROM_TAR},
    {"mmdebstrap", required_argument, NULL, OPT_MMDEBSTRAP},
    {"include", required_argument, NULL, OPT_INCLUDE},
    {"mirror", required_argument, NULL, OPT_MIRROR},
    {"alias", required_argument, NULL, OPT_ALIAS},
    {"headroom-mib", required_argument, NULL, OPT_HEADROOM},
    {"staging-mib", required_argument, NULL, OPT_STAGING},
    {"replace", no_argument, NULL, OPT_REPLACE},
    {"from-deb", required_argument, NULL, OPT_FROM_DEB},
    {"vmlinuz", required_argument, NULL, OPT_VMLINUZ},
    {"modules", required_argument, NULL, OPT_MODULES},
    {"agent", required_argument, NULL, OPT_AGENT},
    {"force", no_argument, NULL, OPT_FORCE},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

__attribute__((noreturn, format(printf, 1, 2))) static void usage_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("sandbox-image: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n\"sandbox-image --help\" explains the commands.\n", stderr);
    va_end(args);
    exit(2);
}

static void set_once(const char **slot, const char *value, const char *option)
{
    if (*slot != NULL)
        usage_error("--%s is given twice", option);
    if (value[0] == '\0')
        usage_error("--%s is empty", option);
    *slot = value;
}

static void take_option(struct options *o, int option, const char *value)
{
    switch (option) {
    case OPT_STORE:
        set_once(&o->store, value, "store");
        break;
    case OPT_FROM_DIR:
        set_once(&o->from_dir, value, "from-dir");
        break;
    case OPT_FROM_TAR:
        set_once(&o->from_tar, value, "from-tar");
        break;
    case OPT_MMDEBSTRAP:
        set_once(&o->suite, value, "mmdebstrap");
        break;
    case OPT_INCLUDE:
        set_once(&o->include, value, "include");
        break;
    case OPT_MIRROR:
        set_once(&o->mirror, value, "mirror");
        break;
    case OPT_ALIAS:
        if (o->aliases == ALIASES_MAX)
            usage_error("more than %d aliases", ALIASES_MAX);
        o->alias[o->aliases++] = value;
        break;
    case OPT_HEADROOM:
        if (parse_u64(value, 0, HEADROOM_MAX_MIB, &o->headroom_mib) < 0)
            usage_error("--headroom-mib %s: a number of MiB from 0 to %d is needed", value, HEADROOM_MAX_MIB);
        break;
    case OPT_STAGING:
        if (parse_u64(value, 1, HEADROOM_MAX_MIB, &o->staging_mib) < 0)
            usage_error("--staging-mib %s: a number of MiB from 1 to %d is needed", value, HEADROOM_MAX_MIB);
        break;
    case OPT_REPLACE:
        o->replace = true;
        break;
    case OPT_FROM_DEB:
        set_once(&o->from_deb, value, "from-deb");
        break;
    case OPT_VMLINUZ:
        set_once(&o->vmlinuz, value, "vmlinuz");
        break;
    case OPT_MODULES:
        set_once(&o->modules, value, "modules");
        break;
    case OPT_AGENT:
        set_once(&o->agent, value, "agent");
        break;
    case OPT_FORCE:
        o->force = true;
        break;
    case OPT_JSON:
        o->json = true;
        break;
    case OPT_HELP:
        fputs(help, stdout);
        exit(0);
    case OPT_VERSION:
        puts("sandbox-image " PROJECT_VERSION);
        exit(0);
    default:
        exit(2);  // getopt_long has said why
    }
}

static void take_command(struct options *o, const char *word)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(word, commands[i]) == 0) {
            o->command = (enum command)i;
            return;
        }
    usage_error("there is no command \"%s\": build, list, show, verify, rm or kernel", word);
}

// Letters that can be in a suite's or package's name, so that what goes to apt is only that.
static void check_words(const char *text, const char *option, const char *more)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-:~_=";
    for (const char *p = text; *p != '\0'; p++)
        if (strchr(word, *p) == NULL && strchr(more, *p) == NULL)
            usage_error("--%s %s: \"%c\" cannot be in it", option, text, *p);
    if (text[0] == '-' || strlen(text) > 2000)
        usage_error("--%s %.60s: that is not a name", option, text);
}

static void check_build(const struct options *o)
{
    int inputs = (o->from_dir != NULL) + (o->from_tar != NULL) + (o->suite != NULL);
    if (inputs != 1)
        usage_error("build takes exactly one of --from-dir, --from-tar and --mmdebstrap");
    if (o->suite == NULL && (o->include != NULL || o->mirror != NULL))
        usage_error("--include and --mirror go with --mmdebstrap");
    if (o->suite != NULL)
        check_words(o->suite, "mmdebstrap", "/");
    if (o->include != NULL)
        check_words(o->include, "include", ",/");
    if (o->mirror != NULL && o->mirror[0] == '-')
        usage_error("--mirror %s: an address or a sources file is needed", o->mirror);
}

static void check_kernel_build(const struct options *o)
{
    if ((o->from_deb != NULL) == (o->vmlinuz != NULL))
        usage_error("kernel build takes exactly one of --from-deb and --vmlinuz");
    if (o->from_deb != NULL && o->modules != NULL)
        usage_error("--modules goes with --vmlinuz");
    if (o->from_dir != NULL || o->from_tar != NULL || o->suite != NULL || o->include != NULL || o->mirror != NULL ||
        o->aliases > 0 || o->staging_mib != 0 || o->headroom_mib != HEADROOM_DEFAULT_MIB)
        usage_error("an option of a template's build was given to kernel build");
}

static void check(const struct options *o)
{
    const char *command = commands[o->command];
    bool kernel_build = o->kernel && o->command == COMMAND_BUILD;
    if (!kernel_build && (o->from_deb != NULL || o->vmlinuz != NULL || o->modules != NULL || o->agent != NULL))
        usage_error("an option of kernel build was given to %s", command);
    if (!o->kernel && o->name != NULL && strcmp(o->name, KERNELS_FOLDER) == 0)
        usage_error("\"%s\" is no template's name: the kernels are there", KERNELS_FOLDER);
    if (o->command == COMMAND_LIST && o->name != NULL)
        usage_error("list takes no name; \"sandbox-image show %s\" shows one template", o->name);
    if (o->command != COMMAND_LIST && o->name == NULL)
        usage_error("%s needs the template's name", command);
    if (o->force && o->command != COMMAND_RM)
        usage_error("--force goes with rm");
    if (kernel_build)
        check_kernel_build(o);
    else if (o->command == COMMAND_BUILD)
        check_build(o);
    else if (o->from_dir != NULL || o->from_tar != NULL || o->suite != NULL || o->include != NULL || o->mirror != NULL ||
             o->aliases > 0 || o->replace || o->staging_mib != 0 || o->headroom_mib != HEADROOM_DEFAULT_MIB)
        usage_error("an option of build was given to %s", command);
}

static const char *kernel_store(const char *store)
{
    char *path = NULL;  // as long as the program
    if (asprintf(&path, "%s/%s", store, KERNELS_FOLDER) < 0)
        exit(1);
    return path;
}

void options_parse(int argc, char **argv, struct options *ret_options)
{
    struct options o = {.headroom_mib = HEADROOM_DEFAULT_MIB};
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1)
        take_option(&o, option, optarg);
    if (optind == argc)
        usage_error("a command is needed: build, list, show, verify or rm");
    o.kernel = strcmp(argv[optind], "kernel") == 0;
    if (o.kernel && ++optind == argc)
        usage_error("kernel needs build, list, show, verify or rm");
    take_command(&o, argv[optind++]);
    if (optind < argc)
        o.name = argv[optind++];
    if (optind < argc)
        usage_error("one name at a time: \"%s\" is too much", argv[optind]);
    if (o.store == NULL)
        o.store = getenv("SANDBOX_TEMPLATES");
    if (o.store == NULL || o.store[0] == '\0')
        o.store = DEFAULT_STORE;
    check(&o);
    if (o.kernel)
        o.store = kernel_store(o.store);
    if (o.agent == NULL)
        o.agent = DEFAULT_AGENT;
    *ret_options = o;
}
