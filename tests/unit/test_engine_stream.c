// sandbox-engine: streams, with played agents.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "sys/fdpass.h"
#include "unit.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static void send_stream(int fd, uint64_t id, uint32_t sandbox, const char *script)
{
    ProtobufCBinaryData argv[1] = {{.len = strlen(script), .data = (uint8_t *)script}};
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.shell = true;
    exec.n_argv = 1;
    exec.argv = argv;
    Sandbox__Guest__ExecStream stream = SANDBOX__GUEST__EXEC_STREAM__INIT;
    stream.exec = &exec;
    Sandbox__StreamRequest request = SANDBOX__STREAM_REQUEST__INIT;
    request.sandbox_id = sandbox;
    request.op_case = SANDBOX__STREAM_REQUEST__OP_EXEC;
    request.exec = &stream;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_id = id;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM;
    message.stream = &request;
    rig_send(fd, &message);
}

// The answer, whose descriptor must come with its first byte.
static int receive_stream(int fd, uint64_t id, uint32_t sandbox)
{
    uint8_t frame[512];
    int stream = -1;
    size_t fds = 1;
    ssize_t n = fdpass_recv(fd, frame, FRAME_HEAD, &stream, &fds);
    assert_int_equal(n, FRAME_HEAD);
    assert_int_equal(fds, 1);
    size_t len = frame[3];
    assert_true(frame[0] == 0 && frame[1] == 0 && frame[2] == 0);
    assert_int_equal(recv(fd, frame, len, MSG_WAITALL), len);
    Sandbox__ServerMessage *m = (Sandbox__ServerMessage *)pb_unpack(&sandbox__server_message__descriptor, frame, len);
    assert_non_null(m);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM);
    assert_int_equal(m->stream->sandbox_id, sandbox);
    pb_free(m);
    return stream;
}

static int open_stream(int fd, uint64_t id, uint32_t sandbox)
{
    send_stream(fd, id, sandbox, "true");
    return receive_stream(fd, id, sandbox);
}

// Whether the next answer is a stream, which is closed at once, or whatever else.
static bool answered(int fd)
{
    uint8_t head[FRAME_HEAD], body[512];
    int got = -1;
    size_t fds = 1;
    assert_int_equal(fdpass_recv(fd, head, FRAME_HEAD, &got, &fds), FRAME_HEAD);
    size_t len = (size_t)head[2] << 8 | head[3];
    assert_true(len <= sizeof body);
    assert_int_equal(recv(fd, body, len, MSG_WAITALL), len);
    close_fd(&got);
    return fds == 1;
}

static bool opens(int fd, uint64_t id, uint32_t sandbox)
{
    send_stream(fd, id, sandbox, "true");
    return answered(fd);
}

// The engine, not the client, writes the first frame, and keeps no copy of the line.
static void the_client_gets_the_line_behind_its_request(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    cleanup_fd int line = open_stream(fd, 5, id);  // the played agent sends back the request it was sent, and closes
    uint8_t bytes[1024];
    ssize_t n = recv(line, bytes, FRAME_HEAD, MSG_WAITALL);
    assert_int_equal(n, FRAME_HEAD);
    size_t len = (size_t)bytes[2] << 8 | bytes[3];
    assert_int_equal(recv(line, bytes, len, MSG_WAITALL), len);
    Sandbox__Agent__Request *request = (Sandbox__Agent__Request *)pb_unpack(&sandbox__agent__request__descriptor, bytes, len);
    assert_non_null(request);
    assert_int_equal(request->version, AGENT_PROTOCOL_VERSION);
    assert_int_equal(request->op_case, SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM);
    assert_int_equal(request->exec_stream->exec->argv[0].len, 4);
    pb_free(request);
    assert_int_equal(recv(line, bytes, 1, 0), 0);
    rig_stop(rig);
}

