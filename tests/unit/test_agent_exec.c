// agent: commands.  (Tn) names the trap a case belongs to.
#include "agent/drains.h"
#include "agent/exec.h"
#include "agent/lines.h"
#include "agent_rig.h"
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

static guest_result *run_argv(struct rig *rig, const char *const *argv, size_t n, const char *const *env, size_t n_env)
{
    ProtobufCBinaryData args[8], vars[8];
    Sandbox__Guest__Exec x = SANDBOX__GUEST__EXEC__INIT;
    for (size_t i = 0; i < n; i++)
        args[i] = bytes_of(argv[i]);
    for (size_t i = 0; i < n_env; i++)
        vars[i] = bytes_of(env[i]);
    x.argv = args;
    x.n_argv = n;
    x.env = vars;
    x.n_env = n_env;
    Sandbox__Agent__Request request = EXEC_REQUEST(&x);
    guest_result *r = rig_do(rig, &request);
    assert_int_equal(r->status, STATUS(OK));
    assert_int_equal(r->result_case, SANDBOX__GUEST__RESULT__RESULT_EXEC);
    return r;
}

static void output_and_exit_code_come_back(void **state)
{
    struct script s;
    script_init(&s, "pwd; echo err >&2; exit 3");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->status, STATUS(OK));
    assert_int_equal(r->exec->exit_code, 3);
    assert_int_equal(r->exec->term_signal, 0);
    assert_bytes(r->exec->out, "/workspace\n");
    assert_bytes(r->exec->err, "err\n");
    assert_int_equal(r->exec->out_total, 11);
    assert_int_equal(r->exec->err_total, 4);
    assert_true(r->exec->duration_us > 0 && r->exec->max_rss_kib > 0);
    assert_false(r->exec->timed_out || r->exec->output_limit_hit || r->exec->oom_killed);
    pb_free(r);
}

static void a_signal_is_not_an_exit_code(void **state)
{
    struct script s;
    script_init(&s, "kill -TERM $$");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->term_signal, SIGTERM);
    assert_int_equal(r->exec->exit_code, -1);
    pb_free(r);
}

static void cpu_time_is_counted(void **state)
{
    struct script s;
    script_init(&s, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 0);
    assert_true(r->exec->user_us > 1000);
    pb_free(r);
}

// (T7)
static void start_failures_are_127_and_126(void **state)
{
    static const struct {
        const char *argv[2];
        size_t n;
        int code, error;
        const char *err;
    } cases[] = {
        {{"no-such-binary"}, 1, 127, ENOENT, "sandbox-agent: cannot run no-such-binary: No such file or directory\n"},
        {{"/no/such"}, 1, 127, ENOENT, "sandbox-agent: cannot run /no/such: No such file or directory\n"},
        {{"/etc/hostname"}, 1, 126, EACCES, "sandbox-agent: cannot run /etc/hostname: Permission denied\n"},
        {{"/usr"}, 1, 126, EACCES, "sandbox-agent: cannot run /usr: Permission denied\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        guest_result *r = run_argv(*state, cases[i].argv, cases[i].n, NULL, 0);
        assert_int_equal(r->exec->exit_code, cases[i].code);
        assert_int_equal(r->exec->start_errno, cases[i].error);
        assert_int_equal(r->exec->term_signal, 0);
        assert_bytes(r->exec->err, cases[i].err);
        assert_int_equal(r->exec->err_total, strlen(cases[i].err));
        pb_free(r);
    }
    struct script s;
    script_init(&s, "no-such-binary");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 127);
    assert_int_equal(r->exec->start_errno, 0);
    assert_true(r->exec->err.len > 0);
    pb_free(r);
}

static void a_missing_directory_is_said(void **state)
{
    struct script s;
    script_init(&s, "true");
    s.exec.cwd = bytes_of("/no/dir");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 126);
    assert_int_equal(r->exec->start_errno, ENOENT);
    assert_bytes(r->exec->err, "sandbox-agent: cannot enter directory /no/dir: No such file or directory\n");
    pb_free(r);
    script_init(&s, "pwd");
    s.exec.cwd = bytes_of("/usr/bin");
    r = rig_script(*state, &s);
    assert_bytes(r->exec->out, "/usr/bin\n");
    pb_free(r);
}

