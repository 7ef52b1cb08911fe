// sandbox-engine's four orders about route grants (wire/broker.h), with a broker and agents that are played: what becomes of
// commands and sandboxes when the one or the other refuses, is wrong, silent, slow, or dies.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/grants.h"
#include "engine_broker.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGS(...) ((const char *const[]){"--set", PLAYED_BROKER, "--set", "pool_auto=0", __VA_ARGS__, NULL})

static struct rig *rig;
static struct played_broker *broker;
static int fd = -1;

static void begin(const char *const *args)
{
    played_broker_begin(args, &rig, &broker, &fd);
    atomic_store(&rig->play.op, OP_RAN);
}

static void end(void)
{
    close_fd(&fd);
    rig_stop(rig);
    assert_true(broker == NULL || played_broker_stop(broker));
    broker = NULL;
}

// ---- requests ----

static void ask_timed_exec(uint64_t id, uint32_t sandbox, const char *profile, const char *principal, uint32_t timeout_ms)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    ProtobufCBinaryData argv = {.len = 4, .data = (uint8_t *)"true"};
    exec.n_argv = 1;
    exec.argv = &argv;
    exec.timeout_ms = timeout_ms;
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    guest.exec = &exec;
    guest.grant_profile = (char *)profile;
    if (principal != NULL) {
        guest.opt_principal_case = SANDBOX__GUEST_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
        guest.principal = (char *)principal;
    }
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST;
    message.guest = &guest;
    message.request_id = id;
    rig_send(fd, &message);
}

static void ask_exec(uint64_t id, uint32_t sandbox, const char *profile, const char *principal)
{
    ask_timed_exec(id, sandbox, profile, principal, 60000);
}

// The grant that the command of request `id` had.
static uint32_t ran(uint64_t id)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST)
        fail_msg("the command failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "another answer came");
    assert_int_equal(m->request_id, id);
    uint32_t grant = m->guest->grant_id;
    pb_free(m);
    return grant;
}

static uint32_t run(uint32_t sandbox)
{
    ask_exec(7, sandbox, "inventory", NULL);
    return ran(7);
}

static void expect_refusal(uint64_t id, int code, Sandbox__NotRun not_run, const char *text)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        fail_msg("expected error %d (%s), got an answer of kind %d", code, text, (int)m->response_case);
    if (m->error->error_code != code || m->error->not_run != not_run || strstr(m->error->message, text) == NULL)
        fail_msg("expected error %d, reason %d, \"%s\"; got %d, %d: %s", code, (int)not_run, text, m->error->error_code,
                 (int)m->error->not_run, m->error->message);
    assert_int_equal(m->request_id, id);
    pb_free(m);
}

#define ENVIRONMENT SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT
#define CAPACITY SANDBOX__NOT_RUN__NOT_RUN_CAPACITY

static void refused(uint32_t sandbox, int code, Sandbox__NotRun not_run, const char *text)
{
    unsigned lines = rig->play.lines;
    ask_exec(8, sandbox, "inventory", NULL);
    expect_refusal(8, code, not_run, text);
    assert_int_equal(rig->play.lines, lines);  // the agent was not asked to run anything
}

static void ask_trace(uint64_t id, uint32_t sandbox, uint32_t grant, uint32_t after)
{
    Sandbox__GrantTraceRequest trace = SANDBOX__GRANT_TRACE_REQUEST__INIT;
    trace.sandbox_id = sandbox;
    trace.grant_id = grant;
    trace.after = after;
    Sandbox__ClientMessage message = SANDBOX__CLIENT_MESSAGE__INIT;
    message.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GRANT_TRACE;
    message.grant_trace = &trace;
    message.request_id = id;
    rig_send(fd, &message);
}

// That trace is lost, or has all the rows that the played broker gives.
static void expect_trace(uint64_t id, uint32_t grant, bool lost)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_GRANT_TRACE);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->grant_trace->grant_id, grant);
    assert_int_equal(m->grant_trace->lost, lost);
    assert_int_equal(m->grant_trace->n_rows, lost ? 0 : PLAYED_ROWS);
    assert_int_equal(m->grant_trace->calls, lost ? 0 : 5);
    assert_string_equal(m->grant_trace->profile, "inventory");
    for (size_t i = 0; i < m->grant_trace->n_rows; i++)
        assert_string_equal(m->grant_trace->rows[i]->route, "/a/*");
    pb_free(m);
}

