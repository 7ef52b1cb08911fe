// Limits: time, output, memory, processors, processes and disk are really enforced, and a sandbox at its limit answers.
#include "system.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

// ---- time --------------------------------------------------------------------------------------------------------------

// Runs `script`, which would take ten minutes, with a timeout of one second (where nothing is slow).
static void times_out(sandbox_handle_t *h, const char *script, sandbox_exec_result_t *ret_result)
{
    sandbox_exec_spec_t spec = {0};
    spec.command = script;
    spec.timeout_ms = patient(1000);
    uint64_t start = now_ms();
    run_spec(h, &spec, ret_result);
    assert_in_range(now_ms() - start, spec.timeout_ms - 10, spec.timeout_ms + patient(2000));
    assert_true(ret_result->timed_out);
    assert_int_not_equal(ret_result->exit_code, 0);
}

static void a_timeout_is_reported_in_time_with_the_output_so_far(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    times_out(*state, "echo before; echo warned >&2; sleep 611; echo after", &r);
    assert_string_equal((const char *)r.out, "before\n");
    assert_string_equal((const char *)r.err, "warned\n");
    assert_int_equal(r.exit_code, -1);
    assert_int_equal(guest_processes(*state, "sleep 611"), 0);
}

static void a_timeout_kills_the_whole_tree(void **state)
{
    static const char *const escapes[] = {
        "echo c2xlZXAgNjIyCg== | base64 -d | sh",
        "sh -c 'sleep 622; true'; true",
        "setsid sleep 622 & wait",
        "(setsid sh -c '(sleep 622 &); sleep 622' &) ; sleep 622",
        PROBE " daemon 622-mark; sleep 622",
        "trap '' TERM INT HUP; sleep 622; sleep 622",
        "nohup sleep 622 >/dev/null 2>&1 & sleep 622",
    };
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        times_out(*state, escapes[i], &r);
        assert_int_equal(guest_processes(*state, "sleep 622"), 0);
        assert_int_equal(guest_processes(*state, "622-mark"), 0);
    }
}

static void a_timeout_kills_a_tree_that_keeps_forking(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    times_out(*state, "f() { (sleep 633 &); }; while :; do f; sleep 0.01; done", &r);
    assert_int_equal(guest_processes(*state, "sleep 633"), 0);
}

// A command that was put into the background has become itself only some time after.
static bool sleeps(void *h)
{
    return guest_processes(h, "sleep 644") == 1;
}

static void one_exec_ending_leaves_the_others_alone(void **state)
{
    assert_int_equal(exit_code(*state, "sleep 644 >/dev/null 2>&1 &"), 0);
    assert_true(eventually(sleeps, *state, 10000));
    cleanup_result sandbox_exec_result_t r = {0};
    times_out(*state, "sleep 655", &r);
    assert_int_equal(guest_processes(*state, "sleep 644"), 1);
    assert_int_equal(guest_processes(*state, "sleep 655"), 0);
    assert_int_equal(exit_code(*state, "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline) in 'sleep 644 ') "
                                       "kill ${p#/proc/};; esac; done"),
                     0);
}

static bool file_is_there(void *h)
{
    sandbox_fstat_t st;
    return sandbox_stat(h, "/workspace/from-a-child", &st) == SANDBOX_OK;
}

static void children_left_after_a_normal_end_live_on(void **state)
{
    assert_int_equal(exit_code(*state, "rm -f from-a-child; (sleep 1; touch from-a-child) >/dev/null 2>&1 & exit 0"), 0);
    assert_true(eventually(file_is_there, *state, 15000));
    assert_int_equal(exit_code(*state, PROBE " daemon 666-mark"), 0);
    assert_int_equal(guest_processes(*state, "666-mark"), 1);
}

