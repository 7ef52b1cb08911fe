// Snapshots and forks through libsandbox and sandbox-cli.  What is in them is tested by test_snapshots.py.
#include "program.h"
#include "system.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_memory(void)
{
    return setting()->tier == SANDBOX_ISOLATION_VM;
}

// The tier's snapshots hold what this tests.
static bool here(void)
{
    if (setting()->tier == SANDBOX_ISOLATION_CONTAINER || has_memory())
        return true;
    print_message("the tier %s has no snapshots of this kind\n", setting()->tier_name);
    return false;
}

static void a_snapshot_and_its_forks(void **state)
{
    if (!here())
        skip();
    enum { COUNT = 4 };
    sandbox_spec_t spec = small_spec();
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    free(output(h, "echo kept > /kept"));
    sandbox_snapshot_t s = {0}, again = {0};
    assert_ok(sandbox_snapshot_create(h, &s));
    assert_int_equal(s.memory, has_memory());
    assert_int_equal(s.source_sandbox_id, sandbox_id(h));
    assert_ok(sandbox_snapshot_inspect(NULL, s.id, &again));
    assert_memory_equal(&s, &again, sizeof s);
    free(output(h, "rm /kept"));

    sandbox_handle_t *forks[COUNT] = {0};
    const char *env[] = {"WHO=fork", NULL};
    const sandbox_fork_spec_t what = {.env_vars = env};
    assert_ok(sandbox_fork(NULL, s.id, &what, COUNT, forks));
    for (int i = 0; i < COUNT; i++) {
        cleanup_free char *said = output(forks[i], "cat /kept; echo $WHO");
        assert_string_equal(said, "kept\nfork");
        sandbox_details_t about = {0};
        assert_ok(sandbox_details(forks[i], &about));
        assert_string_equal(about.snapshot_id, s.id);
        assert_string_equal(about.state, "running");
        assert_true(about.is_running && about.memory == has_memory() && about.sandbox_id == sandbox_id(forks[i]));
        // What a machine shares is not its group's (docs/isolation.md).
        assert_true(about.memory_private_mib + (has_memory() ? 0 : about.memory_shared_mib) <= about.memory_rss_mib + 2);
    }
    assert_ok(sandbox_snapshot_delete(NULL, s.id));
    assert_fails(sandbox_snapshot_delete(NULL, s.id), SANDBOX_ERR_NOT_FOUND);
    assert_fails(sandbox_fork(NULL, s.id, NULL, 1, forks), SANDBOX_ERR_NOT_FOUND);
    for (int i = 0; i < COUNT; i++) {
        cleanup_free char *said = output(forks[i], "cat /kept");
        assert_string_equal(said, "kept");
        assert_ok(sandbox_destroy(forks[i]));
    }
    if (has_memory()) {
        sandbox_details_t about = {0};
        assert_ok(sandbox_suspend(h));
        assert_ok(sandbox_details(h, &about));
        assert_string_equal(about.state, "suspended");
        assert_false(about.is_running);
        assert_ok(sandbox_resume(h));
    } else {
        assert_fails(sandbox_suspend(h), SANDBOX_ERR_INVALID_SPEC);
    }
    assert_answers(h);
}

static void the_list_is_in_order(void **state)
{
    if (!here())
        skip();
    cleanup_sandbox sandbox_handle_t *h = create(&(sandbox_spec_t){
        .memory_mib = 64, .vcpu_count = 1, .template_name = setting()->small_template, .pool_wait_ms = patient(10000)});
    sandbox_snapshot_t made[5], *list = NULL;
    for (int i = 0; i < 5; i++)
        assert_ok(sandbox_snapshot_create(h, &made[i]));
    size_t n = 0;
    assert_ok(sandbox_snapshot_list(NULL, &list, &n));
    assert_int_equal(n, 5);
    for (size_t i = 1; i < n; i++)
        assert_true(strcmp(list[i - 1].id, list[i].id) < 0);
    for (size_t i = 0; i < n; i++)
        assert_ok(sandbox_snapshot_delete(NULL, list[i].id));
    free(list);
    assert_ok(sandbox_snapshot_list(NULL, &list, &n));
    assert_int_equal(n, 0);
    free(list);
}

