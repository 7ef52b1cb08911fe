// agent: deadlines of commands, and pauses it hears of in time, late, or not at all.  The engine is played.
#include "agent_rig.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/pb.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHORT_MS = 50 };
#define AN_HOUR_US UINT64_C(3600000000)

static const char UNTIL_TOLD[] = "until [ -e /tmp/go ]; do sleep 0.02; done; echo fine";

// ---- what the engine says and hears ----

static void send_suspend(const struct rig *rig)
{
    Sandbox__Agent__Suspend suspend = SANDBOX__AGENT__SUSPEND__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND;
    command.suspend = &suspend;
    rig_command(rig, &command, -1);
}

static void send_resume(const struct rig *rig, uint64_t lost_us)
{
    Sandbox__Agent__Resume resume = SANDBOX__AGENT__RESUME__INIT;
    resume.lost_us = lost_us;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_RESUME;
    command.resume = &resume;
    rig_command(rig, &command, -1);
}

static void send_expire(const struct rig *rig, uint64_t number)
{
    Sandbox__Agent__Expire expire = SANDBOX__AGENT__EXPIRE__INIT;
    expire.number = number;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_EXPIRE;
    command.expire = &expire;
    rig_command(rig, &command, -1);
}

static uint64_t question(const struct rig *rig)
{
    Sandbox__Agent__Report *report = rig_report(rig);
    assert_int_equal(report->report_case, SANDBOX__AGENT__REPORT__REPORT_MAY_EXPIRE);
    uint64_t number = report->may_expire->number;
    assert_true(number != 0);
    pb_free(report);
    return number;
}

// The agent has read all that was sent.  Questions that come meanwhile are not answered.
static void await_heard(const struct rig *rig)
{
    Sandbox__Agent__Ping ping = SANDBOX__AGENT__PING__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_PING;
    command.ping = &ping;
    rig_command(rig, &command, -1);
    for (bool heard = false; !heard;) {
        Sandbox__Agent__Report *report = rig_report(rig);
        heard = report->report_case == SANDBOX__AGENT__REPORT__REPORT_PONG;
        assert_true(heard || report->report_case == SANDBOX__AGENT__REPORT__REPORT_MAY_EXPIRE);
        pb_free(report);
    }
}

// ---- commands ----

static int begin(const struct rig *rig, const char *text, uint32_t timeout_ms)
{
    struct script s;
    script_init(&s, text);
    s.exec.timeout_ms = timeout_ms;
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    int line = rig_open(rig);
    rig_request(line, &request);
    return line;
}

static void expect_timed_out(int line)
{
    guest_result *r = rig_answer(line);
    assert_true(r->exec->timed_out);
    assert_int_equal(r->exec->term_signal, SIGKILL);
    pb_free(r);
}

static bool has_answer(int line)
{
    struct pollfd p = {.fd = line, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

// Answers this question about the only command there is, and those that follow, until it has ended.
static void answer_until_the_end(const struct rig *rig, int line, uint64_t number)
{
    send_expire(rig, number);
    struct pollfd p[] = {{.fd = line, .events = POLLIN}, {.fd = rig->control, .events = POLLIN}};
    while (poll(p, 2, RIG_WAIT_MS) > 0 && p[0].revents == 0)
        send_expire(rig, question(rig));
    expect_timed_out(line);
}

// The command goes on, and ends as it should.
static void expect_fine(const struct rig *rig, int line)
{
    assert_false(has_answer(line));
    free(rig_sh(rig, "touch /tmp/go"));
    guest_result *r = rig_answer(line);
    assert_false(r->exec->timed_out);
    assert_int_equal(r->exec->exit_code, 0);
    assert_bytes(r->exec->out, "fine\n");
    pb_free(r);
    free(rig_sh(rig, "rm /tmp/go"));
}

static void begin_far(struct rig *rig)
{
    rig_start_configured(rig, (const char *const[]){"--far", NULL});
}

// ---- an agent beside its engine ----

static void it_ends_a_command_by_itself_but_not_between_suspend_and_resume(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    send_suspend(&rig);
    cleanup_fd int late = begin(&rig, UNTIL_TOLD, SHORT_MS);
    free(rig_sh(&rig, "sleep 0.2"));  // by now its time has passed
    assert_false(has_answer(late));
    send_resume(&rig, AN_HOUR_US);
    await_heard(&rig);
    expect_fine(&rig, late);
    send_suspend(&rig);
    cleanup_fd int over = begin(&rig, "sleep 60", SHORT_MS);
    free(rig_sh(&rig, "sleep 0.2"));
    assert_false(has_answer(over));
    send_resume(&rig, 0);
    expect_timed_out(over);
    rig_stop(&rig);
}

// ---- an agent that is far from it ----

static void a_deadline_counts_when_the_host_has_said_so(void **state)
{
    struct rig rig;
    begin_far(&rig);
    cleanup_fd int line = begin(&rig, "sleep 60", SHORT_MS);
    uint64_t number = question(&rig);
    assert_false(has_answer(line));
    answer_until_the_end(&rig, line, number);
    // One that ends in time is no question.
    cleanup_fd int quick = begin(&rig, "echo fine", 60000);
    guest_result *r = rig_answer(quick);
    assert_bytes(r->exec->out, "fine\n");
    pb_free(r);
    rig_stop(&rig);
}

// The pause is over when the agent hears of it, and its clock is an hour ahead.
static void a_pause_heard_of_after_it_costs_a_command_nothing(void **state)
{
    struct rig rig;
    begin_far(&rig);
    for (int answered_before_the_resume = 0; answered_before_the_resume < 2; answered_before_the_resume++) {
        cleanup_fd int line = begin(&rig, UNTIL_TOLD, SHORT_MS);
        uint64_t number = question(&rig);
        send_suspend(&rig);
        if (answered_before_the_resume)
            send_expire(&rig, number);
        send_resume(&rig, AN_HOUR_US);
        if (!answered_before_the_resume)
            send_expire(&rig, number);
        await_heard(&rig);
        expect_fine(&rig, line);
    }
    rig_stop(&rig);
}

static void a_deadline_that_a_pause_moved_is_asked_about_anew(void **state)
{
    struct rig rig;
    begin_far(&rig);
    cleanup_fd int line = begin(&rig, "sleep 60", SHORT_MS);
    uint64_t first = question(&rig);
    send_suspend(&rig);
    send_resume(&rig, SHORT_MS * NS_PER_MS / NS_PER_US);
    uint64_t second = question(&rig);
    assert_true(second > first);
    answer_until_the_end(&rig, line, second);
    rig_stop(&rig);
}

// A host that does not answer is asked again, and ends the operation itself if it likes; other answers mean nothing.
static void an_answer_counts_for_its_own_question(void **state)
{
    struct rig rig;
    begin_far(&rig);
    cleanup_fd int line = begin(&rig, UNTIL_TOLD, SHORT_MS);
    uint64_t first = question(&rig), second = question(&rig);
    assert_true(second > first);
    const uint64_t others[] = {0, first, second + 1000, UINT64_MAX};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        send_expire(&rig, others[i]);
    await_heard(&rig);
    expect_fine(&rig, line);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_ends_a_command_by_itself_but_not_between_suspend_and_resume),
        cmocka_unit_test(a_deadline_counts_when_the_host_has_said_so),
        cmocka_unit_test(a_pause_heard_of_after_it_costs_a_command_nothing),
        cmocka_unit_test(a_deadline_that_a_pause_moved_is_asked_about_anew),
        cmocka_unit_test(an_answer_counts_for_its_own_question),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_deadline", tests, NULL, NULL);
}
