// sandbox-engine: sandboxes and guest operations, from the first frame to the last, with a played jailer and played agents.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

// ---- life ----

static void a_sandbox_lives(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    ProtobufCBinaryData env[] = {{.len = 3, .data = (uint8_t *)"A=1"}, {.len = 2, .data = (uint8_t *)"B="}};
    spec.n_env_vars = 2;
    spec.env_vars = env;
    spec.template_name = (char *)"python-agent";
    spec.min_isolation = SANDBOX_ISOLATION_CONTAINER;
    rig_send_create(fd, 7, &spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    assert_int_equal(m->request_id, 7);
    assert_int_not_equal(m->create->sandbox_id, 0);
    assert_int_equal(strspn(m->create->session_token, "0123456789abcdef"), 64);
    assert_int_equal(strlen(m->create->session_token), 64);
    assert_int_equal(m->create->isolation, SANDBOX_ISOLATION_CONTAINER);
    assert_string_equal(m->create->start, "cold");
    uint32_t id = m->create->sandbox_id;
    pb_free(m);
    assert_int_equal(rig->play.env_vars, 2);
    assert_int_equal(rig->play.memory_mib, 64);
    assert_int_equal(rig->play.disk_mib, 1024);
    assert_int_equal(rig->play.vcpus, 1);
    assert_int_equal(rig->play.pids_max, 1024);

    rig_send_simple(fd, RIG_INSPECT, 8, id);
    m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    assert_true(m->inspect->is_running);
    assert_int_equal(m->inspect->sandbox_id, id);
    assert_int_equal(m->inspect->memory_rss_mib, 6);
    assert_int_equal(m->inspect->isolation, SANDBOX_ISOLATION_CONTAINER);
    assert_string_equal(m->inspect->start, "cold");
    pb_free(m);
    rig_send_simple(fd, RIG_DESTROY, 9, id);
    rig_expect(fd, 9, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    assert_int_equal(rig->play.live, 0);
    rig_send_simple(fd, RIG_DESTROY, 10, id);
    rig_expect_error(fd, 10, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    assert_int_not_equal(rig_create(fd), id);
    rig_stop(rig);
}

static uint32_t inspect_faults(int fd, uint32_t id, bool running)
{
    rig_send_simple(fd, RIG_INSPECT, 3, id);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    assert_int_equal(m->inspect->is_running, running);
    uint32_t faults = m->inspect->page_faults;
    pb_free(m);
    return faults;
}

static void pause_and_resume(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.page_faults = 100;
    assert_int_equal(inspect_faults(fd, id, true), 100);
    // Sent at once: they are done one after the other, in this order.
    rig_send_simple(fd, RIG_PAUSE, 1, id);
    rig_send_simple(fd, RIG_PAUSE, 2, id);
    rig_send_simple(fd, RIG_RESUME, 3, id);
    rig_send_simple(fd, RIG_RESUME, 4, id);
    rig_send_simple(fd, RIG_PAUSE, 5, id);
    rig_expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    rig_expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    rig_expect(fd, 4, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    rig_expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    assert_int_equal(rig->play.freezes, 2);
    assert_int_equal(rig->play.thaws, 1);
    rig->play.page_faults = 130;  // counted from the resume, at 100
    assert_int_equal(inspect_faults(fd, id, false), 30);
    rig_send_stat(fd, 6, id);
    rig_expect_error(fd, 6, SANDBOX_ERR_GUEST_UNAVAILABLE, "paused");
    rig_send_simple(fd, RIG_RESUME, 7, id);
    rig_expect(fd, 7, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    assert_int_equal(inspect_faults(fd, id, true), 0);
    rig_stop(rig);
}

static void foreign_and_unknown_are_the_same(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int mine = rig_connect(rig), other = rig_connect(rig);
    uint32_t id = rig_create(mine);
    static const enum rig_simple kinds[] = {RIG_DESTROY, RIG_PAUSE, RIG_RESUME, RIG_INSPECT};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        rig_send_simple(other, kinds[i], 5, id);
        rig_send_simple(other, kinds[i], 5, id + 1000);
        Sandbox__ServerMessage *a = rig_receive(other), *b = rig_receive(other);
        assert_int_equal(a->error->error_code, SANDBOX_ERR_PERMISSION_DENIED);
        assert_int_equal(b->error->error_code, SANDBOX_ERR_PERMISSION_DENIED);
        assert_string_equal(a->error->message, b->error->message);
        pb_free(a);
        pb_free(b);
    }
    rig_send_stat(other, 6, id);
    rig_expect_error(other, 6, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    assert_int_equal(inspect_faults(mine, id, true), 0);
    rig_stop(rig);
}

static void destroy_is_answered_when_it_is_gone(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.op = OP_SILENT;
    rig_send_stat(fd, 1, id);
    RIG_AWAIT(rig->play.lines == 1);
    rig->play.hold_exits = true;
    rig_send_simple(fd, RIG_DESTROY, 2, id);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    RIG_AWAIT(rig->play.stops == 1);
    rig_send_simple(fd, RIG_INSPECT, 3, id);
    rig_expect_error(fd, 3, SANDBOX_ERR_PERMISSION_DENIED, "no such sandbox");
    assert_true(rig_status_has(fd, "\"closing\":1"));
    rig->play.hold_exits = false;
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    rig_stop(rig);
}

static void destroy_does_not_wait_for_ever(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "stop_deadline_ms=150"));
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.hold_exits = true;
    rig_send_simple(fd, RIG_DESTROY, 2, id);
    rig_expect_error(fd, 2, SANDBOX_ERR_INTERNAL, "within 150 ms");
    rig->play.hold_exits = false;
    RIG_AWAIT(!rig_status_has(fd, "\"closing\":1"));
    rig_stop(rig);
}

static void death_by_itself(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.op = OP_SILENT;
    rig_send_stat(fd, 1, id);
    RIG_AWAIT(rig->play.lines == 1);
    rig->play.kill_oom = true;
    rig->play.kill_slot = 1;
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "");
    RIG_AWAIT(rig_status_has(fd, "\"gone\":1"));
    rig_send_stat(fd, 2, id);
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended by itself");
    rig_send_simple(fd, RIG_INSPECT, 3, id);
    rig_expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended by itself");
    rig_send_simple(fd, RIG_PAUSE, 4, id);
    rig_expect_error(fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    char *metrics = rig_http(rig, "GET /metrics HTTP/1.1\r\n\r\n");
    assert_non_null(strstr(metrics, "sandbox_engine_sandbox_deaths_total{reason=\"oom\"} 1\n"));
    free(metrics);
    rig_send_simple(fd, RIG_DESTROY, 5, id);
    rig_expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    rig_send_simple(fd, RIG_DESTROY, 6, id);
    rig_expect_error(fd, 6, SANDBOX_ERR_PERMISSION_DENIED, "");
    rig_stop(rig);
}

static void disconnect_reclaims(void **state)
{
    struct rig *rig = rig_start(NULL);
    int fd = rig_connect(rig);
    for (int i = 0; i < 3; i++)
        rig_create(fd);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(rig->play.held_starts == 1);
    close(fd);
    RIG_AWAIT(rig->play.live == 0);
    rig->play.hold_starts = false;  // the one in the middle of its start ends as soon as it exists
    RIG_AWAIT(rig->play.stops == 4);
    RIG_AWAIT(rig->play.live == 0);
    cleanup_fd int after = rig_connect(rig);
    RIG_AWAIT(rig_status_has(
        after, "\"sandboxes\":{\"provisioning\":0,\"ready\":0,\"running\":0,\"paused\":0,\"suspended\":0,\"closing\":0,"
               "\"gone\":0}"));
    rig_stop(rig);
}

// ---- creates that fail ----

static void agents_that_do_not_start(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "start_deadline_ms=200"));
    cleanup_fd int fd = rig_connect(rig);
    static const struct {
        enum play_configure mode;
        int code;
        const char *text;
    } cases[] = {
        {CONFIGURE_SILENT, SANDBOX_ERR_GUEST_UNAVAILABLE, "not ready within 200 ms"},
        {CONFIGURE_ERROR, SANDBOX_ERR_INTERNAL, "no ?? room (errno 28)"},
        {CONFIGURE_GARBAGE, SANDBOX_ERR_GUEST_UNAVAILABLE, "may not"},
        {CONFIGURE_PONG, SANDBOX_ERR_GUEST_UNAVAILABLE, "may not"},
        {CONFIGURE_CLOSE, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended before it was ready"},
    };
    Sandbox__CreateRequest spec = rig_spec();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig->play.configure = (int)cases[i].mode;
        rig_send_create(fd, i + 1, &spec);
        rig_expect_error(fd, i + 1, cases[i].code, cases[i].text);
        RIG_AWAIT(rig->play.live == 0);
    }
    rig->play.configure = CONFIGURE_OK;
    rig->play.start_error = -ENOSPC;
    rig_send_create(fd, 90, &spec);
    rig_expect_error(fd, 90, SANDBOX_ERR_INTERNAL, "as the test wanted");
    rig->play.start_error = 0;
    rig_create(fd);
    rig_stop(rig);
}

static void expect_refused(int fd, const Sandbox__CreateRequest *spec, int code, const char *text)
{
    rig_send_create(fd, 11, spec);
    rig_expect_error(fd, 11, code, text);
}

static void creates_that_cannot_be_had(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "isolation_floor=process"));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    spec.min_isolation = SANDBOX_ISOLATION_VM;
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "the isolation floor is \"vm\"");
    spec = rig_spec();
    spec.template_name = (char *)"nothing";
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "nothing");
    spec = rig_spec();
    spec.memory_mib = 1;
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "memory_mib is 1");
    spec = rig_spec();
    spec.session_key = (ProtobufCBinaryData){.len = 3, .data = (uint8_t *)"k\"y"};
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "session_key must be");
    spec = rig_spec();
    spec = rig_spec();
    spec.egress_deny_all = 1;  // nothing is what it gets anyway; more is test_engine_egress.c's
    rig_send_create(fd, 12, &spec);
    rig_expect(fd, 12, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_stop(rig);
}

