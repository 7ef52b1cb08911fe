// sandbox-engine's line to the broker: what happens to sandboxes and creates when the broker is slow, wrong, dead or new.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_broker.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define ARGS(...) ((const char *const[]){"--set", PLAYED_BROKER, __VA_ARGS__, NULL})

static struct rig *rig;
static struct played_broker *broker;
static int fd = -1;

static void begin(const char *const *args)
{
    played_broker_begin(args, &rig, &broker, &fd);
}

static void end(void)
{
    close_fd(&fd);
    rig_stop(rig);
    assert_true(broker == NULL || played_broker_stop(broker));
    broker = NULL;
}

static void kill_broker(void)
{
    assert_true(played_broker_stop(broker));
    broker = NULL;
}

static void revive_broker(void)
{
    broker = played_broker_start(rig);
    RIG_AWAIT(broker->hellos == 1);
}

// ---- requests ----

static ProtobufCBinaryData index_org = {.len = 17, .data = (uint8_t *)"index.example.org"};

static void ask(uint64_t id, bool with_network)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.egress_allow = &index_org;
    spec.n_egress_allow = with_network;
    rig_send_create(fd, id, &spec);
}

static Sandbox__ServerMessage *made_any(void)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "another answer came");
    return m;
}

// The sandbox that request `id` made; with `token` not NULL, its token.
static uint32_t made(uint64_t id, char token[65])
{
    Sandbox__ServerMessage *m = made_any();
    assert_int_equal(m->request_id, id);
    uint32_t sandbox = m->create->sandbox_id;
    if (token != NULL)
        strcpy(token, m->create->session_token);
    pb_free(m);
    return sandbox;
}

static uint32_t create(char token[65])
{
    ask(1, true);
    return made(1, token);
}

static void destroy(uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 2, sandbox);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

static bool logged(const char *text)
{
    char *log = rig_log(rig);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

static bool metric(const char *line)
{
    char *text = rig_http(rig, "GET /metrics HTTP/1.0\r\n\r\n");
    bool found = strstr(text, line) != NULL;
    free(text);
    return found;
}

// ---- a sandbox's life ----

static void served_from_the_create_to_the_destroy(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    char token[65], theirs[65];
    uint32_t id = create(token);
    assert_true(played_broker_serves(broker, id, theirs));
    assert_string_equal(token, theirs);
    assert_true(metric("sandbox_engine_broker_up 1\n") && metric("sandbox_engine_broker_sandboxes 1\n"));
    assert_true(rig_status_has(fd, "\"broker_up\":true") && rig_status_has(fd, "\"trouble\":null,\"broker_up\""));
    destroy(id);
    assert_false(played_broker_serves(broker, id, NULL));  // with the answer, not after it
    assert_true(metric("sandbox_engine_broker_sandboxes 0\n"));
    ask(3, false);
    destroy(made(3, NULL));
    assert_int_equal(broker->adds, 1);
    assert_int_equal(broker->removes, 1);
    end();
}

// The answer to a destroy says that its sandbox is revoked.
static void a_destroy_waits_for_the_broker(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    uint32_t id = create(NULL);
    broker->hold = true;
    rig_send_simple(fd, RIG_DESTROY, 2, id);
    RIG_AWAIT(broker->removes == 1);
    RIG_AWAIT(rig->play.live == 0);  // it is dead long since
    assert_true(rig_silent(fd, 100));
    rig_send_simple(fd, RIG_INSPECT, 3, id);
    rig_expect_error(fd, 3, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    broker->hold = false;
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    end();
}

static void one_that_dies_is_revoked(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    uint32_t id = create(NULL);
    rig->play.kill_slot = 1;
    RIG_AWAIT(!played_broker_serves(broker, id, NULL));
    destroy(id);
    end();
}

static void a_client_that_goes_takes_its_lines_along(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    for (int i = 0; i < 20; i++)
        create(NULL);
    assert_int_equal(broker->served, 20);
    broker->hold = true;
    for (int i = 0; i < 4; i++)
        ask((uint64_t)i + 10, true);  // these are not even made
    RIG_AWAIT(broker->adds == 24);
    close_fd(&fd);
    broker->hold = false;
    RIG_AWAIT(broker->served == 0);
    RIG_AWAIT(rig->play.live == 0);
    fd = rig_connect(rig);
    RIG_AWAIT(rig_status_has(fd, "\"gone\":0") && rig_status_has(fd, "\"closing\":0"));
    end();
}

// ---- refusals ----

static void a_refused_sandbox_is_not_handed_out(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    broker->add_error = -ENOSPC;
    ask(1, true);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL,
                     "the broker does not serve the sandbox: No space left on device (as the test wanted)");
    RIG_AWAIT(rig->play.live == 0);
    assert_int_equal(rig->play.configures, 0);  // its agent was told nothing
    RIG_AWAIT(logged("broker_refused") && metric("sandbox_engine_broker_refusals_total 1\n"));
    broker->add_error = 0;
    destroy(create(NULL));
    end();
}

// After a restart of the broker's it is tried again; the sandbox lives on, without a network.
static void a_refused_one_is_added_again(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    uint32_t id = create(NULL);
    kill_broker();
    broker = played_broker_new(rig);
    broker->add_error = -ENOMEM;
    played_broker_open(broker);
    RIG_AWAIT(metric("sandbox_engine_broker_sandboxes_waiting 1\n") && broker->adds >= 1);
    broker->add_error = 0;
    RIG_AWAIT(played_broker_serves(broker, id, NULL));
    kill_broker();
    broker = played_broker_new(rig);
    broker->add_error = -ENOMEM;
    played_broker_open(broker);
    RIG_AWAIT(metric("sandbox_engine_broker_refusals_total ") && broker->adds >= 1);
    destroy(id);  // while it is refused
    end();
}

// ---- a broker that is not there ----

static void without_a_broker_a_create_fails(void **state)
{
    rig = rig_start(ARGS("--set", "pool_auto=0"));
    fd = rig_connect(rig);
    ask(1, true);  // waits while it may be starting
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE,
                     "egress: no sandbox can be given a network: sandbox-broker does not answer at broker.sock; to create one "
                     "without, set egress_deny_all");
    RIG_AWAIT(rig->play.live == 0);
    uint64_t before = mono_ns();
    ask(2, true);  // now it is known
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "does not answer");
    assert_true(mono_ns() - before < 1500 * NS_PER_MS);
    ask(3, false);
    destroy(made(3, NULL));
    assert_true(rig_status_has(fd, "\"trouble\":\"sandbox-broker does not answer at broker.sock\",\"broker_up\":false"));
    assert_true(metric("sandbox_engine_broker_up 0\n"));
    RIG_AWAIT(logged("broker_absent"));
    revive_broker();
    destroy(create(NULL));
    end();
}