static void scripts_without_an_interpreter_are_start_failures(void **state)
{
    struct rig *rig = *state;
    free(rig_sh(rig, "printf '#!/no/such/interpreter\\n' > /workspace/script; chmod 755 /workspace/script"));
    guest_result *r = run_argv(rig, (const char *const[]){"/workspace/script"}, 1, NULL, 0);
    assert_int_equal(r->exec->exit_code, 127);
    assert_int_equal(r->exec->start_errno, ENOENT);
    pb_free(r);
    free(rig_sh(rig, "printf 'no magic' > /workspace/script"));
    r = run_argv(rig, (const char *const[]){"/workspace/script"}, 1, NULL, 0);
    assert_int_equal(r->exec->exit_code, 126);
    assert_int_equal(r->exec->start_errno, ENOEXEC);
    pb_free(r);
}

// (T8)
static void environment_values_are_bytes(void **state)
{
    static const char value[] = "V=a\nb{\n'c'\"$HOME\" `id` \\n =x  ";
    guest_result *r = run_argv(*state, (const char *const[]){"printenv", "V"}, 2, (const char *const[]){value}, 1);
    char want[64];
    snprintf(want, sizeof want, "%s\n", value + 2);
    assert_bytes(r->exec->out, want);
    pb_free(r);
}

static void environments_are_layered(void **state)
{
    guest_result *r =
        run_argv(*state, (const char *const[]){"env"}, 1, (const char *const[]){"SHARED=request", "N=1", "N=2"}, 3);
    assert_bytes(r->exec->out, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nHOME=/root\nLANG=C.UTF-8\n"
                               "SANDBOX_A=1\nSHARED=request\nN=2\n");
    pb_free(r);
}

static void programs_are_looked_for_in_the_commands_path(void **state)
{
    struct rig *rig = *state;
    free(rig_sh(rig, "mkdir -p /workspace/bin /workspace/no; printf '#!/bin/sh\\necho mine' > /workspace/bin/tool;"
                     "chmod 755 /workspace/bin/tool; echo > /workspace/no/tool"));
    const char *const argv[] = {"tool"};
    guest_result *r = run_argv(rig, argv, 1, (const char *const[]){"PATH=/nowhere:/workspace/no:/workspace/bin"}, 1);
    assert_bytes(r->exec->out, "mine\n");
    pb_free(r);
    r = run_argv(rig, argv, 1, (const char *const[]){"PATH=/nowhere:/workspace/no"}, 1);
    assert_int_equal(r->exec->exit_code, 126);
    pb_free(r);
    r = run_argv(rig, argv, 1, (const char *const[]){"PATH=bin"}, 1);
    assert_bytes(r->exec->out, "mine\n");
    pb_free(r);
    r = run_argv(rig, argv, 1, NULL, 0);
    assert_int_equal(r->exec->exit_code, 127);
    pb_free(r);
}

static void a_command_starts_clean(void **state)
{
    char *out = rig_sh(*state, "ls /proc/self/fd | tr '\\n' ' '; readlink /proc/self/fd/0;"
                               "cat /proc/self/status | grep -E '^(SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp):' | tr -d '\\t\\n';"
                               "umask; [ $(ps -o sid= -p $$) = $$ ] && echo leader");
    assert_string_equal(out, "0 1 2 3 /dev/null\n"  // 3 is ls's own
                             "SigBlk:0000000000000000SigIgn:0000000000000000SigCgt:0000000000000000NoNewPrivs:1Seccomp:0"
                             "0022\nleader\n");
    free(out);
}

// (T9)
static void output_is_bytes(void **state)
{
    struct script s;
    script_init(&s, "printf 'ok\\377\\376\\000end'");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->out.len, 8);
    assert_memory_equal(r->exec->out.data, "ok\xff\xfe\0end", 8);
    pb_free(r);
}

