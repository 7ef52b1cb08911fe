// The engine's line to the agent of a machine: the machine calls first, what was sent before waits, operation lines are
// connections with a greeting.  The monitor and the agent are played here.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/agent_line.h"
#include "sys/fdpass.h"
#include "sys/unixsock.h"
#include "unit.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WAIT_MS = 10000 };

struct world {
    struct loop *loop;
    char dir[32];
    int listener;
    int monitor;  // its end of the dial socket
    int machine;  // the far end of the control line, once the machine has called
    struct agent_line *line;
    int up, configured, prepared, host_api, ended, reason;
    uint64_t stream_ended;
};

static void stop(struct world *w)
{
    loop_stop(w->loop, 0);
}

static void on_up(void *arg)
{
    struct world *w = arg;
    w->up++;
    stop(w);
}

static void on_configured(void *arg, uint32_t error_number, const char *message)
{
    (void)message;
    struct world *w = arg;
    w->configured += error_number == 0;
    stop(w);
}

static void on_prepared(void *arg)
{
    struct world *w = arg;
    w->prepared++;
    stop(w);
}

static void on_pong(void *arg)
{
    stop(arg);
}

static void on_stream_ended(void *arg, uint64_t id)
{
    struct world *w = arg;
    w->stream_ended = id;
    stop(w);
}

static void on_end(void *arg, int reason)
{
    struct world *w = arg;
    w->ended++;
    w->reason = reason;
    stop(w);
}

static void on_host_api(void *arg, uint32_t error_number, const char *message)
{
    (void)message;
    struct world *w = arg;
    w->host_api += error_number == 0;
    stop(w);
}

static void on_late(void *arg)
{
    (void)arg;
    fail_msg("nothing happened within %d ms", WAIT_MS);
}

static void wait_for_event(struct world *w)
{
    struct timer late;
    timer_init(&late, on_late, NULL);
    timer_set(w->loop, &late, mono_ns() + WAIT_MS * NS_PER_MS);
    assert_int_equal(loop_run(w->loop), 0);
    timer_cancel(w->loop, &late);
}

