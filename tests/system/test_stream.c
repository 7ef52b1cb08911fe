// Streams: live output, back-pressure, input, terminals, and what happens when one side goes away.
#include "stream.h"
#include "system.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

// ---- output ----

static void a_line_comes_before_the_command_ends(void **state)
{
    cleanup_told struct told t;
    tell(&t, *state, "echo first; read x; echo second; exit 3", .open_stdin = 1);
    assert_true(told_until(&t, "first\n"));
    told_write(&t, "go\n", 3);
    assert_int_equal(told_end(&t)->exit_code, 3);
    assert_string_equal(t.text, "first\nsecond\n");
}

static uint64_t rss_kib(pid_t pid)
{
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    uint64_t kib = 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %lu", &kib) == 1)
            break;
    fclose(file);
    return kib;
}

static int count(void *arg, const uint8_t *data, size_t len)
{
    *(uint64_t *)arg += len;
    return 0;
}

static void much_goes_through_little_memory(void **state)
{
    enum { MANY = 200 * 1000 * 1000 };
    uint64_t bytes = 0;
    sandbox_output_t output = {.on_stdout = count, .arg = &bytes};
    sandbox_exec_spec_t spec = {.command = "head -c 200000000 /dev/zero"};
    pid_t agent = setting()->on_host ? newest_holder() : -1;
    uint64_t engine_before = rss_kib(engine_pid()), client_before = rss_kib(getpid());
    uint64_t agent_before = agent > 0 ? rss_kib(agent) : 0;
    cleanup_result sandbox_exec_result_t r = {0};
    assert_ok(sandbox_exec_streaming(*state, &spec, &output, &r));
    assert_int_equal(bytes, MANY);
    assert_int_equal(r.out_total, MANY);
    assert_false(r.output_truncated);
    if (getenv("SANDBOX_TEST_SANITIZED") != NULL)
        return;
    assert_true(rss_kib(engine_pid()) < engine_before + 2048);
    assert_true(rss_kib(getpid()) < client_before + 4096);
    if (agent > 0)
        assert_true(rss_kib(agent) < agent_before + 4096);
}

static void a_slow_reader_stalls_only_its_own_command(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_told struct told slow;
    tell(&slow, h, "yes & yes >&2 & echo $! > /tmp/second; wait", .terminal = 0);
    assert_true(told_until(&slow, "y\n"));
    uint64_t before = now_ms();
    for (int i = 0; i < 20; i++)
        assert_int_equal(exit_code(h, "true"), 0);
    cleanup_told struct told other;
    tell(&other, h, "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2", .terminal = 0);
    assert_int_equal(told_end(&other)->out_total, 50000000);
    assert_true(now_ms() - before < patient(20000));
    // It waits: what it has written no longer grows.
    long at = number(h, "cut -d' ' -f14 /proc/$(cat /tmp/second)/stat");
    wait_ms(100);
    assert_true(number(h, "cut -d' ' -f14 /proc/$(cat /tmp/second)/stat") <= at + 1);
    assert_ok(sandbox_stream_kill(slow.stream));
    assert_int_equal(told_end(&slow)->term_signal, SIGKILL);
}

// ---- input ----

static void input_and_output_go_both_ways_at_once(void **state)
{
    cleanup_told struct told t;
    tell(&t, *state, "tee /tmp/copy | md5sum >&2; md5sum < /tmp/copy; exit 0", .open_stdin = 1);
    static char block[100000];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 7);
    for (int i = 0; i < 100; i++)
        told_write(&t, block, sizeof block);
    assert_ok(sandbox_stream_close_stdin(t.stream));
    assert_int_equal(told_end(&t)->exit_code, 0);
    assert_int_equal(number(*state, "stat -c %%s /tmp/copy"), 100 * (long)sizeof block);
    // An echo far larger than everything in between.
    cleanup_told struct told echo;
    tell(&echo, *state, "cat", .open_stdin = 1);
    for (int i = 0; i < 100; i++)
        told_write(&echo, block, sizeof block);
    assert_ok(sandbox_stream_close_stdin(echo.stream));
    assert_int_equal(told_end(&echo)->exit_code, 0);
    assert_int_equal(echo.bytes, 100 * sizeof block);
}