// (T3)
static void every_byte_is_counted(void **state)
{
    struct script s;
    script_init(&s, "head -c 3000000 /dev/zero | tr '\\0' x; exit 0");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 0);
    assert_int_equal(r->exec->out_total, 3000000);
    assert_int_equal(r->exec->out.len, EXEC_STDOUT_HEAD);
    pb_free(r);
    for (int i = 0; i < 50; i++) {
        script_init(&s, "(sleep 20 &) ; seq 1 20000");
        uint64_t start = mono_ns();
        r = rig_script(*state, &s);
        assert_true(mono_ns() - start < 10 * NS_PER_S);
        assert_int_equal(r->exec->out_total, 108894);
        pb_free(r);
    }
    free(rig_sh(*state, "pkill -xf 'sleep 20'"));
}

static void heads_are_cut_on_both_streams(void **state)
{
    struct script s;
    script_init(&s, "head -c 100000 /dev/zero; head -c 90000 /dev/zero >&2");
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->out.len, EXEC_STDOUT_HEAD);
    assert_int_equal(r->exec->err.len, EXEC_STDERR_HEAD);
    assert_int_equal(r->exec->out_total, 100000);
    assert_int_equal(r->exec->err_total, 90000);
    pb_free(r);
    s.exec.stdout_head = 7;
    s.exec.stderr_head = UINT32_MAX;
    r = rig_script(*state, &s);
    assert_int_equal(r->exec->out.len, 7);
    assert_int_equal(r->exec->err.len, EXEC_HEADS_MAX - 7);
    pb_free(r);
    s.exec.stdout_head = UINT32_MAX;
    r = rig_script(*state, &s);
    assert_int_equal(r->status, STATUS(OK));
    assert_int_equal(r->exec->out.len + r->exec->err.len, EXEC_HEADS_MAX);
    pb_free(r);
}

// (T4)
static void cat_never_hangs(void **state)
{
    for (int i = 0; i < 100; i++) {
        struct script s;
        script_init(&s, "cat");
        guest_result *r = rig_script(*state, &s);
        assert_int_equal(r->exec->exit_code, 0);
        assert_int_equal(r->exec->out_total, 0);
        pb_free(r);
        s.exec.stdin = bytes_of("hello\n");
        r = rig_script(*state, &s);
        assert_int_equal(r->exec->exit_code, 0);
        assert_bytes(r->exec->out, "hello\n");
        pb_free(r);
    }
}

// (T5)
static void unread_input_does_not_keep_a_command(void **state)
{
    uint8_t *input = malloc(EXEC_STDIN_MAX + 1);
    assert_non_null(input);
    memset(input, 'i', EXEC_STDIN_MAX + 1);
    struct script s;
    script_init(&s, "true");
    s.exec.stdin = (ProtobufCBinaryData){EXEC_STDIN_MAX, input};
    uint64_t start = mono_ns();
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 0);
    assert_true(mono_ns() - start < 5 * NS_PER_S);
    pb_free(r);
    script_init(&s, "wc -c");
    s.exec.stdin = (ProtobufCBinaryData){EXEC_STDIN_MAX, input};
    r = rig_script(*state, &s);
    assert_bytes(r->exec->out, "65536\n");
    pb_free(r);
    s.exec.stdin.len++;
    r = rig_script(*state, &s);
    assert_int_equal(r->status, STATUS(TOO_LARGE));
    assert_string_not_equal(r->message, "");
    pb_free(r);
    free(input);
}

// (T1, T11)
static void a_time_out_is_kept(void **state)
{
    struct script s;
    script_init(&s, "echo before; echo c2xlZXAgNzc3 | base64 -d | sh");
    s.exec.timeout_ms = 300;
    uint64_t start = mono_ns();
    guest_result *r = rig_script(*state, &s);
    uint64_t took = mono_ns() - start;
    assert_true(took >= 300 * NS_PER_MS && took < 2300 * NS_PER_MS);
    assert_true(r->exec->timed_out);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    assert_int_equal(r->exec->exit_code, -1);
    assert_bytes(r->exec->out, "before\n");
    pb_free(r);
    // There are no groups here: its process group was killed, and nobody waits until each of it is gone.
    char *out =
        rig_sh(*state, "i=0; while pgrep -xf 'sleep 777' >/dev/null && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done; "
                       "pgrep -xf 'sleep 777' || echo none");
    assert_string_equal(out, "none\n");
    free(out);
}

