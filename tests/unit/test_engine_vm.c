// sandbox-engine and the vm tier: its driver, with a jailer, monitors and machines that are played.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"
#include "wire/vmm.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SET(text) "--set", text

enum { QUIET_MS = 100 };

static struct rig *start(const char *const *args)
{
    struct rig *rig = rig_launch(args, rig_with_machines);
    rig_await_ready(rig);
    return rig;
}

static bool logged(const struct rig *rig, const char *text)
{
    char *log = rig_log(rig);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

static uint32_t expect_created(int fd, uint64_t id, const char *start_kind)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->request_id, id);
    assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    assert_int_equal(m->create->isolation, SANDBOX_ISOLATION_VM);
    assert_string_equal(m->create->start, start_kind);
    uint32_t sandbox = m->create->sandbox_id;
    pb_free(m);
    return sandbox;
}

static void send_create(int fd, uint64_t id)
{
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, id, &spec);
}

static uint32_t create(int fd)
{
    send_create(fd, 100);
    return expect_created(fd, 100, "cold");
}

static unsigned names_in_run(const struct rig *rig, const char *prefix)
{
    char path[128];
    rig_path(rig, "run", path, sizeof path);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    unsigned n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        n += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

// ---- the tier ----

static void a_machine_is_what_one_gets_where_it_can_be_had(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    assert_true(rig_status_has(fd, "\"default_tier\":\"vm\""));
    uint32_t id = create(fd);
    assert_int_equal(rig->play.machines, 1);
    RIG_AWAIT(rig->play.template_starts == 1);  // which would have made the next one a clone
    assert_int_equal(rig->play.memory_mib, 64);
    assert_int_equal(names_in_run(rig, "vm-"), 0);  // its socket had a name for a moment only
    atomic_store(&rig->play.op, OP_RAN);
    for (uint64_t i = 1; i <= 3; i++) {
        rig_send_exec(fd, i, id, 1000);
        rig_expect(fd, i, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
        assert_int_equal(rig->play.last_stream, i);
    }
    rig_send_simple(fd, RIG_INSPECT, 7, id);
    rig_expect(fd, 7, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    rig_send_simple(fd, RIG_DESTROY, 8, id);
    rig_expect(fd, 8, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    RIG_AWAIT(rig->play.stops == 1);  // a machine also ends by itself when its line does
    rig_stop(rig);
}

static void no_kvm(struct rig *rig)
{
    rig_with_machines(rig);
    atomic_store(&rig->play.has_kvm, false);
}

static void kernel_refused(struct rig *rig)
{
    rig_with_machines(rig);
    atomic_store(&rig->play.kernel_error, -EPERM);
}

static void kernel_changed(struct rig *rig)
{
    char path[128];
    rig_with_machines(rig);
    rig_path(rig, "templates/kernels/default/vmlinux", path, sizeof path);
    cleanup_file FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fputc('X', f);
}

static void kernel_missing(struct rig *rig)
{
    atomic_store(&rig->play.has_kvm, true);
}

static void without_kvm_or_kernel_there_are_containers_and_a_reason(void **state)
{
    static const struct {
        void (*prepare)(struct rig *rig);
        const char *reason;
    } cases[] = {{no_kvm, "as the test wanted"},
                 {kernel_refused, "as the test wanted"},
                 {kernel_changed, "has changed since"},
                 {kernel_missing, "sandbox-image kernel build"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = rig_launch(NULL, cases[i].prepare);
        rig_await_ready(rig);
        cleanup_fd int fd = rig_connect(rig);
        assert_true(rig_status_has(fd, "\"default_tier\":\"container\""));
        assert_true(logged(rig, "\"event\":\"tier_unavailable\",\"tier\":\"vm\""));
        assert_true(rig_status_has(fd, cases[i].reason));
        rig_create(fd);
        Sandbox__CreateRequest spec = rig_spec();
        spec.min_isolation = SANDBOX_ISOLATION_VM;
        rig_send_create(fd, 5, &spec);
        rig_expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC, "vm");
        assert_int_equal(rig->play.machines, 0);
        rig_stop(rig);
    }
}

// ---- boots ----

static void a_create_is_answered_when_its_machine_has_booted(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.hold_boots, true);
    send_create(fd, 1);
    RIG_AWAIT(rig->play.machines == 1);
    assert_true(rig_silent(fd, QUIET_MS));
    atomic_store(&rig->play.hold_boots, false);
    expect_created(fd, 1, "cold");
    rig_stop(rig);
}

static void no_more_boot_at_once_than_are_allowed(void **state)
{
    struct rig *rig = start(ARGS(SET("max_creates=2")));
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.hold_boots, true);
    for (uint64_t i = 1; i <= 4; i++)
        send_create(fd, i);
    RIG_AWAIT(rig->play.machines == 2);
    assert_true(rig_silent(fd, QUIET_MS));
    assert_int_equal(rig->play.machines, 2);
    atomic_store(&rig->play.hold_boots, false);
    unsigned answered = 0;
    for (int i = 0; i < 4; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);  // in any order
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        answered |= 1U << m->request_id;
        pb_free(m);
    }
    assert_int_equal(answered, 30);
    assert_int_equal(rig->play.machines, 4);
    rig_stop(rig);
}

static void a_machine_that_never_boots_fails_its_create(void **state)
{
    struct rig *rig = start(ARGS(SET("start_deadline_ms=200")));
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.hold_boots, true);
    send_create(fd, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "not ready within 200 ms");
    RIG_AWAIT(rig->play.live == 0);
    atomic_store(&rig->play.hold_boots, false);
    create(fd);
    rig_stop(rig);
}

