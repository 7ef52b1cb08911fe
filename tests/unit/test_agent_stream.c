// agent: stream lines.  (Tn) names the trap a case belongs to.
#include "agent/exec.h"
#include "agent/lines.h"
#include "agent_rig.h"
#include "agent_stream.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void output_comes_as_it_is_written(void **state)
{
    struct talk t;
    talk_start(&t, *state, "echo first; read x; echo \"got $x\" >&2; exit 3", .open_stdin = true);
    assert_true(talk_until(&t, "first\n"));
    assert_int_equal(t.end, 0);  // it is still running: it waits for us
    talk_send(&t, FRAME_STDIN, "second\n", 7);
    guest_result *r = talk_end(&t);
    assert_string_equal(t.text[0], "first\n");
    assert_string_equal(t.text[1], "got second\n");
    assert_int_equal(r->exec->exit_code, 3);
    assert_int_equal(r->exec->out_total, 6);
    assert_int_equal(r->exec->err_total, 11);
    assert_int_equal(r->exec->out.len + r->exec->err.len, 0);
    talk_free(&t);
}

// (T4), with the end before the process is there, by a frame and by closing the sending side.
static void the_end_of_input_always_arrives(void **state)
{
    for (int i = 0; i < 200; i++) {
        struct talk t;
        const char *text = i % 4 < 2 ? "" : "hello\n";
        talk_start(&t, *state, "cat", .open_stdin = true);
        if (text[0] != '\0')
            talk_send(&t, FRAME_STDIN, text, strlen(text));
        if (i % 2 == 0)
            talk_send(&t, FRAME_STDIN_END, NULL, 0);
        else
            assert_int_equal(shutdown(t.fd, SHUT_WR), 0);
        assert_int_equal(talk_end(&t)->exec->exit_code, 0);
        assert_string_equal(t.text[0], text);
        talk_free(&t);
    }
}

// (T5)
static void open_input_does_not_keep_a_command(void **state)
{
    struct talk t;
    uint64_t before = mono_ns();
    talk_start(&t, *state, "true", .open_stdin = true);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_true(mono_ns() - before < 5 * NS_PER_S);
    talk_free(&t);
}

static void without_open_input_there_is_none(void **state)
{
    struct talk t;
    talk_start(&t, *state, "cat; echo end");
    talk_end(&t);
    assert_string_equal(t.text[0], "end\n");
    talk_free(&t);
}

// (T3)
static void nothing_is_lost_at_the_end(void **state)
{
    static const struct {
        const char *script;
        uint64_t bytes;
    } cases[] = {{"head -c 8388608 /dev/zero", 8388608},
                 {"(sleep 20 &) ; seq 1 200000", 1288895},
                 {"head -c 10485760 /dev/zero >&2 & head -c 10485760 /dev/zero; wait", 20971520}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct talk t;
        talk_start(&t, *state, cases[i].script);
        guest_result *r = talk_end(&t);
        assert_int_equal(r->exec->exit_code, 0);
        assert_int_equal(t.bytes[0] + t.bytes[1], cases[i].bytes);
        assert_int_equal(r->exec->out_total + r->exec->err_total, cases[i].bytes);
        talk_free(&t);
    }
    free(rig_sh(*state, "pkill -x sleep; true"));
}

// (T10), (T19): what is not read stays with the command, and with nobody else.
static void an_unread_stream_stalls_its_own_command_only(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    talk_start(&t, rig, "yes & yes >&2 & wait");
    assert_true(talk_until(&t, "y\n"));
    size_t before = rig_rss_kib(rig);
    struct talk other;
    talk_start(&other, rig, "head -c 67108864 /dev/zero");
    assert_int_equal(talk_end(&other)->exec->out_total, 67108864);
    talk_free(&other);
    free(rig_sh(rig, "true"));
    if (getenv("RIG_RSS_GROWS") == NULL)
        assert_true(rig_rss_kib(rig) < before + 2048);
    talk_send(&t, FRAME_KILL, NULL, 0);
    guest_result *r = talk_end(&t);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    assert_int_equal(t.bytes[0] + t.bytes[1], r->exec->out_total + r->exec->err_total);
    talk_free(&t);
}

static void input_goes_through_a_window(void **state)
{
    struct talk t;
    talk_start(&t, *state, "sleep 0.1; wc -c", .open_stdin = true);
    static char zeros[STREAM_PAYLOAD_MAX];
    size_t sent = 0, total = 3 * 1024 * 1024;
    while (sent < total) {
        size_t n = total - sent < sizeof zeros ? total - sent : sizeof zeros;
        n = n < t.window ? n : t.window;
        if (n == 0) {
            assert_true(talk_step(&t));
            continue;
        }
        talk_send(&t, FRAME_STDIN, zeros, n);
        t.window -= n;
        sent += n;
    }
    talk_send(&t, FRAME_STDIN_END, NULL, 0);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_string_equal(t.text[0], "3145728\n");
    assert_int_equal(t.window, STREAM_WINDOW);
    talk_free(&t);
}

