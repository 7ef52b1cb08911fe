// sandbox-engine puts an exec together whose standard input comes in more than one frame, and refuses every other order.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <string.h>

static uint8_t input[2 * EXEC_STDIN_MAX];
static char script[IPC_FRAME_MAX];

static void fill(void)
{
    for (size_t i = 0; i < sizeof input; i++)
        input[i] = (uint8_t)(i * 2654435761u >> 24);
    memset(script, 'a', sizeof script);
}

// An exec of a script of `script_len` bytes, with `now` bytes of input in it and `rest` announced.
static void send_exec(int fd, uint64_t id, uint32_t sandbox, size_t script_len, size_t now, uint32_t rest)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData argv[] = {{.len = script_len, .data = (uint8_t *)script}};
    exec.n_argv = 1;
    exec.argv = argv;
    exec.shell = true;
    exec.stdin = (ProtobufCBinaryData){.len = now, .data = input};
    exec.stdin_rest = rest;
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    guest.exec = &exec;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST;
    m.guest = &guest;
    m.request_id = id;
    rig_send(fd, &m);
}

static void send_input(int fd, uint64_t id, uint32_t sandbox, size_t from, size_t n)
{
    Sandbox__GuestInput part = SANDBOX__GUEST_INPUT__INIT;
    part.sandbox_id = sandbox;
    part.stdin = (ProtobufCBinaryData){.len = n, .data = input + from};
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST_INPUT;
    m.guest_input = &part;
    m.request_id = id;
    rig_send(fd, &m);
}

struct world {
    struct rig *rig;
    int fd;
    uint32_t sandbox;
};

static int setup(void **state)
{
    fill();
    struct world *w = calloc(1, sizeof *w);
    w->rig = rig_start(NULL);
    w->rig->play.op = OP_RAN;
    w->fd = rig_connect(w->rig);
    w->sandbox = rig_create(w->fd);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    close(w->fd);
    rig_stop(w->rig);
    free(w);
    return 0;
}