static void fail_the_probe(struct rig *rig)
{
    rig->play.probe_error = -EPERM;
}

static void without_a_tier_nothing_runs(void **state)
{
    struct rig *rig = rig_launch(NULL, fail_the_probe);
    rig_await_ready(rig);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "as the test wanted");
    assert_true(rig_status_has(
        fd, "{\"name\":\"container\",\"available\":false,\"reason\":\"as the test wanted\",\"fix\":\"needs Linux"));
    assert_true(rig_status_has(fd, "\"default_tier\":null"));
    rig_stop(rig);
}

static void write_over(const struct rig *rig, const char *bytes)
{
    char path[128];
    rig_path(rig, "templates/debian/rootfs.ext4", path, sizeof path);
    cleanup_file FILE *f = fopen(path, "r+e");
    assert_non_null(f);
    assert_int_equal(fputs(bytes, f) >= 0, 1);
}

static void templates_are_watched(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig_create(fd);
    rig_create(fd);
    assert_int_equal(rig->play.mounts, 1);
    assert_true(rig_status_has(fd, "\"templates_loaded\":[\"debian\"]"));
    // Tampered with: refused, and the file is named.
    write_over(rig, "NOT");
    Sandbox__CreateRequest spec = rig_spec();
    expect_refused(fd, &spec, SANDBOX_ERR_INVALID_SPEC, "rootfs.ext4");
    assert_true(rig_status_has(fd, "\"templates_loaded\":[]"));
    // As it was: good again, once it has been hashed again.
    write_over(rig, "not");
    rig_create(fd);
    // Built anew: the new file is used.
    unsigned mounts = rig->play.mounts, unmounts = rig->play.unmounts;
    rig_write_template(rig, "debian", "another filesystem");
    rig_create(fd);
    assert_int_equal(rig->play.mounts, mounts + 1);
    RIG_AWAIT(rig->play.unmounts == unmounts + 1);
    rig->play.mount_error = -EIO;
    rig_write_template(rig, "other", "x");
    spec.template_name = (char *)"other";
    expect_refused(fd, &spec, SANDBOX_ERR_INTERNAL, "as the test wanted");
    rig_stop(rig);
}