static void a_command_within_its_time_is_not_killed(void **state)
{
    struct script s;
    script_init(&s, "echo fine");
    s.exec.timeout_ms = UINT32_MAX;  // above the most: becomes the most
    guest_result *r = rig_script(*state, &s);
    assert_false(r->exec->timed_out);
    assert_int_equal(r->exec->exit_code, 0);
    pb_free(r);
}

// (T10)
static void too_much_output_ends_a_command(void **state)
{
    struct script s;
    script_init(&s, "yes");
    guest_result *r = rig_script(*state, &s);
    assert_true(r->exec->output_limit_hit);
    assert_false(r->exec->timed_out);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    assert_true(r->exec->out_total > EXEC_OUTPUT_DEFAULT);
    pb_free(r);
}

static void the_output_limit_has_two_sides(void **state)
{
    struct script s;
    script_init(&s, "printf 12345; printf 67890 >&2");
    s.exec.max_output = 10;
    guest_result *r = rig_script(*state, &s);
    assert_false(r->exec->output_limit_hit);
    assert_int_equal(r->exec->exit_code, 0);
    pb_free(r);
    s.exec.max_output = 9;
    r = rig_script(*state, &s);
    assert_true(r->exec->output_limit_hit);
    assert_int_equal(r->exec->out_total + r->exec->err_total, 10);
    assert_int_equal(r->exec->out.len + r->exec->err.len, 9);
    pb_free(r);
}

// (T19)
static void the_streams_do_not_wait_for_each_other(void **state)
{
    struct script s;
    script_init(&s, "head -c 10485760 /dev/zero; head -c 10485760 /dev/zero >&2; touch /tmp/done");
    s.exec.max_output = 64 << 20;
    guest_result *r = rig_script(*state, &s);
    assert_int_equal(r->exec->exit_code, 0);
    assert_int_equal(r->exec->out_total, 10485760);
    assert_int_equal(r->exec->err_total, 10485760);
    pb_free(r);
    free(rig_sh(*state, "test -e /tmp/done"));
}

static bool file_says(struct rig *rig, const char *path, const char *text)
{
    char script[128];
    snprintf(script, sizeof script, "cat %s 2>/dev/null || true", path);
    char *out = rig_sh(rig, script);
    bool same = strcmp(out, text) == 0;
    free(out);
    return same;
}

// Children left by a command that ended normally live on, and writing does not kill them.
static void children_left_behind_live_on(void **state)
{
    struct rig *rig = *state;
    free(rig_sh(rig,
                "rm -f /tmp/go /tmp/alive; mkfifo /tmp/go;"
                "(trap 'echo pipe > /tmp/alive' PIPE; read x < /tmp/go; head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2;"
                " echo alive > /tmp/alive) &"));
    free(rig_sh(rig, "echo > /tmp/go"));
    wait_for(file_says(rig, "/tmp/alive", "alive\n"));
}

// The number of descriptors when nothing is being done and no pipe is left from earlier cases.
static size_t quiet_fd_count(struct rig *rig)
{
    struct rig fresh;
    rig_start_configured(&fresh, NULL);
    size_t quiet = rig_fd_count(&fresh);
    rig_stop(&fresh);
    wait_for(rig_fd_count(rig) == quiet);
    return quiet;
}

static void pipes_left_behind_are_bounded_and_closed(void **state)
{
    struct rig *rig = *state;
    size_t before = quiet_fd_count(rig);
    for (int i = 0; i < 200; i++)
        free(rig_sh(rig, "sleep 778 &"));
    wait_for(rig_fd_count(rig) == before + DRAINS_MAX);
    free(rig_sh(rig, "pkill -xf 'sleep 778'"));
    wait_for(rig_fd_count(rig) == before);
}

