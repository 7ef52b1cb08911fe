// sandbox-cli doctor: can this machine run sandboxes, behind which walls, and if not, what to do.
#include "checks.h"
#include "cli.h"

#include <jansson.h>
#include <libsandbox.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_TIMEOUT_S = 60, PROBE_OUTPUT_MAX = 64 * 1024 };

static const char help[] =
    "Usage: sandbox-cli doctor [--json] [--socket PATH] [--store DIR]\n"
    "\n"
    "Says which isolation tiers work on this machine, which do not, why, and what would help.  Asks the engine if one\n"
    "answers; else it starts a throwaway sandbox with sandbox-jailer --probe, which needs root.\n"
    "\n"
    "  --json         one JSON object: tiers (name, available, reason, fix), checks (name, status, detail, fix), source\n"
    "  --socket PATH  the engine's socket (default $SANDBOX_SOCKET, else " SANDBOX_DEFAULT_SOCKET ")\n"
    "  --store DIR    the folder of templates (default $SANDBOX_TEMPLATES, else /var/lib/sandbox-engine/templates)\n"
    "  --help         this text\n"
    "\n"
    "Examples:\n"
    "  sudo sandbox-cli doctor\n"
    "  sandbox-cli doctor --json | jq -r '.tiers[] | select(.available) | .name'\n"
    "\n"
    "Exit codes: 0 at least one tier works, 1 none does or it cannot be found out, 2 usage.\n";

// The list "tiers" in an object's text; NULL when there is none.  A new reference.
static json_t *tiers_in(const char *text)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error);
    json_t *tiers = json_object_get(object, "tiers");
    json_t *found = json_is_array(tiers) ? json_incref(tiers) : NULL;
    json_decref(object);
    return found;
}

// What the engine says of the way out.
static void check_network(json_t *checks, const char *text)
{
    json_error_t error;
    json_t *object = json_loads(text, 0, &error), *network = json_object_get(object, "network");
    const char *trouble = json_string_value(json_object_get(network, "trouble"));
    if (trouble != NULL)
        add_check(checks, "network", "warn", trouble,
                  "needed only where sandboxes are to reach anything: start sandbox-broker, and see docs/egress.md");
    else if (json_is_object(network))
        add_check(checks, "network", "ok",
                  json_is_true(json_object_get(network, "broker_up")) ? "sandbox-broker answers" : "sandbox-broker is starting",
                  NULL);
    json_decref(object);
}

static json_t *ask_engine(const char *socket, json_t *checks)
{
    char detail[512], *text = NULL;
    sandbox_error_t code = sandbox_init(socket);
    if (code == SANDBOX_OK)
        code = sandbox_conn_engine_status(NULL, &text);
    if (code != SANDBOX_OK) {
        add_check(checks, "engine", "warn", sandbox_last_error(),
                  code == SANDBOX_ERR_PERMISSION_DENIED
                      ? "become a user it serves, or have it serve this one: the setting allowed_uids of its engine.conf"
                      : "start it as root (" SANDBOX_LIBEXEC_DIR "/sandbox-jailer; in a checkout: scripts/stack up), or name "
                        "the socket of one that runs (--socket, SANDBOX_SOCKET)");
        return NULL;
    }
    sandbox_cleanup();
    snprintf(detail, sizeof detail, "answers on %s", socket);
    add_check(checks, "engine", "ok", detail, NULL);
    json_t *tiers = tiers_in(text);
    check_network(checks, text);
    free(text);
    return tiers;
}

