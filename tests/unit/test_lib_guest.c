// libsandbox: commands, and the envelope of every guest operation, from an honest guest and a hostile one.
#include "guest_world.h"
#include "wire/limits.h"

#include <stdio.h>

// ---- exec ----------------------------------------------------------------------------------------------------------

static Sandbox__Guest__ExecResult plain_result(void)
{
    Sandbox__Guest__ExecResult e = SANDBOX__GUEST__EXEC_RESULT__INIT;
    e.out = bytes("out");
    e.out_total = 3;
    return e;
}

static sandbox_error_t exec_answered(struct world *w, Sandbox__Guest__ExecResult *e, sandbox_exec_result_t *result)
{
    w->guest.answer = answer_result;
    w->guest.result = (result_t)SANDBOX__GUEST__RESULT__INIT;
    w->guest.result.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    w->guest.result.exec = e;
    sandbox_exec_spec_t spec = {.command = "true"};
    return sandbox_exec(w->h, &spec, result);
}

static void exec_gives_what_the_command_did(void **state)
{
    struct world *w = *state;
    Sandbox__Guest__ExecResult e = plain_result();
    e.exit_code = 255;
    e.err = (ProtobufCBinaryData){.data = (uint8_t *)"e\0r", .len = 3};
    e.err_total = 3;
    e.duration_us = 1, e.user_us = 2, e.system_us = 3, e.max_rss_kib = 4;
    sandbox_exec_result_t r = {0};
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_int_equal(r.exit_code, 255);
    assert_true(!r.timed_out && !r.output_truncated && !r.output_limit_hit && !r.oom_killed && r.term_signal == 0);
    assert_string_equal((char *)r.out, "out");
    assert_true(r.out_len == 3 && r.err_len == 3 && memcmp(r.err, "e\0r", 4) == 0);
    assert_true(r.out_total == 3 && r.err_total == 3 && r.duration_us == 1 && r.user_us == 2);
    assert_true(r.system_us == 3 && r.max_rss_kib == 4 && r.start_errno == 0);
    sandbox_exec_result_free(&r);
    assert_null(r.out);
    sandbox_exec_result_free(&r);
    sandbox_exec_result_free(NULL);
}

static void exec_tells_ends_apart(void **state)
{
    struct world *w = *state;
    sandbox_exec_result_t r;
    Sandbox__Guest__ExecResult e = SANDBOX__GUEST__EXEC_RESULT__INIT;
    e.term_signal = 9, e.exit_code = 77, e.timed_out = true, e.oom_killed = true;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.exit_code == -1 && r.term_signal == 9 && r.timed_out && r.oom_killed && !r.output_truncated);
    assert_string_equal((char *)r.out, "");
    assert_string_equal((char *)r.err, "");
    sandbox_exec_result_free(&r);
    e = plain_result();
    e.output_limit_hit = true;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.output_limit_hit && r.output_truncated);
    sandbox_exec_result_free(&r);
    e = plain_result();
    e.out_total = 4;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.output_truncated && !r.output_limit_hit && r.out_total == 4);
    sandbox_exec_result_free(&r);
    e = plain_result();
    e.err_total = 1;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.output_truncated);
    sandbox_exec_result_free(&r);
    e = plain_result();
    e.start_errno = 2, e.exit_code = 127;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.start_errno == 2 && r.exit_code == 127);
    sandbox_exec_result_free(&r);
}