static void begin(struct world *w)
{
    static const struct agent_line_handler handler = {
        .on_up = on_up,
        .on_configured = on_configured,
        .on_prepared = on_prepared,
        .on_pong = on_pong,
        .on_stream_ended = on_stream_ended,
        .on_host_api = on_host_api,
        .on_end = on_end,
    };
    *w = (struct world){.machine = -1};
    strcpy(w->dir, "/tmp/machine-line.XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    cleanup_fd int dir = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(unixsock_listen(dir, "s", 0600, &w->listener), 0);
    int dial = openat(dir, "s", O_PATH | O_CLOEXEC), pair[2];
    // It has no name from here on.
    assert_int_equal(unixsock_unlink(dir, "s"), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    w->monitor = pair[1];
    assert_int_equal(loop_new(&w->loop), 0);
    assert_int_equal(agent_line_new(w->loop, pair[0], dial, &handler, w, &w->line), 0);
}

static void finish(struct world *w)
{
    w->line = agent_line_free(w->line);
    close_fd(&w->listener);
    close_fd(&w->monitor);
    close_fd(&w->machine);
    loop_free(w->loop);
    rmdir(w->dir);
}

// The monitor passes on a connection that its guest made.
static void call_in(struct world *w)
{
    int pair[2];
    const uint8_t port[4] = {AGENT_VSOCK_PORT & 255, AGENT_VSOCK_PORT >> 8};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fdpass_send(w->monitor, port, sizeof port, &pair[0], 1), sizeof port);
    close(pair[0]);
    close_fd(&w->machine);
    w->machine = pair[1];
}

static void say(struct world *w, const Sandbox__Agent__Report *report)
{
    uint8_t frame[256] = {0};
    size_t n = sandbox__agent__report__pack(report, frame + 4);
    frame[3] = (uint8_t)n;
    assert_int_equal(send(w->machine, frame, n + 4, 0), n + 4);
}

static void say_configured(struct world *w)
{
    Sandbox__Agent__Configured configured = SANDBOX__AGENT__CONFIGURED__INIT;
    configured.protocol = AGENT_PROTOCOL_VERSION;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_CONFIGURED;
    report.configured = &configured;
    say(w, &report);
}

static void expect_bytes(int fd, const void *expected, size_t n)
{
    uint8_t got[256];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (size_t have = 0; have < n;) {
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        ssize_t part = recv(fd, got + have, n - have, 0);
        assert_true(part > 0);
        have += (size_t)part;
    }
    assert_memory_equal(got, expected, n);
}

static void what_is_said_early_waits_for_the_call(void **state)
{
    struct world w;
    begin(&w);
    assert_int_equal(agent_line_configure(w.line, (const uint8_t *)"first", 5), 0);
    assert_false(agent_line_is_up(w.line));
    call_in(&w);
    wait_for_event(&w);
    assert_int_equal(w.up, 1);
    assert_true(agent_line_is_up(w.line));
    say_configured(&w);
    wait_for_event(&w);
    assert_int_equal(w.configured, 1);
    expect_bytes(w.machine, "\0\0\0\5first", 9);
    // And what is said later goes at once.
    assert_int_equal(agent_line_ping(w.line), 0);
    expect_bytes(w.machine, "\0\0\0\4\x1a\2\x08\1", 8);
    close_fd(&w.machine);
    wait_for_event(&w);
    assert_int_equal(w.ended, 1);
    assert_int_equal(w.reason, 0);
    finish(&w);
}

static void more_than_the_queue_is_refused_early(void **state)
{
    struct world w;
    begin(&w);
    static const uint8_t large[AGENT_CONTROL_MAX];
    assert_int_equal(agent_line_configure(w.line, large, sizeof large), 0);
    assert_int_equal(agent_line_configure(w.line, large, sizeof large), 0);
    assert_int_equal(agent_line_configure(w.line, large, 1), -EAGAIN);
    finish(&w);
}

static void operation_lines_name_their_stream(void **state)
{
    struct world w;
    begin(&w);
    for (uint64_t i = 1; i <= 2; i++) {
        uint64_t id = 0;
        char expected[64];
        cleanup_fd int fd = -1;
        assert_int_equal(agent_line_open_stream(w.line, &fd, &id), 0);
        assert_int_equal(id, i);
        cleanup_fd int other = accept(w.listener, NULL, NULL);
        assert_true(other >= 0);
        int n = snprintf(expected, sizeof expected, "OPEN %d\n", AGENT_VSOCK_PORT);
        const uint8_t bytes[8] = {[7] = (uint8_t)i};
        memcpy(expected + n, bytes, sizeof bytes);
        expect_bytes(other, expected, (size_t)n + sizeof bytes);
        // A blocking socket, as a client expects one.
        assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    }
    call_in(&w);
    wait_for_event(&w);
    Sandbox__Agent__StreamEnded ended = SANDBOX__AGENT__STREAM_ENDED__INIT;
    ended.id = 2;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED;
    report.stream_ended = &ended;
    say(&w, &report);
    wait_for_event(&w);
    assert_int_equal(w.stream_ended, 2);
    ended.id = 3;  // there is none
    say(&w, &report);
    wait_for_event(&w);
    assert_int_equal(w.reason, -EPROTO);
    finish(&w);
}

static void a_machine_without_a_monitor_has_no_lines(void **state)
{
    struct world w;
    begin(&w);
    close_fd(&w.listener);
    int fd = -1;
    uint64_t id;
    assert_int_equal(agent_line_open_stream(w.line, &fd, &id), -ECONNREFUSED);
    assert_int_equal(fd, -1);
    close_fd(&w.monitor);
    wait_for_event(&w);
    assert_int_equal(w.up, 0);
    assert_int_equal(w.reason, 0);
    finish(&w);
}

static void a_monitor_that_lies_ends_the_line(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } lies[] = {{"\0\4\0\0", 4}, {"\0\4", 2}};  // a port without a connection
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct world w;
        begin(&w);
        assert_int_equal(fdpass_send(w.monitor, lies[i].bytes, lies[i].n, NULL, 0), lies[i].n);
        wait_for_event(&w);
        assert_int_equal(w.reason, -EPROTO);
        finish(&w);
    }
    // A report that is longer than any may be.
    struct world w;
    begin(&w);
    call_in(&w);
    wait_for_event(&w);
    assert_int_equal(send(w.machine, "\0\1\0\1x", 5, 0), 5);
    wait_for_event(&w);
    assert_int_equal(w.reason, -EPROTO);
    finish(&w);
}