// ---- guest operations ----

static void operations_are_relayed_unread(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig_send_exec(fd, 5, id, 250);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    assert_int_equal(m->request_id, 5);
    assert_int_equal(m->guest->sandbox_id, id);
    // The played agent sends back what it was asked.
    Sandbox__Agent__Request *request =
        (Sandbox__Agent__Request *)pb_unpack(&sandbox__agent__request__descriptor, m->guest->body.data, m->guest->body.len);
    assert_non_null(request);
    assert_int_equal(request->version, AGENT_PROTOCOL_VERSION);
    assert_false(request->allow_outside);
    assert_int_equal(request->op_case, SANDBOX__AGENT__REQUEST__OP_EXEC);
    assert_int_equal(request->exec->timeout_ms, 250);
    assert_int_equal(request->exec->n_argv, 1);
    pb_free(request);
    pb_free(m);

    rig->play.op = OP_GARBAGE;
    rig_send_stat(fd, 6, id);
    m = rig_receive(fd);
    assert_int_equal(m->guest->body.len, 3);
    assert_memory_equal(m->guest->body.data, "\xff\xff\xff", 3);
    pb_free(m);
    rig->play.op = OP_LONGEST;
    rig_send_stat(fd, 7, id);
    m = rig_receive(fd);
    assert_int_equal(m->guest->body.len, AGENT_RESULT_MAX);
    pb_free(m);
    rig->play.op = OP_TOO_LONG;
    rig_send_stat(fd, 8, id);
    rig_expect_error(fd, 8, SANDBOX_ERR_GUEST_UNAVAILABLE, "too long");
    rig->play.op = OP_CLOSE;
    rig_send_stat(fd, 9, id);
    rig_expect_error(fd, 9, SANDBOX_ERR_GUEST_UNAVAILABLE, "before it answered");
    rig_send_stat(fd, 0, id);
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "request_id");
    rig_stop(rig);
}