static json_t *ask_jailer(json_t *checks)
{
    static char output[PROBE_OUTPUT_MAX];
    char jailer[4096], agent[4096], vmm[4096];
    if (!find_companion("sandbox-jailer", "jailer", "SANDBOX_JAILER_PROGRAM", jailer, sizeof jailer)) {
        add_check(checks, "probe", "fail", "the program sandbox-jailer is not beside this one, nor where it would be installed",
                  "install sandbox-engine, or name it in $SANDBOX_JAILER_PROGRAM");
        return NULL;
    }
    // An instance of its own, so that a jailer at work is not disturbed.
    char *argv[] = {jailer, (char *)"--probe", (char *)"--instance", (char *)"doctor", NULL, NULL, NULL, NULL, NULL};
    int n = 4;
    if (find_companion("sandbox-agent", "agent", "SANDBOX_AGENT_PROGRAM", agent, sizeof agent)) {
        argv[n++] = (char *)"--agent";
        argv[n++] = agent;
    }
    if (find_companion("sandbox-vmm", "vmm", "SANDBOX_VMM_PROGRAM", vmm, sizeof vmm)) {
        argv[n++] = (char *)"--vmm";
        argv[n++] = vmm;
    }
    int r = run_and_read(argv, PROBE_TIMEOUT_S, output, sizeof output);
    json_t *tiers = r >= 0 ? tiers_in(output) : NULL;
    if (tiers == NULL)
        add_check(checks, "probe", "fail", "sandbox-jailer --probe gave no answer", "run this command as root");
    return tiers;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static void print_row(enum paint how, const char *mark, const char *name, const char *detail, const char *fix)
{
    fputs("  ", stdout);
    paint(how, 6, mark);
    put_plain(17, name);
    put_plain(0, detail);
    putchar('\n');
    if (fix[0] != '\0') {
        put_plain(25, "");
        fputs("fix: ", stdout);
        put_plain(0, fix);
        putchar('\n');
    }
}

static void print_tiers(const json_t *tiers)
{
    paint(PAINT_HEAD, 0, "Isolation tiers");
    putchar('\n');
    for (size_t i = 0; i < json_array_size(tiers); i++) {
        const json_t *tier = json_array_get(tiers, i);
        if (json_is_true(json_object_get(tier, "available")))
            print_row(PAINT_GOOD, "yes", text_of(tier, "name"), "works here", "");
        else
            print_row(PAINT_BAD, "no", text_of(tier, "name"), text_of(tier, "reason"), text_of(tier, "fix"));
    }
    if (json_array_size(tiers) == 0)
        print_row(PAINT_BAD, "?", "unknown", "neither an engine nor sandbox-jailer --probe could say", "");
}

static void print_checks(const json_t *checks)
{
    paint(PAINT_HEAD, 0, "Checks");
    putchar('\n');
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        const char *status = text_of(check, "status");
        enum paint how = strcmp(status, "ok") == 0 ? PAINT_GOOD : strcmp(status, "warn") == 0 ? PAINT_WARN : PAINT_BAD;
        print_row(how, status, text_of(check, "name"), text_of(check, "detail"), text_of(check, "fix"));
    }
}

static bool one_works(const json_t *tiers)
{
    for (size_t i = 0; i < json_array_size(tiers); i++)
        if (json_is_true(json_object_get(json_array_get(tiers, i), "available")))
            return true;
    return false;
}

static int examine(const char *socket, const char *store, bool as_json)
{
    json_t *checks = json_array();
    const char *source = "engine";
    json_t *tiers = ask_engine(socket, checks);
    if (tiers == NULL) {
        source = "probe";
        tiers = ask_jailer(checks);
    }
    if (tiers == NULL) {
        source = "none";
        tiers = json_array();
    }
    check_kernel(checks);
    check_cgroups(checks);
    check_disk_speed(checks);
    check_user_namespaces(checks);
    check_kvm(checks);
    check_templates(checks, store);
    if (as_json) {
        json_t *report = json_pack("{s:O, s:O, s:s}", "tiers", tiers, "checks", checks, "source", source);
        json_dumpf(report, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(report);
    } else {
        print_tiers(tiers);
        putchar('\n');
        print_checks(checks);
    }
    bool works = one_works(tiers);
    json_decref(tiers);
    json_decref(checks);
    return works ? CLI_OK : CLI_FAILED;
}

static int doctor(const struct command *command, int argc, char **argv)
{
    static const struct option options[] = {{"json", no_argument, NULL, 'j'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"store", required_argument, NULL, 'd'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *socket = NULL, *store = NULL;
    bool as_json = false;
    for (int option; (option = next_option(command, argc, argv, options)) != -1;) {
        if (option == 'j')
            as_json = true;
        else if (option == 's')
            socket = optarg;
        else if (option == 'd')
            store = optarg;
        else
            return option == 'h' ? CLI_OK : CLI_USAGE;
    }
    if (no_arguments(command, argc, argv) != CLI_OK)
        return CLI_USAGE;
    return examine(socket_or_default(socket), store_or_default(store), as_json);
}

const struct command doctor_command = {"doctor", "which isolation tiers work here, and what to do about the rest", help,
                                       doctor};