static void a_warm_machine_is_ready_when_it_has_booted(void **state)
{
    struct rig *rig = rig_launch(ARGS(SET("pool=debian:64:1=1"), SET("start_deadline_ms=20000")), rig_with_machines);
    atomic_store(&rig->play.hold_boots, true);
    rig_await_ready(rig);
    cleanup_fd int fd = rig_connect(rig);
    RIG_AWAIT(rig->play.machines == 1);
    assert_true(rig_status_has(fd, "\"ready\":0,\"filling\":1"));
    Sandbox__CreateRequest spec = rig_spec();
    spec.pool_wait_ms = 0;
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "warm");
    atomic_store(&rig->play.hold_boots, false);
    RIG_AWAIT(rig_status_has(fd, "\"ready\":1,\"filling\":0"));
    rig_send_create(fd, 2, &spec);
    expect_created(fd, 2, "pool");
    rig_stop(rig);
}

static void a_warm_machine_that_never_boots_is_given_up(void **state)
{
    struct rig *rig = rig_launch(ARGS(SET("pool=debian:64:1=1"), SET("start_deadline_ms=200")), rig_with_machines);
    atomic_store(&rig->play.hold_boots, true);
    rig_await_ready(rig);
    cleanup_fd int fd = rig_connect(rig);
    RIG_AWAIT(logged(rig, "\"event\":\"pool_fill_failed\""));
    RIG_AWAIT(rig->play.stops >= 1);
    atomic_store(&rig->play.hold_boots, false);
    RIG_AWAIT(rig_status_has(fd, "\"ready\":1,\"filling\":0"));
    rig_stop(rig);
}

static void one_that_ends_while_it_boots_is_told(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.hold_boots, true);
    atomic_store(&rig->play.end_reason, VMM_REASON_SETUP_FAILED);
    send_create(fd, 1);
    RIG_AWAIT(rig->play.machines == 1);
    atomic_store(&rig->play.kill_slot, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "before it was ready");
    rig_stop(rig);
}

static void a_start_that_fails_leaves_nothing(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    atomic_store(&rig->play.start_error, -ENOMEM);
    send_create(fd, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "as the test wanted");
    RIG_AWAIT(names_in_run(rig, "vm-") == 0);  // a machine for a template may be tried beside it
    atomic_store(&rig->play.start_error, 0);
    create(fd);
    rig_stop(rig);
}

