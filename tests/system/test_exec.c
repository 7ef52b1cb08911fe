// Exec: what a command is given and what comes back, byte for byte (spec 000, "Guest operations" and "Guest RPC").
#include "system.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static void exit_codes_and_signals_are_apart(void **state)
{
    sandbox_handle_t *h = *state;
    static const int codes[] = {0, 1, 3, 42, 126, 127, 128, 137, 255};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        char script[32];
        snprintf(script, sizeof script, "exit %d", codes[i]);
        cleanup_result sandbox_exec_result_t r = {0};
        run(h, script, &r);
        assert_int_equal(r.exit_code, codes[i]);
        assert_int_equal(r.term_signal, 0);
        assert_int_equal(r.start_errno, 0);
    }
    static const int signals[] = {SIGTERM, SIGKILL, SIGSEGV, SIGABRT, SIGPIPE, SIGUSR1};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        char script[32];
        snprintf(script, sizeof script, "kill -%d $$", signals[i]);
        cleanup_result sandbox_exec_result_t r = {0};
        run(h, script, &r);
        assert_int_equal(r.exit_code, -1);
        assert_int_equal(r.term_signal, signals[i]);
        assert_false(r.timed_out || r.oom_killed || r.output_limit_hit);
    }
}

static void the_two_streams_are_apart(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    run(*state, "echo to-out; echo to-err >&2; exit 3", &r);
    assert_int_equal(r.exit_code, 3);
    assert_string_equal((const char *)r.out, "to-out\n");
    assert_string_equal((const char *)r.err, "to-err\n");
    assert_int_equal(r.out_len, 7);
    assert_int_equal(r.out_total, 7);
    assert_int_equal(r.err_total, 7);
    assert_false(r.output_truncated);
}

static void what_cannot_start_says_why(void **state)
{
    sandbox_handle_t *h = *state;
    static const struct {
        const char *program;
        int code;
    } cases[] = {{"no-such-binary", 127}, {"/no/such/file", 127}, {"/etc/passwd", 126}, {"/etc", 126}, {"./missing", 127}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *argv[] = {cases[i].program, NULL};
        sandbox_exec_spec_t spec = {0};
        spec.argv = argv;
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(h, &spec, &r);
        assert_int_equal(r.exit_code, cases[i].code);
        assert_int_equal(r.term_signal, 0);
        assert_int_not_equal(r.start_errno, 0);
        assert_non_null(strstr((const char *)r.err, cases[i].program));
    }
    cleanup_result sandbox_exec_result_t r = {0};
    run(h, "no-such-binary", &r);
    assert_int_equal(r.exit_code, 127);
    assert_true(r.err_len > 0);
    cleanup_result sandbox_exec_result_t nowhere = {0};
    sandbox_exec_spec_t spec = {0};
    spec.command = "true";
    spec.cwd = "/no/such/folder";
    run_spec(h, &spec, &nowhere);
    assert_in_range(nowhere.exit_code, 126, 127);
    assert_int_not_equal(nowhere.start_errno, 0);
    assert_true(nowhere.err_len > 0);
}