static void what_is_wrong_is_refused(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
    uint32_t id = rig_create(fd);
    send_stream(fd, 0, id, "true");
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "request_id");
    send_stream(fd, 1, id + 1, "true");
    rig_expect_error(fd, 1, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    send_stream(other, 1, id, "true");
    rig_expect_error(other, 1, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    Sandbox__StreamRequest empty = SANDBOX__STREAM_REQUEST__INIT;
    empty.sandbox_id = id;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_id = 2;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM;
    message.stream = &empty;
    rig_send(fd, &message);
    rig_expect_error(fd, 2, SANDBOX_ERR_INVALID_SPEC, "operation");
    Sandbox__Guest__ExecStream no_command = SANDBOX__GUEST__EXEC_STREAM__INIT;
    empty.op_case = SANDBOX__STREAM_REQUEST__OP_EXEC;
    empty.exec = &no_command;
    rig_send(fd, &message);
    rig_expect_error(fd, 2, SANDBOX_ERR_INVALID_SPEC, "no command");
    Sandbox__Guest__Exec expecting = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData name = {4, (uint8_t *)"true"};
    expecting.n_argv = 1;
    expecting.argv = &name;
    expecting.stdin_rest = 1;
    no_command.exec = &expecting;
    rig_send(fd, &message);
    rig_expect_error(fd, 2, SANDBOX_ERR_INVALID_SPEC, "stdin_rest");
    rig_send_simple(fd, RIG_PAUSE, 3, id);
    rig_expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    send_stream(fd, 4, id, "true");
    rig_expect_error(fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "paused");
    rig_stop(rig);
}

static void streams_count_until_the_agent_says_they_ended(void **state)
{
    struct rig *rig = rig_start(NULL);
    atomic_store(&rig->play.op, OP_SILENT);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    for (unsigned i = 0; i < SANDBOX_MAX_GUEST_OPS; i++)
        close(open_stream(fd, 10 + i, id));  // that ours is closed is not enough
    send_stream(fd, 50, id, "true");
    rig_expect_error(fd, 50, SANDBOX_ERR_GUEST_UNAVAILABLE, "16 guest operations");
    rig_send_stat(fd, 51, id);
    rig_expect_error(fd, 51, SANDBOX_ERR_GUEST_UNAVAILABLE, "16 guest operations");
    // The agent may hear of a line after the client has it.
    RIG_AWAIT(atomic_load(&rig->play.lines) == SANDBOX_MAX_GUEST_OPS);
    uint64_t last = atomic_load(&rig->play.last_stream);
    for (unsigned i = 0; i < 2; i++) {  // the second time it means nothing
        atomic_store(&rig->play.end_stream, last);
        RIG_AWAIT(atomic_load(&rig->play.end_stream) == 0);
    }
    // The report and our request race: ask until it has been heard.
    RIG_AWAIT(opens(fd, 52, id));
    send_stream(fd, 53, id, "true");
    rig_expect_error(fd, 53, SANDBOX_ERR_GUEST_UNAVAILABLE, "16 guest operations");
    // The sandbox's end gives all of them back.
    rig_send_simple(fd, RIG_DESTROY, 54, id);
    rig_expect(fd, 54, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    id = rig_create(fd);
    for (unsigned i = 0; i < SANDBOX_MAX_GUEST_OPS; i++)
        close(open_stream(fd, 60 + i, id));
    rig_stop(rig);
}

static void an_end_of_what_never_began_ends_the_sandbox(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    atomic_store(&rig->play.end_stream, 1000);
    RIG_AWAIT(atomic_load(&rig->play.live) == 0);
    send_stream(fd, 1, id, "true");
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended by itself");
    rig_stop(rig);
}

static void a_sandbox_that_dies_closes_its_streams(void **state)
{
    struct rig *rig = rig_start(NULL);
    atomic_store(&rig->play.op, OP_SILENT);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    cleanup_fd int line = open_stream(fd, 1, id);
    RIG_AWAIT(atomic_load(&rig->play.lines) == 1);
    atomic_store(&rig->play.kill_slot, 1);
    char byte;
    assert_true(recv(line, &byte, 1, 0) <= 0);
    rig_stop(rig);
}

// Descriptors in a socket that nobody reads are open files of the engine.
static void a_client_that_does_not_read_gets_no_more_descriptors(void **state)
{
    struct rig *rig = rig_start(NULL);
    atomic_store(&rig->play.op, OP_SILENT);
    cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
    uint32_t id = rig_create(fd);
    uint64_t asked = 0;
    for (; asked < 40; asked++) {
        unsigned lines = atomic_load(&rig->play.lines);
        send_stream(fd, 100 + asked, id, "true");
        if (asked < 16) {
            RIG_AWAIT(atomic_load(&rig->play.lines) == lines + 1);
            atomic_store(&rig->play.end_stream, atomic_load(&rig->play.last_stream));
            RIG_AWAIT(atomic_load(&rig->play.end_stream) == 0);
        }
    }
    // What was asked on the other connection comes after it.
    rig_send_simple(other, RIG_STATUS, 1, 0);
    rig_expect(other, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    unsigned given = 0, refused = 0;
    for (uint64_t i = 0; i < asked; i++)
        *(answered(fd) ? &given : &refused) += 1;
    assert_int_equal(given, 16);
    assert_int_equal(refused, 24);
    // Having read them it is as any other.
    close(open_stream(fd, 200, id));
    assert_false(atomic_load(&rig->play.broken));
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_gets_the_line_behind_its_request),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(streams_count_until_the_agent_says_they_ended),
        cmocka_unit_test(an_end_of_what_never_began_ends_the_sandbox),
        cmocka_unit_test(a_sandbox_that_dies_closes_its_streams),
        cmocka_unit_test(a_client_that_does_not_read_gets_no_more_descriptors),
    };
    return cmocka_run_group_tests_name("engine_stream", tests, NULL, NULL);
}