// Of an engine that was killed between a socket's name and its removal.
static void names_left_behind(struct rig *rig)
{
    rig_with_machines(rig);
    static const char *const names[] = {"run/vm-0123456789abcdef", "run/vm-fedcba9876543210", "run/vm-notours"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        rig_path(rig, names[i], path, sizeof path);
        assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
    }
}

static void names_of_a_killed_engine_are_removed(void **state)
{
    struct rig *rig = rig_launch(NULL, names_left_behind);
    rig_await_ready(rig);
    assert_int_equal(names_in_run(rig, "vm-"), 1);
    assert_int_equal(names_in_run(rig, "vm-notours"), 1);
    rig_stop(rig);
}

static void a_second_call_is_nobodys(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    atomic_store(&rig->play.ask_port, 1);
    RIG_AWAIT(rig->play.second_calls_closed == 1);
    rig_send_stat(fd, 2, id);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    rig_stop(rig);
}

// ---- the monitor ----

static void the_monitor_pauses_and_resumes(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    for (unsigned i = 1; i <= 3; i++) {
        rig_send_simple(fd, RIG_PAUSE, 1, id);
        rig_expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
        assert_int_equal(rig->play.vm_pauses, i);
        rig_send_simple(fd, RIG_RESUME, 2, id);
        rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
        assert_int_equal(rig->play.vm_resumes, i);
    }
    assert_int_equal(rig->play.freezes + rig->play.thaws, 0);
    rig_stop(rig);
}

// It reads of the pause, and of its end, when both are over, or never.
static void an_agent_that_does_not_listen_does_not_hold_up_a_pause(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    atomic_store(&rig->play.late, true);
    rig_send_simple(fd, RIG_PAUSE, 1, id);
    rig_expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    rig_send_simple(fd, RIG_RESUME, 2, id);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    assert_int_equal(rig->play.told, 0);
    rig_send_simple(fd, RIG_PAUSE, 3, id);
    rig_expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    rig_stop(rig);
}