static void trace(uint32_t sandbox, uint32_t grant, bool lost)
{
    ask_trace(9, sandbox, grant, 0);
    expect_trace(9, grant, lost);
}

static void ask_create(uint64_t id)
{
    Sandbox__CreateRequest spec = rig_spec();
    spec.grant_profile = (char *)"inventory";
    rig_send_create(fd, id, &spec);
}

static uint32_t made_with_grant(uint64_t id, uint32_t *ret_grant)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "another answer came");
    assert_int_equal(m->request_id, id);
    uint32_t sandbox = m->create->sandbox_id;
    *ret_grant = m->create->grant_id;
    pb_free(m);
    return sandbox;
}

static void destroy(uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 2, sandbox);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

static unsigned orders(enum broker_op op)
{
    return atomic_load(&broker->orders[op]);
}

static bool logged(const char *text)
{
    char *log = rig_log(rig);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

static void hang_up(void)
{
    unsigned hellos = broker->hellos;
    broker->hang_up = true;
    RIG_AWAIT(broker->hellos > hellos);
}

// ---- as it should be ----

static void a_command_has_one_from_open_to_close(void **state)
{
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd);
    assert_int_equal(run(id), 1);
    // All of it is over when the command's answer comes.
    assert_int_equal(orders(BROKER_OP_LINE_ADD), 1);
    assert_int_equal(orders(BROKER_OP_GRANT_OPEN), 1);
    assert_int_equal(orders(BROKER_OP_GRANT_CLOSE), 1);
    assert_int_equal(broker->has_grants, 0);
    struct broker_grant grant = played_broker_last_grant(broker);
    char principal[32];
    snprintf(principal, sizeof principal, "uid:%u", getuid());
    assert_string_equal(grant.profile, "inventory");
    assert_string_equal(grant.principal, principal);
    assert_int_equal(grant.flags, BROKER_GRANT_SESSION);
    assert_int_equal(grant.budget_ms, 60000);
    assert_true(grant.run[0] != '\0');
    RIG_AWAIT(rig->play.preload_parts == 1);
    trace(id, 1, false);
    ask_trace(9, id, 1, 2);  // from behind the second row
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->grant_trace->n_rows, 1);
    assert_int_equal(m->grant_trace->rows[0]->sequence, 3);
    pb_free(m);
    assert_int_equal(run(id), 2);
    assert_int_equal(orders(BROKER_OP_LINE_ADD), 1);
    assert_int_equal(rig->play.agent_lines, 1);
    trace(id, 1, false);
    trace(id, 2, false);
    ask_trace(9, id, 3, 0);
    rig_expect_error(fd, 9, SANDBOX_ERR_NOT_FOUND, "has no grant 3");
    destroy(id);
    assert_int_equal(broker->has_lines, 0);  // with the answer, not after it
    assert_int_equal(orders(BROKER_OP_LINE_REMOVE), 1);
    end();
}

static void a_sandbox_has_one_until_its_trace_is_asked_for(void **state)
{
    begin(ARGS(NULL));
    uint32_t grant;
    ask_create(1);
    uint32_t id = made_with_grant(1, &grant);
    assert_int_equal(grant, 1);
    struct broker_grant told = played_broker_last_grant(broker);
    assert_int_equal(told.flags, 0);
    assert_int_equal(told.budget_ms, 0);
    assert_int_equal(broker->has_grants, 1);
    // A second one on its line is the broker's to refuse.
    refused(id, SANDBOX_ERR_GUEST_UNAVAILABLE, CAPACITY, "has a grant now");
    broker->hold = true;
    ask_trace(5, id, grant, 0);
    ask_trace(6, id, grant, 0);
    RIG_AWAIT(orders(BROKER_OP_GRANT_CLOSE) == 1);
    assert_true(rig_silent(fd, 50));
    broker->hold = false;
    expect_trace(5, grant, false);
    expect_trace(6, grant, false);
    trace(id, grant, false);
    assert_int_equal(orders(BROKER_OP_GRANT_CLOSE), 1);
    assert_int_equal(run(id), 3);
    ask_create(1);
    destroy(made_with_grant(1, &grant));  // with it lent
    destroy(id);
    assert_int_equal(broker->has_lines, 0);
    end();
}

// ---- lengths ----

