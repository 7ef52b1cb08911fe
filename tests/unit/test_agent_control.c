// agent: the control line, Configure, and the command line.
#include "agent_rig.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/fdpass.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

static uint64_t ping(struct rig *rig, uint64_t nonce)
{
    Sandbox__Agent__Ping message = SANDBOX__AGENT__PING__INIT;
    message.nonce = nonce;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_PING;
    command.ping = &message;
    rig_command(rig, &command, -1);
    Sandbox__Agent__Report *report = rig_report(rig);
    assert_int_equal(report->report_case, SANDBOX__AGENT__REPORT__REPORT_PONG);
    uint64_t back = report->pong->nonce;
    pb_free(report);
    return back;
}

static void pings_are_answered_before_and_after_configure(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    assert_true(ping(&rig, UINT64_MAX) == UINT64_MAX);
    rig_stop(&rig);
    rig_start_configured(&rig, NULL);
    assert_true(ping(&rig, 7) == 7);
    rig_stop(&rig);
}

static void nothing_is_done_before_configure(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    struct script s;
    script_init(&s, "true");
    guest_result *r = rig_script(&rig, &s);
    assert_int_equal(r->status, STATUS(NO_WORKSPACE));
    assert_string_not_equal(r->message, "");
    pb_free(r);
    rig_stop(&rig);
}

// ---- before a snapshot ----

static void send_prepare(struct rig *rig, const char *script)
{
    ProtobufCBinaryData argv[] = {bytes_of("sh"), bytes_of("-c"), bytes_of(script != NULL ? script : "")};
    Sandbox__Agent__Prepare prepare = SANDBOX__AGENT__PREPARE__INIT;
    prepare.argv = argv;
    prepare.n_argv = script != NULL ? 3 : 0;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_PREPARE;
    command.prepare = &prepare;
    rig_command(rig, &command, -1);
}

static void expect_prepared(struct rig *rig)
{
    Sandbox__Agent__Report *report = rig_report(rig);
    assert_int_equal(report->report_case, SANDBOX__AGENT__REPORT__REPORT_PREPARED);
    pb_free(report);
}

static void what_is_worth_doing_once_is_done_before_configure(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    send_prepare(&rig, "echo once >>/tmp/prepared");
    expect_prepared(&rig);
    // Whatever came of it: a template whose image has no such program is one all the same.
    static const char *const scripts[] = {"exit 7", "kill -9 $$", "head -c 200000 /dev/zero", NULL};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        send_prepare(&rig, scripts[i]);
        expect_prepared(&rig);
    }
    assert_true(ping(&rig, 3) == 3);
    // It is an ordinary agent afterwards, of nobody yet.
    struct script s;
    script_init(&s, "true");
    guest_result *r = rig_script(&rig, &s);
    assert_int_equal(r->status, STATUS(NO_WORKSPACE));
    pb_free(r);
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    c.machine_id = bytes_of("0123456789abcdef0123456789abcdef");
    c.hostname = bytes_of("box");
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, 0);
    pb_free(report);
    char *out = rig_sh(&rig, "cat /tmp/prepared; set -- /proc/[0-9]*; echo $#");
    assert_string_equal(out, "once\n2\n");  // the agent and the shell: nothing of it is left running
    free(out);
    rig_stop(&rig);
}

static void nothing_is_prepared_twice_at_once_or_after_configure(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    send_prepare(&rig, "mkfifo /tmp/line; echo one >>/tmp/prepared; read x </tmp/line");
    send_prepare(&rig, "echo two >>/tmp/prepared");
    assert_true(ping(&rig, 4) == 4);  // only one is answered, and not yet
    send_prepare(&rig, "echo three >>/tmp/prepared");
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    c.machine_id = bytes_of("0123456789abcdef0123456789abcdef");
    c.hostname = bytes_of("box");
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, 0);
    pb_free(report);
    char *out = rig_sh(&rig, "until [ -p /tmp/line ]; do :; done; echo x >/tmp/line; cat /tmp/prepared");
    assert_string_equal(out, "one\n");
    free(out);
    expect_prepared(&rig);
    send_prepare(&rig, "echo four >>/tmp/prepared");
    assert_true(ping(&rig, 5) == 5);
    out = rig_sh(&rig, "cat /tmp/prepared");
    assert_string_equal(out, "one\n");
    free(out);
    rig_stop(&rig);
}