static void the_specs_input_is_all_there_is(void **state)
{
    static char input[SANDBOX_MAX_STDIN];
    uint64_t bytes = 0;
    sandbox_output_t output = {.on_stdout = count, .arg = &bytes};
    sandbox_exec_spec_t spec = {.command = "cat", .stdin_data = input, .stdin_len = sizeof input};
    for (size_t n = 0; n <= sizeof input; n += sizeof input / 2) {
        cleanup_result sandbox_exec_result_t r = {0};
        spec.stdin_len = n;
        bytes = 0;
        assert_ok(sandbox_exec_streaming(*state, &spec, &output, &r));
        assert_int_equal(r.exit_code, 0);
        assert_int_equal(bytes, n);
    }
}

// ---- terminals ----

static void a_terminal_has_a_size_and_an_interrupt(void **state)
{
    cleanup_told struct told t;
    tell(&t, *state, "stty size; trap 'stty size' WINCH; trap 'echo int' INT; while :; do sleep 0.02; done", .terminal = 1,
         .rows = 40, .cols = 100, .open_stdin = 1);
    assert_true(told_until(&t, "40 100\r\n"));
    // The trap may not be set yet: the size is told again and again.
    for (uint16_t rows = 50; !told_until_ms(&t, " 132\r\n", 100); rows++)
        assert_ok(sandbox_stream_resize(t.stream, rows, 132));
    for (int i = 1; i <= 3; i++) {
        t.len = 0;
        told_write(&t, "\x03", 1);
        assert_true(told_until(&t, "int\r\n"));
    }
    assert_ok(sandbox_stream_kill(t.stream));
    assert_int_equal(told_end(&t)->term_signal, SIGKILL);
}

static int reject(void *arg, const uint8_t *data, size_t len)
{
    (void)arg, (void)data, (void)len;
    return 1;
}

static void a_callback_can_end_it(void **state)
{
    sandbox_output_t output = {.on_stdout = reject};
    sandbox_exec_spec_t spec = {.command = "yes"};
    cleanup_result sandbox_exec_result_t r = {0};
    assert_ok(sandbox_exec_streaming(*state, &spec, &output, &r));
    assert_int_equal(r.term_signal, SIGKILL);
}

// ---- ends ----

static void freeing_a_stream_kills_its_command(void **state)
{
    cleanup_told struct told t;
    tell(&t, *state, "setsid sleep 7341 & sleep 7342 & echo up; wait", .terminal = 0);
    assert_true(told_until(&t, "up\n"));
    told_free(&t);
    uint64_t until = now_ms() + patient(5000);
    while (guest_processes(*state, "sleep 734") > 0)
        assert_true(now_ms() < until);
}

static void limits_are_as_for_exec(void **state)
{
    cleanup_told struct told t;
    told_start(&t, *state, &(sandbox_exec_spec_t){.command = "echo before; sleep 60", .timeout_ms = patient(500)}, NULL);
    assert_true(told_end(&t)->timed_out);
    assert_string_equal(t.text, "before\n");
    told_free(&t);
    const char *argv[] = {"/no/such/program", NULL};
    told_start(&t, *state, &(sandbox_exec_spec_t){.argv = argv}, NULL);
    assert_int_equal(told_end(&t)->exit_code, 127);
    assert_int_not_equal(told_end(&t)->start_errno, 0);
    assert_non_null(strstr(t.text, "/no/such/program"));
}