static void a_spec_that_makes_no_sense_is_refused(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_exec_spec_t spec = {0};
    sandbox_exec_result_t r = {0};
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    const char *argv[] = {"true", NULL}, *empty[] = {NULL};
    spec.command = "true";
    spec.argv = argv;
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    spec.command = NULL;
    spec.argv = empty;
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    spec.argv = argv;
    spec.reserved[4] = 1;
    assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    spec.reserved[4] = 0;
    static const char *const bad[] = {"NO_EQUALS_SIGN", "=x", ""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *env[] = {bad[i], NULL};
        spec.env = env;
        assert_fails(sandbox_exec(h, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    }
    assert_null(r.out);
}

static void arguments_arrive_as_they_are(void **state)
{
    const char *argv[] = {"printf",    "%s|", "",   " a  b ", "c'd\"e",   "$HOME `id`",
                          "new\nline", "*",   "-n", "\\",     "\xff\xfe", NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_int_equal(r.exit_code, 0);
    assert_string_equal((const char *)r.out, "| a  b |c'd\"e|$HOME `id`|new\nline|*|-n|\\|\xff\xfe|");
}

static void too_many_arguments_are_refused(void **state)
{
    enum { MANY = 5000 };
    const char **argv = calloc(MANY + 1, sizeof *argv);
    for (int i = 0; i < MANY; i++)
        argv[i] = i == 0 ? "true" : "x";
    sandbox_exec_spec_t spec = {0};
    sandbox_exec_result_t r = {0};
    spec.argv = argv;
    sandbox_error_t e = sandbox_exec(*state, &spec, &r);
    free(argv);
    assert_true(e == SANDBOX_ERR_INVALID_SPEC || e == SANDBOX_ERR_TOO_LARGE);
    assert_answers(*state);
}

static void too_much_text_is_refused(void **state)
{
    size_t n = 80 * 1024;
    cleanup_free char *script = malloc(n + 1);
    memset(script, '#', n);
    script[n] = '\0';
    sandbox_exec_spec_t spec = {0};
    sandbox_exec_result_t r = {0};
    spec.command = script;
    assert_fails(sandbox_exec(*state, &spec, &r), SANDBOX_ERR_TOO_LARGE);
    assert_answers(*state);
}

// ---- environment -------------------------------------------------------------------------------------------------------

static void variables_arrive_byte_for_byte(void **state)
{
    static const char *const values[] = {"a\nb{\n'c'\"$HOME\" `id` \\n  ",
                                         "-----BEGIN X-----\nabc=\n-----END X-----\n",
                                         "{\"k\":\"v\",\"n\":[1,2]}",
                                         "a=b=c",
                                         "",
                                         "\xff\xfe\x01",
                                         " leading and trailing ",
                                         "\t"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char variable[256];
        snprintf(variable, sizeof variable, "V=%s", values[i]);
        const char *env[] = {variable, NULL}, *argv[] = {"printenv", "V", NULL};
        sandbox_exec_spec_t spec = {0};
        spec.argv = argv;
        spec.env = env;
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(*state, &spec, &r);
        assert_int_equal(r.exit_code, 0);
        assert_int_equal(r.out_len, strlen(values[i]) + 1);
        assert_memory_equal(r.out, values[i], strlen(values[i]));
    }
    const char *env[] = {"KEY;WITH=semicolon", NULL}, *argv[] = {"env", NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    spec.env = env;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_non_null(strstr((const char *)r.out, "KEY;WITH=semicolon\n"));
}

static void create_variables_reach_every_exec_and_the_exec_wins(void **state)
{
    const char *env[] = {"GREETING=hello", "KEPT=a b\nc", "HOME=/nowhere", NULL};
    sandbox_spec_t spec = plain_spec();
    spec.env_vars = env;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    for (int i = 0; i < 2; i++) {
        cleanup_free char *text = output(h, "echo \"$GREETING|$KEPT|$HOME\"");
        assert_string_equal(text, "hello|a b\nc|/nowhere");
    }
    const char *over[] = {"GREETING=good day", NULL};
    sandbox_exec_spec_t cmd = {0};
    cmd.command = "echo \"$GREETING|$KEPT\"; env | grep -c ^GREETING=";
    cmd.env = over;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &cmd, &r);
    assert_string_equal((const char *)r.out, "good day|a b\nc\n1\n");
}

static void the_base_environment_is_sane_and_holds_nothing_of_the_host(void **state)
{
    assert_int_equal(setenv("SANDBOX_TEST_HOST_SECRET", "host-only", 1), 0);
    cleanup_free char *text = output(*state, "env");
    assert_non_null(strstr(text, "PATH="));
    assert_non_null(strstr(text, "HOME="));
    assert_null(strstr(text, "host-only"));
    assert_null(strstr(text, "NOTIFY_SOCKET"));
    assert_null(strstr(text, setting()->stack_dir));
}

static void the_working_directory(void **state)
{
    sandbox_handle_t *h = *state;
    cleanup_free char *home = output(h, "pwd");
    assert_string_equal(home, "/workspace");
    sandbox_exec_spec_t spec = {0};
    spec.command = "pwd";
    spec.cwd = "/tmp";
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &spec, &r);
    assert_string_equal((const char *)r.out, "/tmp\n");
}

// ---- standard input ----------------------------------------------------------------------------------------------------

static void echo_back(sandbox_handle_t *h, const uint8_t *bytes, size_t n)
{
    const char *argv[] = {"cat", NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    spec.stdin_data = bytes;
    spec.stdin_len = n;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &spec, &r);
    assert_int_equal(r.exit_code, 0);
    assert_int_equal(r.out_total, n);
    assert_memory_equal(r.out, bytes, r.out_len);
}

static void standard_input_then_end_of_file(void **state)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, SANDBOX_EXEC_STDOUT_HEAD, 60 * 1024, 65000, SANDBOX_MAX_STDIN};
    cleanup_free uint8_t *bytes = malloc(SANDBOX_MAX_STDIN + 1);
    for (size_t i = 0; i < SANDBOX_MAX_STDIN + 1; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        echo_back(*state, bytes, sizes[i]);
    sandbox_exec_spec_t spec = {0};
    sandbox_exec_result_t r = {0};
    spec.command = "cat";
    spec.stdin_data = bytes;
    spec.stdin_len = SANDBOX_MAX_STDIN + 1;
    assert_fails(sandbox_exec(*state, &spec, &r), SANDBOX_ERR_TOO_LARGE);
    spec.stdin_len = SIZE_MAX;
    assert_fails(sandbox_exec(*state, &spec, &r), SANDBOX_ERR_TOO_LARGE);
}

// 64 KiB of input beside arguments and variables that fill a frame by themselves: every byte arrives.
static void the_most_of_everything_at_once(void **state)
{
    enum { ARGUMENT = 30 * 1024, VARIABLE = 31 * 1024 };
    cleanup_free uint8_t *bytes = malloc(SANDBOX_MAX_STDIN);
    for (size_t i = 0; i < SANDBOX_MAX_STDIN; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    cleanup_free char *argument = malloc(ARGUMENT + 1), *variable = malloc(VARIABLE + 1);
    memset(argument, 'a', ARGUMENT);
    memset(variable, 'v', VARIABLE);
    memcpy(variable, "LONG=", 5);
    argument[ARGUMENT] = variable[VARIABLE] = '\0';
    const char *argv[] = {"sh", "-c", "echo ${#1} ${#LONG}; tee /workspace/all-of-it | sha256sum", "sh", argument, NULL};
    const char *env[] = {variable, NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    spec.env = env;
    spec.stdin_data = bytes;
    spec.stdin_len = SANDBOX_MAX_STDIN;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_int_equal(r.exit_code, 0);
    char sizes[32];
    snprintf(sizes, sizeof sizes, "%d %d\n", ARGUMENT, VARIABLE - 5);
    assert_memory_equal(r.out, sizes, strlen(sizes));
    uint8_t *back = NULL;
    size_t n = 0;
    assert_ok(sandbox_read_file(*state, "/workspace/all-of-it", &back, &n));
    assert_int_equal(n, SANDBOX_MAX_STDIN);
    assert_memory_equal(back, bytes, n);
    free(back);
    assert_ok(sandbox_write_file(*state, "/workspace/original", bytes, SANDBOX_MAX_STDIN, 0, 0));
    cleanup_free char *sum = output(*state, "sha256sum < /workspace/original");
    assert_memory_equal(r.out + strlen(sizes), sum, 64);
}

static void short_input_never_hangs(void **state)
{
    for (int i = 0; i < 500; i++) {
        echo_back(*state, (const uint8_t *)"", 0);
        echo_back(*state, (const uint8_t *)"hello\n", 6);
    }
}

static void input_nobody_reads_does_not_matter(void **state)
{
    cleanup_free uint8_t *bytes = calloc(1, 60 * 1024);
    sandbox_exec_spec_t spec = {0};
    spec.command = "exit 5";
    spec.stdin_data = bytes;
    spec.stdin_len = 60 * 1024;
    for (int i = 0; i < 20; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(*state, &spec, &r);
        assert_int_equal(r.exit_code, 5);
    }
}

// ---- output ------------------------------------------------------------------------------------------------------------

static void bytes_are_never_mangled(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    run(*state, "printf 'ok\\377\\376\\000end'; printf '\\342'; sleep 0.1; printf '\\202\\254'", &r);
    static const char want[] = "ok\xff\xfe\0end\xe2\x82\xac";
    assert_int_equal(r.out_len, sizeof want - 1);
    assert_memory_equal(r.out, want, sizeof want);  // with the NUL behind
    cleanup_result sandbox_exec_result_t all = {0};
    run(*state, "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done", &all);
    assert_int_equal(all.out_len, 256);
    for (int i = 0; i < 256; i++)
        assert_int_equal(all.out[i], i);
}

static void heads_and_exact_totals(void **state)
{
    static const unsigned sizes[] = {SANDBOX_EXEC_STDOUT_HEAD - 1, SANDBOX_EXEC_STDOUT_HEAD, SANDBOX_EXEC_STDOUT_HEAD + 1,
                                     1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char script[128];
        snprintf(script, sizeof script, "head -c %u /dev/zero | tr '\\0' x", sizes[i]);
        cleanup_result sandbox_exec_result_t r = {0};
        run(*state, script, &r);
        assert_int_equal(r.exit_code, 0);
        assert_int_equal(r.out_total, sizes[i]);
        assert_int_equal(r.out_len, sizes[i] < SANDBOX_EXEC_STDOUT_HEAD ? sizes[i] : SANDBOX_EXEC_STDOUT_HEAD);
        assert_int_equal(r.output_truncated, sizes[i] > SANDBOX_EXEC_STDOUT_HEAD);
        assert_false(r.output_limit_hit);
    }
    cleanup_result sandbox_exec_result_t r = {0};
    run(*state, "head -c 16385 /dev/zero >&2", &r);
    assert_int_equal(r.err_len, SANDBOX_EXEC_STDERR_HEAD);
    assert_int_equal(r.err_total, 16385);
    assert_true(r.output_truncated);
}

static void no_byte_is_lost_when_the_command_ends(void **state)
{
    sandbox_exec_spec_t spec = {0};
    spec.max_output = 64u << 20;
    spec.command = "head -c 8388608 /dev/zero | tr '\\0' x; exit 0";
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_int_equal(r.out_total, 8388608);
    spec.command = "(sleep 20 &) ; seq 1 200000";
    uint64_t start = now_ms();
    cleanup_result sandbox_exec_result_t held = {0};
    run_spec(*state, &spec, &held);
    assert_true(now_ms() - start < patient(15000));
    assert_int_equal(held.exit_code, 0);
    assert_int_equal(held.out_total, 1288895);
}

static void full_streams_do_not_block_each_other(void **state)
{
    sandbox_exec_spec_t spec = {0};
    spec.max_output = 64u << 20;
    spec.command = "head -c 10485760 /dev/zero; head -c 10485760 /dev/zero >&2; touch /tmp/done";
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_int_equal(r.out_total, 10485760);
    assert_int_equal(r.err_total, 10485760);
    assert_int_equal(exit_code(*state, "test -e /tmp/done"), 0);
}

static void figures(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    run(*state, "sleep 0.3", &r);
    assert_in_range(r.duration_us, 300000, 300000 + 1000ull * patient(5000));
    assert_true(r.max_rss_kib > 0);
    cleanup_result sandbox_exec_result_t busy = {0};
    run(*state, "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done", &busy);
    assert_in_range(busy.user_us + busy.system_us, 30000, busy.duration_us + 100000);
    cleanup_result sandbox_exec_result_t large = {0};
    run(*state, PROBE " alloc 64", &large);
    assert_in_range(large.max_rss_kib, 60 * 1024, 100 * 1024);
}

static void python_runs(void **state)
{
    const char *argv[] = {"python3", "-c", "import sys; print(sum(range(101))); sys.stderr.write('warned\\n'); sys.exit(3)",
                          NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(*state, &spec, &r);
    assert_int_equal(r.exit_code, 3);
    assert_string_equal((const char *)r.out, "5050\n");
    assert_string_equal((const char *)r.err, "warned\n");
}

// A place among the control groups is used again; what was done to end one command must not reach the next.
static void the_end_of_one_command_does_not_reach_the_next(void **state)
{
    static const char *const ends[] = {"sleep 600",
                                       "yes",
                                       "sleep 600 & sleep 600",
                                       "kill -9 $$",
                                       "sleep 0.01 & exit 3",
                                       "(setsid sleep 600 >/dev/null 2>&1 &); yes"};
    sandbox_spec_t small = small_spec();
    cleanup_sandbox sandbox_handle_t *h = create(&small);
    for (int i = 0; i < 48; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        sandbox_exec_spec_t spec = {.command = ends[i % 6], .timeout_ms = 30, .max_output = 100000};
        run_spec(h, &spec, &r);
        assert_answers(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_and_signals_are_apart),
        cmocka_unit_test(the_two_streams_are_apart),
        cmocka_unit_test(what_cannot_start_says_why),
        cmocka_unit_test(a_spec_that_makes_no_sense_is_refused),
        cmocka_unit_test(arguments_arrive_as_they_are),
        cmocka_unit_test(too_many_arguments_are_refused),
        cmocka_unit_test(too_much_text_is_refused),
        cmocka_unit_test(variables_arrive_byte_for_byte),
        cmocka_unit_test(create_variables_reach_every_exec_and_the_exec_wins),
        cmocka_unit_test(the_base_environment_is_sane_and_holds_nothing_of_the_host),
        cmocka_unit_test(the_working_directory),
        cmocka_unit_test(standard_input_then_end_of_file),
        cmocka_unit_test(the_most_of_everything_at_once),
        cmocka_unit_test(short_input_never_hangs),
        cmocka_unit_test(input_nobody_reads_does_not_matter),
        cmocka_unit_test(bytes_are_never_mangled),
        cmocka_unit_test(heads_and_exact_totals),
        cmocka_unit_test(no_byte_is_lost_when_the_command_ends),
        cmocka_unit_test(full_streams_do_not_block_each_other),
        cmocka_unit_test(figures),
        cmocka_unit_test(python_runs),
        cmocka_unit_test(the_end_of_one_command_does_not_reach_the_next),
    };
    return cmocka_run_group_tests_name("exec", tests, open_with_sandbox, close_with_sandbox);
}