static void many_execs_leave_nothing(void **state)
{
    long before = number(*state, "ls -d /proc/[0-9]* | wc -l");
    const char *argv[] = {"true", NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    for (int i = 0; i < 300; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(*state, &spec, &r);
        assert_int_equal(r.exit_code, 0);
    }
    // What an earlier case had killed may have been counted before it was gone.
    uint64_t deadline = now_ms() + patient(5000);
    long after;
    while ((after = number(*state, "ls -d /proc/[0-9]* | wc -l")) > before && now_ms() < deadline)
        ;
    assert_in_range(after, 1, before);
    assert_int_equal(number(*state, "grep -h '^State:' /proc/[0-9]*/status | grep -c Z || true"), 0);
}

// ---- output ------------------------------------------------------------------------------------------------------------

static void too_much_output_is_killed_and_counted(void **state)
{
    cleanup_result sandbox_exec_result_t r = {0};
    run(*state, "yes; echo not reached", &r);
    assert_true(r.output_limit_hit);
    assert_false(r.timed_out);
    assert_true(r.output_truncated);
    assert_true(r.out_total > 4u << 20);
    assert_int_equal(r.out_len, SANDBOX_EXEC_STDOUT_HEAD);
    assert_int_equal(guest_processes(*state, "yes"), 0);
    sandbox_exec_spec_t spec = {0};
    spec.max_output = 1000;
    spec.command = "head -c 600 /dev/zero; head -c 400 /dev/zero >&2";
    cleanup_result sandbox_exec_result_t just = {0};
    run_spec(*state, &spec, &just);
    assert_int_equal(just.exit_code, 0);
    assert_false(just.output_limit_hit);
    spec.command = "head -c 600 /dev/zero; head -c 401 /dev/zero >&2; sleep 677";
    cleanup_result sandbox_exec_result_t over = {0};
    run_spec(*state, &spec, &over);
    assert_true(over.output_limit_hit);
    assert_int_equal(guest_processes(*state, "sleep 677"), 0);
}

// ---- memory ------------------------------------------------------------------------------------------------------------

// The most that a sandbox of `mib` can be charged with.  A machine's is all the memory that it has ever touched, its kernel's
// too, and its monitor's (docs/isolation.md).
static uint64_t most_rss_mib(uint64_t mib)
{
    return setting()->on_host ? mib : (mib + 128 + mib / 32 + 2) * 65 / 64 + 65;
}

static void memory_is_limited_and_running_out_is_said(void **state)
{
    sandbox_spec_t spec = plain_spec();
    spec.memory_mib = 96;
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    put_probe(h);
    assert_int_equal(exit_code(h, PROBE " alloc 48"), 0);
    cleanup_result sandbox_exec_result_t r = {0};
    const char *argv[] = {PROBE, "alloc", "200", NULL};
    sandbox_exec_spec_t cmd = {0};
    cmd.argv = argv;
    run_spec(h, &cmd, &r);
    assert_true(r.oom_killed);
    assert_int_equal(r.term_signal, SIGKILL);
    assert_false(r.timed_out);
    cleanup_result sandbox_exec_result_t child = {0};
    run(h, PROBE " alloc 200; echo survived $?", &child);
    assert_true(child.oom_killed);
    cleanup_result sandbox_exec_result_t fine = {0};
    run(h, "echo fine", &fine);
    assert_false(fine.oom_killed);
    assert_string_equal((const char *)fine.out, "fine\n");
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    assert_in_range(s.memory_rss_mib, 0, most_rss_mib(96));
}

static void memory_storm_of_many_processes(void **state)
{
    static const char storm[] = "import os,sys\n"
                                "def child():\n"
                                "    b = bytearray(50 << 20)\n"
                                "    for i in range(0, len(b), 4096): b[i] = 1\n"
                                "    os._exit(0)\n"
                                "pids = []\n"
                                "for i in range(32):\n"
                                "    p = os.fork()\n"
                                "    if p == 0: child()\n"
                                "    pids.append(p)\n"
                                "print(sum(os.waitpid(p, 0)[1] != 0 for p in pids))\n";
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    const char *argv[] = {"python3", "-c", storm, NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &spec, &r);
    assert_true(r.oom_killed);
    assert_answers(h);
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    assert_true(s.is_running);
}

// Each uses most of what it may; together that is far more than one may, and nobody is killed for it.
static void neighbours_at_their_limits_share_no_ceiling(void **state)
{
    enum { NEIGHBOURS = 4 };
    sandbox_spec_t spec = plain_spec();
    spec.memory_mib = 128;
    sandbox_handle_t *h[NEIGHBOURS];
    for (int i = 0; i < NEIGHBOURS; i++) {
        h[i] = create(&spec);
        cleanup_result sandbox_exec_result_t r = {0};
        run(h[i],
            "python3 -c 'import time; b = bytearray(100 << 20); open(\"held\", \"w\").close(); time.sleep(677)' "
            ">/dev/null 2>&1 & until [ -e held ] || ! kill -0 $!; do sleep 0.05; done",
            &r);
        assert_false(r.oom_killed);
    }
    for (int i = 0; i < NEIGHBOURS; i++) {
        sandbox_status_t s = {0};
        assert_ok(sandbox_inspect(h[i], &s));
        assert_in_range(s.memory_rss_mib, 100, most_rss_mib(128));
        assert_answers(h[i]);
    }
    for (int i = 0; i < NEIGHBOURS; i++)
        assert_ok(sandbox_destroy(h[i]));
}

#define RUNS_OUT_FOR_EVER "for i in 1 2 3 4; do while :; do " PROBE " alloc 200; done & done 2>/dev/null"

static bool nothing_runs_out_any_more(void *sandbox)
{
    return guest_processes(sandbox, "probe alloc") == 0;
}

// A command that only runs out of memory is ended whole, and so is what one left behind; one that loses workers is not.
static void endless_running_out_is_ended(void **state)
{
    enum { STORM_S = 120 };  // far more than 40 deaths take
    sandbox_spec_t small = plain_spec();
    small.memory_mib = 64;
    cleanup_sandbox sandbox_handle_t *h = create(&small);
    put_probe(h);
    cleanup_free char *some = output(h, "for i in $(seq 20); do " PROBE " alloc 200; done 2>/dev/null; echo went on");
    assert_string_equal(some, "went on");
    sandbox_exec_spec_t spec = {0};
    spec.command = RUNS_OUT_FOR_EVER "; wait";
    spec.timeout_ms = patient(STORM_S * 1000);
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &spec, &r);
    assert_false(r.timed_out);
    assert_true(r.oom_killed);
    assert_int_equal(r.term_signal, SIGKILL);
    assert_int_equal(guest_processes(h, "probe alloc"), 0);
    assert_int_equal(exit_code(h, "(" RUNS_OUT_FOR_EVER ") </dev/null >/dev/null &"), 0);
    assert_true(eventually(nothing_runs_out_any_more, h, STORM_S * 1000));
    assert_answers(h);
}

