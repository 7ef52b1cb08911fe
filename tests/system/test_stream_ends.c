// Streams and their ends: clients that are killed in the middle, sandboxes that go, connections that have enough, requests that
// are wrong.  Whatever ends, nothing of it is left, and nobody else notices.
#include "raw.h"
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- a client that is killed
// --------------------------------------------------------------------------------------------------

// Its sandbox has a stream that nobody reads, one that waits for input, a background process and a transfer half way.  It says
// that all of them run, and stays.
static void be_a_client(int ready)
{
    sandbox_conn_t *conn = NULL;
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = NULL;
    if (sandbox_conn_open(setting()->socket, &conn) != SANDBOX_OK || sandbox_conn_create(conn, &spec, &h) != SANDBOX_OK)
        _exit(1);
    sandbox_stream_t *full = NULL, *waiting = NULL, *watch = NULL;
    sandbox_stream_options_t open_stdin = {.open_stdin = 1};
    sandbox_exec_spec_t yes = {.command = "sleep 733001 & yes"}, cat = {.command = "sleep 733001 & cat"};
    sandbox_exec_spec_t back = {.command = "setsid sleep 733001 & echo up; sleep 733001"};
    sandbox_event_t e;
    uint32_t id = 0;
    if (sandbox_exec_stream(h, &yes, NULL, &full) != SANDBOX_OK || sandbox_stream_read(full, -1, &e) != SANDBOX_OK ||
        sandbox_exec_stream(h, &cat, &open_stdin, &waiting) != SANDBOX_OK || sandbox_spawn(h, &back, NULL, &id) != SANDBOX_OK ||
        sandbox_attach(h, id, 0, &watch) != SANDBOX_OK || sandbox_stream_read(watch, -1, &e) != SANDBOX_OK)
        _exit(2);
    int ends[2];
    if (pipe(ends) < 0 || write(ends[1], "half", 4) != 4 || write(ready, "x", 1) != 1)
        _exit(3);
    sandbox_write_stream(h, "/workspace/half", ends[0], 0, 0, NULL);  // until it is killed
    _exit(4);
}

static bool all_run(void *arg)
{
    (void)arg;
    return host_processes("sleep 733001", NULL) >= 4;  // shells that name it count too
}

static void a_killed_client_takes_all_of_it_along(void **state)
{
    cleanup_told struct told mine;
    tell(&mine, *state, "echo up; read x; echo $x", .open_stdin = 1);
    assert_true(told_until(&mine, "up\n"));
    for (int i = 0; i < 3; i++) {
        int ready[2];
        char byte;
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0)
            be_a_client(ready[1]);
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        if (setting()->on_host)
            assert_true(eventually(all_run, NULL, 10000));
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        if (setting()->on_host)
            assert_true(eventually(no_host_process, (void *)"sleep 733001", 10000));
    }
    // Another client's stream has seen nothing of it.
    told_write(&mine, "still\n", 6);
    assert_int_equal(told_end(&mine)->exit_code, 0);
    assert_string_equal(mine.text, "up\nstill\n");
}

// ---- background processes
// ----------------------------------------------------------------------------------------------------

// A command that was put into the background has become itself only some time after; one that becomes another has, for a
// moment, no command line at all.
static bool both_sleep(void *h)
{
    return guest_processes(h, "sleep 733002") == 2;
}

static void a_background_process_ends_with_its_sandbox(void **state)
{
    (void)state;
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = create(&spec);
    put_probe(h);
    // The shell's own command line shall not be counted.
    sandbox_exec_spec_t command = {.command = "trap '' TERM HUP; n=02; setsid sleep 7330$n & echo up; sleep 7330$n"};
    uint32_t id = 0;
    assert_ok(sandbox_spawn(h, &command, NULL, &id));
    // Its call is over, and what watched it: it is not.
    struct told watch = {0};
    assert_ok(sandbox_attach(h, id, 0, &watch.stream));
    assert_true(told_until(&watch, "up\n"));
    told_free(&watch);
    for (int i = 0; i < 5; i++)
        assert_true(eventually(both_sleep, h, 10000));
    memset(&watch, 0, sizeof watch);
    assert_ok(sandbox_attach(h, id, 0, &watch.stream));
    assert_true(told_until(&watch, "up\n"));
    assert_ok(sandbox_destroy(h));
    sandbox_event_t e;
    assert_fails(sandbox_stream_read(watch.stream, (int)patient(20000), &e), SANDBOX_ERR_GUEST_UNAVAILABLE);
    told_free(&watch);
    if (setting()->on_host)
        assert_true(eventually(no_host_process, (void *)"sleep 733002", 10000));
}