static Sandbox__Agent__Command *read_command(struct world *w)
{
    uint8_t head[4], body[512];
    struct pollfd p = {.fd = w->machine, .events = POLLIN};
    assert_int_equal(poll(&p, 1, WAIT_MS), 1);
    assert_int_equal(recv(w->machine, head, 4, MSG_WAITALL), 4);
    size_t n = (size_t)head[2] << 8 | head[3];
    assert_true(n <= sizeof body);
    assert_int_equal(recv(w->machine, body, n, MSG_WAITALL), n);
    Sandbox__Agent__Command *command = sandbox__agent__command__unpack(NULL, n, body);
    assert_non_null(command);
    return command;
}

// ---- the line to route grants ----

// The monitor passes on a connection to a port; the guest's end of it.
static int guest_calls(struct world *w, uint32_t port)
{
    int pair[2];
    const uint8_t bytes[4] = {(uint8_t)port, (uint8_t)(port >> 8), (uint8_t)(port >> 16), (uint8_t)(port >> 24)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fdpass_send(w->monitor, bytes, sizeof bytes, &pair[0], 1), sizeof bytes);
    close(pair[0]);
    return pair[1];
}

static void on_turn(void *arg)
{
    stop(arg);
}

// Has the line take all that the monitor passed on.
static void settle(struct world *w)
{
    uint64_t give_up = mono_ns() + WAIT_MS * NS_PER_MS;
    int unread = 1;
    while (unread > 0) {
        assert_true(mono_ns() < give_up);
        struct timer turn;
        timer_init(&turn, on_turn, w);
        timer_set(w->loop, &turn, mono_ns() + NS_PER_MS / 10);
        assert_int_equal(loop_run(w->loop), 0);
        timer_cancel(w->loop, &turn);
        assert_int_equal(ioctl(w->monitor, SIOCOUTQ, &unread), 0);
    }
}

