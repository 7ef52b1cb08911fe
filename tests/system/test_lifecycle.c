// Lifecycle: create, inspect, pause, resume, destroy, cleanup; what a create refuses and why (spec 000, "Types", "Functions").
#include "system.h"

#include <pthread.h>
#include <string.h>

static void create_gives_a_sandbox_behind_the_wall_asked_for(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    assert_true(sandbox_id(h) != 0);
    assert_int_equal(sandbox_isolation(h), setting()->tier);
    assert_string_equal(sandbox_isolation_name(sandbox_isolation(h)), setting()->tier_name);
    const char *start = sandbox_start_kind(h);
    assert_true(strcmp(start, "pool") == 0 || strcmp(start, "restored") == 0 || strcmp(start, "cold") == 0);
    assert_answers(h);
}

static void ids_differ_and_are_not_used_again_at_once(void **state)
{
    cleanup_sandbox sandbox_handle_t *a = create(NULL);
    sandbox_handle_t *b = create(NULL);
    uint32_t old = sandbox_id(b);
    assert_int_not_equal(sandbox_id(a), old);
    assert_ok(sandbox_destroy(b));
    cleanup_sandbox sandbox_handle_t *c = create(NULL);
    assert_int_not_equal(sandbox_id(c), old);
    assert_int_not_equal(sandbox_id(c), sandbox_id(a));
}

static void facts_of_no_handle(void **state)
{
    assert_int_equal(sandbox_id(NULL), 0);
    assert_int_equal(sandbox_isolation(NULL), SANDBOX_ISOLATION_NONE);
    assert_string_equal(sandbox_start_kind(NULL), "");
    assert_int_equal(sandbox_destroy(NULL), SANDBOX_OK);
    assert_string_equal(sandbox_isolation_name((sandbox_isolation_t)99), "none");
    assert_non_null(sandbox_error_string((sandbox_error_t)-99));
}

static void inspect_tells_state_uptime_and_memory(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    assert_int_equal(s.sandbox_id, sandbox_id(h));
    assert_true(s.is_running);
    uint64_t before = s.memory_rss_mib;
    assert_int_equal(exit_code(h, "head -c 33554432 /dev/zero > /dev/shm/32mib"), 0);
    assert_ok(sandbox_inspect(h, &s));
    // A machine has touched at its boot what it uses now; all of it is its own memory and its monitor's (docs/isolation.md).
    bool machine = setting()->tier == SANDBOX_ISOLATION_VM;
    assert_in_range(s.memory_rss_mib, machine ? 33 : before + 28, machine ? 256 + 256 : 256);
    assert_true(s.memory_rss_mib > before);
    assert_true(s.page_faults > 0);
    uint64_t up = s.uptime_ms;
    wait_ms(30);
    assert_ok(sandbox_inspect(h, &s));
    assert_in_range(s.uptime_ms, up + 25, up + patient(20000));
}

static void paused_is_still_and_resumed_goes_on(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    assert_int_equal(exit_code(h, "echo 0 > count; (i=0; while :; do i=$((i+1)); echo $i > next; mv next count; sleep 0.02; "
                                  "done) >/dev/null 2>&1 &"),
                     0);
    assert_ok(sandbox_pause(h));
    assert_ok(sandbox_pause(h));
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    assert_false(s.is_running);
    sandbox_exec_spec_t spec = {0};
    sandbox_exec_result_t r = {0};
    spec.command = "true";
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_null(r.out);
    wait_ms(300);
    assert_ok(sandbox_resume(h));
    assert_ok(sandbox_inspect(h, &s));
    assert_true(s.is_running);
    assert_in_range(s.uptime_ms, 0, patient(250));
    long first = number(h, "cat count");
    assert_int_equal(exit_code(h, "until [ \"$(cat count)\" -gt %ld ]; do sleep 0.05; done", first + 3), 0);
    uint64_t up = s.uptime_ms;
    assert_ok(sandbox_resume(h));
    assert_ok(sandbox_inspect(h, &s));
    assert_true(s.uptime_ms > up);
}

enum {
    START_MS = 5000,
    LONG_MS = START_MS + 3000
};  // what the command's start may take, and far more than the rest of it does

struct long_exec {
    sandbox_handle_t *h;
    sandbox_error_t error;
    sandbox_exec_result_t result;
};

