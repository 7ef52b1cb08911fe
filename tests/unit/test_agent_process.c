// agent: background processes, their rings, and the lines that watch them.  (Tn) names the trap a case belongs to.
#include "agent/processes.h"
#include "agent_rig.h"
#include "agent_stream.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the ring itself ----

static void a_ring_keeps_the_last_bytes(void **state)
{
    for (size_t max = 4096; max <= 20000; max += 7952) {
        struct ring_budget budget = {1 << 20};
        struct ring r = RING_INIT(max, &budget);
        static uint8_t all[100000], piece[30000];
        size_t written = 0;
        for (size_t i = 0; i < sizeof all; i++)
            all[i] = (uint8_t)(i * 31 + i / 256);
        for (size_t n = 1; written + n < sizeof all; n = (n * 7 + 3) % sizeof piece) {
            memcpy(piece, all + written, n);
            ring_write(&r, piece, n);
            written += n;
            assert_int_equal(r.end, written);
            assert_int_equal(r.len, written < r.size ? written : r.size);
            assert_true(r.size <= max && (written < 4096 || r.len >= 4096));
            for (uint64_t at = ring_start(&r); at < r.end;) {
                const uint8_t *bytes;
                size_t got = ring_peek(&r, at, &bytes);
                assert_true(got > 0);
                assert_memory_equal(bytes, all + at, got);
                at += got;
            }
        }
        assert_int_equal(r.size, max);
        ring_free(&r);
        assert_int_equal(budget.left, 1 << 20);
        assert_int_equal(r.end, written);
        assert_int_equal(ring_start(&r), written);
    }
}

static void rings_share_a_budget(void **state)
{
    static uint8_t bytes[100000];
    struct ring_budget budget = {50000};
    struct ring a = RING_INIT(40000, &budget), b = RING_INIT(40000, &budget);
    ring_write(&a, bytes, sizeof bytes);
    ring_write(&b, bytes, sizeof bytes);
    assert_true(b.len >= RING_SIZE_MIN && a.len + b.len <= 50000 + RING_SIZE_MIN);
    ring_free(&a);
    ring_write(&b, bytes, sizeof bytes);
    assert_int_equal(b.len, 40000);
    ring_free(&b);
    assert_int_equal(budget.left, 50000);
}

// ---- processes ----

struct spawn_options {
    bool open_stdin, terminal;
    uint32_t ring_bytes, timeout_ms;
};

static void spawn_with(struct talk *t, struct rig *rig, const char *script, const struct spawn_options *o)
{
    struct script s;
    script_init(&s, script);
    s.exec.timeout_ms = o->timeout_ms;
    Sandbox__Guest__Terminal terminal = SANDBOX__GUEST__TERMINAL__INIT;
    Sandbox__Guest__Spawn spawn = SANDBOX__GUEST__SPAWN__INIT;
    spawn.exec = &s.exec;
    spawn.open_stdin = o->open_stdin;
    spawn.ring_bytes = o->ring_bytes;
    spawn.terminal = o->terminal ? &terminal : NULL;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_SPAWN;
    request.spawn = &spawn;
    talk_open(t, rig, &request);
    while (t->process == 0 && t->end == 0)
        assert_true(talk_step(t));
}
#define spawn_talk(t, rig, script, ...) spawn_with(t, rig, script, &(struct spawn_options){__VA_ARGS__})

static uint32_t spawn(struct rig *rig, const char *script)
{
    struct talk t;
    spawn_talk(&t, rig, script, .open_stdin = false);
    uint32_t id = t.process;
    assert_int_not_equal(id, 0);
    talk_free(&t);
    return id;
}

static void attach_talk(struct talk *t, struct rig *rig, uint32_t id, bool input)
{
    Sandbox__Guest__Attach what = SANDBOX__GUEST__ATTACH__INIT;
    what.process_id = id;
    what.input = input;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_ATTACH;
    request.attach = &what;
    talk_open(t, rig, &request);
}

static guest_result *list(struct rig *rig)
{
    Sandbox__Guest__ListProcesses what = SANDBOX__GUEST__LIST_PROCESSES__INIT;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_LIST_PROCESSES;
    request.list_processes = &what;
    guest_result *r = rig_do(rig, &request);
    assert_int_equal(r->status, STATUS(OK));
    return r;
}

static guest_status send_signal(struct rig *rig, uint32_t id, uint32_t number, bool main_only)
{
    Sandbox__Guest__SignalProcess what = SANDBOX__GUEST__SIGNAL_PROCESS__INIT;
    what.process_id = id;
    what.signal = number;
    what.main_only = main_only;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_SIGNAL_PROCESS;
    request.signal_process = &what;
    guest_result *r = rig_do(rig, &request);
    guest_status status = r->status;
    pb_free(r);
    return status;
}

