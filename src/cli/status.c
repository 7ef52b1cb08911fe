#include "cli.h"
#include "show.h"

#include <jansson.h>
#include <libsandbox.h>
#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "Usage: sandbox-cli status [--json] [--socket PATH]\n"
    "\n"
    "Says what the engine is and does: its version, the isolation tiers it offers, its sandboxes and its limits.\n"
    "\n"
    "  --json         one JSON object on one line, for programs\n"
    "  --socket PATH  the engine's socket (default $SANDBOX_SOCKET, else " SANDBOX_DEFAULT_SOCKET ")\n"
    "  --help         this text\n"
    "\n"
    "Examples:\n"
    "  sandbox-cli status\n"
    "  sandbox-cli status --json | jq .version\n"
    "\n"
    "Exit codes: 0 the engine answered, 1 it did not, 2 usage.\n";

static int print(const struct command *command, const char *text, bool as_json)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    if (!json_is_object(object)) {
        fprintf(stderr, "sandbox-cli %s: the engine's answer is not a JSON object\n", command->name);
        json_decref(object);
        return CLI_FAILED;
    }
    if (as_json) {
        json_dumpf(object, stdout, JSON_COMPACT);
        putchar('\n');
    } else {
        show_object(object);
    }
    json_decref(object);
    return CLI_OK;
}

static int status(const struct command *command, int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *socket = NULL;
    bool as_json = false;
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option == 'j')
            as_json = true;
        else if (option == 's')
            socket = optarg;
        else
            return option == 'h' ? CLI_OK : CLI_USAGE;
    }
    if (no_arguments(command, argc, argv) != CLI_OK)
        return CLI_USAGE;
    char *text = NULL;
    if (sandbox_init(socket_or_default(socket)) != SANDBOX_OK || sandbox_conn_engine_status(NULL, &text) != SANDBOX_OK)
        return api_error(command, "no engine");
    sandbox_cleanup();
    int r = print(command, text, as_json);
    free(text);
    return r;
}

const struct command status_command = {"status", "what the engine is and does", help, status};