static bool is_running(struct rig *rig, const char *command)
{
    char script[128];
    snprintf(script, sizeof script, "pgrep -xf '%s' >/dev/null && printf yes || true", command);
    char *out = rig_sh(rig, script);
    bool yes = strcmp(out, "yes") == 0;
    free(out);
    return yes;
}

// (T2)
static void a_host_that_goes_away_ends_its_command(void **state)
{
    struct rig *rig = *state;
    struct script s;
    script_init(&s, "exec sleep 779");
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    int line = rig_open(rig);
    rig_request(line, &request);
    wait_for(is_running(rig, "sleep 779"));
    close(line);
    wait_for(!is_running(rig, "sleep 779"));
}

// (T6)
static void thousands_of_commands_leave_nothing(void **state)
{
    struct rig *rig = *state;
    size_t before = quiet_fd_count(rig);
    struct script s;
    script_init(&s, "/bin/true & exit 0");  // an orphan for PID 1 each time
    size_t rss = 0;
    for (int i = 0; i < 2000; i++) {
        if (i == 200)
            rss = rig_rss_kib(rig);
        guest_result *r = rig_script(rig, &s);
        assert_int_equal(r->exec->exit_code, 0);
        pb_free(r);
    }
    wait_for(rig_fd_count(rig) == before);
    if (getenv("RIG_RSS_GROWS") == NULL)  // an allocator that keeps freed memory aside (ASan's) would look like a leak
        assert_true(rig_rss_kib(rig) <= rss + 128);
    char *out = rig_sh(rig, "ps -e -o stat= | grep -c Z || true");
    assert_string_equal(out, "0\n");
    free(out);
}

static void lines_are_limited_to_sixteen(void **state)
{
    struct rig *rig = *state;
    int lines[AGENT_STREAMS_MAX];
    struct script s;
    script_init(&s, "read x < /tmp/gate; echo $x");
    free(rig_sh(rig, "rm -f /tmp/gate; mkfifo /tmp/gate"));
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    for (int i = 0; i < AGENT_STREAMS_MAX; i++) {
        lines[i] = rig_open(rig);
        rig_request(lines[i], &request);
    }
    guest_result *r = rig_do(rig, &request);
    assert_int_equal(r->status, STATUS(BUSY));
    assert_string_not_equal(r->message, "");
    pb_free(r);
    close(lines[0]);
    // The first has been given up: there is room for one again, and it can let the others go.
    script_init(&s, "i=0; while [ $i -lt 15 ]; do echo go; i=$((i+1)); done > /tmp/gate");
    for (r = NULL; r == NULL || r->status == STATUS(BUSY); r = rig_script(rig, &s))
        pb_free(r);
    assert_int_equal(r->status, STATUS(OK));
    pb_free(r);
    for (int i = 1; i < AGENT_STREAMS_MAX; i++) {
        // A reader may take several lines at once: let them all go.
        close(lines[i]);
    }
}

// Lines that are only told STATUS_BUSY are bounded too: beyond REFUSED_MAX they are closed without a word.
static void refused_lines_are_limited(void **state)
{
    struct rig *rig = *state;
    int lines[AGENT_STREAMS_MAX + REFUSED_MAX];
    for (size_t i = 0; i < AGENT_STREAMS_MAX + REFUSED_MAX; i++)
        lines[i] = rig_open(rig);
    cleanup_fd int beyond = rig_open(rig);
    assert_null(rig_answer_or_end(beyond));
    struct script s;
    script_init(&s, "true");
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    for (size_t i = 0; i < AGENT_STREAMS_MAX + REFUSED_MAX; i++) {
        rig_request(lines[i], &request);
        guest_result *r = rig_answer(lines[i]);
        assert_int_equal(r->status, i < AGENT_STREAMS_MAX ? STATUS(OK) : STATUS(BUSY));
        pb_free(r);
        close(lines[i]);
    }
    free(rig_sh(rig, "true"));
}