#define cli(said, ...) cli_argv(said, (const char *const[]){"", __VA_ARGS__, NULL})

static void cli_argv(struct said *said, const char *const *arguments)
{
    cleanup_free char *path = built("cli/sandbox-cli");
    const char *argv[64] = {path};
    for (size_t i = 1; i < 63 && arguments[i] != NULL; i++)
        argv[i] = arguments[i];
    run_program(argv, said);
}

// The value of a text member of the first line with one, to be freed.
static char *member(const char *text, const char *name)
{
    char key[40];
    snprintf(key, sizeof key, "\"%s\":\"", name);
    const char *at = strstr(text, key);
    if (at == NULL)
        fail_msg("no %s in: %s", name, text);
    at += strlen(key);
    return strndup(at, strcspn(at, "\""));
}

static void from_the_command_line(void **state)
{
    if (!here())
        skip();
    struct said said = {0};
    const char *template = setting()->small_template;
    cli(&said, "snapshot", "create", "--template", template, "--memory", "64", "--exec", "echo from the cli > /made");
    assert_int_equal(said.exit_code, 0);
    assert_non_null(strstr(said.out, has_memory() ? "\"memory\":true" : "\"memory\":false"));
    cleanup_free char *id = member(strstr(said.out, "\"event\":\"snapshot\""), "id");
    said_free(&said);

    cli(&said, "fork", id, "--count", "3", "--exec", "cat /made; echo number $FORK_INDEX; exit $FORK_INDEX");
    assert_int_equal(said.exit_code, 1);  // the first that is not 0
    static const char *const wanted[] = {"number 0", "number 1", "number 2", "from the cli", "\"event\":\"forked\""};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        assert_non_null(strstr(said.out, wanted[i]));
    said_free(&said);

    cli(&said, "snapshot", "list");
    assert_int_equal(said.exit_code, 0);
    json_t *line = json_loads(said.out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(line, "id")), id);
    json_decref(line);
    cleanup_free char *listed = strdup(said.out);
    said_free(&said);
    cli(&said, "snapshot", "inspect", id);
    assert_string_equal(said.out, listed);
    said_free(&said);
    cli(&said, "snapshot", "delete", id);
    assert_int_equal(said.exit_code, 0);
    said_free(&said);
    cli(&said, "snapshot", "delete", id);
    assert_int_equal(said.exit_code, 1);
    assert_non_null(strstr(said.err, "no such snapshot"));
    said_free(&said);
    // A script that fails keeps nothing, and its code is the command's.
    cli(&said, "snapshot", "create", "--template", template, "--memory", "64", "--exec", "exit 5");
    assert_int_equal(said.exit_code, 5);
    assert_null(strstr(said.out, "\"event\":\"snapshot\""));
    said_free(&said);
    cli(&said, "snapshot", "list");
    assert_string_equal(said.out, "");
    said_free(&said);
}

static void usage(void **state)
{
    static const char *const bad[][6] = {{"", "snapshot"},
                                         {"", "snapshot", "eat"},
                                         {"", "snapshot", "inspect"},
                                         {"", "snapshot", "list", "more"},
                                         {"", "snapshot", "create"},
                                         {"", "fork"},
                                         {"", "fork", "a", "b"},
                                         {"", "fork", "a", "--count", "0"},
                                         {"", "fork", "a", "--count", "513"},
                                         {"", "fork", "a", "--env", "x"},
                                         {"", "fork", "a", "--timeout", "5"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct said said = {0};
        cli_argv(&said, bad[i]);
        assert_int_equal(said.exit_code, 2);
        assert_true(said.err[0] != '\0');
        said_free(&said);
    }
    struct said said = {0};
    cli(&said, "fork", "--help");
    assert_int_equal(said.exit_code, 0);
    assert_non_null(strstr(said.out, "none of its processes"));
    said_free(&said);
    cli(&said, "snapshot", "--help");
    assert_int_equal(said.exit_code, 0);
    assert_non_null(strstr(said.out, "no process"));
    said_free(&said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_snapshot_and_its_forks),
        cmocka_unit_test(the_list_is_in_order),
        cmocka_unit_test(from_the_command_line),
        cmocka_unit_test(usage),
    };
    return cmocka_run_group_tests_name("snapshot-api", tests, open_connection, close_connection);
}