static void a_host_that_overruns_the_window_is_cut_off(void **state)
{
    static char zeros[STREAM_PAYLOAD_MAX];
    for (int over = 0; over < 2; over++) {
        struct talk t;
        talk_start(&t, *state, "sleep 600", .open_stdin = true);
        // The pipe takes 64 KiB, which are given back; the rest of the window stays.
        for (size_t sent = 0; sent < STREAM_WINDOW; sent += sizeof zeros)
            talk_send(&t, FRAME_STDIN, zeros, sizeof zeros);
        while (t.window < STREAM_WINDOW + 65536)
            assert_true(talk_step(&t));
        talk_send(&t, FRAME_STDIN, zeros, 65536 - 1 + (size_t)over);
        if (over) {
            talk_send(&t, FRAME_STDIN, zeros, 1);
            while (talk_step(&t))
                ;
            assert_int_equal(t.end, 0);
        } else {
            talk_send(&t, FRAME_KILL, NULL, 0);
            assert_int_equal(talk_end(&t)->exec->term_signal, SIGKILL);
        }
        talk_free(&t);
    }
}

static void input_that_nobody_wants_is_thrown_away(void **state)
{
    struct talk t;
    talk_start(&t, *state, "exec <&-; read -r line < /tmp/go || sleep 1; echo done", .open_stdin = true);
    static char zeros[STREAM_PAYLOAD_MAX];
    for (size_t sent = 0; sent < 10; sent++) {
        talk_send(&t, FRAME_STDIN, zeros, sizeof zeros);
        t.window -= sizeof zeros;
        while (t.window < sizeof zeros)
            if (!talk_step(&t))
                break;
    }
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    talk_free(&t);
}

// (T2)
static void a_host_that_goes_takes_the_command_along(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    talk_start(&t, rig, "sleep 771 & sleep 772 & echo up; wait");
    assert_true(talk_until(&t, "up\n"));
    uint64_t id = t.id;
    talk_free(&t);
    talk_await_ended(rig, id);
    char *left = NULL;
    wait_for((free(left), left = rig_sh(rig, "pgrep -f 'sleep 77[12]' || echo none"), strcmp(left, "none\n") == 0));
    free(left);
}

static void signals_reach_the_group(void **state)
{
    struct talk t;
    talk_start(&t, *state, "trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.01; done");
    assert_true(talk_until(&t, "up\n"));
    uint8_t payload[STREAM_SMALL_MAX];
    talk_send(&t, FRAME_SIGNAL, payload, stream_frame_put_number(FRAME_SIGNAL, SIGTERM, payload));
    guest_result *r = talk_end(&t);
    assert_int_equal(r->exec->exit_code, 7);
    assert_string_equal(t.text[0], "up\nterm\n");
    talk_free(&t);
}

static void time_and_output_limits_hold(void **state)
{
    struct talk t;
    talk_start(&t, *state, "echo before; sleep 60", .timeout_ms = 300);
    guest_result *r = talk_end(&t);
    assert_true(r->exec->timed_out && r->exec->term_signal == SIGKILL);
    assert_string_equal(t.text[0], "before\n");
    talk_free(&t);
    talk_start(&t, *state, "yes", .max_output = 100000);
    r = talk_end(&t);
    assert_true(r->exec->output_limit_hit);
    assert_true(r->exec->out_total > 100000);
    talk_free(&t);
}

static void what_cannot_start_is_a_result(void **state)
{
    struct talk t;
    talk_start(&t, *state, NULL, .program = "/no/such");
    guest_result *r = talk_end(&t);
    assert_int_equal(r->exec->exit_code, 127);
    assert_int_equal(r->exec->start_errno, ENOENT);
    assert_non_null(strstr(t.text[1], "/no/such"));
    talk_free(&t);
}

static void a_bad_request_is_an_error_frame(void **state)
{
    struct talk t;
    talk_start(&t, *state, NULL, .program = "");
    assert_int_equal(talk_end(&t)->status, STATUS(BAD_REQUEST));
    assert_int_equal(t.end, FRAME_ERROR);
    talk_free(&t);
}