static void a_paused_stream_goes_on_after_the_resume(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_told struct told t;
    tell(&t, h, "echo one; read x; echo two", .open_stdin = 1);
    assert_true(told_until(&t, "one\n"));
    assert_ok(sandbox_pause(h));
    told_write(&t, "x\n", 2);
    assert_false(told_until_ms(&t, "two\n", 200));
    assert_fails(sandbox_exec_stream(h, &(sandbox_exec_spec_t){.command = "true"}, NULL, &(sandbox_stream_t *){NULL}),
                 SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_ok(sandbox_resume(h));
    assert_int_equal(told_end(&t)->exit_code, 0);
    assert_string_equal(t.text, "one\ntwo\n");
}

static void sixteen_are_in_flight_at_most(void **state)
{
    sandbox_handle_t *h = *state;
    struct told t[SANDBOX_MAX_GUEST_OPS];
    for (size_t i = 0; i < SANDBOX_MAX_GUEST_OPS; i++)
        tell(&t[i], h, "read x", .open_stdin = 1);
    assert_fails(sandbox_exec_stream(h, &(sandbox_exec_spec_t){.command = "true"}, NULL, &(sandbox_stream_t *){NULL}),
                 SANDBOX_ERR_GUEST_UNAVAILABLE);
    for (size_t i = 0; i < SANDBOX_MAX_GUEST_OPS; i++)
        told_free(&t[i]);
    // The agent has to see that we closed them, and the engine has to hear of it.
    uint64_t until = now_ms() + patient(5000);
    sandbox_exec_result_t r = {0};
    while (sandbox_exec(h, &(sandbox_exec_spec_t){.command = "true"}, &r) != SANDBOX_OK)
        assert_true(now_ms() < until);
    sandbox_exec_result_free(&r);
}

static void a_sandbox_that_ends_is_an_error_not_an_exit(void **state)
{
    (void)state;
    sandbox_spec_t spec = small_spec();
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        sandbox_handle_t *h = create(&spec);
        cleanup_told struct told t;
        tell(&t, h, "echo up; sleep 600", .terminal = 0);
        assert_true(told_until(&t, "up\n"));
        if (destroyed)
            assert_ok(sandbox_destroy(h));
        else
            assert_int_equal(kill(newest_holder(), SIGKILL), 0);
        sandbox_event_t e = {0};
        sandbox_error_t r;
        do {
            r = sandbox_stream_read(t.stream, (int)patient(20000), &e);
        } while (r == SANDBOX_OK && e.type == SANDBOX_EVENT_STDOUT);
        assert_int_equal(r, SANDBOX_ERR_GUEST_UNAVAILABLE);
        if (!destroyed)
            sandbox_destroy(h);
    }
}

// ---- background processes ----

static sandbox_process_t only_process(sandbox_handle_t *h, uint32_t id)
{
    sandbox_process_t *list = NULL, found = {0};
    size_t n = 0;
    assert_ok(sandbox_processes(h, &list, &n));
    for (size_t i = 0; i < n; i++)
        if (list[i].process_id == id) {
            found = list[i];
            assert_non_null(strstr(found.command, "work"));
        }
    free(list);
    found.command = NULL;
    assert_int_equal(found.process_id, id);
    return found;
}

