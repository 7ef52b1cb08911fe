// The table of error codes, and the limits around a connection: each code comes from the situation its meaning names, on a
// running system, with a sentence; each limit is met from both sides.  docs/limits.md lists where the others are.
#include "base/cleanup.h"
#include "raw.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MARK "86421.5"  // seconds that nothing else sleeps

// ---- codes -------------------------------------------------------------------------------------------------------------

static void invalid_spec(void **state)
{
    sandbox_handle_t *h = NULL;
    sandbox_spec_t spec = small_spec();
    spec.template_name = "no-such-template";
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec = small_spec();
    spec.memory_mib = 1;
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec = small_spec();
    spec.vcpu_count = 0;
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_null(h);
}

static void pool_exhausted(void **state)
{
    // None of this size is warm, and it may not wait.
    sandbox_handle_t *h = NULL;
    sandbox_spec_t spec = small_spec();
    spec.memory_mib = 37;
    spec.pool_wait_ms = 0;
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_POOL_EXHAUSTED);
    assert_null(h);
    // With a wait there is one.
    spec.pool_wait_ms = patient(20000);
    assert_ok(sandbox_create(&spec, &h));
    assert_ok(sandbox_destroy(h));
}

static bool session_has_expired(void *key)
{
    return sandbox_session_renew(key, 0, NULL) == SANDBOX_ERR_SESSION_EXPIRED;
}