static void names_have_a_longest(void **state)
{
    begin(ARGS("--set", "principal_uids=*"));
    uint32_t id = rig_create(fd);
    char name[PRINCIPAL_MAX + 2];
    memset(name, 'n', sizeof name);
    name[GRANT_PROFILE_MAX + 1] = '\0';
    ask_exec(3, id, name, NULL);
    expect_refusal(3, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_REQUEST, "grant_profile");
    name[GRANT_PROFILE_MAX] = '\0';
    ask_exec(3, id, name, NULL);
    assert_int_equal(ran(3), 1);
    struct broker_grant grant = played_broker_last_grant(broker);
    assert_string_equal(grant.profile, name);
    memset(name, 'n', sizeof name);
    name[PRINCIPAL_MAX + 1] = '\0';
    ask_exec(3, id, "inventory", name);
    expect_refusal(3, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_REQUEST, "principal");
    name[PRINCIPAL_MAX] = '\0';
    ask_exec(3, id, "inventory", name);
    assert_int_equal(ran(3), 2);
    grant = played_broker_last_grant(broker);
    assert_string_equal(grant.principal, name);
    ask_exec(3, id, "inventory", "");  // nobody
    assert_int_equal(ran(3), 3);
    grant = played_broker_last_grant(broker);
    assert_string_equal(grant.principal, "");
    assert_int_equal(orders(BROKER_OP_GRANT_OPEN), 3);
    end();
}

static void the_last_traces_are_kept(void **state)
{
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd);
    for (uint32_t i = 1; i <= GRANTS_KEPT + 1; i++)
        assert_int_equal(run(id), i);
    trace(id, 2, false);
    trace(id, GRANTS_KEPT + 1, false);
    ask_trace(9, id, 1, 0);
    rig_expect_error(fd, 9, SANDBOX_ERR_NOT_FOUND, "has no grant 1");
    end();
}

static void a_long_text_for_the_agent_comes_in_parts(void **state)
{
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd);
    broker->preload = BROKER_PRELOAD_MAX;
    run(id);
    RIG_AWAIT(rig->play.preloads == 1);
    assert_int_equal(rig->play.preload_bytes, BROKER_PRELOAD_MAX);
    assert_true(rig->play.preload_parts > 1);
    end();
}

// The agent says nothing: when the command's time is over, so is its authority.
static void time_ends_a_grant_whatever_the_agent_does(void **state)
{
    begin(ARGS("--set", "exec_grace_ms=100"));
    uint32_t id = rig_create(fd);
    atomic_store(&rig->play.op, OP_SILENT);
    ask_timed_exec(7, id, "inventory", NULL, 100);
    RIG_AWAIT(orders(BROKER_OP_GRANT_OPEN) == 1);
    RIG_AWAIT(orders(BROKER_OP_GRANT_CLOSE) == 1 && broker->has_grants == 0);
    rig_expect_error(fd, 7, SANDBOX_ERR_TIMEOUT, "did not answer within");
    end();
}

// ---- refusals ----

static void each_refusal_has_its_code_and_reason(void **state)
{
    static const struct {
        int error, code;
        Sandbox__NotRun not_run;
        const char *text;
    } table[] = {
        {-EACCES, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION, "no such profile for this caller"},
        {-EPERM, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX__NOT_RUN__NOT_RUN_PERMISSION, "as the test wanted"},
        {-ENOTUNIQ, SANDBOX_ERR_INVALID_SPEC, SANDBOX__NOT_RUN__NOT_RUN_REQUEST, "would defeat the grant"},
        {-EBUSY, SANDBOX_ERR_GUEST_UNAVAILABLE, CAPACITY, "has a grant now"},
        {-ENOSPC, SANDBOX_ERR_GUEST_UNAVAILABLE, CAPACITY, "as the test wanted"},
        {-EOPNOTSUPP, SANDBOX_ERR_INTERNAL, ENVIRONMENT, "as the test wanted"},
        {-ENOENT, SANDBOX_ERR_INTERNAL, ENVIRONMENT, "as the test wanted"},
    };
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd), grant;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        broker->order_error[BROKER_OP_GRANT_OPEN] = table[i].error;
        refused(id, table[i].code, table[i].not_run, table[i].text);
        ask_create(4);
        expect_refusal(4, table[i].code, table[i].not_run, table[i].text);
        RIG_AWAIT(rig->play.live == 1 && broker->has_lines == 1);
    }
    broker->order_error[BROKER_OP_GRANT_OPEN] = 0;
    assert_int_equal(orders(BROKER_OP_GRANT_CLOSE), 0);
    run(id);
    // No line: it is tried again with the next grant.
    broker->order_error[BROKER_OP_LINE_ADD] = -ENOSPC;
    uint32_t other = rig_create(fd);
    refused(other, SANDBOX_ERR_GUEST_UNAVAILABLE, CAPACITY, "as the test wanted");
    broker->order_error[BROKER_OP_LINE_ADD] = 0;
    run(other);
    // What cannot be closed has no trace, and ends all the same.
    broker->order_error[BROKER_OP_GRANT_CLOSE] = -ENOENT;
    trace(other, run(other), true);
    broker->order_error[BROKER_OP_GRANT_CLOSE] = 0;
    broker->order_error[BROKER_OP_LINE_REMOVE] = -ENOENT;
    destroy(other);
    ask_create(5);
    destroy(made_with_grant(5, &grant));
    destroy(id);
    end();
}

