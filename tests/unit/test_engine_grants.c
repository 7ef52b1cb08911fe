// sandbox-engine's orders to the broker about route grants: what a client is told and what is left of it when the broker
// refuses, answers nonsense, falls silent, dies or is new, and when the agent does not take its line.  The broker and the
// agents are played; tests/broker/test_run_grants.py has the real ones.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/grants.h"
#include "engine_broker.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ARGS(...) ((const char *const[]){"--set", PLAYED_BROKER, "--set", "pool_auto=0", ##__VA_ARGS__, NULL})

enum { PRELOAD = 1000 };

static struct rig *rig;
static struct played_broker *broker;
static int fd = -1;

static void begin(const char *const *args)
{
    played_broker_begin(args, &rig, &broker, &fd);
    broker->preload = PRELOAD;
}

static void end(void)
{
    close_fd(&fd);
    rig_stop(rig);
    assert_true(broker == NULL || played_broker_stop(broker));
    broker = NULL;
}

// ---- requests ----

static void send_create(uint64_t id, const char *profile)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.grant_profile = (char *)profile;
    rig_send_create(fd, id, &spec);
}

static uint32_t create(const char *profile, uint32_t grant)
{
    send_create(1, profile);
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "?");
    assert_int_equal(m->create->grant_id, grant);
    uint32_t sandbox = m->create->sandbox_id;
    pb_free(m);
    return sandbox;
}

static void destroy(uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 2, sandbox);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

// The grant of a command that ran.
static uint32_t exec_received(uint64_t id)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST)
        fail_msg("the exec failed: %s", m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "?");
    assert_int_equal(m->request_id, id);
    uint32_t grant = m->guest->grant_id;
    pb_free(m);
    return grant;
}

static uint32_t run(uint32_t sandbox)
{
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    return exec_received(5);
}

static void expect_not_run(uint64_t id, int code, Sandbox__NotRun why, const char *text)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
    assert_int_equal(m->request_id, id);
    if (m->error->error_code != code || m->error->not_run != why || strstr(m->error->message, text) == NULL)
        fail_msg("expected error %d (%d) with \"%s\", got %d (%d): %s", code, (int)why, text, m->error->error_code,
                 (int)m->error->not_run, m->error->message);
    pb_free(m);
}

// How many rows the trace of a grant has; -1: it is lost.
static int trace(uint32_t sandbox, uint32_t grant)
{
    rig_send_trace(fd, 6, sandbox, grant);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_GRANT_TRACE);
    assert_int_equal(m->grant_trace->grant_id, grant);
    assert_string_equal(m->grant_trace->profile, "shop");
    int rows = m->grant_trace->lost ? -1 : (int)m->grant_trace->n_rows;
    if (rows == 1)
        assert_string_equal(m->grant_trace->rows[0]->route, "/items/:id");
    pb_free(m);
    return rows;
}