// ---- how many
// ----------------------------------------------------------------------------------------------------------------

static bool takes_more(void *arg)
{
    sandbox_exec_result_t r = {0};
    bool taken = sandbox_exec(arg, &(sandbox_exec_spec_t){.command = "true"}, &r) == SANDBOX_OK;
    sandbox_exec_result_free(&r);
    return taken;
}

// Commands, attachments and ordinary operations share the 16; a background process that nobody watches is none of them.
static void all_kinds_count_together(void **state)
{
    sandbox_handle_t *h = *state;
    sandbox_exec_spec_t sleeper = {.command = "sleep 600"};
    uint32_t ids[20];
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        assert_ok(sandbox_spawn(h, &sleeper, NULL, &ids[i]));
    assert_true(eventually(takes_more, h, 10000));
    sandbox_stream_t *streams[SANDBOX_MAX_GUEST_OPS], *none = NULL;
    for (size_t i = 0; i < SANDBOX_MAX_GUEST_OPS; i++) {
        // A spawn's own line may still be closing.
        uint64_t until = now_ms() + patient(10000);
        sandbox_error_t r;
        do {
            r = i % 2 == 0 ? sandbox_exec_stream(h, &sleeper, NULL, &streams[i]) : sandbox_attach(h, ids[i], 0, &streams[i]);
        } while (r == SANDBOX_ERR_GUEST_UNAVAILABLE && now_ms() < until);
        assert_ok(r);
    }
    cleanup_fd int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    sandbox_fstat_t st;
    uint32_t id;
    sandbox_process_t *list = NULL;
    size_t n = 0;
    assert_fails(sandbox_exec_stream(h, &sleeper, NULL, &none), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_attach(h, ids[0], 0, &none), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_spawn(h, &sleeper, NULL, &id), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_tar_out(h, "/etc", null, 0, NULL), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_read_stream(h, "/etc/passwd", 0, null, NULL), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_processes(h, &list, &n), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_process_signal(h, ids[0], SIGKILL, 0), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_fails(sandbox_stat(h, "/workspace", &st), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_false(takes_more(h));
    // One that ends makes room for one.
    sandbox_stream_free(streams[3]);
    assert_true(eventually(takes_more, h, 10000));
    for (size_t i = 0; i < SANDBOX_MAX_GUEST_OPS; i++)
        if (i != 3)
            sandbox_stream_free(streams[i]);
    assert_true(eventually(takes_more, h, 10000));
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        assert_ok(sandbox_process_signal(h, ids[i], SIGKILL, 0));
}

// As many as there may be, all of them running and with the most descriptors each; one that ends makes room.
static sandbox_error_t spawn_patiently(sandbox_handle_t *h, uint32_t *ret_id)
{
    sandbox_exec_spec_t sleeper = {.command = "exec sleep 600"};
    uint64_t until = now_ms() + patient(20000);
    sandbox_error_t r;
    do {  // lines of earlier spawns may still be closing
        r = sandbox_spawn(h, &sleeper, &(sandbox_spawn_options_t){.open_stdin = 1}, ret_id);
    } while (r == SANDBOX_ERR_GUEST_UNAVAILABLE && strstr(sandbox_last_error(), "background") == NULL && now_ms() < until);
    return r;
}

static void a_sandbox_has_so_many_processes(void **state)
{
    (void)state;
    sandbox_spec_t spec = small_spec();
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    uint32_t first = 0, id = 0;
    for (int i = 0; i < SANDBOX_MAX_PROCESSES; i++)
        assert_ok(spawn_patiently(h, i == 0 ? &first : &id));
    assert_fails(spawn_patiently(h, &id), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_non_null(strstr(sandbox_last_error(), "background processes"));
    // Commands go on beside them, also such as leave pipes behind, and have the limits they always have.
    for (int i = 0; i < 16; i++)
        assert_int_equal(exit_code(h, "sleep 600 & exit 0"), 0);
    assert_int_equal(number(h, "ulimit -Sn"), 1024);
    cleanup_told struct told watch = {0};
    assert_true(eventually(takes_more, h, 10000));
    assert_ok(sandbox_attach(h, first, 0, &watch.stream));
    assert_ok(sandbox_process_signal(h, first, SIGKILL, 0));
    told_end(&watch);
    assert_ok(spawn_patiently(h, &id));
}

// ---- requests that are wrong
// ---------------------------------------------------------------------------------------------------

static void ask_stream(int fd, uint64_t id, Sandbox__StreamRequest *request)
{
    Sandbox__ClientMessage m =
        CLIENT_MESSAGE(.request_id = id, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM, .stream = request);
    send_message(fd, &m);
}

static void an_operation_without_an_id_is_refused(void **state)
{
    (void)state;
    cleanup_fd int fd = dial();
    ask_create(fd, 1);
    uint32_t id = expect_created(fd, 1);
    ask_exec(fd, 0, id, "touch /workspace/made");
    expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC);
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData script = {.data = (uint8_t *)"touch /workspace/made", .len = 21}, path = {10, (uint8_t *)"/workspace"};
    exec.argv = &script;
    exec.n_argv = 1;
    exec.shell = true;
    Sandbox__Guest__ExecStream stream = SANDBOX__GUEST__EXEC_STREAM__INIT;
    stream.exec = &exec;
    Sandbox__Guest__Spawn spawn = SANDBOX__GUEST__SPAWN__INIT;
    spawn.exec = &exec;
    Sandbox__Guest__Attach attach = SANDBOX__GUEST__ATTACH__INIT;
    Sandbox__Guest__TarOut tar = SANDBOX__GUEST__TAR_OUT__INIT;
    tar.path = path;
    Sandbox__StreamRequest request = SANDBOX__STREAM_REQUEST__INIT;
    request.sandbox_id = id;
    for (int i = 0; i < 4; i++) {
        static const Sandbox__StreamRequest__OpCase ops[] = {
            SANDBOX__STREAM_REQUEST__OP_EXEC, SANDBOX__STREAM_REQUEST__OP_SPAWN, SANDBOX__STREAM_REQUEST__OP_ATTACH,
            SANDBOX__STREAM_REQUEST__OP_TAR_OUT};
        request.op_case = ops[i];
        if (i == 0)
            request.exec = &stream;
        else if (i == 1)
            request.spawn = &spawn;
        else if (i == 2)
            request.attach = &attach;
        else
            request.tar_out = &tar;
        ask_stream(fd, 0, &request);
        expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC);
    }
    // Nor somebody else's sandbox, nor one that is none, nor no operation at all.
    request.op_case = SANDBOX__STREAM_REQUEST__OP_EXEC;
    request.exec = &stream;
    cleanup_fd int other = dial();
    ask_stream(other, 5, &request);
    expect_error(other, 5, SANDBOX_ERR_PERMISSION_DENIED);
    request.sandbox_id = UINT32_MAX;
    ask_stream(fd, 6, &request);
    expect_error(fd, 6, SANDBOX_ERR_PERMISSION_DENIED);
    request.sandbox_id = id;
    request.op_case = SANDBOX__STREAM_REQUEST__OP__NOT_SET;
    ask_stream(fd, 7, &request);
    expect_error(fd, 7, SANDBOX_ERR_INVALID_SPEC);
    // None of it has run.
    ask_stat(fd, 8, id, "/workspace/made");
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    Sandbox__Guest__Result *result = sandbox__guest__result__unpack(NULL, m->guest->body.len, m->guest->body.data);
    assert_non_null(result);
    assert_int_equal(result->status, SANDBOX__GUEST__STATUS__STATUS_NOT_FOUND);
    sandbox__guest__result__free_unpacked(result, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_client_takes_all_of_it_along),
        cmocka_unit_test(a_background_process_ends_with_its_sandbox),
        cmocka_unit_test(all_kinds_count_together),
        cmocka_unit_test(a_sandbox_has_so_many_processes),
        cmocka_unit_test(an_operation_without_an_id_is_refused),
    };
    return cmocka_run_group_tests_name("stream-ends", tests, open_with_sandbox, close_with_sandbox);
}
