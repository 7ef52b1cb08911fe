// Wire: raw frames to the real engine (spec 000, "Wire protocol", "Request correlation"; proto/sandbox.proto).
#include "raw.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

// ---- frames --------------------------------------------------------------------------------------------------------------

static void an_answer_carries_the_id_of_its_request(void **state)
{
    cleanup_fd int fd = dial();
    static const uint64_t ids[] = {1, 2, UINT32_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        ask_status(fd, ids[i]);
        expect(fd, ids[i], SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    }
}

static void a_frame_that_cannot_be_parsed_is_answered_with_id_0(void **state)
{
    static const uint8_t bodies[][8] = {
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},  // no field number
        {0x0a, 0x7f, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06},  // a length beyond the end
        {0x0b, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00},  // a wire type that is none
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        cleanup_fd int fd = dial();
        uint8_t head[FRAME_HEAD];
        frame_put_head(head, sizeof bodies[i]);
        send_bytes(fd, head, sizeof head);
        send_bytes(fd, bodies[i], sizeof bodies[i]);
        expect_error(fd, 0, 0);
    }
    the_engine_still_answers();
}

static void a_frame_over_the_limit_ends_the_connection(void **state)
{
    static const uint32_t sizes[] = {IPC_FRAME_MAX + 1, 1u << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cleanup_fd int fd = dial();
        uint8_t head[FRAME_HEAD];
        frame_put_head(head, sizes[i]);
        send_bytes(fd, head, sizeof head);
        cleanup_message Sandbox__ServerMessage *m = receive(fd);
        if (m != NULL) {  // it may say why first
            assert_int_equal(m->request_id, 0);
            assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
            assert_null(receive(fd));
        }
    }
    the_engine_still_answers();
}