static void *run_long(void *arg)
{
    struct long_exec *l = arg;
    sandbox_exec_spec_t spec = {0};
    spec.command = "touch /workspace/started; until [ -e /workspace/go ]; do sleep 0.1; done; echo finished";
    spec.timeout_ms = patient(LONG_MS);
    l->error = sandbox_exec(l->h, &spec, &l->result);
    return NULL;
}

static bool started(void *h)
{
    sandbox_fstat_t st;
    return sandbox_stat(h, "/workspace/started", &st) == SANDBOX_OK;
}

static void an_exec_outlives_a_pause_and_its_deadline_stands_still(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    assert_answers(h);  // the first command of a machine reads all that it needs
    struct long_exec l = {.h = h};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_long, &l), 0);
    assert_true(eventually(started, h, START_MS));
    assert_ok(sandbox_pause(h));
    wait_ms(patient(LONG_MS + 200));
    assert_ok(sandbox_resume(h));
    sandbox_error_t told = sandbox_write_file(h, "/workspace/go", (const uint8_t *)"", 0, 0, 0);
    pthread_join(thread, NULL);
    assert_int_equal(told, SANDBOX_OK);
    assert_int_equal(l.error, SANDBOX_OK);
    if (l.result.timed_out)
        fail_msg("it was ended after %.1f s, the pause of %.1f s in them", (double)l.result.duration_us / 1e6,
                 patient(LONG_MS + 200) / 1e3);
    assert_int_equal(l.result.exit_code, 0);
    assert_string_equal((const char *)l.result.out, "finished\n");
    sandbox_exec_result_free(&l.result);
}

static void *run_until_destroyed(void *arg)
{
    struct long_exec *l = arg;
    sandbox_exec_spec_t spec = {0};
    spec.command = "touch /workspace/started; sleep 600";
    l->error = sandbox_exec(l->h, &spec, &l->result);
    return NULL;
}

static void a_paused_sandbox_can_be_destroyed(void **state)
{
    sandbox_handle_t *h = create(NULL);
    assert_ok(sandbox_pause(h));
    uint64_t start = now_ms();
    assert_ok(sandbox_destroy(h));
    assert_true(now_ms() - start < patient(10000));
}