static void the_identity_is_written(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    char *out = rig_sh(&rig, "cat /etc/machine-id /etc/hostname /etc/hosts; stat -c '%a %F' /workspace /etc/hosts; ls -A /etc");
    assert_string_equal(out, "0123456789abcdef0123456789abcdef\nbox\n127.0.0.1 localhost\n127.0.1.1 box\n"
                             "::1 localhost ip6-localhost ip6-loopback\n755 directory\n644 regular file\n"
                             "hostname\nhosts\nmachine-id\n");
    free(out);
    rig_stop(&rig);
}

// One that was kept in between is another one now.
static void a_fork_is_configured_anew(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    Sandbox__Agent__Suspend suspend = SANDBOX__AGENT__SUSPEND__INIT;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_SUSPEND;
    command.suspend = &suspend;
    ProtobufCBinaryData env[] = {bytes_of("SANDBOX_B=2")};
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    c.env = env;
    c.n_env = 1;
    for (int i = 0; i < 2; i++) {
        rig_command(&rig, &command, -1);
        Sandbox__Agent__Report *report = rig_configure(&rig, &c);
        assert_int_equal(report->configured->error_number, 0);
        pb_free(report);
        // Its variables are those it was given now, and no others.
        char *out = rig_sh(&rig, "echo $SANDBOX_A $SANDBOX_B");
        assert_string_equal(out, "2\n");
        free(out);
        // And it is not suspended any more.
        report = rig_configure(&rig, &c);
        assert_int_equal(report->configured->error_number, EALREADY);
        pb_free(report);
    }
    rig_stop(&rig);
}

static void a_second_configure_is_refused(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    ProtobufCBinaryData env[] = {bytes_of("SANDBOX_A=other")};
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    c.env = env;
    c.n_env = 1;
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, EALREADY);
    pb_free(report);
    char *out = rig_sh(&rig, "echo $SANDBOX_A");
    assert_string_equal(out, "1\n");
    free(out);
    rig_stop(&rig);
}

static void bad_configures_are_refused(void **state)
{
    struct rig rig;
    rig_start(&rig, NULL);
    enum { MOST = ENV_VARS_MAX + ENV_ENGINE_MAX };
    ProtobufCBinaryData env[MOST + 1];
    for (size_t i = 0; i <= MOST; i++)
        env[i] = bytes_of("A=1");
    const struct {
        ProtobufCBinaryData id, host, first;
        size_t n_env;
    } bad[] = {
        {bytes_of("0123"), bytes_of("box"), bytes_of("A=1"), 1},
        {bytes_of("0123456789ABCDEF0123456789abcdef"), bytes_of("box"), bytes_of("A=1"), 1},
        {bytes_of(""), bytes_of("a b"), bytes_of("A=1"), 1},
        {bytes_of(""), bytes_of("a\nb"), bytes_of("A=1"), 1},
        {bytes_of(""), bytes_of("a234567890123456789012345678901234567890123456789012345678901234"), bytes_of("A=1"), 1},
        {bytes_of(""), bytes_of("box"), bytes_of("=1"), 1},
        {bytes_of(""), bytes_of("box"), bytes_of("A=1"), MOST + 1},
    };
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        env[0] = bad[i].first;
        c.machine_id = bad[i].id;
        c.hostname = bad[i].host;
        c.env = env;
        c.n_env = bad[i].n_env;
        Sandbox__Agent__Report *report = rig_configure(&rig, &c);
        assert_int_equal(report->configured->error_number, EINVAL);
        assert_string_not_equal(report->configured->message, "");
        pb_free(report);
    }
    // None of them configured it; the largest good one does.
    c.hostname = bytes_of("a23456789012345678901234567890123456789012345678901234567890123");
    env[0] = bytes_of("A=1");
    c.n_env = MOST;
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, 0);
    pb_free(report);
    rig_stop(&rig);
}

static void a_resolver_is_an_address_or_none(void **state)
{
    static const char *const bad[] = {"1.2.3",     "1.2.3.256", "::1",       "1.2.3.4\n",        " 1.2.3.4", "1.2.3.4 1.2.3.5",
                                      "1.2.3.4.5", "0x1.2.3.4", "localhost", "100.100.100.1000", "1..2.3"};
    struct rig rig;
    setenv("RIG_MAKE", "ln -s /target etc/resolv.conf; echo kept > target", 1);
    rig_start(&rig, NULL);
    unsetenv("RIG_MAKE");
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c.resolver = bytes_of(bad[i]);
        Sandbox__Agent__Report *report = rig_configure(&rig, &c);
        assert_int_equal(report->configured->error_number, EINVAL);
        assert_non_null(strstr(report->configured->message, "resolver"));
        pb_free(report);
    }
    c.resolver = (ProtobufCBinaryData){8, (uint8_t *)"1.2.3.4"};  // with its NUL
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, EINVAL);
    pb_free(report);
    c.resolver = bytes_of("169.254.101.101");
    report = rig_configure(&rig, &c);
    assert_int_equal(report->configured->error_number, 0);
    pb_free(report);
    char *out = rig_sh(&rig, "cat /etc/resolv.conf /target");
    assert_string_equal(out, "nameserver 169.254.101.101\nkept\n");
    free(out);
    rig_stop(&rig);
}