static bool is_closed(int fd)
{
    char byte;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

// A byte and a connection come over the feed; what is said at one end is heard at the other.
static bool is_fed(int feed, int guest)
{
    char byte;
    int fds[1];
    size_t count = 1;
    if (fdpass_recv(feed, &byte, 1, fds, &count) != 1 || count != 1)
        return false;
    cleanup_fd int fd = fds[0];
    return send(guest, "x", 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1 && byte == 'x';
}

static void calls_of_a_guest_go_to_the_feed(void **state)
{
    struct world w;
    int pair[2];
    begin(&w);
    call_in(&w);
    wait_for_event(&w);
    // Without a line, nobody is there; nor at another port, ever.
    cleanup_fd int early = guest_calls(&w, HOST_API_VSOCK_PORT);
    settle(&w);
    assert_true(is_closed(early));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    cleanup_fd int broker = pair[0], agent = pair[1];
    assert_int_equal(fcntl(agent, F_SETFL, 0), 0);
    assert_int_equal(agent_line_host_api(w.line, agent), 0);
    assert_int_equal(agent_line_host_api(w.line, agent), -EALREADY);
    Sandbox__Agent__Command *command = read_command(&w);
    assert_int_equal(command->command_case, SANDBOX__AGENT__COMMAND__COMMAND_HOST_API);
    sandbox__agent__command__free_unpacked(command, NULL);
    Sandbox__Agent__HostApiReady ready = SANDBOX__AGENT__HOST_API_READY__INIT;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_HOST_API;
    report.host_api = &ready;
    say(&w, &report);
    wait_for_event(&w);
    assert_int_equal(w.host_api, 1);
    static const uint32_t others[] = {
        0,         1, AGENT_VSOCK_PORT, HOST_API_VSOCK_PORT + 1, HOST_API_VSOCK_PORT | 1 << 16, HOST_API_VSOCK_PORT | 1U << 31,
        UINT32_MAX};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        cleanup_fd int other = guest_calls(&w, others[i]);
        settle(&w);
        assert_true(is_closed(other));
    }
    cleanup_fd int guest = guest_calls(&w, HOST_API_VSOCK_PORT);
    settle(&w);
    assert_true(is_fed(broker, guest));
    // A broker that takes none of them costs the guest its connections, and the engine no time.
    enum { MANY = 4096 };
    unsigned closed = 0, fed = 0;
    while (closed == 0 && fed++ < MANY) {
        cleanup_fd int one = guest_calls(&w, HOST_API_VSOCK_PORT);
        settle(&w);
        closed += is_closed(one);
    }
    assert_int_equal(closed, 1);
    assert_int_equal(w.ended, 0);
    // One that went away: closed, and nothing else ends.
    close_fd(&broker);
    cleanup_fd int late = guest_calls(&w, HOST_API_VSOCK_PORT);
    settle(&w);
    assert_true(is_closed(late));
    // Readiness that nobody asked for is a lie.
    say(&w, &report);
    wait_for_event(&w);
    assert_int_equal(w.reason, -EPROTO);
    finish(&w);
}

static void say_identified_with(struct world *w, uint32_t error_number, bool line, bool volume)
{
    Sandbox__Agent__Identified identified = SANDBOX__AGENT__IDENTIFIED__INIT;
    identified.error_number = error_number;
    identified.line = line;
    identified.volume = volume;
    identified.message = (char *)"setting the clock";
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_IDENTIFIED;
    report.identified = &identified;
    say(w, &report);
}

static void say_identified(struct world *w, uint32_t error_number)
{
    say_identified_with(w, error_number, false, false);
}

// Whatever was said before: the identity comes first, stamped when the machine called, and another each time.
static void a_clone_is_given_an_identity_first(void **state)
{
    uint8_t entropy[2][64], boot_id[2][16];
    for (int i = 0; i < 2; i++) {
        struct world w;
        begin(&w);
        assert_int_equal(agent_line_identify(w.line, &(struct agent_identity){.hostname = "sbx-1"}), 0);
        assert_int_equal(agent_line_configure(w.line, (const uint8_t *)"first", 5), 0);
        uint64_t before = wall_ns();
        call_in(&w);
        wait_for_event(&w);
        assert_int_equal(w.up, 1);
        say_identified(&w, 0);
        say_configured(&w);
        wait_for_event(&w);
        assert_int_equal(w.configured, 1);
        Sandbox__Agent__Command *command = read_command(&w);
        assert_int_equal(command->command_case, SANDBOX__AGENT__COMMAND__COMMAND_IDENTITY);
        const Sandbox__Agent__Identity *identity = command->identity;
        assert_int_equal(identity->entropy.len, 64);
        assert_int_equal(identity->boot_id.len, 16);
        assert_int_equal(identity->hostname.len, 5);
        assert_memory_equal(identity->hostname.data, "sbx-1", 5);
        assert_true(identity->wall_ns >= before && identity->wall_ns <= wall_ns());
        assert_true(identity->line == NULL && !identity->volume);
        memcpy(entropy[i], identity->entropy.data, 64);
        memcpy(boot_id[i], identity->boot_id.data, 16);
        sandbox__agent__command__free_unpacked(command, NULL);
        expect_bytes(w.machine, "\0\0\0\5first", 9);
        finish(&w);
    }
    assert_memory_not_equal(entropy[0], entropy[1], 64);
    assert_memory_not_equal(boot_id[0], boot_id[1], 16);
}

// A clone that does not acknowledge, or says it could not, is not used.
static void a_clone_without_identity_ends_the_line(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct world w;
        begin(&w);
        if (i < 2)
            assert_int_equal(agent_line_identify(w.line, &(struct agent_identity){.hostname = "sbx-1"}), 0);
        assert_int_equal(agent_line_configure(w.line, (const uint8_t *)"first", 5), 0);
        call_in(&w);
        wait_for_event(&w);
        assert_int_equal(w.up, 1);
        if (i == 0)
            say_configured(&w);
        else
            say_identified(&w, i == 1 ? 5 : 0);  // the last was not asked for
        wait_for_event(&w);
        assert_int_equal(w.configured, 0);
        assert_int_equal(w.ended, 1);
        assert_int_equal(w.reason, i == 1 ? -EIO : -EPROTO);
        finish(&w);
    }
}