static void nonsense_ends_the_line(void **state)
{
    static const struct {
        size_t n;
        const char *body;
    } cases[] = {{0, ""}, {2, "\x10x"}, {1, "\x01"}, {1, "\x63"}, {2, "\x05x"}, {3, "\x03\0\0"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct talk t;
        talk_start(&t, *state, "echo up; sleep 600");
        assert_true(talk_until(&t, "up\n"));
        talk_send_raw(&t, cases[i].body, cases[i].n);
        while (talk_step(&t))
            ;
        assert_int_equal(t.end, 0);
        talk_free(&t);
    }
}

// Every stream's end is told, once, also of one that could not be served.
static void the_engine_is_told_of_each_end(void **state)
{
    struct rig *rig = *state;
    struct talk t[AGENT_STREAMS_MAX + 1];
    for (size_t i = 0; i <= AGENT_STREAMS_MAX; i++)
        talk_start(&t[i], rig, "read x", .open_stdin = true);
    assert_int_equal(talk_end(&t[AGENT_STREAMS_MAX])->status, STATUS(BUSY));
    talk_await_ended(rig, t[AGENT_STREAMS_MAX].id);
    talk_free(&t[AGENT_STREAMS_MAX]);
    for (size_t i = 0; i < AGENT_STREAMS_MAX; i++) {
        talk_send(&t[i], FRAME_STDIN_END, NULL, 0);
        assert_int_equal(talk_end(&t[i])->exec->exit_code, 1);
        talk_await_ended(rig, t[i].id);
        talk_free(&t[i]);
    }
}

// ---- terminals ----

// (T14)
static void a_terminal_has_its_size_from_the_start(void **state)
{
    struct talk t;
    talk_start(&t, *state, "stty size; tty; test -t 0 -a -t 1 -a -t 2 && echo all", .rows = 40, .cols = 100, .terminal = true);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_string_equal(t.text[0], "40 100\r\n/dev/pts/0\r\nall\r\n");
    talk_free(&t);
    talk_start(&t, *state, "stty size", .terminal = true);
    talk_end(&t);
    assert_string_equal(t.text[0], "24 80\r\n");
    talk_free(&t);
}

static void a_terminal_follows_its_size(void **state)
{
    struct talk t;
    talk_start(&t, *state, "trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done", .terminal = true);
    assert_true(talk_until(&t, "up\r\n"));
    for (unsigned i = 0; i < 3; i++) {
        uint8_t payload[STREAM_SMALL_MAX];
        talk_send(&t, FRAME_RESIZE, payload, stream_frame_put_size((uint16_t)(50 + i), 132, payload));
        char want[32];
        snprintf(want, sizeof want, "%u 132\r\n", 50 + i);
        assert_true(talk_until(&t, want));
    }
    talk_send(&t, FRAME_KILL, NULL, 0);
    talk_end(&t);
    talk_free(&t);
}

// (T17)
static void an_interrupt_is_heard_each_time(void **state)
{
    struct talk t;
    talk_start(&t, *state, "exec sh -i", .terminal = true, .open_stdin = true);
    for (int i = 0; i < 3; i++) {
        char start[64], want[64];
        snprintf(start, sizeof start, "echo be''gin%d; sleep 600; echo code''%d=$?\n", i, i);
        talk_send(&t, FRAME_STDIN, start, strlen(start));
        snprintf(want, sizeof want, "begin%d\r\n", i);
        assert_true(talk_until(&t, want));
        // The shell may not have started `sleep` yet: type it until it has had its effect.
        snprintf(start, sizeof start, "echo al''ive%d\n", i);
        snprintf(want, sizeof want, "alive%d\r\n", i);
        uint64_t until = mono_ns() + 10 * NS_PER_S;
        do {
            talk_send(&t, FRAME_STDIN, "\x03", 1);
            talk_send(&t, FRAME_STDIN, start, strlen(start));
            assert_true(mono_ns() < until);
        } while (!talk_until_ms(&t, want, 200));
    }
    talk_send(&t, FRAME_STDIN, "exit 9\n", 7);
    assert_int_equal(talk_end(&t)->exec->exit_code, 9);
    talk_free(&t);
}

static void the_end_of_input_is_typed(void **state)
{
    struct talk t;
    talk_start(&t, *state, "cat; echo over", .terminal = true, .open_stdin = true);
    talk_send(&t, FRAME_STDIN, "line\n", 5);
    talk_send(&t, FRAME_STDIN_END, NULL, 0);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_string_equal(t.text[0], "line\r\nline\r\nover\r\n");
    talk_free(&t);
}

static void a_terminal_loses_nothing(void **state)
{
    struct talk t;
    talk_start(&t, *state, "stty -onlcr; seq 1 200000", .terminal = true);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_int_equal(t.bytes[0], 1288895);
    talk_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_comes_as_it_is_written),
        cmocka_unit_test(the_end_of_input_always_arrives),
        cmocka_unit_test(open_input_does_not_keep_a_command),
        cmocka_unit_test(without_open_input_there_is_none),
        cmocka_unit_test(nothing_is_lost_at_the_end),
        cmocka_unit_test(an_unread_stream_stalls_its_own_command_only),
        cmocka_unit_test(input_goes_through_a_window),
        cmocka_unit_test(a_host_that_overruns_the_window_is_cut_off),
        cmocka_unit_test(input_that_nobody_wants_is_thrown_away),
        cmocka_unit_test(a_host_that_goes_takes_the_command_along),
        cmocka_unit_test(signals_reach_the_group),
        cmocka_unit_test(time_and_output_limits_hold),
        cmocka_unit_test(what_cannot_start_is_a_result),
        cmocka_unit_test(a_bad_request_is_an_error_frame),
        cmocka_unit_test(nonsense_ends_the_line),
        cmocka_unit_test(the_engine_is_told_of_each_end),
        cmocka_unit_test(a_terminal_has_its_size_from_the_start),
        cmocka_unit_test(a_terminal_follows_its_size),
        cmocka_unit_test(an_interrupt_is_heard_each_time),
        cmocka_unit_test(the_end_of_input_is_typed),
        cmocka_unit_test(a_terminal_loses_nothing),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_stream", tests, rig_setup, rig_teardown);
}