// The template was made by somebody hostile: links where our files go, and an /etc that is none.
static void odd_images_do_not_lead_us_astray(void **state)
{
    static const struct {
        const char *make, *look, *want;
    } cases[] = {
        {"ln -s /target etc/hostname; mkdir etc/hosts; mkfifo etc/machine-id; echo kept > target",
         "cat /target; cat /etc/machine-id; ls -ld /etc/hosts | cut -c1; cat /etc/hostname",
         "kept\n0123456789abcdef0123456789abcdef\nd\nbox\n"},
        {"rmdir etc; mkdir elsewhere; ln -s /elsewhere etc", "ls -A /elsewhere; readlink /etc", "/elsewhere\n"},
        {"rmdir etc; echo file > etc", "cat /etc", "file\n"},
        {"rmdir etc", "ls -d /etc 2>/dev/null || echo none", "none\n"},
        {"mkdir workspace; chmod 700 workspace", "stat -c %a /workspace", "700\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig rig;
        setenv("RIG_MAKE", cases[i].make, 1);
        rig_start_configured(&rig, NULL);
        unsetenv("RIG_MAKE");
        char *out = rig_sh(&rig, cases[i].look);
        assert_string_equal(out, cases[i].want);
        free(out);
        rig_stop(&rig);
    }
}

static void a_workspace_that_is_a_link_is_refused(void **state)
{
    struct rig rig;
    setenv("RIG_MAKE", "mkdir elsewhere; ln -s /elsewhere workspace", 1);
    rig_start(&rig, NULL);
    unsetenv("RIG_MAKE");
    Sandbox__Agent__Configure c = SANDBOX__AGENT__CONFIGURE__INIT;
    Sandbox__Agent__Report *report = rig_configure(&rig, &c);
    assert_int_not_equal(report->configured->error_number, 0);
    pb_free(report);
    rig_stop(&rig);
}

static void malformed_packets_are_dropped_with_their_descriptors(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    size_t before = rig_fd_count(&rig);
    for (int i = 0; i < 50; i++) {
        cleanup_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(null >= 0);
        rig_send_packet(&rig, "\xff\xff\xff", 3, null);  // not a message
        rig_send_packet(&rig, "\x12", 1, null);          // cut off
        rig_send_packet(&rig, "\x1a\x00", 2, null);      // a ping with a descriptor
        pb_free(rig_report(&rig));
        rig_send_packet(&rig, "\x12\x00", 2, -1);    // open_stream without one
        rig_send_packet(&rig, "\x12\x00", 2, null);  // open_stream with something that is no socket
        rig_send_packet(&rig, "\x7a\x00", 2, null);  // a command of the future
        int two[] = {null, null};
        assert_int_equal(fdpass_send(rig.control, "\x12\x00", 2, two, 2), 2);
        assert_int_equal(send(rig.control, "", 0, 0), 0);
    }
    static char long_packet[AGENT_CONTROL_MAX + 1];
    assert_int_equal(send(rig.control, long_packet, sizeof long_packet, 0), sizeof long_packet);
    assert_true(ping(&rig, 1) == 1);
    wait_for(rig_fd_count(&rig) == before);
    free(rig_sh(&rig, "true"));
    rig_stop(&rig);
}

// A stream's line that the agent could not take is one that has ended: the host would count it as open for ever.
static void a_line_that_cannot_be_had_has_ended(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    cleanup_fd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int full = 0; full < 2; full++) {
        struct rlimit before = {0};
        if (full) {
            assert_int_equal(prlimit(rig.pid, RLIMIT_NOFILE, NULL, &before), 0);
            assert_int_equal(prlimit(rig.pid, RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}, NULL), 0);
        }
        rig_send_packet(&rig, "\x12\x02\x08\x07", 4, full ? null : -1);
        Sandbox__Agent__Report *r = rig_report(&rig);
        assert_int_equal(r->report_case, SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED);
        assert_int_equal(r->stream_ended->id, 7);
        pb_free(r);
        if (full)
            assert_int_equal(prlimit(rig.pid, RLIMIT_NOFILE, &before, NULL), 0);
    }
    free(rig_sh(&rig, "true"));
    rig_stop(&rig);
}