static void an_agent_that_cannot_is_said_so(void **state)
{
    begin(ARGS("--set", "start_deadline_ms=1500"));
    uint32_t id = rig_create(fd);
    rig->play.line_error = ENOSPC;
    refused(id, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "cannot be given its line: as the test wanted");
    rig->play.line_error = 0;
    run(id);
    // One that says nothing costs the grant, not more; and it is not asked twice.
    uint32_t other = rig_create(fd);
    unsigned told = rig->play.agent_lines;
    rig->play.mute_lines = true;
    refused(other, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "its agent does not answer");
    refused(other, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "its agent does not take commands");
    assert_int_equal(rig->play.agent_lines, told + 1);
    ask_exec(3, other, "", NULL);
    assert_int_equal(ran(3), 0);
    ask_create(4);
    expect_refusal(4, SANDBOX_ERR_GUEST_UNAVAILABLE, CAPACITY, "not ready within 1500 ms");
    destroy(other);
    // One that dies.
    rig->play.mute_lines = false;
    rig->play.line_kills = true;
    other = rig_create(fd);
    refused(other, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "");
    rig->play.line_kills = false;
    RIG_AWAIT(broker->has_lines == 1);
    destroy(other);
    // One that says what it was not asked is no agent of ours.
    rig->play.twice_lines = true;
    other = rig_create(fd);
    ask_exec(3, other, "inventory", NULL);
    pb_free(rig_receive(fd));
    RIG_AWAIT(rig->play.live == 1 && broker->has_lines == 1);
    rig->play.twice_lines = false;
    destroy(other);
    destroy(id);
    end();
}

// ---- a broker that is wrong ----

// Whether the command ran; if not, nothing did, as there was no broker.
static bool tries(uint32_t sandbox)
{
    ask_exec(7, sandbox, "inventory", NULL);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->request_id, 7);
    bool has_run = m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST;
    if (!has_run) {
        assert_int_equal(m->error->error_code, SANDBOX_ERR_GUEST_UNAVAILABLE);
        assert_int_equal(m->error->not_run, ENVIRONMENT);
    }
    pb_free(m);
    return has_run;
}

static void wrong_answers_end_the_line_and_nothing_else(void **state)
{
    static const enum played_wrong wrongs[] = {WRONG_ID,   WRONG_OP,   WRONG_SHORT, WRONG_LONG, WRONG_SIGN,
                                               WRONG_HUGE, WRONG_TEXT, WRONG_FD,    WRONG_TWICE};
    static const enum broker_op ops[] = {BROKER_OP_LINE_ADD, BROKER_OP_GRANT_OPEN, BROKER_OP_GRANT_CLOSE,
                                         BROKER_OP_LINE_REMOVE};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        begin(ARGS(NULL));
        for (size_t k = 0; k < sizeof wrongs / sizeof wrongs[0]; k++) {
            uint32_t id = rig_create(fd);
            unsigned hellos = broker->hellos;
            broker->wrong_op = (int)ops[i];
            broker->wrong = wrongs[k];
            bool has_run = tries(id);
            // Of an order whose first answer was good, the command may have gone on.
            assert_true(wrongs[k] == WRONG_TWICE ||
                        has_run == (ops[i] >= BROKER_OP_GRANT_CLOSE || ops[i] == BROKER_OP_LINE_REMOVE));
            if (ops[i] == BROKER_OP_LINE_REMOVE)
                destroy(id);
            RIG_AWAIT(broker->hellos > hellos);  // it was hung up on, and called again
            broker->wrong = WRONG_NOTHING;
            if (ops[i] != BROKER_OP_LINE_REMOVE) {
                RIG_AWAIT(tries(id));  // one more line may have been lost meanwhile
                destroy(id);
            }
        }
        RIG_AWAIT(logged("broker_protocol") && logged("it sent something that is no answer"));
        RIG_AWAIT(rig->play.live == 0);
        end();
    }
}