// With the identity come the line and the volume, and what acknowledges it must have taken just these.
static void a_clone_is_told_of_its_line_and_its_volume(void **state)
{
    static const struct network lines[] = {
        {.kind = NETWORK_NONE, .guest = {9, 9, 9, 9}},
        {.kind = NETWORK_PROXY, .host = {10, 0, 0, 5}, .guest = {10, 0, 0, 6}, .prefix_bits = 30},
        {.kind = NETWORK_TRANSPARENT, .host = {10, 0, 0, 1}, .guest = {10, 0, 0, 2}, .prefix_bits = 30},
    };
    for (unsigned i = 0; i < 3 * 2 * 4; i++) {
        const struct network *network = &lines[i % 3];
        bool has = network->kind != NETWORK_NONE, volume = i / 3 % 2 != 0;
        unsigned wrong = i / 6;  // 1: the line, 2: the volume, 3: both are acknowledged wrongly
        struct world w;
        begin(&w);
        const struct agent_identity with = {.hostname = "sbx-1", .network = network, .volume = volume};
        assert_int_equal(agent_line_identify(w.line, &with), 0);
        assert_int_equal(agent_line_configure(w.line, (const uint8_t *)"first", 5), 0);
        call_in(&w);
        wait_for_event(&w);
        Sandbox__Agent__Command *command = read_command(&w);
        const Sandbox__Agent__Identity *identity = command->identity;
        assert_int_equal(identity->line != NULL, has);
        assert_int_equal(identity->volume, volume);
        if (has) {
            assert_int_equal(identity->line->host.len, 4);
            assert_memory_equal(identity->line->host.data, network->host, 4);
            assert_int_equal(identity->line->guest.len, 4);
            assert_memory_equal(identity->line->guest.data, network->guest, 4);
            assert_int_equal(identity->line->prefix_bits, 30);
            assert_int_equal(identity->line->transparent, network->kind == NETWORK_TRANSPARENT);
        }
        sandbox__agent__command__free_unpacked(command, NULL);
        say_identified_with(&w, 0, has != ((wrong & 1) != 0), volume != ((wrong & 2) != 0));
        say_configured(&w);
        wait_for_event(&w);
        assert_int_equal(w.configured, wrong == 0);
        assert_int_equal(w.ended, wrong != 0);
        if (wrong != 0)
            assert_int_equal(w.reason, -EIO);
        finish(&w);
    }
}

static void a_template_is_prepared(void **state)
{
    static const char *const argv[] = {"python3", "-c", "pass"};
    struct world w;
    begin(&w);
    assert_int_equal(agent_line_prepare(w.line, argv, 3), 0);
    call_in(&w);
    wait_for_event(&w);
    assert_int_equal(w.up, 1);
    Sandbox__Agent__Prepared prepared = SANDBOX__AGENT__PREPARED__INIT;
    Sandbox__Agent__Report report = SANDBOX__AGENT__REPORT__INIT;
    report.report_case = SANDBOX__AGENT__REPORT__REPORT_PREPARED;
    report.prepared = &prepared;
    say(&w, &report);
    wait_for_event(&w);
    assert_int_equal(w.prepared, 1);
    Sandbox__Agent__Command *command = read_command(&w);
    assert_int_equal(command->command_case, SANDBOX__AGENT__COMMAND__COMMAND_PREPARE);
    assert_int_equal(command->prepare->n_argv, 3);
    assert_memory_equal(command->prepare->argv[2].data, "pass", 4);
    sandbox__agent__command__free_unpacked(command, NULL);
    say(&w, &report);  // again, unasked
    wait_for_event(&w);
    assert_int_equal(w.reason, -EPROTO);
    finish(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_early_waits_for_the_call),
        cmocka_unit_test(more_than_the_queue_is_refused_early),
        cmocka_unit_test(operation_lines_name_their_stream),
        cmocka_unit_test(a_machine_without_a_monitor_has_no_lines),
        cmocka_unit_test(a_monitor_that_lies_ends_the_line),
        cmocka_unit_test(a_clone_is_given_an_identity_first),
        cmocka_unit_test(a_clone_without_identity_ends_the_line),
        cmocka_unit_test(a_clone_is_told_of_its_line_and_its_volume),
        cmocka_unit_test(a_template_is_prepared),
        cmocka_unit_test(calls_of_a_guest_go_to_the_feed),
    };
    return cmocka_run_group_tests_name("machine_line", tests, NULL, NULL);
}