static void at_most_sixteen_at_once(void **state)
{
    struct rig *rig = rig_start(NULL);
    int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.op = OP_SILENT;
    for (uint64_t i = 1; i <= 16; i++)
        rig_send_stat(fd, i, id);
    rig_send_stat(fd, 17, id);
    rig_expect_error(fd, 17, SANDBOX_ERR_GUEST_UNAVAILABLE, "16 guest operations");
    RIG_AWAIT(rig->play.lines == 16);
    // One that ends makes room for one.
    cleanup_fd int other = rig_connect(rig);
    uint32_t its = rig_create(other);
    rig->play.op = OP_ECHO;
    rig_send_stat(other, 1, its);
    rig_expect(other, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    close(fd);  // cancels them all
    RIG_AWAIT(rig->play.live == 1);
    rig_stop(rig);
}

static void deadlines(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "guest_deadline_ms=150", "--set", "exec_grace_ms=100"));
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.op = OP_SILENT;
    rig_send_stat(fd, 1, id);
    rig_expect_error(fd, 1, SANDBOX_ERR_TIMEOUT, "within 150 ms");
    RIG_AWAIT(rig->play.cancelled_lines == 1);
    // The agent has shown that it is alive: the next one is tried.
    RIG_AWAIT(rig->play.pings == 1);
    rig_send_simple(fd, RIG_INSPECT, 2, id);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    rig->play.mute_pings = true;
    rig_send_exec(fd, 3, id, 50);
    rig_expect_error(fd, 3, SANDBOX_ERR_TIMEOUT, "within 150 ms");
    // It has not: nothing is tried until it does.
    rig_send_stat(fd, 4, id);
    rig_expect_error(fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "does not answer");
    rig_stop(rig);
}

static void deadlines_stand_still_in_a_pause(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "guest_deadline_ms=300"));
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.op = OP_SILENT;
    rig_send_stat(fd, 1, id);
    rig_send_simple(fd, RIG_PAUSE, 2, id);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    assert_true(rig_silent(fd, 600));
    uint64_t resumed = mono_ns();
    rig_send_simple(fd, RIG_RESUME, 3, id);
    rig_expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    rig_expect_error(fd, 1, SANDBOX_ERR_TIMEOUT, "within 300 ms");
    assert_true(mono_ns() - resumed >= 50 * NS_PER_MS);
    rig_stop(rig);
}

// ---- the ends of the engine ----

static void the_end_takes_everything_along(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
    rig_create(fd);
    rig_create(other);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(rig->play.held_starts == 1);
    rig->play.hold_starts = false;
    rig_stop(rig);
    assert_true(rig_closed(fd));
}

static void the_end_is_bounded(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "stop_deadline_ms=200"));
    cleanup_fd int fd = rig_connect(rig);
    rig_create(fd);
    rig->play.hold_exits = true;
    kill(rig->engine, SIGINT);
    assert_int_equal(rig_wait(rig), 0);
    rig_free(rig);
}

static void without_the_jailer_it_ends(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig_create(fd);
    rig->play.op = OP_SILENT;
    rig->stop = true;  // the played jailer goes, and with it everything
    assert_int_equal(rig_wait(rig), 70);
    assert_true(rig_closed(fd));
    char *log = rig_log(rig);
    assert_non_null(strstr(log, "\"event\":\"jailer_lost\""));
    free(log);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sandbox_lives),
        cmocka_unit_test(pause_and_resume),
        cmocka_unit_test(foreign_and_unknown_are_the_same),
        cmocka_unit_test(destroy_is_answered_when_it_is_gone),
        cmocka_unit_test(destroy_does_not_wait_for_ever),
        cmocka_unit_test(death_by_itself),
        cmocka_unit_test(disconnect_reclaims),
        cmocka_unit_test(agents_that_do_not_start),
        cmocka_unit_test(creates_that_cannot_be_had),
        cmocka_unit_test(without_a_tier_nothing_runs),
        cmocka_unit_test(templates_are_watched),
        cmocka_unit_test(operations_are_relayed_unread),
        cmocka_unit_test(at_most_sixteen_at_once),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(deadlines_stand_still_in_a_pause),
        cmocka_unit_test(the_end_takes_everything_along),
        cmocka_unit_test(the_end_is_bounded),
        cmocka_unit_test(without_the_jailer_it_ends),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