static void the_end_of_the_control_line_ends_everything(void **state)
{
    struct rig rig;
    rig_start_configured(&rig, NULL);
    char *out = rig_sh(&rig, "setsid sleep 781 & echo");
    free(out);
    struct script s;
    script_init(&s, "sleep 782");
    Sandbox__Agent__Request request = EXEC_REQUEST(&s.exec);
    cleanup_fd int line = rig_open(&rig);
    rig_request(line, &request);
    rig_stop(&rig);  // the agent exits 0, and with it its pid namespace is empty
    assert_null(rig_answer_or_end(line));
}

static int run_plainly(const char *const *args, int in_fd)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (in_fd >= 0)
            fcntl(in_fd, F_SETFD, 0);
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, 2);
        const char *argv[8] = {"sandbox-agent"};
        for (size_t i = 0; args[i] != NULL; i++)
            argv[i + 1] = args[i];
        execv(getenv("AGENT_BINARY"), (char *const *)argv);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void bad_command_lines_are_refused(void **state)
{
    static const char *const bad[][4] = {
        {NULL},
        {"--control", NULL},
        {"--control", "x", NULL},
        {"--control", "2", NULL},
        {"--bogus", NULL},
        {"--control", "3", "extra", NULL},
        {"--group", "v2=9", "--self-test", NULL},
        {"--group", "v9=0", "--self-test", NULL},
        {"--group", "v2", "--self-test", NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(run_plainly(bad[i], -1), 2);
    // Not a socket of packets: cannot serve.
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    char number[16];
    snprintf(number, sizeof number, "%d", pair[1]);
    assert_int_equal(run_plainly((const char *const[]){"--control", number, NULL}, pair[1]), 1);
    close(pair[0]);
    close(pair[1]);
}

// As an ordinary process it still serves and ends; the self-test says at once that this is no sandbox.
static void it_works_without_being_process_one(void **state)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    char number[16];
    snprintf(number, sizeof number, "%d", pair[1]);
    struct rig rig = {.control = pair[0]};
    rig.pid = fork();
    assert_true(rig.pid >= 0);
    if (rig.pid == 0) {
        fcntl(pair[1], F_SETFD, 0);
        for (int i = 0; i < 3; i++)
            close(i);  // and without standard files
        execl(getenv("AGENT_BINARY"), "sandbox-agent", "--control", number, (char *)NULL);
        _exit(99);
    }
    close(pair[1]);
    assert_true(ping(&rig, 3) == 3);
    for (int i = 0; i < 3; i++) {
        char path[64], target[64];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)rig.pid, i);
        ssize_t n = readlink(path, target, sizeof target - 1);
        assert_true(n > 0);
        target[n] = '\0';
        assert_string_equal(target, "/dev/null");
    }
    close(rig.control);
    int status;
    wait_for(waitpid(rig.pid, &status, WNOHANG) == rig.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(run_plainly((const char *const[]){"--self-test", NULL}, -1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pings_are_answered_before_and_after_configure),
        cmocka_unit_test(nothing_is_done_before_configure),
        cmocka_unit_test(what_is_worth_doing_once_is_done_before_configure),
        cmocka_unit_test(nothing_is_prepared_twice_at_once_or_after_configure),
        cmocka_unit_test(the_identity_is_written),
        cmocka_unit_test(a_second_configure_is_refused),
        cmocka_unit_test(a_fork_is_configured_anew),
        cmocka_unit_test(a_resolver_is_an_address_or_none),
        cmocka_unit_test(bad_configures_are_refused),
        cmocka_unit_test(odd_images_do_not_lead_us_astray),
        cmocka_unit_test(a_workspace_that_is_a_link_is_refused),
        cmocka_unit_test(malformed_packets_are_dropped_with_their_descriptors),
        cmocka_unit_test(a_line_that_cannot_be_had_has_ended),
        cmocka_unit_test(the_end_of_the_control_line_ends_everything),
        cmocka_unit_test(bad_command_lines_are_refused),
        cmocka_unit_test(it_works_without_being_process_one),
    };
    if (!rig_possible())
        return 0;
    return cmocka_run_group_tests_name("agent_control", tests, NULL, NULL);
}