// What the broker hands over is looked at, too: a bad text for the agent costs that text, a bad trace the trace.
static void bad_files_cost_what_is_in_them(void **state)
{
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd);
    run(id);
    RIG_AWAIT(rig->play.preload_parts == 1);
    for (enum played_file kind = FILE_EMPTY; kind < FILE_KINDS; kind++) {
        broker->file = kind;
        trace(id, run(id), true);
    }
    broker->file = FILE_GOOD;
    trace(id, run(id), false);
    // That of a good file, of the one whose other texts are bad, and the last.
    RIG_AWAIT(rig->play.preload_parts == 3);
    assert_int_equal(broker->hellos, 1);
    RIG_AWAIT(logged("grant_preload_lost") && logged("grant_trace_lost"));
    end();
}

// ---- a broker that dies, is slow, or silent ----

// It waits while a broker may be coming back.
static void refused_at_last(uint32_t sandbox)
{
    refused(sandbox, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "broker");
}

static void lost_at_each_step(void **state)
{
    begin(ARGS(NULL));
    uint32_t id = rig_create(fd);
    // While the line is added, and while the grant is opened: nothing has run.
    for (int i = 0; i < 2; i++) {
        enum broker_op op = i == 0 ? BROKER_OP_LINE_ADD : BROKER_OP_GRANT_OPEN;
        unsigned before = orders(op), lines = rig->play.lines;
        broker->hold = true;
        ask_exec(7, id, "inventory", NULL);
        RIG_AWAIT(orders(op) > before);
        hang_up();
        expect_refusal(7, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "broker has gone");
        assert_int_equal(rig->play.lines, lines);
        broker->hold = false;
        run(id);
    }
    // While the command runs: it goes on, and cannot be known not to have run.
    atomic_store(&rig->play.op, OP_SILENT);
    unsigned lines = rig->play.lines;
    ask_exec(7, id, "inventory", NULL);
    RIG_AWAIT(rig->play.lines > lines);
    hang_up();
    RIG_AWAIT(broker->has_lines == 1);
    assert_true(rig_silent(fd, 50));
    rig->play.kill_slot = 1;
    expect_refusal(7, SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX__NOT_RUN__NOT_RUN_UNKNOWN, "");
    destroy(id);
    atomic_store(&rig->play.op, OP_RAN);
    // While a grant lives, and while it is closed: there is no trace, and its sandbox goes on.
    for (int i = 0; i < 2; i++) {
        uint32_t grant;
        ask_create(1);
        id = made_with_grant(1, &grant);
        if (i == 0) {
            hang_up();
            ask_trace(5, id, grant, 0);
        } else {
            unsigned before = orders(BROKER_OP_GRANT_CLOSE);
            broker->hold = true;
            ask_trace(5, id, grant, 0);
            RIG_AWAIT(orders(BROKER_OP_GRANT_CLOSE) > before);
            hang_up();
            broker->hold = false;
        }
        expect_trace(5, grant, true);
        run(id);
        destroy(id);
    }
    // While the line is removed: that is done, then.
    id = rig_create(fd);
    run(id);
    unsigned before = orders(BROKER_OP_LINE_REMOVE);
    broker->hold = true;
    rig_send_simple(fd, RIG_DESTROY, 2, id);
    RIG_AWAIT(orders(BROKER_OP_LINE_REMOVE) > before);
    hang_up();
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    broker->hold = false;
    run(rig_create(fd));
    end();
}

static void a_killed_one_comes_back_with_lines_and_no_grants(void **state)
{
    begin(ARGS(NULL));
    uint32_t grant, id[3], other = rig_create(fd);
    for (int i = 0; i < 3; i++) {
        ask_create(1);
        id[i] = made_with_grant(1, &grant);
    }
    assert_true(played_broker_stop(broker));
    broker = NULL;
    RIG_AWAIT(logged("broker_lost"));
    refused_at_last(other);
    destroy(id[2]);  // nobody is left who could revoke it
    broker = played_broker_start(rig);
    RIG_AWAIT(broker->has_lines == 3);
    assert_int_equal(broker->has_grants, 0);
    RIG_AWAIT(rig->play.agent_lines == 4);
    trace(id[0], grant, true);
    run(id[1]);
    RIG_AWAIT(tries(other));
    assert_int_equal(rig->play.agent_lines, 4);  // agents are told once
    end();
}