static void a_create_waits_for_a_broker_that_starts(void **state)
{
    rig = rig_start(ARGS("--set", "pool_auto=0"));
    fd = rig_connect(rig);
    ask(1, true);
    RIG_AWAIT(rig->play.starts == 1);
    revive_broker();
    uint32_t id = made(1, NULL);
    assert_true(played_broker_serves(broker, id, NULL));
    end();
}

static void lost_in_the_middle_of_a_create(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    broker->hold = true;
    ask(1, true);
    RIG_AWAIT(broker->adds == 1);
    broker->hang_up = true;
    RIG_AWAIT(broker->hellos == 2);
    assert_int_equal(rig->play.configures, 0);
    broker->hold = false;
    uint32_t id = made(1, NULL);
    assert_true(played_broker_serves(broker, id, NULL));
    assert_int_equal(broker->adds, 2);
    broker->hold = true;
    ask(2, true);
    RIG_AWAIT(broker->adds == 3);
    kill_broker();  // for good
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox-broker does not answer");
    RIG_AWAIT(rig->play.live == 1);
    destroy(id);
    end();
}

// ---- a new broker ----

static void a_new_broker_is_told_of_all(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    char token[3][65], theirs[65];
    uint32_t id[3];
    for (int i = 0; i < 3; i++)
        id[i] = create(token[i]);
    rig_send_simple(fd, RIG_PAUSE, 4, id[1]);
    rig_expect(fd, 4, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    kill_broker();
    RIG_AWAIT(logged("broker_lost"));
    destroy(id[2]);  // nobody is left who could revoke it
    revive_broker();
    RIG_AWAIT(broker->served == 2);
    for (int i = 0; i < 2; i++) {
        assert_true(played_broker_serves(broker, id[i], theirs));
        assert_string_equal(theirs, token[i]);
    }
    unsigned fds;
    struct broker_add last = played_broker_last(broker, &fds);
    assert_int_equal(fds, 1);
    assert_string_equal(last.entry[0].text, "index.example.org");
    assert_true(metric("sandbox_engine_broker_connects_total 2\n") && metric("sandbox_engine_broker_losses_total 1\n"));
    destroy(id[0]);
    destroy(id[1]);
    end();
}

static void two_hundred_are_told_again(void **state)
{
    enum { MANY = 200 };
    begin(ARGS("--set", "max_owned_per_connection=300", "--set", "max_owned_per_uid=300"));
    for (int i = 0; i < MANY; i++)
        create(NULL);
    assert_int_equal(broker->served, MANY);
    kill_broker();
    revive_broker();
    RIG_AWAIT(broker->served == MANY);
    destroy(create(NULL));
    // While they are being told once more, the engine does all else, and one of them goes.
    broker->hold = true;
    broker->hang_up = true;
    RIG_AWAIT(broker->hellos == 2);
    ask(5, false);
    uint32_t plain = made(5, NULL);
    rig_send_simple(fd, RIG_DESTROY, 6, plain);
    rig_expect(fd, 6, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    broker->hold = false;
    RIG_AWAIT(broker->served == MANY);
    end();
}

// ---- a broker that is wrong ----

static void wrong_answers_end_the_line_and_nothing_else(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    uint32_t id = create(NULL);
    static const enum played_wrong wrongs[] = {WRONG_ID,   WRONG_OP,   WRONG_SHORT, WRONG_LONG, WRONG_SIGN,
                                               WRONG_HUGE, WRONG_TEXT, WRONG_FD,    WRONG_TWICE};
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        unsigned hellos = broker->hellos;
        broker->wrong = wrongs[i];
        ask(7, true);
        RIG_AWAIT(broker->hellos > hellos);  // it was hung up on, and called again
        broker->wrong = WRONG_NOTHING;
        uint32_t other = made(7, NULL);
        RIG_AWAIT(played_broker_serves(broker, id, NULL) && played_broker_serves(broker, other, NULL));
        destroy(other);
    }
    RIG_AWAIT(logged("broker_protocol") && logged("it sent something that is no answer"));
    end();
}

static void a_broker_of_another_version_is_none(void **state)
{
    static const enum played_wrong wrongs[] = {WRONG_VERSION, WRONG_OLD, WRONG_REFUSED};
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        rig = rig_launch(ARGS("--set", "pool_auto=0"), NULL);
        broker = played_broker_new(rig);
        broker->wrong = wrongs[i];
        played_broker_open(broker);
        rig_await_ready(rig);
        fd = rig_connect(rig);
        RIG_AWAIT(broker->hellos >= 3);  // it goes on trying
        ask(1, true);
        rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox-broker does not answer");
        RIG_AWAIT(logged("it speaks another version of the protocol"));
        assert_int_equal(broker->adds, 0);
        broker->wrong = WRONG_NOTHING;
        RIG_AWAIT(rig_status_has(fd, "\"broker_up\":true"));
        destroy(create(NULL));
        end();
    }
}