// A worker lost now and then is no storm, however many they become: 50 are more than 40, but some seconds have passed.
static void losing_one_now_and_then_goes_on(void **state)
{
    sandbox_spec_t small = plain_spec();
    small.memory_mib = 64;
    cleanup_sandbox sandbox_handle_t *h = create(&small);
    put_probe(h);
    cleanup_free char *some =
        output(h, "for i in $(seq 50); do " PROBE " alloc 200; sleep 0.4; done 2>/dev/null; echo went on");
    assert_string_equal(some, "went on");
}

static void shared_memory_is_limited(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    put_probe(h);
    long kib = number(h, "df -Pk /dev/shm | awk 'NR==2 {print $2}'");
    assert_in_range(kib, 1, 256 * 1024);
    cleanup_result sandbox_exec_result_t r = {0};
    run(h, PROBE " fill /dev/shm/full 1024", &r);
    if (!r.oom_killed)
        assert_non_null(strstr((const char *)r.out, "No space left"));
    assert_int_equal(exit_code(h, "rm -f /dev/shm/full"), 0);
    assert_answers(h);
}

// ---- processors --------------------------------------------------------------------------------------------------------

static void processors_are_limited(void **state)
{
    cleanup_free char *text = output(*state, PROBE " spin 4 2000");
    unsigned long long used = 0, wall = 0;
    assert_int_equal(sscanf(text, "%llu %llu", &used, &wall), 2);
    // One processor: four loops get the time of one.  Some slack for the length of a quota period.
    assert_in_range(used, wall / 20, wall + wall / 4);
}

static void the_number_of_processors_seen_is_the_limit(void **state)
{
    assert_int_equal(number(*state, "nproc"), 1);
}

// ---- processes ---------------------------------------------------------------------------------------------------------