static void expect_ran(struct world *w, uint64_t id, size_t stdin_len)
{
    rig_expect(w->fd, id, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    assert_int_equal(w->rig->play.stdin_len, stdin_len);
    assert_true(w->rig->play.stdin_sum == rig_sum(input, stdin_len));
}

static void input_comes_whole_however_it_is_cut(void **state)
{
    struct world *w = *state;
    send_exec(w->fd, 1, w->sandbox, 4, 0, 1);
    assert_true(rig_silent(w->fd, 50));
    send_input(w->fd, 1, w->sandbox, 0, 1);
    expect_ran(w, 1, 1);
    send_exec(w->fd, 2, w->sandbox, 4, 40000, EXEC_STDIN_MAX - 40000);
    send_input(w->fd, 2, w->sandbox, 40000, EXEC_STDIN_MAX - 40000);
    expect_ran(w, 2, EXEC_STDIN_MAX);
    send_exec(w->fd, 3, w->sandbox, 4, 0, 1000);
    for (size_t i = 0; i < 1000; i++)
        send_input(w->fd, 3, w->sandbox, i, 1);
    expect_ran(w, 3, 1000);
}

static void a_full_frame_and_full_input(void **state)
{
    struct world *w = *state;
    size_t script_len = IPC_FRAME_MAX - 40;
    send_exec(w->fd, 4, w->sandbox, script_len, 0, EXEC_STDIN_MAX);
    send_input(w->fd, 4, w->sandbox, 0, EXEC_STDIN_MAX / 2);
    send_input(w->fd, 4, w->sandbox, EXEC_STDIN_MAX / 2, EXEC_STDIN_MAX / 2);
    expect_ran(w, 4, EXEC_STDIN_MAX);
    assert_int_equal(w->rig->play.argv_bytes, script_len);
}

static void over_the_limit_is_too_large(void **state)
{
    struct world *w = *state;
    send_exec(w->fd, 1, w->sandbox, 4, 0, EXEC_STDIN_MAX + 1);
    rig_expect_error(w->fd, 1, SANDBOX_ERR_TOO_LARGE, "65537");
    send_exec(w->fd, 2, w->sandbox, 4, 1, EXEC_STDIN_MAX);
    rig_expect_error(w->fd, 2, SANDBOX_ERR_TOO_LARGE, "65537");
    send_exec(w->fd, 3, w->sandbox, 4, 0, UINT32_MAX);
    rig_expect_error(w->fd, 3, SANDBOX_ERR_TOO_LARGE, "4294967295");
    // What was announced fits, what comes does not.
    send_exec(w->fd, 4, w->sandbox, 4, 40000, EXEC_STDIN_MAX - 40000);
    send_input(w->fd, 4, w->sandbox, 0, EXEC_STDIN_MAX - 40000 + 1);
    rig_expect_error(w->fd, 4, SANDBOX_ERR_TOO_LARGE, "65537");
    // More than announced, but not too large.
    send_exec(w->fd, 5, w->sandbox, 4, 5, 5);
    send_input(w->fd, 5, w->sandbox, 5, 6);
    rig_expect_error(w->fd, 5, SANDBOX_ERR_INVALID_SPEC, "11 bytes of stdin came where 10 were announced");
    assert_int_equal(w->rig->play.lines, 0);
}

static void input_out_of_place_is_refused(void **state)
{
    struct world *w = *state;
    send_input(w->fd, 1, w->sandbox, 0, 5);  // behind nothing
    rig_expect_error(w->fd, 1, SANDBOX_ERR_INVALID_SPEC, "no guest request");
    send_input(w->fd, 0, w->sandbox, 0, 5);
    rig_expect_error(w->fd, 0, SANDBOX_ERR_INVALID_SPEC, "no guest request");
    send_exec(w->fd, 2, w->sandbox, 4, 0, 5);  // empty
    send_input(w->fd, 2, w->sandbox, 0, 0);
    rig_expect_error(w->fd, 2, SANDBOX_ERR_INVALID_SPEC, "empty");
    send_exec(w->fd, 3, w->sandbox, 4, 0, 5);  // another sandbox
    send_input(w->fd, 3, w->sandbox + 1, 0, 5);
    rig_expect_error(w->fd, 3, SANDBOX_ERR_INVALID_SPEC, "names sandbox");
    send_exec(w->fd, 4, w->sandbox, 4, 0, 5);  // another request's
    send_input(w->fd, 5, w->sandbox, 0, 5);
    rig_expect_error(w->fd, 4, SANDBOX_ERR_INVALID_SPEC, "another message came");
    rig_expect_error(w->fd, 5, SANDBOX_ERR_INVALID_SPEC, "no guest request");
    send_exec(w->fd, 6, w->sandbox, 4, 0, 5);  // another request, which is served
    rig_send_simple(w->fd, RIG_STATUS, 7, 0);
    rig_expect_error(w->fd, 6, SANDBOX_ERR_INVALID_SPEC, "another message came");
    rig_expect(w->fd, 7, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    send_exec(w->fd, 8, w->sandbox, 4, 0, 5);  // another that waits
    send_exec(w->fd, 9, w->sandbox, 4, 0, 5);
    rig_expect_error(w->fd, 8, SANDBOX_ERR_INVALID_SPEC, "another message came");
    send_input(w->fd, 9, w->sandbox, 0, 5);
    expect_ran(w, 9, 5);
    send_exec(w->fd, 10, w->sandbox, 4, 0, 5);  // no message at all
    rig_send_frame(w->fd, "\xff", 1);
    rig_expect_error(w->fd, 10, SANDBOX_ERR_INVALID_SPEC, "another message came");
    rig_expect_error(w->fd, 0, SANDBOX_ERR_INVALID_SPEC, "not a ClientMessage");
    send_exec(w->fd, 0, w->sandbox, 4, 0, 5);  // without an id it is no guest operation
    rig_expect_error(w->fd, 0, SANDBOX_ERR_INVALID_SPEC, "request_id");
    assert_int_equal(w->rig->play.lines, 1);
}

// Whatever is wrong with it, it is said once, when the input is there: a client that sends both at once sees one answer.
static void one_answer_however_it_ends(void **state)
{
    struct world *w = *state;
    send_exec(w->fd, 1, 99, 4, 0, 5);
    assert_true(rig_silent(w->fd, 50));
    send_input(w->fd, 1, 99, 0, 5);
    rig_expect_error(w->fd, 1, SANDBOX_ERR_PERMISSION_DENIED, "");
    send_exec(w->fd, 2, w->sandbox, 0, 0, 5);  // a script of nothing
    send_input(w->fd, 2, w->sandbox, 0, 5);
    expect_ran(w, 2, 5);
    rig_send_simple(w->fd, RIG_PAUSE, 3, w->sandbox);
    rig_expect(w->fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    send_exec(w->fd, 4, w->sandbox, 4, 0, 5);
    send_input(w->fd, 4, w->sandbox, 0, 5);
    rig_expect_error(w->fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "paused");
    rig_send_simple(w->fd, RIG_STATUS, 5, 0);
    rig_expect(w->fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
}

static void a_client_that_goes_leaves_nothing(void **state)
{
    struct world *w = *state;
    cleanup_fd int other = rig_connect(w->rig);
    uint32_t sandbox = rig_create(other);
    send_exec(other, 1, sandbox, 4, 60000, 5000);
    send_input(other, 1, sandbox, 0, 100);
    close_fd(&other);
    RIG_AWAIT(w->rig->play.live == 1);
    assert_int_equal(w->rig->play.lines, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(input_comes_whole_however_it_is_cut), TEST(a_full_frame_and_full_input), TEST(over_the_limit_is_too_large),
        TEST(input_out_of_place_is_refused),       TEST(one_answer_however_it_ends),  TEST(a_client_that_goes_leaves_nothing),
    };
    return cmocka_run_group_tests_name("engine-input", tests, NULL, NULL);
}