// While it does not answer, whoever does not need it is served as ever; at last it is taken for dead.
static void a_silent_broker_is_taken_for_dead(void **state)
{
    begin(ARGS("--set", "start_deadline_ms=20000"));
    uint32_t id = create(NULL);
    broker->blind = true;
    RIG_AWAIT(broker->is_blind);
    rig_send_simple(fd, RIG_DESTROY, 8, id);
    ask(9, true);
    ask(1, false);
    uint32_t plain = made(1, NULL);
    rig_send_simple(fd, RIG_DESTROY, 2, plain);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    rig_expect(fd, 8, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);  // BROKER_ANSWER_MS later
    RIG_AWAIT(logged("it does not answer"));
    broker->blind = false;
    made(9, NULL);
    assert_false(played_broker_serves(broker, id, NULL));
    end();
}

// More than the socket holds, and more than may be unanswered at a time.
static void many_creates_and_a_slow_broker(void **state)
{
    begin(ARGS("--set", "max_creates=64"));
    broker->blind = true;
    RIG_AWAIT(broker->is_blind);
    for (uint64_t i = 0; i < 40; i++)
        ask(100 + i, true);
    RIG_AWAIT(rig->play.live == 40);
    broker->blind = false;
    for (int i = 0; i < 40; i++)
        pb_free(made_any());
    assert_int_equal(broker->served, 40);
    end();
}

// Its own end: all are removed, in order, before the engine goes.
static void the_engines_end(void **state)
{
    begin(ARGS("--set", "pool_auto=0"));
    for (int i = 0; i < 5; i++)
        create(NULL);
    kill(rig->engine, SIGTERM);
    assert_int_equal(rig_wait(rig), 0);
    assert_int_equal(broker->removes, 5);
    RIG_AWAIT(broker->served == 0);
    close_fd(&fd);
    rig_free(rig);
    kill_broker();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(served_from_the_create_to_the_destroy),
        cmocka_unit_test(a_destroy_waits_for_the_broker),
        cmocka_unit_test(one_that_dies_is_revoked),
        cmocka_unit_test(a_client_that_goes_takes_its_lines_along),
        cmocka_unit_test(a_refused_sandbox_is_not_handed_out),
        cmocka_unit_test(a_refused_one_is_added_again),
        cmocka_unit_test(without_a_broker_a_create_fails),
        cmocka_unit_test(a_create_waits_for_a_broker_that_starts),
        cmocka_unit_test(lost_in_the_middle_of_a_create),
        cmocka_unit_test(a_new_broker_is_told_of_all),
        cmocka_unit_test(two_hundred_are_told_again),
        cmocka_unit_test(wrong_answers_end_the_line_and_nothing_else),
        cmocka_unit_test(a_broker_of_another_version_is_none),
        cmocka_unit_test(a_silent_broker_is_taken_for_dead),
        cmocka_unit_test(many_creates_and_a_slow_broker),
        cmocka_unit_test(the_engines_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