// Nothing a guest may send to process 1 ends or stops it.
static void signals_from_the_guest_do_nothing(void **state)
{
    struct rig *rig = *state;
    free(rig_sh(rig, "i=1; while [ $i -le 64 ]; do kill -$i 1 2>/dev/null; i=$((i+1)); done; true"));
    free(rig_sh(rig, "true"));
}

static void broken_requests_are_refused(void **state)
{
    struct rig *rig = *state;
    cleanup_fd int line = rig_open(rig);
    assert_int_equal(send(line, "\0\0\0\3\xff\xff\xff", 7, 0), 7);
    guest_result *r = rig_answer(line);
    assert_int_equal(r->status, STATUS(BAD_REQUEST));
    pb_free(r);
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    r = rig_do(rig, &request);
    assert_int_equal(r->status, STATUS(BAD_REQUEST));
    pb_free(r);
    request.version = AGENT_PROTOCOL_VERSION + 1;
    r = rig_do(rig, &request);
    assert_int_equal(r->status, STATUS(BAD_VERSION));
    pb_free(r);
    cleanup_fd int too_long = rig_open(rig);
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, AGENT_REQUEST_MAX + 1);
    assert_int_equal(send(too_long, head, sizeof head, 0), sizeof head);
    assert_null(rig_answer_or_end(too_long));
}

static void a_second_request_on_a_line_ends_it(void **state)
{
    struct rig *rig = *state;
    struct script s;
    script_init(&s, "exec sleep 780");
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    cleanup_fd int line = rig_open(rig);
    rig_request(line, &request);
    rig_request(line, &request);
    assert_null(rig_answer_or_end(line));
    wait_for(!is_running(rig, "sleep 780"));
}

static void a_silent_line_is_closed(void **state)
{
    struct rig *rig = *state;
    cleanup_fd int line = rig_open(rig);
    assert_int_equal(send(line, "\0", 1, 0), 1);
    uint64_t start = mono_ns();
    assert_null(rig_answer_or_end(line));
    uint64_t took = mono_ns() - start;
    assert_true(took > 9 * NS_PER_S && took < 13 * NS_PER_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_and_exit_code_come_back),
        cmocka_unit_test(a_signal_is_not_an_exit_code),
        cmocka_unit_test(cpu_time_is_counted),
        cmocka_unit_test(start_failures_are_127_and_126),
        cmocka_unit_test(a_missing_directory_is_said),
        cmocka_unit_test(scripts_without_an_interpreter_are_start_failures),
        cmocka_unit_test(environment_values_are_bytes),
        cmocka_unit_test(environments_are_layered),
        cmocka_unit_test(programs_are_looked_for_in_the_commands_path),
        cmocka_unit_test(a_command_starts_clean),
        cmocka_unit_test(output_is_bytes),
        cmocka_unit_test(every_byte_is_counted),
        cmocka_unit_test(heads_are_cut_on_both_streams),
        cmocka_unit_test(cat_never_hangs),
        cmocka_unit_test(unread_input_does_not_keep_a_command),
        cmocka_unit_test(a_time_out_is_kept),
        cmocka_unit_test(a_command_within_its_time_is_not_killed),
        cmocka_unit_test(too_much_output_ends_a_command),
        cmocka_unit_test(the_output_limit_has_two_sides),
        cmocka_unit_test(the_streams_do_not_wait_for_each_other),
        cmocka_unit_test(children_left_behind_live_on),
        cmocka_unit_test(pipes_left_behind_are_bounded_and_closed),
        cmocka_unit_test(a_host_that_goes_away_ends_its_command),
        cmocka_unit_test(thousands_of_commands_leave_nothing),
        cmocka_unit_test(lines_are_limited_to_sixteen),
        cmocka_unit_test(refused_lines_are_limited),
        cmocka_unit_test(signals_from_the_guest_do_nothing),
        cmocka_unit_test(broken_requests_are_refused),
        cmocka_unit_test(a_second_request_on_a_line_ends_it),
        cmocka_unit_test(a_silent_line_is_closed),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_exec", tests, rig_setup, rig_teardown);
}