static void the_largest_frame_is_taken(void **state)
{
    cleanup_fd int fd = dial();
    cleanup_free uint8_t *bytes = calloc(1, IPC_FRAME_MAX);
    Sandbox__Guest__WriteFile write = SANDBOX__GUEST__WRITE_FILE__INIT;
    write.path.data = (uint8_t *)"/workspace/x";
    write.path.len = 12;
    write.data.data = bytes;
    Sandbox__GuestRequest request = SANDBOX__GUEST_REQUEST__INIT;
    request.sandbox_id = UINT32_MAX;
    request.op_case = SANDBOX__GUEST_REQUEST__OP_WRITE_FILE;
    request.write_file = &write;
    Sandbox__ClientMessage m =
        CLIENT_MESSAGE(.request_id = 9, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST, .guest = &request);
    write.data.len = IPC_FRAME_MAX - 1000;
    while (sandbox__client_message__get_packed_size(&m) < IPC_FRAME_MAX)
        write.data.len++;
    assert_int_equal(sandbox__client_message__get_packed_size(&m), IPC_FRAME_MAX);
    send_message(fd, &m);
    expect_error(fd, 9, 0);
    ask_status(fd, 10);
    expect(fd, 10, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
}

static void an_empty_or_unknown_request_gets_invalid_spec_and_the_connection_goes_on(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__ClientMessage none = CLIENT_MESSAGE(.request_id = 6);
    send_message(fd, &none);
    expect_error(fd, 6, SANDBOX_ERR_INVALID_SPEC);
    static const uint8_t unknown[] = {0xfa, 0x03, 0x01, 'x', 0xa0, 0x06, 0x08};  // field 63: "x"; field 100: 8
    uint8_t frame[FRAME_HEAD + sizeof unknown];
    frame_put_head(frame, sizeof unknown);
    memcpy(frame + FRAME_HEAD, unknown, sizeof unknown);
    send_bytes(fd, frame, sizeof frame);
    expect_error(fd, 8, SANDBOX_ERR_INVALID_SPEC);
    uint8_t empty[FRAME_HEAD] = {0};
    send_bytes(fd, empty, sizeof empty);
    expect_error(fd, 0, 0);
    ask_status(fd, 9);
    expect(fd, 9, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
}

static void frames_in_pieces_and_many_at_once(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__StatusRequest request = SANDBOX__STATUS_REQUEST__INIT;
    static uint8_t frame[FRAME_HEAD + IPC_FRAME_MAX];
    Sandbox__ClientMessage m =
        CLIENT_MESSAGE(.request_id = 1, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS, .status = &request);
    size_t n = pack(&m, frame);
    for (size_t i = 0; i < n; i++)
        send_bytes(fd, frame + i, 1);
    expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    uint8_t many[100 * 64];
    size_t at = 0;
    for (uint64_t id = 1; id <= 100; id++) {
        m.request_id = id;
        assert_true(pack(&m, frame) <= 64);
        size_t size = pack(&m, frame);
        memcpy(many + at, frame, size);
        at += size;
    }
    send_bytes(fd, many, at);
    bool seen[101] = {false};
    for (int i = 0; i < 100; i++) {
        cleanup_message Sandbox__ServerMessage *answer = receive(fd);
        assert_non_null(answer);
        assert_in_range(answer->request_id, 1, 100);
        assert_false(seen[answer->request_id]);
        seen[answer->request_id] = true;
    }
}

static void half_a_frame_and_goodbye(void **state)
{
    for (int i = 0; i < 20; i++) {
        cleanup_fd int fd = dial();
        uint8_t half[20] = {0, 0, 0, 100};
        send_bytes(fd, half, (size_t)i);
    }
    the_engine_still_answers();
}

static void a_client_that_never_reads_stops_only_itself(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__StatusRequest request = SANDBOX__STATUS_REQUEST__INIT;
    static uint8_t frame[FRAME_HEAD + IPC_FRAME_MAX];
    Sandbox__ClientMessage m =
        CLIENT_MESSAGE(.request_id = 1, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS, .status = &request);
    size_t n = pack(&m, frame);
    int sent = 0;
    for (; sent < 200000; sent++)  // until the engine stops reading, or ends the connection
        if (send(fd, frame, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno != EAGAIN)
                break;
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            if (poll(&p, 1, 500) == 0)
                break;
        }
    assert_true(sent < 200000);
    the_engine_still_answers();
}

// ---- ownership and order -------------------------------------------------------------------------------------------------

static char *without_digits(const char *text)
{
    char *kept = calloc(1, strlen(text) + 1);
    for (char *to = kept; *text != '\0'; text++)
        if (*text < '0' || *text > '9')
            *to++ = *text;
    return kept;
}

static void a_foreign_sandbox_looks_like_none(void **state)
{
    cleanup_fd int owner = dial();
    cleanup_fd int stranger = dial();
    ask_create(owner, 1);
    uint32_t id = expect_created(owner, 1);
    cleanup_free char *foreign = NULL, *missing = NULL;
    for (int i = 0; i < 2; i++) {
        ask_inspect(stranger, 2, i == 0 ? id : UINT32_MAX - 5);
        cleanup_message Sandbox__ServerMessage *m = receive(stranger);
        assert_non_null(m);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        assert_int_equal(m->error->error_code, SANDBOX_ERR_PERMISSION_DENIED);
        // What it says must not tell which of the two it was; the number asked for may be in it.
        *(i == 0 ? &foreign : &missing) = without_digits(m->error->message);
    }
    assert_string_equal(foreign, missing);
    ask_destroy(stranger, 3, id);
    expect_error(stranger, 3, SANDBOX_ERR_PERMISSION_DENIED);
    ask_stat(stranger, 4, id, "/workspace");
    expect_error(stranger, 4, SANDBOX_ERR_PERMISSION_DENIED);
    ask_inspect(owner, 5, id);
    expect(owner, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    ask_destroy(owner, 6, id);
    expect(owner, 6, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    ask_destroy(owner, 7, id);
    expect_error(owner, 7, SANDBOX_ERR_PERMISSION_DENIED);
}

static void guest_operations_need_an_id(void **state)
{
    cleanup_fd int fd = dial();
    ask_create(fd, 1);
    uint32_t id = expect_created(fd, 1);
    ask_stat(fd, 0, id, "/workspace");
    expect_error(fd, 0, 0);
    ask_stat(fd, 2, id, "/workspace");
    expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
}

static void without_ids_answers_come_in_order(void **state)
{
    cleanup_fd int fd = dial();
    ask_create(fd, 0);
    ask_inspect(fd, 0, UINT32_MAX - 5);
    ask_create(fd, 0);
    ask_status(fd, 0);
    uint32_t a = expect_created(fd, 0);
    expect_error(fd, 0, SANDBOX_ERR_PERMISSION_DENIED);
    uint32_t b = expect_created(fd, 0);
    expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    assert_int_not_equal(a, b);
    ask_destroy(fd, 0, a);
    ask_inspect(fd, 0, b);
    ask_destroy(fd, 0, b);
    expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

static void a_request_without_id_does_not_overtake_creates_in_flight(void **state)
{
    cleanup_fd int fd = dial();
    for (int round = 0; round < 5; round++) {
        ask_create(fd, 11);
        ask_create(fd, 12);
        ask_status(fd, 0);
        uint64_t seen = 0;
        for (int i = 0; i < 2; i++) {
            cleanup_message Sandbox__ServerMessage *m = receive(fd);
            assert_non_null(m);
            assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
            seen += m->request_id;
        }
        assert_int_equal(seen, 23);
        expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    }
}

static void bad_values_are_refused_by_the_engine_itself(void **state)
{
    cleanup_fd int fd = dial();
    Sandbox__CreateRequest bad = SANDBOX__CREATE_REQUEST__INIT;
    Sandbox__ClientMessage m =
        CLIENT_MESSAGE(.request_id = 5, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE, .create = &bad);
    bad.vcpu_count = 1;
    bad.template_name = (char *)"../../etc";
    bad.memory_mib = 64;
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    bad.template_name = (char *)"\xff\xfe";
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    bad.template_name = (char *)setting()->small_template;
    ProtobufCBinaryData variable = {.data = (uint8_t *)"NO_EQUALS", .len = 9};
    bad.env_vars = &variable;
    bad.n_env_vars = 1;
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    variable = (ProtobufCBinaryData){.data = (uint8_t *)"A=\0B", .len = 4};
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    ProtobufCBinaryData many[ENV_VARS_MAX + 1];
    for (size_t i = 0; i < ENV_VARS_MAX + 1; i++)
        many[i] = (ProtobufCBinaryData){.data = (uint8_t *)"A=1", .len = 3};
    bad.env_vars = many;
    bad.n_env_vars = ENV_VARS_MAX + 1;
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    bad.n_env_vars = 0;
    bad.min_isolation = 77;
    send_message(fd, &m);
    expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC);
    ask_status(fd, 6);
    expect(fd, 6, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_carries_the_id_of_its_request),
        cmocka_unit_test(a_frame_that_cannot_be_parsed_is_answered_with_id_0),
        cmocka_unit_test(a_frame_over_the_limit_ends_the_connection),
        cmocka_unit_test(the_largest_frame_is_taken),
        cmocka_unit_test(an_empty_or_unknown_request_gets_invalid_spec_and_the_connection_goes_on),
        cmocka_unit_test(frames_in_pieces_and_many_at_once),
        cmocka_unit_test(half_a_frame_and_goodbye),
        cmocka_unit_test(a_client_that_never_reads_stops_only_itself),
        cmocka_unit_test(a_foreign_sandbox_looks_like_none),
        cmocka_unit_test(guest_operations_need_an_id),
        cmocka_unit_test(without_ids_answers_come_in_order),
        cmocka_unit_test(a_request_without_id_does_not_overtake_creates_in_flight),
        cmocka_unit_test(bad_values_are_refused_by_the_engine_itself),
    };
    return cmocka_run_group_tests_name("wire", tests, open_connection, close_connection);
}