static bool logged(const char *text)
{
    char *log = rig_log(rig);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

// ---- all well ----

static void a_sandboxs_grant_from_its_create_to_its_end(void **state)
{
    char who[32];
    begin(ARGS());
    uint32_t sandbox = create("shop", 1);
    assert_int_equal(broker->line_adds, 1);
    assert_int_equal(broker->feeds, 1);
    assert_int_equal(broker->opens, 1);
    assert_int_equal(rig->play.host_apis, 1);
    RIG_AWAIT(rig->play.preloads == 1);
    assert_int_equal(rig->play.preload_bytes, PRELOAD);
    struct broker_grant asked = played_broker_last_grant(broker);
    snprintf(who, sizeof who, "uid:%u", getuid());
    assert_string_equal(asked.profile, "shop");
    assert_string_equal(asked.principal, who);
    assert_int_equal(asked.grant_id, 1);
    assert_int_equal(asked.flags, 0);
    assert_int_equal(asked.budget_ms, 0);
    assert_int_equal(trace(sandbox, 1), 1);
    assert_int_equal(broker->closes, 1);
    assert_int_equal(trace(sandbox, 1), 1);  // it is kept
    assert_int_equal(broker->closes, 1);
    destroy(sandbox);
    assert_int_equal(broker->line_removes, 1);  // with the answer, not after it
    end();
}

static void a_commands_grant_ends_with_it(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    assert_int_equal(broker->line_adds, 0);
    for (uint32_t n = 1; n <= 3; n++) {
        assert_int_equal(run(sandbox), n);
        assert_int_equal(broker->opens, n);
        assert_int_equal(broker->closes, n);
        struct broker_grant asked = played_broker_last_grant(broker);
        assert_int_equal(asked.flags, BROKER_GRANT_SESSION);
        assert_int_equal(asked.budget_ms, 20000);
        assert_int_equal(trace(sandbox, n), 1);
    }
    assert_int_equal(broker->line_adds, 1);
    assert_int_equal(rig->play.host_apis, 1);
    destroy(sandbox);
    end();
}

static void the_last_ones_are_kept(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    for (uint32_t n = 1; n <= GRANTS_KEPT + 1; n++)
        assert_int_equal(run(sandbox), n);
    rig_send_trace(fd, 6, sandbox, 1);
    rig_expect_error(fd, 6, SANDBOX_ERR_NOT_FOUND, "has no grant 1");
    for (uint32_t n = 2; n <= GRANTS_KEPT + 1; n++)
        assert_int_equal(trace(sandbox, n), 1);
    rig_send_trace(fd, 6, sandbox, GRANTS_KEPT + 2);
    rig_expect_error(fd, 6, SANDBOX_ERR_NOT_FOUND, "has no grant");
    end();
}

// The agent says nothing: the time of the command is over, and so is its authority.
static void time_ends_a_grant_whatever_the_agent_does(void **state)
{
    begin(ARGS("--set", "exec_grace_ms=100"));
    uint32_t sandbox = create("", 0);
    rig->play.op = OP_SILENT;
    rig_send_granted_exec(fd, 5, sandbox, 100, "shop");
    RIG_AWAIT(broker->opens == 1);
    RIG_AWAIT(broker->closes == 1);
    end();
}

// ---- refusals ----

static void each_refusal_has_its_error(void **state)
{
    static const struct {
        int error, code;
        Sandbox__NotRun why;
        const char *text;
    } rows[] = {
        {-EACCES, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION,
         "there is no such profile for this caller"},
        {-EPERM, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION, "as the test wanted"},
        {-ENOTUNIQ, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_REQUEST, "egress"},
        {-EBUSY, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_CAPACITY, "has a grant now"},
        {-ENOSPC, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_CAPACITY, "as the test wanted"},
        {-EIO, SANDBOX_ERR_INTERNAL, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "no grant can be had"},
    };
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        broker->open_error = rows[i].error;
        rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
        expect_not_run(5, rows[i].code, rows[i].why, rows[i].text);
        send_create(7, "shop");
        expect_not_run(7, rows[i].code, rows[i].why, rows[i].text);
    }
    broker->open_error = 0;
    run(sandbox);
    RIG_AWAIT(rig->play.live == 1);  // no sandbox without its grant
    // The line is refused: the next command asks for it again.
    uint32_t other = create("", 0);
    broker->line_error = -ENOSPC;
    rig_send_granted_exec(fd, 5, other, 20000, "shop");
    expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_CAPACITY, "as the test wanted");
    broker->line_error = 0;
    run(other);
    end();
}

static void a_trace_that_the_broker_does_not_have_is_lost(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("shop", 1);
    broker->close_error = -ENOENT;
    assert_int_equal(trace(sandbox, 1), -1);
    RIG_AWAIT(logged("grant_trace_lost"));
    end();
}

// ---- nonsense ----

static void what_goes_beside_the_line_may_be_lost(void **state)
{
    static const enum played_file files[] = {FILE_EMPTY, FILE_SHORT, FILE_LONG, FILE_MORE};
    begin(ARGS());
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        broker->file = (int)files[i];
        uint32_t sandbox = create("shop", 1);  // it is open all the same
        broker->file = FILE_GOOD;
        assert_int_equal(trace(sandbox, 1), 1);
        destroy(sandbox);
    }
    RIG_AWAIT(logged("grant_preload_lost"));
    assert_int_equal(rig->play.preloads, 0);
    // None, and as much as there may be.
    static const unsigned sizes[] = {0, BROKER_PRELOAD_MAX};
    for (unsigned i = 0; i < 2; i++) {
        broker->preload = sizes[i];
        rig->play.preload_bytes = 0;
        create("shop", 1);
        RIG_AWAIT(rig->play.preloads == i + 1);
        assert_int_equal(rig->play.preload_bytes, sizes[i]);
    }
    end();
}

static void a_trace_that_no_broker_writes_is_lost(void **state)
{
    static const enum played_file files[] = {FILE_EMPTY, FILE_SHORT, FILE_LONG, FILE_MORE, FILE_TEXT};
    begin(ARGS());
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        uint32_t sandbox = create("shop", 1);
        broker->file = (int)files[i];
        assert_int_equal(trace(sandbox, 1), -1);
        broker->file = FILE_GOOD;
        destroy(sandbox);
    }
    RIG_AWAIT(logged("grant_trace_lost"));
    end();
}

static void wrong_answers_end_the_line_to_the_broker(void **state)
{
    static const enum played_wrong wrongs[] = {WRONG_ID,   WRONG_OP,   WRONG_SHORT, WRONG_LONG,
                                               WRONG_SIGN, WRONG_TEXT, WRONG_FD,    WRONG_TWICE};
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        run(sandbox);
        unsigned hellos = broker->hellos;
        broker->wrong = (int)wrongs[i];
        rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
        if (wrongs[i] == WRONG_TWICE)  // the first of the two is right
            pb_free(rig_receive(fd));
        else
            expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "grant_profile");
        RIG_AWAIT(broker->hellos > hellos);  // it was hung up on, and called again
        broker->wrong = WRONG_NOTHING;
        RIG_AWAIT(rig_status_has(fd, "\"broker_up\":true"));
    }
    run(sandbox);
    RIG_AWAIT(logged("it sent something that is no answer"));
    end();
}

