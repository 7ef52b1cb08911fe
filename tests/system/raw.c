// see raw.h
#include "raw.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int dial(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true((size_t)snprintf(a.sun_path, sizeof a.sun_path, "%s", setting()->socket) < sizeof a.sun_path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

bool try_send(int fd, const void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = send(fd, (const uint8_t *)bytes + at, n - at, MSG_NOSIGNAL);
        if (r < 0 && (errno == EPIPE || errno == ECONNRESET))
            return false;
        assert_true(r > 0);
        at += (size_t)r;
    }
    return true;
}

void send_bytes(int fd, const void *bytes, size_t n)
{
    assert_true(try_send(fd, bytes, n));
}

size_t pack(const Sandbox__ClientMessage *m, uint8_t frame[FRAME_ROOM])
{
    size_t n = sandbox__client_message__get_packed_size(m);
    assert_true(n <= IPC_FRAME_MAX);
    frame_put_head(frame, (uint32_t)n);
    sandbox__client_message__pack(m, frame + FRAME_HEAD);
    return FRAME_HEAD + n;
}

void send_message(int fd, const Sandbox__ClientMessage *m)
{
    static uint8_t frame[FRAME_ROOM];
    send_bytes(fd, frame, pack(m, frame));
}

bool receive_bytes(int fd, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)patient(20000)) != 1)
            fail_msg("no answer within %u ms", patient(20000));
        ssize_t r = recv(fd, (uint8_t *)bytes + at, n - at, 0);
        if (r == 0 || (r < 0 && errno == ECONNRESET))
            return false;
        assert_true(r > 0);
        at += (size_t)r;
    }
    return true;
}

Sandbox__ServerMessage *receive(int fd)
{
    uint32_t size = 0;
    if (!receive_bytes(fd, &size, sizeof size))
        return NULL;
    size = ntohl(size);
    assert_in_range(size, 0, IPC_FRAME_MAX);
    cleanup_free uint8_t *body = malloc(size + 1);
    assert_true(receive_bytes(fd, body, size));
    Sandbox__ServerMessage *m = sandbox__server_message__unpack(NULL, size, body);
    assert_non_null(m);
    return m;
}

// ---- asking --------------------------------------------------------------------------------------------------------------

#define ASK(member, which, message)                                                                                            \
    send_message(                                                                                                              \
        fd, &CLIENT_MESSAGE(.request_id = id, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_##which, .member = message))

void ask_status(int fd, uint64_t id)
{
    Sandbox__StatusRequest request = SANDBOX__STATUS_REQUEST__INIT;
    ASK(status, STATUS, &request);
}

Sandbox__CreateRequest small_create(void)
{
    Sandbox__CreateRequest request = SANDBOX__CREATE_REQUEST__INIT;
    request.memory_mib = 64;
    request.vcpu_count = 1;
    request.template_name = (char *)setting()->small_template;
    request.pool_wait_ms = patient(20000);
    return request;
}

void ask_create_like(int fd, uint64_t id, const Sandbox__CreateRequest *request)
{
    Sandbox__CreateRequest copy = *request;
    ASK(create, CREATE, &copy);
}

void ask_create(int fd, uint64_t id)
{
    Sandbox__CreateRequest request = small_create();
    ask_create_like(fd, id, &request);
}

void ask_inspect(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__InspectRequest request = SANDBOX__INSPECT_REQUEST__INIT;
    request.sandbox_id = sandbox;
    ASK(inspect, INSPECT, &request);
}

void ask_destroy(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__DestroyRequest request = SANDBOX__DESTROY_REQUEST__INIT;
    request.sandbox_id = sandbox;
    ASK(destroy, DESTROY, &request);
}

void ask_pause(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__PauseRequest request = SANDBOX__PAUSE_REQUEST__INIT;
    request.sandbox_id = sandbox;
    ASK(pause, PAUSE, &request);
}

void ask_resume(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__ResumeRequest request = SANDBOX__RESUME_REQUEST__INIT;
    request.sandbox_id = sandbox;
    ASK(resume, RESUME, &request);
}

void ask_guest(int fd, uint64_t id, Sandbox__GuestRequest *request, uint32_t sandbox)
{
    request->sandbox_id = sandbox;
    ASK(guest, GUEST, request);
}

void ask_stat(int fd, uint64_t id, uint32_t sandbox, const char *path)
{
    Sandbox__Guest__Stat stat = SANDBOX__GUEST__STAT__INIT;
    stat.path = (ProtobufCBinaryData){.data = (uint8_t *)path, .len = strlen(path)};
    Sandbox__GuestRequest request = SANDBOX__GUEST_REQUEST__INIT;
    request.op_case = SANDBOX__GUEST_REQUEST__OP_STAT;
    request.stat = &stat;
    ask_guest(fd, id, &request, sandbox);
}

void ask_exec(int fd, uint64_t id, uint32_t sandbox, const char *script)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData argv = {.data = (uint8_t *)script, .len = strlen(script)};
    exec.argv = &argv;
    exec.n_argv = 1;
    exec.shell = true;
    Sandbox__GuestRequest request = SANDBOX__GUEST_REQUEST__INIT;
    request.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    request.exec = &exec;
    ask_guest(fd, id, &request, sandbox);
}

// ---- answers -------------------------------------------------------------------------------------------------------------

void expect(int fd, uint64_t id, Sandbox__ServerMessage__ResponseCase kind)
{
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    if (m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR && kind != m->response_case)
        print_message("# error %d: %s\n", m->error->error_code, m->error->message);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->response_case, kind);
}

void expect_error(int fd, uint64_t id, int code)
{
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
    if (code != 0)
        assert_int_equal(m->error->error_code, code);
    assert_true(m->error->error_code < 0);
    assert_true(m->error->message[0] != '\0');
}

uint32_t expect_created(int fd, uint64_t id)
{
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    assert_non_null(m);
    if (m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        fail_msg("create: error %d: %s", m->error->error_code, m->error->message);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    assert_int_equal(strlen(m->create->session_token), 64);
    assert_int_equal(strspn(m->create->session_token, "0123456789abcdef"), 64);
    assert_int_equal(m->create->isolation, setting()->tier);
    return m->create->sandbox_id;
}

void the_engine_still_answers(void)
{
    cleanup_fd int fd = dial();
    ask_status(fd, 77);
    expect(fd, 77, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
}