static void session_unknown_limit_and_expired(void **state)
{
    uint64_t expires = 7;
    char key[] = "of the codes";
    assert_fails(sandbox_session_renew(key, 1, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    sandbox_handle_t *h = NULL;
    sandbox_spec_t spec = small_spec();
    spec.session_key = key;
    spec.ttl_seconds = 30 * 24 * 3600;
    assert_ok(sandbox_create(&spec, &h));
    // Thirty days is the default of the maximum: nothing can be added, but it can be asked for.
    assert_fails(sandbox_session_renew(key, 1, &expires), SANDBOX_ERR_SESSION_LIMIT);
    assert_int_equal(expires, 7);
    assert_ok(sandbox_session_renew(key, 0, &expires));
    assert_in_range(expires, (uint64_t)time(NULL) + 30 * 24 * 3600 - 600, (uint64_t)time(NULL) + 30 * 24 * 3600);
    assert_ok(sandbox_destroy(h));
    char brief[] = "of the codes, brief";
    spec.session_key = brief;
    spec.ttl_seconds = 1;
    assert_ok(sandbox_create(&spec, &h));
    assert_ok(sandbox_destroy(h));
    assert_true(eventually(session_has_expired, brief, 10000));
    assert_fails(sandbox_session_renew(brief, 1, &expires), SANDBOX_ERR_SESSION_EXPIRED);
}

static void daemon_unreachable(void **state)
{
    sandbox_conn_t *conn = NULL;
    assert_fails(sandbox_conn_open("/no/such/engine.sock", &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_null(conn);
    // A connection that was closed talks to nobody either.
    assert_ok(sandbox_conn_open(setting()->socket, &conn));
    sandbox_handle_t *h = NULL;
    sandbox_spec_t spec = small_spec();
    assert_ok(sandbox_conn_create(conn, &spec, &h));
    sandbox_conn_close(conn);
    assert_fails(sandbox_pause(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_ok(sandbox_destroy(h));
}

// The code that a process of uid 64126, which is in no list, gets; the engine of this suite lets in root alone.
static void permission_denied(void **state)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        // The folders above the socket need not be searchable for that uid.
        sandbox_conn_t *conn = NULL;
        const char *name = strrchr(setting()->socket, '/') + 1;
        cleanup_free char *folder = strndup(setting()->socket, (size_t)(name - setting()->socket));
        if (chdir(folder) < 0 || setresuid(64126, 64126, 64126) < 0)
            _exit(100);
        sandbox_error_t r = sandbox_conn_open(name, &conn);
        _exit(sandbox_last_error()[0] == '\0' ? 101 : -r);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), -SANDBOX_ERR_PERMISSION_DENIED);
    // A sandbox of another connection.
    cleanup_fd int owner = dial(), stranger = dial();
    ask_create(owner, 1);
    uint32_t id = expect_created(owner, 1);
    ask_pause(stranger, 1, id);
    expect_error(stranger, 1, SANDBOX_ERR_PERMISSION_DENIED);
}

static void guest_unavailable(void **state)
{
    sandbox_spec_t spec = small_spec();
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    sandbox_exec_spec_t cmd = {.command = "true"};
    sandbox_exec_result_t r = {0};
    assert_ok(sandbox_pause(h));
    assert_fails(sandbox_exec(h, &cmd, &r), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_ok(sandbox_resume(h));
    assert_answers(h);
}

static void path_denied(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    assert_int_equal(exit_code(h, "ln -s /etc out; ln -s /etc/passwd file"), 0);
    static const char *const paths[] = {"relative",    "/workspace/./f",        "/workspace/../etc/passwd",
                                        "/etc/passwd", "/workspace/out/passwd", "/workspace/file"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        uint8_t *data = NULL;
        size_t n = 0;
        assert_fails(sandbox_read_file(h, paths[i], &data, &n), SANDBOX_ERR_PATH_DENIED);
        assert_null(data);
    }
}

static void not_found_exists_and_guest_io(void **state)
{
    sandbox_spec_t spec = small_spec();
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    sandbox_fstat_t st;
    uint8_t *data = NULL;
    size_t n = 0;
    assert_fails(sandbox_stat(h, "/workspace/none", &st), SANDBOX_ERR_NOT_FOUND);
    assert_ok(sandbox_mkdir(h, "/workspace/d", 0, false));
    assert_fails(sandbox_mkdir(h, "/workspace/d", 0, false), SANDBOX_ERR_EXISTS);
    assert_ok(sandbox_mkdir(h, "/workspace/d", 0, true));
    assert_ok(sandbox_write_file(h, "/workspace/f", (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_EXCL));
    assert_fails(sandbox_write_file(h, "/workspace/f", (const uint8_t *)"x", 1, 0, SANDBOX_WRITE_EXCL), SANDBOX_ERR_EXISTS);
    assert_fails(sandbox_read_file(h, "/workspace/d", &data, &n), SANDBOX_ERR_GUEST_IO);
}

static void too_large(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    cleanup_free uint8_t *bytes = calloc(1, SANDBOX_MAX_FILE + 1), *data = NULL;
    size_t n = 0;
    assert_ok(sandbox_write_file(h, "/workspace/f", bytes, SANDBOX_MAX_FILE, 0, 0));
    assert_fails(sandbox_write_file(h, "/workspace/f", bytes, SANDBOX_MAX_FILE + 1, 0, 0), SANDBOX_ERR_TOO_LARGE);
    assert_ok(sandbox_read_file(h, "/workspace/f", &data, &n));
    assert_int_equal(n, SANDBOX_MAX_FILE);
    uint8_t *none = NULL;
    assert_int_equal(exit_code(h, "printf x >> f"), 0);
    assert_fails(sandbox_read_file(h, "/workspace/f", &none, &n), SANDBOX_ERR_TOO_LARGE);
    assert_null(none);
    sandbox_exec_spec_t cmd = {.command = "cat", .stdin_data = bytes, .stdin_len = SANDBOX_MAX_STDIN + 1};
    sandbox_exec_result_t r = {0};
    assert_fails(sandbox_exec(h, &cmd, &r), SANDBOX_ERR_TOO_LARGE);
}

static pid_t parent_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    cleanup_file FILE *f = fopen(path, "re");
    int parent = 0;
    return f != NULL && fscanf(f, "%*d (%*[^)]) %*c %d", &parent) == 1 ? parent : 0;
}

static bool mark_is_there(void *ret_pid)
{
    return host_processes("sleep " MARK, ret_pid) > 0;
}

static bool answers_again(void *h)
{
    sandbox_fstat_t st;
    return sandbox_stat(h, "/workspace", &st) == SANDBOX_OK;
}

// The process that holds it, as the host sees it.
static pid_t holder_of(sandbox_handle_t *h)
{
    if (!setting()->on_host)
        return newest_holder();
    assert_int_equal(exit_code(h, "sleep " MARK " >/dev/null 2>&1 & exit 0"), 0);
    pid_t marked = 0;
    assert_true(eventually(mark_is_there, &marked, 5000));
    return parent_of(marked);
}

// An agent that does not answer, because somebody outside stopped it, or its machine.
static void timed_out(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    pid_t agent = holder_of(h);
    assert_true(agent > 1);
    assert_int_equal(kill(agent, SIGSTOP), 0);
    sandbox_fstat_t st;
    sandbox_error_t stopped = sandbox_stat(h, "/workspace", &st);
    kill(agent, SIGCONT);
    assert_int_equal(stopped, SANDBOX_ERR_TIMEOUT);
    // It is asked for a sign of life, gives one, and all is well.
    assert_true(eventually(answers_again, h, 10000));
}

// ---- limits ------------------------------------------------------------------------------------------------------------

static void sixteen_operations_are_in_flight_not_seventeen(void **state)
{
    cleanup_fd int fd = dial();
    ask_create(fd, 1);
    uint32_t id = expect_created(fd, 1);
    // The engine takes one connection's requests in order, so the last one meets the others.
    for (uint64_t i = 1; i < SANDBOX_MAX_GUEST_OPS; i++)
        ask_exec(fd, 100 + i, id, "sleep 3600");
    ask_stat(fd, 2, id, "/workspace");
    expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    ask_exec(fd, 100, id, "sleep 3600");
    ask_stat(fd, 3, id, "/workspace");
    expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE);
    ask_inspect(fd, 4, id);  // no guest operation
    expect(fd, 4, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
}

static void a_connection_owns_128_sandboxes_not_129(void **state)
{
    sandbox_conn_t *conn = NULL;
    assert_ok(sandbox_conn_open(setting()->socket, &conn));
    sandbox_spec_t spec = small_spec();
    spec.memory_mib = 16;
    spec.disk_mib = 16;
    sandbox_handle_t *h[SANDBOX_MAX_OWNED], *more = NULL;
    for (int i = 0; i < SANDBOX_MAX_OWNED; i++)
        assert_ok(sandbox_conn_create(conn, &spec, &h[i]));
    assert_fails(sandbox_conn_create(conn, &spec, &more), SANDBOX_ERR_POOL_EXHAUSTED);
    assert_non_null(strstr(sandbox_last_error(), "128"));
    assert_null(more);
    assert_answers(h[SANDBOX_MAX_OWNED - 1]);
    assert_ok(sandbox_destroy(h[0]));
    assert_ok(sandbox_conn_create(conn, &spec, &h[0]));
    for (int i = 0; i < SANDBOX_MAX_OWNED; i++)
        assert_ok(sandbox_destroy(h[i]));
    sandbox_conn_close(conn);
}

static void sixty_four_destinations_not_sixty_five(void **state)
{
    const char *hosts[EGRESS_ENTRIES_MAX + 2] = {NULL};
    for (int i = 0; i <= EGRESS_ENTRIES_MAX; i++)
        hosts[i] = "index.example.org";
    sandbox_spec_t spec = small_spec();
    spec.egress_allow = hosts;
    sandbox_handle_t *h = NULL;
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_non_null(strstr(sandbox_last_error(), "at most 64"));
    // As many as are allowed are looked at one by one: whatever is said of them, it is not their number.
    hosts[EGRESS_ENTRIES_MAX] = NULL;
    if (sandbox_create(&spec, &h) == SANDBOX_OK)
        assert_ok(sandbox_destroy(h));
    else
        assert_null(strstr(sandbox_last_error(), "at most"));
}

static void heads_of_both_streams(void **state)
{
    static const struct {
        unsigned out, err;
    } sizes[] = {{SANDBOX_EXEC_STDOUT_HEAD, SANDBOX_EXEC_STDERR_HEAD},
                 {SANDBOX_EXEC_STDOUT_HEAD + 1, SANDBOX_EXEC_STDERR_HEAD},
                 {SANDBOX_EXEC_STDOUT_HEAD, SANDBOX_EXEC_STDERR_HEAD + 1}};
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char script[128];
        snprintf(script, sizeof script, "head -c %u /dev/zero; head -c %u /dev/zero >&2", sizes[i].out, sizes[i].err);
        cleanup_result sandbox_exec_result_t r = {0};
        run(h, script, &r);
        assert_int_equal(r.out_len, SANDBOX_EXEC_STDOUT_HEAD);
        assert_int_equal(r.err_len, SANDBOX_EXEC_STDERR_HEAD);
        assert_true(r.out_total == sizes[i].out && r.err_total == sizes[i].err);
        assert_int_equal(r.output_truncated, i > 0);
    }
}

// A frame of 65536 bytes is read; one of 65537 ends the connection.  So for 48 KiB chunks, both ways.
static void frames_and_chunks(void **state)
{
    cleanup_fd int fd = dial();
    ask_create(fd, 1);
    uint32_t id = expect_created(fd, 1);
    static uint8_t data[FILE_CHUNK_MAX + 1];
    Sandbox__Guest__WriteFile write = SANDBOX__GUEST__WRITE_FILE__INIT;
    write.path = (ProtobufCBinaryData){.data = (uint8_t *)"/workspace/f", .len = 12};
    Sandbox__Guest__ReadFile read = SANDBOX__GUEST__READ_FILE__INIT;
    read.path = write.path;
    Sandbox__GuestRequest request = SANDBOX__GUEST_REQUEST__INIT;
    for (size_t over = 0; over <= 1; over++) {
        write.data = (ProtobufCBinaryData){.data = data, .len = FILE_CHUNK_MAX + over};
        request.op_case = SANDBOX__GUEST_REQUEST__OP_WRITE_FILE;
        request.write_file = &write;
        ask_guest(fd, 2, &request, id);
        if (over)
            expect_error(fd, 2, SANDBOX_ERR_TOO_LARGE);
        else
            expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
        read.max_bytes = FILE_CHUNK_MAX + (uint32_t)over;
        request.op_case = SANDBOX__GUEST_REQUEST__OP_READ_FILE;
        request.read_file = &read;
        ask_guest(fd, 3, &request, id);
        if (over)
            expect_error(fd, 3, SANDBOX_ERR_TOO_LARGE);
        else
            expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    }
    cleanup_free uint8_t *frame = calloc(1, FRAME_ROOM + 1);
    frame_put_head(frame, IPC_FRAME_MAX);
    send_bytes(fd, frame, FRAME_ROOM);
    expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC);  // zeros are no message, but they were read
    frame_put_head(frame, IPC_FRAME_MAX + 1);
    send_bytes(fd, frame, FRAME_ROOM + 1);
    expect_error(fd, 0, SANDBOX_ERR_TOO_LARGE);
    assert_null(receive(fd));
    the_engine_still_answers();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_spec),
        cmocka_unit_test(pool_exhausted),
        cmocka_unit_test(session_unknown_limit_and_expired),
        cmocka_unit_test(daemon_unreachable),
        cmocka_unit_test(permission_denied),
        cmocka_unit_test(guest_unavailable),
        cmocka_unit_test(path_denied),
        cmocka_unit_test(not_found_exists_and_guest_io),
        cmocka_unit_test(too_large),
        cmocka_unit_test(timed_out),
        cmocka_unit_test(sixteen_operations_are_in_flight_not_seventeen),
        cmocka_unit_test(a_connection_owns_128_sandboxes_not_129),
        cmocka_unit_test(sixty_four_destinations_not_sixty_five),
        cmocka_unit_test(heads_of_both_streams),
        cmocka_unit_test(frames_and_chunks),
    };
    return cmocka_run_group_tests_name("codes", tests, open_connection, close_connection);
}