static void a_fork_bomb_meets_a_limit(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    put_probe(h);
    cleanup_result sandbox_exec_result_t r = {0};
    const char *argv[] = {PROBE, "forks", "200000", NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    run_spec(h, &spec, &r);
    assert_null(strstr((const char *)r.out, "no limit met"));
    assert_answers(h);
}

static void a_fork_bomb_that_never_ends_is_killed_by_its_timeout(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    put_probe(h);
    sandbox_exec_spec_t spec = {0};
    spec.command = "b() { b | b & }; b; sleep 688";
    spec.timeout_ms = 2000;
    cleanup_result sandbox_exec_result_t r = {0};
    uint64_t start = now_ms();
    run_spec(h, &spec, &r);
    assert_true(now_ms() - start < 2000 + patient(30000));
    assert_answers(h);
    assert_int_equal(guest_processes(h, "sleep 688"), 0);
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    assert_true(s.is_running);
}

static void killing_everything_leaves_the_sandbox_answering(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    put_probe(h);
    assert_int_equal(exit_code(h, "sleep 699 >/dev/null 2>&1 &"), 0);
    for (int i = 0; i < 3; i++) {
        sandbox_exec_spec_t spec = {0};
        spec.command = "kill -9 -1; kill -9 1; kill -STOP 1; " PROBE " kill-all; true";
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(h, &spec, &r);
        assert_answers(h);
    }
    assert_int_equal(guest_processes(h, "sleep 699"), 0);
}

// ---- disk --------------------------------------------------------------------------------------------------------------

static void the_disk_is_limited_and_full_is_said(void **state)
{
    sandbox_spec_t spec = plain_spec();
    spec.disk_mib = 64;
    cleanup_sandbox sandbox_handle_t *h = create(&spec), *other = create(&spec);
    put_probe(h);
    static const char *const folders[] = {"/workspace", "/root", "/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        cleanup_free char *text = output(h, PROBE " fill %s/full 4096; rm -f %s/full", folders[i], folders[i]);
        uint64_t bytes = 0;
        char why[64] = "";
        assert_int_equal(sscanf(text, "%" SCNu64 " %63[^\n]", &bytes, why), 2);
        if (strstr(why, "No space left") == NULL)
            fail_msg("filling %s wrote %" PRIu64 " bytes and ended with '%s'", folders[i], bytes, why);
        assert_in_range(bytes, 1 << 20, 64u << 20);
    }
    assert_int_equal(exit_code(h, PROBE " fill full 4096"), 0);
    static const uint8_t bytes[2 << 20] = {1};
    assert_fails(sandbox_write_file(h, "/workspace/more", bytes, sizeof bytes, 0, 0), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(exit_code(other, "echo fine > /workspace/file"), 0);
    assert_answers(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_timeout_is_reported_in_time_with_the_output_so_far),
        cmocka_unit_test(a_timeout_kills_the_whole_tree),
        cmocka_unit_test(a_timeout_kills_a_tree_that_keeps_forking),
        cmocka_unit_test(one_exec_ending_leaves_the_others_alone),
        cmocka_unit_test(children_left_after_a_normal_end_live_on),
        cmocka_unit_test(many_execs_leave_nothing),
        cmocka_unit_test(too_much_output_is_killed_and_counted),
        cmocka_unit_test(memory_is_limited_and_running_out_is_said),
        cmocka_unit_test(memory_storm_of_many_processes),
        cmocka_unit_test(neighbours_at_their_limits_share_no_ceiling),
        cmocka_unit_test(endless_running_out_is_ended),
        cmocka_unit_test(losing_one_now_and_then_goes_on),
        cmocka_unit_test(shared_memory_is_limited),
        cmocka_unit_test(processors_are_limited),
        cmocka_unit_test(the_number_of_processors_seen_is_the_limit),
        cmocka_unit_test(a_fork_bomb_meets_a_limit),
        cmocka_unit_test(a_fork_bomb_that_never_ends_is_killed_by_its_timeout),
        cmocka_unit_test(killing_everything_leaves_the_sandbox_answering),
        cmocka_unit_test(the_disk_is_limited_and_full_is_said),
    };
    return cmocka_run_group_tests_name("limits", tests, open_with_sandbox, close_with_sandbox);
}