static void cleanup_destroys_everything_and_ends_calls(void **state)
{
    sandbox_handle_t *h = create(NULL);
    struct long_exec l = {.h = h};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_until_destroyed, &l), 0);
    assert_true(eventually(started, h, 5000));
    uint64_t start = now_ms();
    sandbox_cleanup();
    pthread_join(thread, NULL);
    assert_true(now_ms() - start < patient(10000));
    assert_int_not_equal(l.error, SANDBOX_OK);
    sandbox_status_t s = {0};
    assert_fails(sandbox_inspect(h, &s), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_destroy(h);  // frees the handle, whatever it returns
    sandbox_spec_t spec = plain_spec();
    sandbox_handle_t *none = NULL;
    assert_fails(sandbox_create(&spec, &none), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_null(none);
    sandbox_cleanup();
    assert_ok(sandbox_init(setting()->socket));
    cleanup_sandbox sandbox_handle_t *again = create(NULL);
    assert_answers(again);
}

static void init_twice(void **state)
{
    assert_ok(sandbox_init(setting()->socket));
    assert_fails(sandbox_init("/no/such/engine.sock"), SANDBOX_ERR_INVALID_SPEC);
    sandbox_conn_t *conn = NULL;
    assert_fails(sandbox_conn_open("/no/such/engine.sock", &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_null(conn);
}

// ---- what is refused ---------------------------------------------------------------------------------------------------

static void refused(const sandbox_spec_t *spec)
{
    sandbox_handle_t *h = NULL;
    assert_fails(sandbox_create(spec, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_null(h);
}

static void unknown_templates(void **state)
{
    static const char *const names[] = {"no-such-template", "",    "..",   ".",   "../etc",
                                        "debian/../debian", "a b", "/etc", "x\n", "debian/rootfs.ext4"};
    sandbox_spec_t spec = plain_spec();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        spec.template_name = names[i];
        refused(&spec);
    }
    spec.template_name = NULL;
    refused(&spec);
    char name[3000];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    spec.template_name = name;
    refused(&spec);
}

static void the_sentence_names_what_was_wrong(void **state)
{
    sandbox_spec_t spec = plain_spec();
    spec.template_name = "no-such-template";
    refused(&spec);
    assert_non_null(strstr(sandbox_last_error(), "no-such-template"));
}

static void bad_memory_and_processors(void **state)
{
    static const uint64_t memory[] = {0, 1, 15, (uint64_t)1 << 40, UINT64_MAX};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        sandbox_spec_t spec = plain_spec();
        spec.memory_mib = memory[i];
        refused(&spec);
    }
    static const uint32_t vcpus[] = {0, 100000, UINT32_MAX};
    for (size_t i = 0; i < sizeof vcpus / sizeof vcpus[0]; i++) {
        sandbox_spec_t spec = plain_spec();
        spec.vcpu_count = vcpus[i];
        refused(&spec);
    }
    static const uint64_t disks[] = {1, 15, UINT64_MAX};
    for (size_t i = 0; i < sizeof disks / sizeof disks[0]; i++) {
        sandbox_spec_t spec = plain_spec();
        spec.disk_mib = disks[i];
        refused(&spec);
    }
}

static void the_smallest_sandbox_works(void **state)
{
    sandbox_spec_t spec = small_spec();
    spec.memory_mib = 16;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    assert_answers(h);
}

static void a_floor_that_cannot_be_met_runs_nothing(void **state)
{
    sandbox_spec_t spec = plain_spec();
    spec.min_isolation = 5;
    refused(&spec);
    spec.min_isolation = UINT32_MAX;
    refused(&spec);
    if (setting()->tier < SANDBOX_ISOLATION_VM) {
        spec.min_isolation = SANDBOX_ISOLATION_VM;
        refused(&spec);
    }
    spec.min_isolation = SANDBOX_ISOLATION_NONE;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    assert_true(sandbox_isolation(h) >= setting()->tier);
}

static void contradictions_and_garbage(void **state)
{
    const char *hosts[] = {"index.example.org", NULL};
    sandbox_spec_t spec = plain_spec();
    spec.egress_allow = hosts;
    spec.egress_deny_all = 1;
    refused(&spec);

    spec = plain_spec();
    spec.reserved[0] = 1;
    refused(&spec);
    spec = plain_spec();
    spec.reserved[3] = 1;
    refused(&spec);

    char key[129];
    memset(key, 'k', sizeof key - 1);
    key[128] = '\0';
    const char *const keys[] = {"", "a\"b", "a\\b", "tab\t", "\xc3\xa9", key};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        spec = plain_spec();
        spec.session_key = keys[i];
        refused(&spec);
    }
    const char *const variables[] = {"NO_EQUALS_SIGN", "=value", ""};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *env[] = {"GOOD=1", variables[i], NULL};
        spec = plain_spec();
        spec.env_vars = env;
        refused(&spec);
    }
}

static void deny_all_is_fine(void **state)
{
    sandbox_spec_t spec = plain_spec();
    spec.egress_deny_all = 1;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    assert_answers(h);
}

static void the_engine_says_what_it_is(void **state)
{
    cleanup_free char *json = NULL;
    assert_ok(sandbox_conn_engine_status(NULL, &json));
    assert_int_equal(json[0], '{');
    assert_non_null(strstr(json, "\"version\""));
    assert_non_null(strstr(json, setting()->tier_name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(create_gives_a_sandbox_behind_the_wall_asked_for),
        cmocka_unit_test(ids_differ_and_are_not_used_again_at_once),
        cmocka_unit_test(facts_of_no_handle),
        cmocka_unit_test(inspect_tells_state_uptime_and_memory),
        cmocka_unit_test(paused_is_still_and_resumed_goes_on),
        cmocka_unit_test(an_exec_outlives_a_pause_and_its_deadline_stands_still),
        cmocka_unit_test(a_paused_sandbox_can_be_destroyed),
        cmocka_unit_test(cleanup_destroys_everything_and_ends_calls),
        cmocka_unit_test(init_twice),
        cmocka_unit_test(unknown_templates),
        cmocka_unit_test(the_sentence_names_what_was_wrong),
        cmocka_unit_test(bad_memory_and_processors),
        cmocka_unit_test(the_smallest_sandbox_works),
        cmocka_unit_test(a_floor_that_cannot_be_met_runs_nothing),
        cmocka_unit_test(contradictions_and_garbage),
        cmocka_unit_test(deny_all_is_fine),
        cmocka_unit_test(the_engine_says_what_it_is),
    };
    return cmocka_run_group_tests_name("lifecycle", tests, open_connection, close_connection);
}