static void a_process_outlives_its_call(void **state)
{
    struct rig *rig = *state;
    uint32_t id = spawn(rig, "rm -f /tmp/go; mkfifo /tmp/go; echo first; read x < /tmp/go; echo second; exit 5");
    struct talk t, other;
    attach_talk(&t, rig, id, false);
    attach_talk(&other, rig, id, false);
    assert_true(talk_until(&t, "first\n") && talk_until(&other, "first\n"));
    talk_free(&other);  // one that leaves takes nothing along
    guest_result *l = list(rig);
    const Sandbox__Guest__Process *p = l->list_processes->processes[l->list_processes->n_processes - 1];
    assert_int_equal(p->process_id, id);
    assert_true(p->running && p->pid > 1 && p->started_at_ms > 1500000000000);
    assert_int_equal(p->n_argv, 1);
    assert_true(p->argv[0].len <= PROCESS_ARGV_MAX && memcmp(p->argv[0].data, "rm -f", 5) == 0);
    pb_free(l);
    free(rig_sh(rig, "echo > /tmp/go"));
    assert_int_equal(talk_end(&t)->exec->exit_code, 5);
    assert_string_equal(t.text[0], "first\nsecond\n");
    talk_free(&t);
    for (int i = 0; i < 2; i++) {  // and it can be read afterwards, again and again
        attach_talk(&t, rig, id, false);
        assert_int_equal(talk_end(&t)->exec->exit_code, 5);
        assert_string_equal(t.text[0], "first\nsecond\n");
        assert_int_equal(t.dropped, 0);
        talk_free(&t);
    }
    l = list(rig);
    p = l->list_processes->processes[l->list_processes->n_processes - 1];
    assert_true(!p->running && p->exit_code == 5 && p->out_total == 13 && p->err_total == 0);
    pb_free(l);
}

// (T13): none but those that are asked for.
static void limits_of_time_are_only_set_ones(void **state)
{
    struct talk t;
    spawn_talk(&t, *state, "echo before; sleep 60", .timeout_ms = 300);
    assert_true(talk_end(&t)->exec->timed_out);
    talk_free(&t);
}

// (T19): nobody reads, and it ends all the same.
static void output_that_nobody_reads_is_overwritten(void **state)
{
    struct rig *rig = *state;
    uint32_t id = spawn(rig, "head -c 10485760 /dev/zero; head -c 10485760 /dev/zero >&2; echo last; touch /tmp/done");
    char *out = NULL;
    wait_for((free(out), out = rig_sh(rig, "ls /tmp/done 2>/dev/null || true"), out[0] != '\0'));
    free(out);
    struct talk t;
    attach_talk(&t, rig, id, false);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_int_equal(t.bytes[0], PROCESS_RING_MAX);
    assert_int_equal(t.bytes[1], PROCESS_RING_MAX);
    assert_int_equal(t.dropped, 2 * (10485760 - PROCESS_RING_MAX) + 5);
    assert_int_equal(t.result->exec->out_total, 10485765);
    talk_free(&t);
}

static void a_slow_watcher_misses_bytes_and_stalls_nobody(void **state)
{
    struct rig *rig = *state;
    struct talk slow, quick;
    spawn_talk(&slow, rig, "head -c 50000000 /dev/zero; echo end", .open_stdin = false);
    attach_talk(&quick, rig, slow.process, false);
    guest_result *r = talk_end(&quick);
    assert_int_equal(r->exec->out_total, 50000004);
    assert_int_equal(quick.bytes[0] + quick.dropped, 50000004);
    talk_free(&quick);
    talk_end(&slow);
    assert_true(slow.dropped > 0);
    assert_int_equal(slow.bytes[0] + slow.dropped, 50000004);
    talk_free(&slow);
}

static void input_is_one_watchers_at_a_time(void **state)
{
    struct rig *rig = *state;
    struct talk first, second;
    spawn_talk(&first, rig, "cat", .open_stdin = true);
    uint32_t id = first.process;
    talk_send(&first, FRAME_STDIN, "one\n", 4);
    assert_true(talk_until(&first, "one\n"));
    attach_talk(&second, rig, id, true);
    assert_int_equal(talk_end(&second)->status, STATUS(BUSY));
    talk_free(&second);
    uint64_t line = first.id;
    talk_free(&first);  // detaching is no end of its input
    talk_await_ended(rig, line);
    attach_talk(&second, rig, id, true);
    talk_send(&second, FRAME_STDIN, "two\n", 4);
    assert_true(talk_until(&second, "one\ntwo\n"));
    talk_send(&second, FRAME_STDIN_END, NULL, 0);
    assert_int_equal(talk_end(&second)->exec->exit_code, 0);
    talk_free(&second);
    // One without it may not write.
    id = spawn(rig, "sleep 600");
    attach_talk(&first, rig, id, false);
    talk_send(&first, FRAME_STDIN, "x", 1);
    while (talk_step(&first))
        ;
    assert_int_equal(first.end, 0);
    talk_free(&first);
    assert_int_equal(send_signal(rig, id, SIGKILL, false), STATUS(OK));
}