// Spawned, listed, watched by two, paused and resumed, signalled, and still there to be read when it has ended.
static void a_background_process_lives_its_own_life(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_exec_spec_t spec = {.command = ": work; trap 'echo term; exit 6' TERM; echo begin; i=0;"
                                           "while :; do i=$((i+1)); echo $i > /tmp/n; mv /tmp/n /tmp/count; sleep 0.01; done"};
    uint32_t id = 0;
    assert_ok(sandbox_spawn(h, &spec, NULL, &id));
    sandbox_process_t p = only_process(h, id);
    assert_true(p.running && p.pid > 1 && p.exit_code == -1);
    cleanup_told struct told a = {0}, b = {0};
    assert_ok(sandbox_attach(h, id, 0, &a.stream));
    assert_ok(sandbox_attach(h, id, 0, &b.stream));
    assert_true(told_until(&a, "begin\n") && told_until(&b, "begin\n"));
    told_free(&b);
    uint64_t until = now_ms() + patient(10000);
    while (exit_code(h, "test -s /tmp/count") != 0)
        assert_true(now_ms() < until);
    long before = number(h, "cat /tmp/count");
    assert_ok(sandbox_pause(h));
    assert_ok(sandbox_resume(h));
    assert_true(only_process(h, id).running);
    until = now_ms() + patient(10000);
    while (number(h, "cat /tmp/count") <= before)
        assert_true(now_ms() < until);
    assert_ok(sandbox_process_signal(h, id, SIGTERM, 1));
    assert_int_equal(told_end(&a)->exit_code, 6);
    assert_string_equal(a.text, "begin\nterm\n");
    p = only_process(h, id);
    assert_true(!p.running && p.exit_code == 6 && p.out_total == 11);
    told_free(&a);
    memset(&a, 0, sizeof a);
    assert_ok(sandbox_attach(h, id, 0, &a.stream));
    assert_int_equal(told_end(&a)->exit_code, 6);
    assert_string_equal(a.text, "begin\nterm\n");
    assert_fails(sandbox_process_signal(h, id, SIGTERM, 1), SANDBOX_ERR_NOT_FOUND);
    sandbox_stream_t *none = NULL;
    assert_ok(sandbox_attach(h, id + 1000, 0, &none));
    sandbox_event_t e;
    assert_fails(sandbox_stream_read(none, (int)patient(10000), &e), SANDBOX_ERR_NOT_FOUND);
    sandbox_stream_free(none);
}

static void a_background_process_can_be_written_to(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_exec_spec_t spec = {.command = ": work; cat", .stdin_data = "one\n", .stdin_len = 4};
    sandbox_spawn_options_t options = {.open_stdin = 1};
    uint32_t id = 0;
    assert_ok(sandbox_spawn(h, &spec, &options, &id));
    cleanup_told struct told t = {0};
    assert_ok(sandbox_attach(h, id, 1, &t.stream));
    told_write(&t, "two\n", 4);
    assert_true(told_until(&t, "one\ntwo\n"));
    assert_ok(sandbox_stream_close_stdin(t.stream));
    assert_int_equal(told_end(&t)->exit_code, 0);
}

static void a_whole_tree_is_signalled(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_exec_spec_t spec = {.command = ": work; setsid sleep 7351 & sleep 7352 & wait"};
    uint32_t id = 0;
    assert_ok(sandbox_spawn(h, &spec, NULL, &id));
    uint64_t until = now_ms() + patient(10000);
    while (guest_processes(h, "sleep 735") < 2)
        assert_true(now_ms() < until);
    assert_ok(sandbox_process_signal(h, id, SIGKILL, 0));
    while (guest_processes(h, "sleep 735") > 0)
        assert_true(now_ms() < until);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_comes_before_the_command_ends),
        cmocka_unit_test(much_goes_through_little_memory),
        cmocka_unit_test(a_slow_reader_stalls_only_its_own_command),
        cmocka_unit_test(input_and_output_go_both_ways_at_once),
        cmocka_unit_test(the_specs_input_is_all_there_is),
        cmocka_unit_test(a_terminal_has_a_size_and_an_interrupt),
        cmocka_unit_test(a_callback_can_end_it),
        cmocka_unit_test(freeing_a_stream_kills_its_command),
        cmocka_unit_test(limits_are_as_for_exec),
        cmocka_unit_test(a_paused_stream_goes_on_after_the_resume),
        cmocka_unit_test(sixteen_are_in_flight_at_most),
        cmocka_unit_test(a_background_process_lives_its_own_life),
        cmocka_unit_test(a_background_process_can_be_written_to),
        cmocka_unit_test(a_whole_tree_is_signalled),
        cmocka_unit_test(a_sandbox_that_ends_is_an_error_not_an_exit),
    };
    return cmocka_run_group_tests_name("stream", tests, open_with_sandbox, close_with_sandbox);
}