// A machine went on before its agent had read anything of the pause, and the agent finds that a deadline has passed: what it is
// answered comes behind what it has to know.
static void an_agent_that_asks_hears_of_the_pause_first(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    for (uint64_t i = 1; i <= 6; i += 2) {
        atomic_store(&rig->play.late, true);
        rig_send_simple(fd, RIG_PAUSE, i, id);
        rig_expect(fd, i, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
        rig_send_simple(fd, RIG_RESUME, i + 1, id);
        rig_expect(fd, i + 1, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
        atomic_store(&rig->play.ask_expire, 1);
        RIG_AWAIT(rig->play.ask_expire == 0);
        atomic_store(&rig->play.late, false);
        RIG_AWAIT(rig->play.told == 3 * (i + 1) / 2);
        assert_memory_equal(rig->play.said, "sre", 3);
    }
    assert_false(rig->play.broken);
    rig_stop(rig);
}

static void a_monitor_that_refuses_keeps_its_machine(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    atomic_store(&rig->play.monitor, MONITOR_REFUSES);
    rig_send_simple(fd, RIG_PAUSE, 1, id);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "could not be paused");
    rig_send_stat(fd, 2, id);
    rig_expect(fd, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    rig_stop(rig);
}

static void a_monitor_that_breaks_the_protocol_is_ended(void **state)
{
    static const struct {
        enum play_monitor says;
        const char *reason;
    } cases[] = {{MONITOR_GARBAGE, "its monitor broke the protocol"}, {MONITOR_CLOSES, "its monitor ended"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = start(NULL);
        cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
        uint32_t id = create(fd), spared = create(other);
        atomic_store(&rig->play.monitor, cases[i].says);
        rig_send_simple(fd, RIG_PAUSE, 1, id);
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        pb_free(m);
        RIG_AWAIT(logged(rig, cases[i].reason) && rig->play.live == 1);
        rig_send_stat(fd, 2, id);
        rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended by itself");
        rig_send_stat(other, 3, spared);
        rig_expect(other, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
        rig_stop(rig);
    }
}

static void a_monitor_that_says_nothing_is_killed(void **state)
{
    struct rig *rig = start(ARGS(SET("guest_deadline_ms=200")));
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = create(fd);
    atomic_store(&rig->play.monitor, MONITOR_SILENT);
    rig_send_simple(fd, RIG_PAUSE, 1, id);
    rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "could not be paused");
    RIG_AWAIT(rig->play.stops >= 1 && logged(rig, "its monitor did not answer"));
    RIG_AWAIT(rig->play.live == 0);
    rig_send_stat(fd, 2, id);
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended by itself");
    // One that answers in time stays, however long it is paused.
    atomic_store(&rig->play.monitor, MONITOR_OK);
    id = create(fd);
    rig_send_simple(fd, RIG_PAUSE, 3, id);
    rig_expect(fd, 3, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE);
    assert_true(rig_silent(fd, 400));
    rig_send_simple(fd, RIG_RESUME, 4, id);
    rig_expect(fd, 4, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME);
    rig_stop(rig);
}

static void why_a_machine_ended_is_told(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    create(fd);
    atomic_store(&rig->play.end_reason, VMM_REASON_TRIPLE_FAULT);
    atomic_store(&rig->play.kill_slot, 1);
    RIG_AWAIT(logged(rig, "its machine ended (triple fault: as the test wanted)"));
    RIG_AWAIT(logged(rig, "\"event\":\"sandbox_gone\""));
    rig_stop(rig);
}

static void the_end_of_the_engine_waits_for_no_monitor(void **state)
{
    struct rig *rig = start(NULL);
    cleanup_fd int fd = rig_connect(rig), booting = rig_connect(rig);
    uint32_t id = create(fd);
    atomic_store(&rig->play.monitor, MONITOR_SILENT);
    rig_send_simple(fd, RIG_PAUSE, 1, id);
    RIG_AWAIT(rig->play.vm_pauses == 1);
    atomic_store(&rig->play.hold_boots, true);
    send_create(booting, 2);
    RIG_AWAIT(rig->play.machines == 2);
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_is_what_one_gets_where_it_can_be_had),
        cmocka_unit_test(without_kvm_or_kernel_there_are_containers_and_a_reason),
        cmocka_unit_test(a_create_is_answered_when_its_machine_has_booted),
        cmocka_unit_test(no_more_boot_at_once_than_are_allowed),
        cmocka_unit_test(a_machine_that_never_boots_fails_its_create),
        cmocka_unit_test(a_warm_machine_is_ready_when_it_has_booted),
        cmocka_unit_test(a_warm_machine_that_never_boots_is_given_up),
        cmocka_unit_test(one_that_ends_while_it_boots_is_told),
        cmocka_unit_test(a_start_that_fails_leaves_nothing),
        cmocka_unit_test(names_of_a_killed_engine_are_removed),
        cmocka_unit_test(a_second_call_is_nobodys),
        cmocka_unit_test(the_monitor_pauses_and_resumes),
        cmocka_unit_test(an_agent_that_does_not_listen_does_not_hold_up_a_pause),
        cmocka_unit_test(an_agent_that_asks_hears_of_the_pause_first),
        cmocka_unit_test(a_monitor_that_refuses_keeps_its_machine),
        cmocka_unit_test(a_monitor_that_breaks_the_protocol_is_ended),
        cmocka_unit_test(a_monitor_that_says_nothing_is_killed),
        cmocka_unit_test(why_a_machine_ended_is_told),
        cmocka_unit_test(the_end_of_the_engine_waits_for_no_monitor),
    };
    return cmocka_run_group_tests_name("engine_vm", tests, NULL, NULL);
}