static void signals_go_to_one_or_to_all(void **state)
{
    struct rig *rig = *state;
    struct talk t;
    spawn_talk(&t, rig,
               "trap 'echo main' USR1; (trap 'echo child; exit' USR1; echo up; while :; do sleep 0.01; done) &"
               "while :; do sleep 0.01; done",
               .open_stdin = false);
    assert_true(talk_until(&t, "up\n"));
    uint32_t id = t.process;
    assert_int_equal(send_signal(rig, id, SIGUSR1, true), STATUS(OK));
    assert_true(talk_until(&t, "main\n"));
    assert_null(strstr(t.text[0], "child"));
    assert_int_equal(send_signal(rig, id, SIGUSR1, false), STATUS(OK));
    assert_true(talk_until(&t, "child\n"));
    assert_int_equal(send_signal(rig, id, SIGKILL, true), STATUS(OK));
    assert_int_equal(talk_end(&t)->exec->term_signal, SIGKILL);
    talk_free(&t);
    assert_int_equal(send_signal(rig, id, SIGKILL, true), STATUS(NOT_FOUND));
    assert_int_equal(send_signal(rig, 4000000, SIGKILL, true), STATUS(NOT_FOUND));
    assert_int_equal(send_signal(rig, id, 0, true), STATUS(BAD_REQUEST));
    assert_int_equal(send_signal(rig, id, 65, true), STATUS(BAD_REQUEST));
    attach_talk(&t, rig, 4000000, false);
    assert_int_equal(talk_end(&t)->status, STATUS(NOT_FOUND));
    talk_free(&t);
}

static void a_background_terminal_works(void **state)
{
    struct talk t;
    spawn_talk(&t, *state, "test -t 1 && stty size; read x; echo got $x", .terminal = true, .open_stdin = true);
    assert_true(talk_until(&t, "24 80\r\n"));
    talk_send(&t, FRAME_STDIN, "it\n", 3);
    assert_int_equal(talk_end(&t)->exec->exit_code, 0);
    assert_non_null(strstr(t.text[0], "got it\r\n"));
    talk_free(&t);
}

static void a_process_that_cannot_start_is_one_that_ended(void **state)
{
    struct rig *rig = *state;
    ProtobufCBinaryData argv[1] = {bytes_of("/no/such")};
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.argv = argv;
    exec.n_argv = 1;
    Sandbox__Guest__Spawn what = SANDBOX__GUEST__SPAWN__INIT;
    what.exec = &exec;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_SPAWN;
    request.spawn = &what;
    struct talk t;
    talk_open(&t, rig, &request);
    assert_int_equal(talk_end(&t)->exec->exit_code, 127);
    assert_int_not_equal(t.process, 0);
    assert_non_null(strstr(t.text[1], "/no/such"));
    talk_free(&t);
    what.ring_bytes = PROCESS_RING_MAX + 1;
    talk_open(&t, rig, &request);
    assert_int_equal(talk_end(&t)->status, STATUS(BAD_REQUEST));
    talk_free(&t);
}

// The table is full: of ended ones the oldest goes, running ones never.
static void the_table_has_an_end(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    uint32_t sleeper = spawn(&rig, "sleep 600");
    uint32_t first = 0;
    for (int i = 1; i < PROCESSES_MAX + 10; i++) {
        struct talk t;
        spawn_talk(&t, &rig, "head -c 60000 /dev/zero", .open_stdin = false);
        talk_end(&t);
        first = first != 0 ? first : t.process;
        talk_free(&t);
    }
    guest_result *l = list(&rig);
    assert_int_equal(l->list_processes->n_processes, PROCESSES_MAX);
    assert_int_equal(l->list_processes->processes[0]->process_id, sleeper);
    assert_true(l->list_processes->processes[0]->running);
    assert_int_equal(l->list_processes->processes[1]->process_id, first + 10);
    pb_free(l);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_keeps_the_last_bytes),
        cmocka_unit_test(rings_share_a_budget),
        cmocka_unit_test(a_process_outlives_its_call),
        cmocka_unit_test(limits_of_time_are_only_set_ones),
        cmocka_unit_test(output_that_nobody_reads_is_overwritten),
        cmocka_unit_test(a_slow_watcher_misses_bytes_and_stalls_nobody),
        cmocka_unit_test(input_is_one_watchers_at_a_time),
        cmocka_unit_test(signals_go_to_one_or_to_all),
        cmocka_unit_test(a_background_terminal_works),
        cmocka_unit_test(a_process_that_cannot_start_is_one_that_ended),
        cmocka_unit_test(the_table_has_an_end),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_process", tests, rig_setup, rig_teardown);
}
