// CLI: sandbox-cli as a person and a script use it (spec 000, "CLI").
#include "program.h"
#include "system.h"

#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void cleanup_json(json_t **json)
{
    json_decref(*json);
}
#define cleanup_json __attribute__((cleanup(cleanup_json)))

// sandbox-cli with these arguments; the socket comes from SANDBOX_SOCKET.
#define cli(said, ...) cli_argv(said, (const char *const[]){"", __VA_ARGS__, NULL})

static void cli_argv(struct said *said, const char *const *arguments)
{
    cleanup_free char *path = built("cli/sandbox-cli");
    const char *argv[64] = {path};
    for (size_t i = 1; i < 63 && arguments[i] != NULL; i++)
        argv[i] = arguments[i];
    run_program(argv, said);
}

// The n-th line of `text` (from 0) that is a JSON object with this event.
static json_t *event(const char *text, const char *name, int n)
{
    cleanup_free char *copy = strdup(text);
    char *rest = NULL;
    for (char *line = strtok_r(copy, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        json_t *json = line[0] == '{' ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
        const char *got = json_string_value(json_object_get(json, "event"));
        if (got != NULL && strcmp(got, name) == 0 && n-- == 0)
            return json;
        json_decref(json);
    }
    fail_msg("no %s event in: %s", name, text);
    return NULL;
}

static long number_of(const json_t *json, const char *key)
{
    assert_true(json_is_integer(json_object_get(json, key)));
    return (long)json_integer_value(json_object_get(json, key));
}

static void run_exec_prints_output_and_events(void **state)
{
    cleanup_said struct said s = {0};
    cli(&s, "run", "--template", setting()->template_name, "--memory", "128", "--vcpus", "1", "--wait", "20000", "--no-egress",
        "--exec", "echo to-out; echo to-err >&2", "--exec", "exit 3", "--exec", "exit 4");
    assert_int_equal(s.exit_code, 3);
    assert_non_null(strstr(s.out, "to-out\n"));
    assert_non_null(strstr(s.err, "to-err\n"));
    cleanup_json json_t *created = event(s.out, "created", 0), *first = event(s.out, "exec", 0),
                        *second = event(s.out, "exec", 1), *third = event(s.out, "exec", 2);
    assert_true(number_of(created, "sandbox_id") > 0);
    assert_string_equal(json_string_value(json_object_get(created, "isolation")), setting()->tier_name);
    assert_int_equal(number_of(first, "exit_code"), 0);
    assert_int_equal(number_of(second, "exit_code"), 3);
    assert_int_equal(number_of(third, "exit_code"), 4);
    assert_null(strchr(s.out, '\x1b'));
    assert_null(strchr(s.err, '\x1b'));
}

static void the_scripts_share_one_sandbox(void **state)
{
    cleanup_said struct said s = {0};
    cli(&s, "run", "--template", setting()->small_template, "--memory", "64", "--exec", "echo kept > /workspace/f", "--exec",
        "cat /workspace/f");
    assert_int_equal(s.exit_code, 0);
    assert_non_null(strstr(s.out, "kept\n"));
}

static void failures_are_1_and_usage_is_2(void **state)
{
    cleanup_said struct said unknown = {0}, socket = {0}, floor = {0};
    cli(&unknown, "run", "--template", "no-such-template", "--exec", "true");
    assert_int_equal(unknown.exit_code, 1);
    assert_non_null(strstr(unknown.err, "no-such-template"));
    cli(&socket, "run", "--socket", "/no/such/engine.sock", "--template", setting()->template_name, "--exec", "true");
    assert_int_equal(socket.exit_code, 1);
    assert_non_null(strstr(socket.err, "/no/such/engine.sock"));
    static const char *const wrong[][8] = {
        {"", "run", NULL},
        {"", "run", "--template", NULL},
        {"", "run", "--template", "debian", "--memory", "lots", NULL},
        {"", "run", "--template", "debian", "--no-such-option", NULL},
        {"", "run", "--template", "debian", "--egress", "example.org", "--no-egress", NULL},
        {"", "no-such-command", NULL},
        {"", "verify", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cleanup_said struct said s = {0};
        cli_argv(&s, wrong[i]);
        if (s.exit_code != 2)
            fail_msg("usage error %zu (%s) ended with %d: %s", i, wrong[i][1], s.exit_code, s.err);
        assert_true(s.err[0] != '\0');
        assert_string_equal(s.out, "");
    }
    const char *many[40] = {"", "run", "--template", setting()->template_name};
    for (int i = 0; i < 17; i++) {
        many[4 + 2 * i] = "--exec";
        many[5 + 2 * i] = "true";
    }
    cleanup_said struct said s = {0};
    cli_argv(&s, many);
    assert_int_equal(s.exit_code, 2);
}

static void sixteen_scripts_are_fine(void **state)
{
    const char *many[40] = {"", "run", "--template", setting()->small_template, "--memory", "64"};
    for (int i = 0; i < 16; i++) {
        many[6 + 2 * i] = "--exec";
        many[7 + 2 * i] = "true";
    }
    cleanup_said struct said s = {0};
    cli_argv(&s, many);
    assert_int_equal(s.exit_code, 0);
    cleanup_json json_t *last = event(s.out, "exec", 15);
    assert_int_equal(number_of(last, "exit_code"), 0);
}

static void hold_mode_lasts_until_a_signal(void **state)
{
    cleanup_free char *path = built("cli/sandbox-cli");
    const char *argv[] = {path, "run", "--template", setting()->small_template, "--memory", "64", NULL};
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < 2; i++) {
        cleanup_free char *line = NULL;
        cleanup_fd int out = -1;
        pid_t pid = start_program(argv, &out, &line);
        cleanup_json json_t *created = event(line, "created", 0);
        assert_true(number_of(created, "sandbox_id") > 0);
        wait_ms(100);
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(wait_program(pid, 15000), 0);
    }
}

// Whether the descriptor's text ends with `want` in time.
static bool says(int fd, const char *want)
{
    char text[4096] = "";
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (strstr(text, want) == NULL && n < sizeof text - 1 && poll(&p, 1, (int)patient(20000)) == 1) {
        ssize_t r = read(fd, text + n, sizeof text - 1 - n);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    if (strstr(text, want) == NULL)
        print_message("# no '%s' in: %s\n", want, text);
    return strstr(text, want) != NULL;
}

static void output_comes_while_the_script_runs(void **state)
{
    cleanup_free char *path = built("cli/sandbox-cli");
    const char *argv[] = {
        path, "run", "--template", setting()->small_template, "--memory", "64", "--exec", "echo first; sleep 722001", NULL};
    static const int signals[] = {SIGTERM, SIGINT};
    for (size_t i = 0; i < 2; i++) {
        cleanup_free char *line = NULL;
        cleanup_fd int out = -1;
        pid_t pid = start_program(argv, &out, &line);
        assert_true(strstr(line, "first") != NULL || says(out, "first\n"));
        assert_int_equal(kill(pid, signals[i]), 0);
        assert_int_equal(wait_program(pid, 15000), 128 + signals[i]);
        if (setting()->on_host)
            assert_true(eventually(no_host_process, (void *)"sleep 722001", 10000));
    }
}

static void a_terminal_stands_for_ours(void **state)
{
    cleanup_free char *path = built("cli/sandbox-cli");
    struct winsize size = {.ws_row = 31, .ws_col = 91};
    int terminal = -1;
    pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    if (pid == 0) {
        // Interrupted by the key, as often as it is typed, and ended by a line.
        execl(path, path, "run", "--template", setting()->small_template, "--memory", "64", "--tty", "--exec",
              "stty size; trap 'echo interrupted' INT; echo ready; while ! read x; do :; done; "
              // What is typed may overtake a change of size, here as on every terminal.
              "until [ \"$(stty size)\" = '50 91' ]; do sleep 0.02; done; stty size; exit 7",
              NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    cleanup_fd int ours = terminal;
    assert_true(says(ours, "31 91\r\nready\r\n"));
    assert_int_equal(write(ours, "\x03", 1), 1);
    assert_true(says(ours, "interrupted"));
    size.ws_row = 50;
    assert_int_equal(ioctl(ours, TIOCSWINSZ, &size), 0);
    assert_int_equal(write(ours, "x\r", 2), 2);
    assert_true(says(ours, "50 91\r\n"));
    assert_int_equal(wait_program(pid, 15000), 7);
}

static void status_is_json(void **state)
{
    cleanup_said struct said s = {0};
    cli(&s, "status", "--json");
    assert_int_equal(s.exit_code, 0);
    cleanup_json json_t *status = json_loads(s.out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(status);
    assert_non_null(json_object_get(status, "version"));
    cleanup_said struct said people = {0};
    cli(&people, "status");
    assert_int_equal(people.exit_code, 0);
    assert_true(strlen(people.out) > 20);
}

static void doctor_says_what_works_here(void **state)
{
    cleanup_said struct said s = {0};
    cli(&s, "doctor");
    assert_int_equal(s.exit_code, 0);
    assert_non_null(strstr(s.out, setting()->tier_name));
    assert_null(strchr(s.out, '\x1b'));
}

static void help_is_there_for_everything(void **state)
{
    static const char *const commands[][4] = {{"", "--help"},           {"", "run", "--help"},
                                              {"", "verify", "--help"}, {"", "template", "--help"},
                                              {"", "status", "--help"}, {"", "doctor", "--help"}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        cleanup_said struct said s = {0};
        cli_argv(&s, commands[i]);
        assert_int_equal(s.exit_code, 0);
        assert_non_null(strstr(s.out, "xample"));
        assert_string_equal(s.err, "");
    }
}

// ---- templates -----------------------------------------------------------------------------------------------------------

static char store[] = "/tmp/sandbox-test-store.XXXXXX";

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...)
{
    cleanup_free char *script = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&script, format, args);
    va_end(args);
    assert_true(n >= 0);
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    cleanup_said struct said s = {0};
    run_program(argv, &s);
    if (s.exit_code != 0)
        fail_msg("'%s' ended with %d: %s", script, s.exit_code, s.err);
}

static void templates_are_built_listed_shown_verified_and_removed(void **state)
{
    assert_non_null(mkdtemp(store));
    assert_int_equal(setenv("SANDBOX_TEMPLATES", store, 1), 0);
    shell("mkdir -p %s/.tree/etc && echo one > %s/.tree/etc/one && tar -C %s/.tree -cf %s/.tree.tar .", store, store, store,
          store);
    cleanup_free char *tree = NULL, *tar = NULL;
    assert_true(asprintf(&tree, "%s/.tree", store) > 0 && asprintf(&tar, "%s/.tree.tar", store) > 0);
    cleanup_said struct said built_dir = {0}, built_tar = {0}, again = {0}, list = {0}, show = {0}, good = {0};
    cli(&built_dir, "template", "build", "from-dir", "--from-dir", tree, "--alias", "other-name");
    assert_int_equal(built_dir.exit_code, 0);
    cli(&built_tar, "template", "build", "from-tar", "--from-tar", tar);
    assert_int_equal(built_tar.exit_code, 0);
    cli(&again, "template", "build", "from-dir", "--from-dir", tree);
    assert_int_equal(again.exit_code, 1);
    cli(&list, "template", "list");
    assert_int_equal(list.exit_code, 0);
    assert_true(strstr(list.out, "from-dir") != NULL && strstr(list.out, "from-tar") != NULL);
    assert_non_null(strstr(list.out, "other-name"));
    cli(&show, "template", "show", "other-name");
    assert_int_equal(show.exit_code, 0);
    assert_non_null(strstr(show.out, "rootfs.ext4"));
    cli(&good, "verify", "--template", "other-name");
    assert_int_equal(good.exit_code, 0);

    // One byte in the middle: refused by name, and the other template stays good.
    shell("printf X | dd of=%s/from-dir/rootfs.ext4 bs=1 seek=2000000 conv=notrunc 2>/dev/null", store);
    cleanup_said struct said bad = {0}, fine = {0}, missing = {0}, removed = {0}, gone = {0};
    cli(&bad, "verify", "--template", "from-dir");
    assert_int_equal(bad.exit_code, 1);
    assert_non_null(strstr(bad.err, "rootfs.ext4"));
    cli(&fine, "verify", "--template", "from-tar");
    assert_int_equal(fine.exit_code, 0);
    cli(&missing, "verify", "--template", "no-such-template");
    assert_int_equal(missing.exit_code, 1);
    cli(&removed, "template", "rm", "from-tar");
    assert_int_equal(removed.exit_code, 0);
    cli(&gone, "template", "show", "from-tar");
    assert_int_equal(gone.exit_code, 1);
}

static void the_same_input_gives_the_same_bytes(void **state)
{
    char folder[] = "/tmp/sandbox-test-same.XXXXXX";
    assert_non_null(mkdtemp(folder));
    shell("cd %s && mkdir -p tree/a tree/b && echo 1 > tree/a/1 && echo 2 > tree/b/2 && ln tree/a/1 tree/hard && "
          "ln -s a/1 tree/soft && cp -a tree twin",
          folder);
    for (int i = 0; i < 2; i++) {
        cleanup_free char *from = NULL, *into = NULL;
        assert_true(asprintf(&from, "%s/%s", folder, i == 0 ? "tree" : "twin") > 0 &&
                    asprintf(&into, "%s/store%d", folder, i) > 0);
        assert_int_equal(setenv("SANDBOX_TEMPLATES", into, 1), 0);
        cleanup_said struct said s = {0};
        cli(&s, "template", "build", "same", "--from-dir", from);
        assert_int_equal(s.exit_code, 0);
    }
    shell("cmp %s/store0/same/rootfs.ext4 %s/store1/same/rootfs.ext4", folder, folder);
    shell("rm -rf %s", folder);
}

static int remove_store(void **state)
{
    if (strstr(store, "XXXXXX") == NULL)
        shell("rm -rf %s", store);
    return close_connection(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_exec_prints_output_and_events),
        cmocka_unit_test(the_scripts_share_one_sandbox),
        cmocka_unit_test(failures_are_1_and_usage_is_2),
        cmocka_unit_test(sixteen_scripts_are_fine),
        cmocka_unit_test(hold_mode_lasts_until_a_signal),
        cmocka_unit_test(output_comes_while_the_script_runs),
        cmocka_unit_test(a_terminal_stands_for_ours),
        cmocka_unit_test(status_is_json),
        cmocka_unit_test(doctor_says_what_works_here),
        cmocka_unit_test(help_is_there_for_everything),
        cmocka_unit_test(templates_are_built_listed_shown_verified_and_removed),
        cmocka_unit_test(the_same_input_gives_the_same_bytes),
    };
    return cmocka_run_group_tests_name("cli", tests, open_connection, remove_store);
}