// ---- a broker that is not there ----

static void one_that_dies_takes_grants_along(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("shop", 1);
    assert_true(played_broker_stop(broker));
    RIG_AWAIT(rig_status_has(fd, "\"broker_up\":false"));
    assert_int_equal(trace(sandbox, 1), -1);
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "grant_profile: ");
    // The new one is told of the line, and of no grant.
    broker = played_broker_start(rig);
    broker->preload = PRELOAD;
    RIG_AWAIT(broker->line_adds == 1);
    assert_int_equal(broker->opens, 0);
    assert_int_equal(run(sandbox), 3);  // the one that was refused had a number, too
    assert_int_equal(broker->line_adds, 1);
    assert_int_equal(rig->play.host_apis, 1);
    end();
}

static void one_that_dies_meanwhile_fails_what_waits(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    broker->hold = true;
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    RIG_AWAIT(broker->line_adds == 1);
    broker->hang_up = true;
    expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "grant_profile");
    broker->hold = false;
    RIG_AWAIT(rig_status_has(fd, "\"broker_up\":true"));
    run(sandbox);
    end();
}

static void a_silent_one_is_taken_for_dead(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    broker->hold = true;
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    // Others are served meanwhile.
    rig_send_stat(fd, 8, sandbox);
    rig_expect(fd, 8, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT,
                   "grant_profile");  // BROKER_ANSWER_MS later
    RIG_AWAIT(logged("it does not answer"));
    broker->hold = false;
    RIG_AWAIT(rig_status_has(fd, "\"broker_up\":true"));
    run(sandbox);
    end();
}

static void one_of_another_version_lends_nothing(void **state)
{
    rig = rig_launch(ARGS(), NULL);
    broker = played_broker_new(rig);
    broker->wrong = WRONG_VERSION;
    played_broker_open(broker);
    rig_await_ready(rig);
    fd = rig_connect(rig);
    RIG_AWAIT(logged("it speaks another version of the protocol"));
    send_create(1, "shop");
    expect_not_run(1, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "grant_profile: ");
    assert_int_equal(broker->line_adds, 0);
    end();
}

// ---- agents ----

static void an_agent_that_has_no_line_is_given_no_grant(void **state)
{
    begin(ARGS());
    uint32_t sandbox = create("", 0);
    rig->play.host_api = HOST_API_REFUSES;
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    expect_not_run(5, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT, "cannot be given its line");
    assert_int_equal(broker->opens, 0);
    rig->play.host_api = HOST_API_OK;
    run(sandbox);
    destroy(sandbox);
    // One that says nothing is waited for until its sandbox ends.
    rig->play.host_api = HOST_API_SILENT;
    sandbox = create("", 0);
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    RIG_AWAIT(rig->play.host_apis == 3);
    rig_send_simple(fd, RIG_DESTROY, 2, sandbox);
    bool refused = false, destroyed = false;
    for (int i = 0; i < 2; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        refused |= m->request_id == 5 && m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR;
        destroyed |= m->request_id == 2 && m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY;
        pb_free(m);
    }
    assert_true(refused && destroyed);
    assert_int_equal(broker->opens, 1);
    // One that answers what it was not asked is no agent of ours.
    rig->play.host_api = HOST_API_TWICE;
    sandbox = create("", 0);
    rig_send_granted_exec(fd, 5, sandbox, 20000, "shop");
    pb_free(rig_receive(fd));
    RIG_AWAIT(rig->play.live == 0);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sandboxs_grant_from_its_create_to_its_end),
        cmocka_unit_test(a_commands_grant_ends_with_it),
        cmocka_unit_test(the_last_ones_are_kept),
        cmocka_unit_test(time_ends_a_grant_whatever_the_agent_does),
        cmocka_unit_test(each_refusal_has_its_error),
        cmocka_unit_test(a_trace_that_the_broker_does_not_have_is_lost),
        cmocka_unit_test(what_goes_beside_the_line_may_be_lost),
        cmocka_unit_test(a_trace_that_no_broker_writes_is_lost),
        cmocka_unit_test(wrong_answers_end_the_line_to_the_broker),
        cmocka_unit_test(one_that_dies_takes_grants_along),
        cmocka_unit_test(one_that_dies_meanwhile_fails_what_waits),
        cmocka_unit_test(a_silent_one_is_taken_for_dead),
        cmocka_unit_test(one_of_another_version_lends_nothing),
        cmocka_unit_test(an_agent_that_has_no_line_is_given_no_grant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