// After BROKER_ANSWER_MS it is taken for dead.
static void a_silent_one_is_taken_for_dead(void **state)
{
    begin(ARGS(NULL));
    uint32_t grant, id = rig_create(fd);
    ask_create(1);
    uint32_t other = made_with_grant(1, &grant);
    broker->blind = true;
    RIG_AWAIT(broker->is_blind);
    ask_exec(7, id, "inventory", NULL);
    ask_trace(5, other, grant, 0);
    ask_exec(6, other, "", NULL);  // one that needs nothing of it is served as ever
    assert_int_equal(ran(6), 0);
    Sandbox__ServerMessage *m[2] = {rig_receive(fd), rig_receive(fd)};
    int exec = m[0]->request_id == 7 ? 0 : 1;
    assert_int_equal(m[exec]->request_id, 7);
    assert_int_equal(m[exec]->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
    assert_int_equal(m[exec]->error->not_run, ENVIRONMENT);
    assert_int_equal(m[!exec]->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_GRANT_TRACE);
    assert_true(m[!exec]->grant_trace->lost);
    pb_free(m[0]);
    pb_free(m[1]);
    RIG_AWAIT(logged("it does not answer"));
    broker->blind = false;
    RIG_AWAIT(tries(id));
    end();
}

static void one_of_version_1_has_no_grants(void **state)
{
    rig = rig_launch(ARGS(NULL), NULL);
    broker = played_broker_new(rig);
    broker->wrong = WRONG_OLD;
    played_broker_open(broker);
    rig_await_ready(rig);
    fd = rig_connect(rig);
    atomic_store(&rig->play.op, OP_RAN);
    RIG_AWAIT(broker->hellos >= 2);
    uint32_t id = rig_create(fd);
    refused_at_last(id);
    ask_create(4);
    expect_refusal(4, SANDBOX_ERR_GUEST_UNAVAILABLE, ENVIRONMENT, "does not answer");
    for (int op = BROKER_OP_LINE_ADD; op < BROKER_OP_END_; op++)
        assert_int_equal(orders((enum broker_op)op), 0);
    broker->wrong = WRONG_NOTHING;
    RIG_AWAIT(tries(id));
    end();
}

// ---- a client that goes ----

static void a_client_that_goes_ends_its_grants(void **state)
{
    begin(ARGS(NULL));
    uint32_t grant, id = rig_create(fd);
    ask_create(1);
    made_with_grant(1, &grant);
    broker->hold = true;
    ask_exec(7, id, "inventory", NULL);  // still opening
    RIG_AWAIT(orders(BROKER_OP_LINE_ADD) == 2);
    close_fd(&fd);
    broker->hold = false;
    RIG_AWAIT(broker->has_lines == 0 && broker->has_grants == 0);
    RIG_AWAIT(rig->play.live == 0);
    fd = rig_connect(rig);
    run(rig_create(fd));
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_command_has_one_from_open_to_close),
        cmocka_unit_test(a_sandbox_has_one_until_its_trace_is_asked_for),
        cmocka_unit_test(names_have_a_longest),
        cmocka_unit_test(the_last_traces_are_kept),
        cmocka_unit_test(a_long_text_for_the_agent_comes_in_parts),
        cmocka_unit_test(time_ends_a_grant_whatever_the_agent_does),
        cmocka_unit_test(each_refusal_has_its_code_and_reason),
        cmocka_unit_test(an_agent_that_cannot_is_said_so),
        cmocka_unit_test(wrong_answers_end_the_line_and_nothing_else),
        cmocka_unit_test(bad_files_cost_what_is_in_them),
        cmocka_unit_test(lost_at_each_step),
        cmocka_unit_test(a_killed_one_comes_back_with_lines_and_no_grants),
        cmocka_unit_test(a_silent_one_is_taken_for_dead),
        cmocka_unit_test(one_of_version_1_has_no_grants),
        cmocka_unit_test(a_client_that_goes_ends_its_grants),
    };
    return cmocka_run_group_tests_name("engine_grants", tests, NULL, NULL);
}
