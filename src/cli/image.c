// verify and template: sandbox-image does the work, in a program of its own that parses archives under confinement.
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char verify_help[] =
    "Usage: sandbox-cli verify --template NAME [--store DIR]\n"
    "\n"
    "Checks that a template is what was built: reads every file of it and compares it with the SHA-256 in its manifest.\n"
    "The engine does the same when it loads a template; this does it now.\n"
    "\n"
    "  --template NAME  the template, or an alias of it\n"
    "  --store DIR      the folder of templates (default $SANDBOX_TEMPLATES, else /var/lib/sandbox-engine/templates)\n"
    "  --help           this text\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli verify --template debian\n"
    "  sandbox-cli verify --template python-agent --store ./var/templates && echo intact\n"
    "\n"
    "Exit codes: 0 manifest and files match, 1 they do not or could not be read, 2 usage.\n";

static const char template_help[] =
    "Usage: sandbox-cli template build NAME (--from-dir DIR | --from-tar FILE | --mmdebstrap SUITE) [OPTION]...\n"
    "       sandbox-cli template list [--json] [--store DIR]\n"
    "       sandbox-cli template show NAME [--json] [--store DIR]\n"
    "       sandbox-cli template rm NAME [--force] [--store DIR]\n"
    "\n"
    "A template is the root filesystem that sandboxes start from.  Each sandbox sees it read-only under a disk of its own,\n"
    "so any number share one.  The same input gives the same bytes, and manifest.bin binds them by SHA-256.\n"
    "\n"
    "  --from-dir DIR       what is in this folder, with its owners\n"
    "  --from-tar FILE      what is in this archive\n"
    "  --mmdebstrap SUITE   a minimal Debian, fetched by mmdebstrap: bookworm, for example\n"
    "  --include PKG,...    and these packages\n"
    "  --mirror WHERE       from this address or apt sources file\n"
    "  --alias NAME         another name for it; may be given again\n"
    "  --headroom-mib N     free space to leave in the filesystem\n"
    "  --force              with rm: also the aliases that point at it\n"
    "  --replace            if the name is taken, put the new one in its place\n"
    "  --json               for programs\n"
    "  --store DIR          the folder of templates (default $SANDBOX_TEMPLATES, else /var/lib/sandbox-engine/templates)\n"
    "  --help               this text\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli template build debian --mmdebstrap bookworm --include python3 --alias python-agent\n"
    "  sandbox-cli template list\n"
    "\n"
    "Exit codes: 0 success, 1 failure, 2 usage.\n";

static int run_image(const struct command *command, char **argv)
{
    char path[4096];
    if (!find_companion("sandbox-image", "image", "SANDBOX_IMAGE_PROGRAM", path, sizeof path)) {
        fprintf(stderr,
                "sandbox-cli %s: cannot find the program sandbox-image beside this one or in %s; "
                "name it in $SANDBOX_IMAGE_PROGRAM\n",
                command->name, SANDBOX_LIBEXEC_DIR);
        return CLI_FAILED;
    }
    argv[0] = path;
    execv(path, argv);
    fprintf(stderr, "sandbox-cli %s: cannot run %s: %s\n", command->name, path, strerror(errno));
    return CLI_FAILED;
}

static int verify(const struct command *command, int argc, char **argv)
{
    static const struct option options[] = {{"template", required_argument, NULL, 't'},
                                            {"store", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    char *template_name = NULL, *store = NULL;
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option == 't')
            template_name = optarg;
        else if (option == 's')
            store = optarg;
        else
            return option == 'h' ? CLI_OK : CLI_USAGE;
    }
    if (template_name == NULL)
        return usage_error(command, "--template NAME is needed; sandbox-cli template list shows which there are");
    if (no_arguments(command, argc, argv) != CLI_OK)
        return CLI_USAGE;
    if (template_name[0] == '-' || template_name[0] == '\0')
        return usage_error(command, "'%s' is not a template's name", template_name);
    char *image[] = {NULL, (char *)"verify", (char *)"--store", (char *)store_or_default(store), template_name, NULL};
    return run_image(command, image);
}

static bool names_store(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--store") == 0 || strncmp(argv[i], "--store=", strlen("--store=")) == 0)
            return true;
    return false;
}

static bool is_action(const char *text)
{
    static const char *const actions[] = {"build", "list", "show", "rm"};
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(text, actions[i]) == 0)
            return true;
    return false;
}

// The options are sandbox-image's to judge; only --help is answered here, so that it names this program.
static int template(const struct command *command, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(command->help, stdout);
            return CLI_OK;
        }
    }
    if (argc < 2)
        return usage_error(command, "say what to do: build, list, show or rm");
    if (!is_action(argv[1]))
        return usage_error(command, "'%s' is not one of build, list, show and rm", argv[1]);
    char **image = calloc((size_t)argc + 4, sizeof *image);
    if (image == NULL)
        return CLI_FAILED;
    int n = 1;
    image[n++] = argv[1];
    if (!names_store(argc, argv)) {
        image[n++] = (char *)"--store";
        image[n++] = (char *)store_or_default(NULL);
    }
    for (int i = 2; i < argc; i++)
        image[n++] = argv[i];
    int r = run_image(command, image);
    free(image);
    return r;
}

const struct command verify_command = {"verify", "check a template's files against its manifest", verify_help, verify};
const struct command template_command = {"template", "build, list, show or remove templates", template_help, template};