static void exec_takes_both_heads_full(void **state)
{
    struct world *w = *state;
    static uint8_t head[EXEC_STDOUT_HEAD + 1];
    memset(head, 'h', sizeof head);
    Sandbox__Guest__ExecResult e = SANDBOX__GUEST__EXEC_RESULT__INIT;
    e.out = (ProtobufCBinaryData){.data = head, .len = EXEC_STDOUT_HEAD};
    e.err = (ProtobufCBinaryData){.data = head, .len = EXEC_STDERR_HEAD};
    e.out_total = e.err_total = UINT64_MAX;
    sandbox_exec_result_t r;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_OK);
    assert_true(r.out_len == SANDBOX_EXEC_STDOUT_HEAD && r.err_len == SANDBOX_EXEC_STDERR_HEAD && r.output_truncated);
    assert_int_equal(r.out[r.out_len], 0);
    sandbox_exec_result_free(&r);
    e.out.len++;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
    e.out.len--, e.err.len++;
    assert_int_equal(exec_answered(w, &e, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
}

static void exec_refuses_nonsense_of_the_guest(void **state)
{
    struct world *w = *state;
    Sandbox__Guest__ExecResult bad[11];
    for (size_t i = 0; i < 11; i++)
        bad[i] = plain_result();
    bad[0].exit_code = 256;
    bad[1].exit_code = -1;
    bad[2].term_signal = 65;
    bad[3].term_signal = UINT32_MAX;
    bad[4].out_total = 2;
    bad[5].err = bytes("x");
    bad[6].start_errno = 4096;
    bad[7].start_errno = 2;
    bad[8].start_errno = 2, bad[8].exit_code = 127, bad[8].term_signal = 9;
    bad[9].exit_code = INT32_MIN;
    bad[10].start_errno = UINT32_MAX, bad[10].exit_code = 126;
    for (size_t i = 0; i < 11; i++) {
        sandbox_exec_result_t r = {.exit_code = 4242};
        assert_int_equal(exec_answered(w, &bad[i], &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
        assert_non_null(strstr(sandbox_last_error(), "the guest's answer made no sense"));
        assert_true(r.exit_code == 4242 && r.out == NULL);
    }
}

static void log_list(struct guest *g, const ProtobufCBinaryData *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        g->log_len += (size_t)snprintf(g->log + g->log_len, sizeof g->log - g->log_len, "%.*s,", (int)list[i].len,
                                       (const char *)list[i].data);
}

static void log_exec(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    const Sandbox__Guest__Exec *e = m->guest->exec;
    g->log_len = 0;
    log_list(g, e->argv, e->n_argv);
    log_list(g, e->env, e->n_env);
    log_list(g, &e->cwd, 1);
    log_list(g, &e->stdin, 1);
    snprintf(g->log + g->log_len, sizeof g->log - g->log_len, "%d,%u,%llu", e->shell, e->timeout_ms,
             (unsigned long long)e->max_output);
    fake_behave(peer, m, NULL);
}

static void exec_sends_the_whole_spec(void **state)
{
    struct world *w = *state;
    w->guest.answer = log_exec;
    sandbox_exec_result_t r = {0};
    const char *env[] = {"A=1", NULL}, *argv[] = {"prog", "", "arg", NULL};
    sandbox_exec_spec_t spec = {.command = "echo hi",
                                .env = env,
                                .cwd = "/tmp",
                                .timeout_ms = 7,
                                .stdin_data = "in",
                                .stdin_len = 2,
                                .max_output = 1ull << 33};
    assert_int_equal(sandbox_exec(w->h, &spec, &r), SANDBOX_OK);
    assert_string_equal(w->guest.log, "echo hi,A=1,/tmp,in,1,7,8589934592");
    sandbox_exec_result_free(&r);
    spec = (sandbox_exec_spec_t){.argv = argv};
    assert_int_equal(sandbox_exec(w->h, &spec, &r), SANDBOX_OK);
    assert_string_equal(w->guest.log, "prog,,arg,,,0,0,0");
    sandbox_exec_result_free(&r);
}

static void exec_refuses_what_it_cannot_send(void **state)
{
    struct world *w = *state;
    w->guest.answer = log_exec;
    static char in[SANDBOX_MAX_STDIN + 1];
    const char *argv[] = {"prog", NULL}, *none[] = {NULL}, *bad_env[] = {"A", NULL};
    const sandbox_exec_spec_t bad[] = {{0},
                                       {.command = "x", .argv = argv},
                                       {.argv = none},
                                       {.command = "x", .argv = none},
                                       {.command = "x", .env = bad_env},
                                       {.command = "x", .stdin_len = 1},
                                       {.command = "x", .reserved = {[4] = 1}}};
    sandbox_exec_result_t r = {.exit_code = 4242};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sandbox_exec(w->h, &bad[i], &r), SANDBOX_ERR_INVALID_SPEC);
    sandbox_exec_spec_t spec = {.command = "x", .stdin_data = in, .stdin_len = sizeof in};
    assert_int_equal(sandbox_exec(NULL, &spec, &r), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec(w->h, NULL, &r), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec(w->h, &spec, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec(w->h, &spec, &r), SANDBOX_ERR_TOO_LARGE);
    assert_non_null(strstr(sandbox_last_error(), "stdin"));
    assert_int_equal(w->guest.calls, 0);
    assert_int_equal(r.exit_code, 4242);
}

// ---- The envelope --------------------------------------------------------------------------------------------------

static void every_status_of_the_guest_has_its_code(void **state)
{
    static const sandbox_error_t codes[] = {
        [1] = SANDBOX_ERR_INVALID_SPEC,      [2] = SANDBOX_ERR_PATH_DENIED, [3] = SANDBOX_ERR_NOT_FOUND,
        [4] = SANDBOX_ERR_GUEST_IO,          [5] = SANDBOX_ERR_TOO_LARGE,   [6] = SANDBOX_ERR_INTERNAL,
        [7] = SANDBOX_ERR_GUEST_UNAVAILABLE, [8] = SANDBOX_ERR_EXISTS,      [9] = SANDBOX_ERR_GUEST_UNAVAILABLE,
        [10] = SANDBOX_ERR_GUEST_UNAVAILABLE};
    struct world *w = *state;
    w->guest.answer = answer_result;
    for (int status = 1; status <= 10; status++) {
        w->guest.result = (result_t)SANDBOX__GUEST__RESULT__INIT;
        w->guest.result.status = (Sandbox__Guest__Status)status;
        w->guest.result.message = (char *)"why\n\x1b]0;not\x07";
        assert_int_equal(sandbox_mkdir(w->h, "/workspace/d", 0, false), codes[status]);
        if (status < 10)
            assert_string_equal(sandbox_last_error(), "why??]0;not?");
        w->guest.result.message = (char *)"";
        assert_int_equal(sandbox_remove(w->h, "/workspace/d", false), codes[status]);
        assert_true(sandbox_last_error()[0] != '\0');
    }
    w->guest.result.status = (Sandbox__Guest__Status)-1;
    assert_int_equal(sandbox_remove(w->h, "/workspace/d", false), SANDBOX_ERR_GUEST_UNAVAILABLE);
}

static sandbox_error_t call_each(struct world *w, int which)
{
    sandbox_exec_spec_t cmd = {.command = "true"};
    sandbox_exec_result_t result;
    sandbox_fstat_t stat;
    sandbox_dirent_t *entries;
    uint8_t *data;
    size_t n;
    bool truncated;
    switch (which) {
    case 0:
        return sandbox_exec(w->h, &cmd, &result);
    case 1:
        return sandbox_read_file(w->h, "/workspace/f", &data, &n);
    case 2:
        return sandbox_write_file(w->h, "/workspace/f", NULL, 0, 0, 0);
    case 3:
        return sandbox_list_dir(w->h, "/workspace", &entries, &n, &truncated);
    case 4:
        return sandbox_stat(w->h, "/workspace/f", &stat);
    case 5:
        return sandbox_mkdir(w->h, "/workspace/f", 0, false);
    default:
        return sandbox_remove(w->h, "/workspace/f", true);
    }
}

static void every_operation_survives_garbage(void **state)
{
    struct world *w = *state;
    static const char *const garbage[] = {"\xff\xff\xff", "\x52", "\x0a\xff\xff\xff\xff\x0f", "hello"};
    static Sandbox__Guest__StatResult stat = SANDBOX__GUEST__STAT_RESULT__INIT;
    static Sandbox__Guest__MkdirResult mkdir = SANDBOX__GUEST__MKDIR_RESULT__INIT;
    for (int op = 0; op < 7; op++) {
        w->guest.answer = answer_bytes;
        for (size_t i = 0; i < 4; i++) {
            w->guest.bytes = garbage[i];
            w->guest.n_bytes = strlen(garbage[i]);
            assert_int_equal(call_each(w, op), SANDBOX_ERR_GUEST_UNAVAILABLE);
        }
        w->guest.n_bytes = 0;  // status OK and no result
        assert_int_equal(call_each(w, op), SANDBOX_ERR_GUEST_UNAVAILABLE);
        w->guest.result = (result_t)SANDBOX__GUEST__RESULT__INIT;
        w->guest.result.result_case =
            op == 4 ? SANDBOX__GUEST__RESULT__RESULT_MKDIR : SANDBOX__GUEST__RESULT__RESULT_STAT;  // of another kind
        if (op == 4)
            w->guest.result.mkdir = &mkdir;
        else
            w->guest.result.stat = &stat;
        w->guest.answer = answer_result;
        assert_int_equal(call_each(w, op), SANDBOX_ERR_GUEST_UNAVAILABLE);
        w->guest.answer = answer_for_another;
        assert_int_equal(call_each(w, op), SANDBOX_ERR_INTERNAL);
        w->guest.answer = answer_error;
        assert_int_equal(call_each(w, op), SANDBOX_ERR_TIMEOUT);
        assert_string_equal(sandbox_last_error(), "too late");
    }
}

// A listing of 20000 empty entries fits a frame and would unpack to more than a megabyte.
static void a_small_answer_cannot_take_much_memory(void **state)
{
    struct world *w = *state;
    enum { ENTRIES = 20000 };
    static uint8_t body[8 + 2 * ENTRIES];
    uint8_t *p = body;
    *p++ = 13 << 3 | 2;
    *p++ = (2 * ENTRIES) % 128 | 0x80, *p++ = (2 * ENTRIES / 128) % 128 | 0x80, *p++ = 2 * ENTRIES / 128 / 128;
    for (int i = 0; i < ENTRIES; i++)
        *p++ = 1 << 3 | 2, *p++ = 0;
    w->guest.answer = answer_bytes;
    w->guest.bytes = body;
    w->guest.n_bytes = (size_t)(p - body);
    assert_int_equal(call_each(w, 3), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_non_null(strstr(sandbox_last_error(), "parsed"));
}

static void paths_are_checked_here_too(void **state)
{
    struct world *w = *state;
    w->guest.answer = answer_error;
    static const char *const bad[] = {
        "", "relative", "workspace/x", "/workspace/../etc", "/workspace/.", "/..", "/workspace/./x", "/.", "/a/.."};
    uint8_t *data;
    size_t n;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sandbox_read_file(w->h, bad[i], &data, &n), SANDBOX_ERR_PATH_DENIED);
    sandbox_fstat_t stat;
    sandbox_dirent_t *entries;
    bool truncated;
    assert_int_equal(sandbox_write_file(w->h, "x", NULL, 0, 0, 0), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(sandbox_list_dir(w->h, "x", &entries, &n, &truncated), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(sandbox_stat(w->h, "x", &stat), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(sandbox_mkdir(w->h, "x", 0, true), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(sandbox_remove(w->h, "x", true), SANDBOX_ERR_PATH_DENIED);
    assert_int_equal(sandbox_remove(w->h, NULL, true), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_remove(NULL, "/workspace/x", true), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_stat(w->h, "/workspace/x", NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_read_file(w->h, "/workspace/x", NULL, &n), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_list_dir(w->h, "/workspace", &entries, &n, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(w->guest.calls, 0);
    // Dots inside a name are a name.
    assert_int_equal(sandbox_stat(w->h, "/workspace//...", &stat), SANDBOX_ERR_TIMEOUT);
    assert_int_equal(sandbox_stat(w->h, "/workspace/..x/.y", &stat), SANDBOX_ERR_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(exec_gives_what_the_command_did),
        TEST(exec_tells_ends_apart),
        TEST(exec_takes_both_heads_full),
        TEST(exec_refuses_nonsense_of_the_guest),
        TEST(exec_sends_the_whole_spec),
        TEST(exec_refuses_what_it_cannot_send),
        TEST(every_status_of_the_guest_has_its_code),
        TEST(every_operation_survives_garbage),
        TEST(a_small_answer_cannot_take_much_memory),
        TEST(paths_are_checked_here_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
