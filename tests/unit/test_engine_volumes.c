// Session volumes as a client sees them, with a jailer that is played (engine_rig.h): which volume a sandbox gets, who waits,
// what expires, and that nothing is deleted that somebody has.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

static uint32_t expect_created(int fd, uint64_t id)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE)
        fail_msg("the create failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "?");
    assert_int_equal(m->request_id, id);
    assert_string_equal(m->create->start, "cold");
    uint32_t sandbox = m->create->sandbox_id;
    pb_free(m);
    return sandbox;
}

static uint32_t create_session(int fd, const char *key, uint32_t ttl_s)
{
    Sandbox__CreateRequest spec = rig_session_spec(key, ttl_s);
    rig_send_create(fd, 77, &spec);
    return expect_created(fd, 77);
}

static void destroy(int fd, uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 88, sandbox);
    rig_expect(fd, 88, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

static uint64_t renew(int fd, const char *key, uint32_t extra_s)
{
    rig_send_renew(fd, 99, key, extra_s);
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_SESSION_RENEW)
        fail_msg("the renewal failed: %s",
                 m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->message : "?");
    uint64_t expires = m->session_renew->expires_at;
    pb_free(m);
    return expires;
}

// The code of a renewal that is expected to fail, 0 if it does not.
static int renew_code(int fd, const char *key, uint32_t extra_s)
{
    rig_send_renew(fd, 99, key, extra_s);
    Sandbox__ServerMessage *m = rig_receive(fd);
    int code = m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR ? m->error->error_code : 0;
    pb_free(m);
    return code;
}

static void a_key_has_its_volume_again(void **state)
{
    static const char *const args[] = {"--set", "volume_mib=48", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    destroy(fd, create_session(fd, "a", 0));
    uint64_t volume = rig->play.start_volume;
    assert_true(volume != 0);
    assert_int_equal(rig->play.volume_mib, 48);
    destroy(fd, create_session(fd, "a", 5));
    assert_true(rig->play.start_volume == volume);
    destroy(fd, create_session(fd, "b", 0));
    assert_true(rig->play.start_volume != volume && rig->play.start_volume != 0);
    destroy(fd, rig_create(fd));
    assert_true(rig->play.start_volume == 0);
    assert_int_equal(rig->play.volume_creates, 2);
    assert_int_equal(rig->play.volume_deletes, 0);
    rig_stop(rig);
}

static void the_second_waits_its_time(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    cleanup_fd int other = rig_connect(rig);
    uint32_t first = create_session(fd, "a", 0);
    uint64_t volume = rig->play.start_volume;
    Sandbox__CreateRequest spec = rig_session_spec("a", 0);
    spec.pool_wait_ms = 0;
    rig_send_create(other, 1, &spec);
    rig_expect_error(other, 1, SANDBOX_ERR_POOL_EXHAUSTED, "in use");
    spec.pool_wait_ms = 60;
    uint64_t begun = mono_ns();
    rig_send_create(other, 2, &spec);
    rig_expect_error(other, 2, SANDBOX_ERR_POOL_EXHAUSTED, "in use");
    assert_true(mono_ns() - begun >= 60 * NS_PER_MS);
    // In line: in order, each as soon as the one before has gone, and not before.
    spec.pool_wait_ms = RIG_WAIT_MS;
    rig_send_create(other, 3, &spec);
    assert_true(rig_silent(other, 200));  // it stands in line before the next, on another connection, is sent
    rig_send_create(fd, 4, &spec);
    assert_true(rig_silent(fd, 50));
    destroy(fd, first);
    uint32_t second = expect_created(other, 3);
    assert_true(rig->play.start_volume == volume);
    assert_true(rig_silent(fd, 50));
    destroy(other, second);
    destroy(fd, expect_created(fd, 4));
    // Another key waits for nobody, without a wait either.
    spec.pool_wait_ms = 0;
    rig_send_create(fd, 5, &spec);
    expect_created(fd, 5);
    spec = rig_session_spec("b", 0);
    spec.pool_wait_ms = 0;
    rig_send_create(fd, 6, &spec);
    expect_created(fd, 6);
    rig_stop(rig);
}

static void one_that_dies_frees_its_volume(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    create_session(fd, "a", 0);
    Sandbox__CreateRequest spec = rig_session_spec("a", 0);
    rig_send_create(fd, 2, &spec);
    assert_true(rig_silent(fd, 30));
    rig->play.kill_slot = 1;
    expect_created(fd, 2);
    // A client that goes frees it too.
    cleanup_fd int other = rig_connect(rig);
    rig_send_create(other, 3, &spec);
    assert_true(rig_silent(other, 30));
    close_fd(&fd);
    expect_created(other, 3);
    assert_int_equal(rig->play.volume_creates, 1);
    rig_stop(rig);
}

static void who_leaves_the_line_holds_up_nobody(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int first = rig_connect(rig);
    cleanup_fd int second = rig_connect(rig);
    cleanup_fd int third = rig_connect(rig);
    cleanup_fd int watcher = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_session_spec("a", 0);
    // The first goes while the volume is being made, the second while it waits.
    rig->play.hold_volumes = true;
    rig_send_create(first, 1, &spec);
    RIG_AWAIT(rig->play.volume_creates == 1);
    rig_send_create(second, 2, &spec);
    rig_send_create(third, 3, &spec);
    assert_true(rig_silent(third, 30));
    close_fd(&first);
    close_fd(&second);
    RIG_AWAIT(rig_status_has(watcher, "\"connections\":2"));
    rig->play.hold_volumes = false;
    uint32_t sandbox = expect_created(third, 3);
    // A start that fails frees it.
    destroy(third, sandbox);
    rig->play.start_error = -ENOMEM;
    rig_send_create(third, 4, &spec);
    rig_expect_error(third, 4, SANDBOX_ERR_INTERNAL, "could not be started");
    rig->play.start_error = -EBUSY;
    rig_send_create(third, 5, &spec);
    rig_expect_error(third, 5, SANDBOX_ERR_POOL_EXHAUSTED, "not free yet");
    rig->play.start_error = 0;
    rig_send_create(third, 6, &spec);
    expect_created(third, 6);
    assert_int_equal(rig->play.volume_creates, 1);
    rig_stop(rig);
}

static void a_volume_that_cannot_be_made_is_not_there(void **state)
{
    static const char *const args[] = {"--set", "max_volumes_per_uid=2", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_session_spec("a", 0);
    rig->play.volume_error = -ENOSPC;
    for (int i = 0; i < 4; i++) {
        rig_send_create(fd, 1, &spec);
        rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "as the test wanted");
        assert_int_equal(renew_code(fd, "a", 1), SANDBOX_ERR_SESSION_UNKNOWN);
    }
    rig->play.volume_error = 0;
    destroy(fd, create_session(fd, "a", 0));
    destroy(fd, create_session(fd, "b", 0));
    spec = rig_session_spec("c", 0);
    rig_send_create(fd, 2, &spec);
    rig_expect_error(fd, 2, SANDBOX_ERR_POOL_EXHAUSTED, "max_volumes_per_uid is 2");
    destroy(fd, create_session(fd, "b", 0));
    rig_stop(rig);
}

static void renewals_and_their_limits(void **state)
{
    static const char *const args[] = {"--set", "workspace_max_ttl_s=100", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    assert_int_equal(renew_code(fd, "a", 10), SANDBOX_ERR_SESSION_UNKNOWN);
    uint64_t now = wall_ns() / NS_PER_S;
    uint32_t sandbox = create_session(fd, "a", 50);
    uint64_t expires = renew(fd, "a", 0);
    assert_in_range(expires, now + 50, now + 51 + RIG_WAIT_MS / 1000);
    assert_int_equal(renew(fd, "a", 20), expires + 20);  // while it runs
    destroy(fd, sandbox);
    assert_int_equal(renew(fd, "a", 20), expires + 40);  // and with nothing running
    assert_int_equal(renew(fd, "a", 200000), expires + 50);
    assert_int_equal(renew_code(fd, "a", 1), SANDBOX_ERR_SESSION_LIMIT);
    assert_int_equal(renew(fd, "a", 0), expires + 50);
    // A create changes nothing about that.
    destroy(fd, create_session(fd, "a", 1));
    assert_int_equal(renew(fd, "a", 0), expires + 50);
    // The default is more than this maximum.
    destroy(fd, create_session(fd, "b", 0));
    assert_int_equal(renew_code(fd, "b", 1), SANDBOX_ERR_SESSION_LIMIT);
    rig_stop(rig);
}

static void keys_are_checked(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    char longest[SESSION_KEY_MAX + 2];
    memset(longest, 'k', sizeof longest);
    longest[SESSION_KEY_MAX + 1] = '\0';
    const char *const bad[] = {"", longest, "\"", "\\", "\n", "\x7f", "\x1f", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(renew_code(fd, bad[i], 1), SANDBOX_ERR_INVALID_SPEC);
    longest[SESSION_KEY_MAX] = '\0';
    const char *const good[] = {longest, " ", "~", "!", "a/../b", "%00;DROP TABLE volumes", "'"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        destroy(fd, create_session(fd, good[i], 0));
        assert_int_equal(renew_code(fd, good[i], 1), 0);
    }
    assert_int_equal(rig->play.volume_creates, sizeof good / sizeof good[0]);
    rig_stop(rig);
}

static void an_expired_volume_is_deleted_once_nobody_has_it(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = create_session(fd, "used", 1);
    uint64_t used = rig->play.start_volume;
    destroy(fd, create_session(fd, "idle", 1));
    assert_int_equal(rig->play.volumes, 2);
    // The idle one goes by itself; the other only with its sandbox.
    RIG_AWAIT(rig->play.volumes == 1);
    assert_int_equal(renew_code(fd, "idle", 100), SANDBOX_ERR_SESSION_EXPIRED);
    RIG_AWAIT(renew_code(fd, "used", 0) == SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(renew_code(fd, "used", 100), SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(rig->play.volumes, 1);
    rig_send_stat(fd, 5, sandbox);
    rig_expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    // The next one in line has a new one.
    Sandbox__CreateRequest spec = rig_session_spec("used", 100);
    rig_send_create(fd, 6, &spec);
    assert_true(rig_silent(fd, 30));
    destroy(fd, sandbox);
    sandbox = expect_created(fd, 6);
    assert_true(rig->play.start_volume != used);
    RIG_AWAIT(rig->play.volume_deletes == 2);
    assert_int_equal(rig->play.volumes, 1);
    assert_int_equal(renew_code(fd, "used", 1), 0);
    rig_stop(rig);
}

static void a_deletion_that_fails_is_done_again(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig->play.delete_error = -EBUSY;
    destroy(fd, create_session(fd, "a", 1));
    RIG_AWAIT(rig->play.volume_deletes >= 2);
    assert_int_equal(rig->play.volumes, 1);
    rig->play.delete_error = 0;
    RIG_AWAIT(rig->play.volumes == 0);
    rig_stop(rig);
}

// A renewal in the moment of the expiry: it either says yes, and the volume lives, or no, and it goes.
static void a_renewal_races_the_reaper(void **state)
{
    enum { TRIES = 12 };
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    char key[TRIES][8];
    uint64_t ends[TRIES];
    for (int i = 0; i < TRIES; i++) {
        snprintf(key[i], sizeof key[i], "k%d", i);
        destroy(fd, create_session(fd, key[i], 1));
        ends[i] = wall_ns() + NS_PER_S;  // at the latest
    }
    unsigned renewed = 0;
    for (int i = 0; i < TRIES; i++) {
        // Around the end of each, a little later every time.
        uint64_t when = ends[i] + (uint64_t)i * 2 * NS_PER_MS - 12 * NS_PER_MS;
        while (wall_ns() < when)
            rig_tick();
        int code = renew_code(fd, key[i], 1000);
        assert_true(code == 0 || code == SANDBOX_ERR_SESSION_EXPIRED);
        renewed += code == 0;
        ends[i] = code == 0;
    }
    RIG_AWAIT(rig->play.volumes == renewed);
    for (int i = 0; i < TRIES; i++)
        assert_int_equal(renew_code(fd, key[i], 0), ends[i] ? 0 : SANDBOX_ERR_SESSION_EXPIRED);
    rig_stop(rig);
}

static unsigned long metric(const struct rig *rig, const char *name)
{
    char *text = rig_http(rig, "GET /metrics HTTP/1.1\r\n\r\n");
    char line[96];
    snprintf(line, sizeof line, "\nsandbox_engine_volumes%s ", name);
    const char *at = strstr(text, line);
    if (at == NULL)
        fail_msg("there is no metric %s in: %s", line, text);
    unsigned long value = strtoul(at + strlen(line), NULL, 10);
    free(text);
    return value;
}

// The figures follow a volume from its making to its end.
static void figures_follow_the_volumes(void **state)
{
    static const char *const args[] = {"--set", "volume_mib=48", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    assert_true(rig_status_has(fd, "\"volumes\":{\"trouble\":null,\"count\":0,\"in_use\":0,\"limit_bytes\":0,\"made\":0,"
                                   "\"expired\":0,\"next_expiry\":0}"));
    uint32_t later = create_session(fd, "later", 5000);
    RIG_AWAIT(metric(rig, "") == 1);
    assert_int_equal(metric(rig, "_in_use"), 1);
    uint64_t first = renew(fd, "later", 0);
    assert_int_equal(metric(rig, "_next_expiry_seconds"), first);
    // A renewal moves it, and one that ends sooner comes before it.
    assert_int_equal(renew(fd, "later", 100), first + 100);
    RIG_AWAIT(metric(rig, "_next_expiry_seconds") == first + 100);
    uint32_t sooner = create_session(fd, "sooner", 2);
    RIG_AWAIT(metric(rig, "") == 2 && metric(rig, "_next_expiry_seconds") < first);
    assert_int_equal(metric(rig, "_limit_bytes"), 2 * 48 << 20);
    assert_int_equal(metric(rig, "_in_use"), 2);
    destroy(fd, sooner);
    destroy(fd, later);
    RIG_AWAIT(metric(rig, "_expired_total") == 1);
    RIG_AWAIT(metric(rig, "") == 1 && metric(rig, "_next_expiry_seconds") == first + 100);
    assert_int_equal(metric(rig, "_made_total"), 2);
    char wanted[160];
    snprintf(wanted, sizeof wanted,
             "\"count\":1,\"in_use\":0,\"limit_bytes\":%d,\"made\":2,\"expired\":1,\"next_expiry\":%" PRIu64 "}", 48 << 20,
             first + 100);
    assert_true(rig_status_has(fd, wanted));
    rig_stop(rig);
}

static void put_rubbish(struct rig *rig)
{
    char path[128];
    rig_path(rig, "state/state.db", path, sizeof path);
    cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    char rubbish[4096];
    memset(rubbish, 'x', sizeof rubbish);
    assert_int_equal(write(fd, rubbish, sizeof rubbish), sizeof rubbish);
    assert_int_equal(fchmod(fd, 0666), 0);
    rig->play.volumes = 3;
}

static void put_volumes(struct rig *rig)
{
    rig->play.volumes = 20;
}

// Whatever is wrong with the database: sandboxes without a session work, and no volume is deleted.
static void without_its_database_nothing_is_deleted(void **state)
{
    static const struct {
        void (*prepare)(struct rig *rig);
        unsigned volumes;
        const char *says;
    } cases[] = {{put_rubbish, 3, "state.db"}, {put_volumes, 20, "put state.db back"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rig *rig = rig_launch(NULL, cases[i].prepare);
        rig_await_ready(rig);
        cleanup_fd int fd = rig_connect(rig);
        Sandbox__CreateRequest spec = rig_session_spec("a", 0);
        rig_send_create(fd, 1, &spec);
        rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, cases[i].says);
        assert_int_equal(renew_code(fd, "a", 1), SANDBOX_ERR_INTERNAL);
        destroy(fd, rig_create(fd));
        assert_int_equal(rig->play.volumes, cases[i].volumes);
        assert_int_equal(rig->play.volume_deletes, 0);
        rig_stop(rig);
    }
}

static void what_spec_000_names_in_the_environment_counts(void **state)
{
    setenv("SANDBOX_WORKSPACE_MAX_TTL", "30", 1);
    struct rig *rig = rig_start(NULL);
    unsetenv("SANDBOX_WORKSPACE_MAX_TTL");
    cleanup_fd int fd = rig_connect(rig);
    uint64_t now = wall_ns() / NS_PER_S;
    create_session(fd, "a", 60);
    assert_in_range(renew(fd, "a", 0), now + 30, now + 31 + RIG_WAIT_MS / 1000);
    assert_int_equal(renew_code(fd, "a", 1), SANDBOX_ERR_SESSION_LIMIT);
    rig_stop(rig);
    setenv("SANDBOX_WORKSPACE_MAX_TTL", "0", 1);
    char out[1024];
    static const char *const check[] = {"--check-config", NULL};
    assert_int_equal(rig_run_program(check, out, sizeof out), 78);
    unsetenv("SANDBOX_WORKSPACE_MAX_TTL");
    assert_non_null(strstr(out, "SANDBOX_WORKSPACE_MAX_TTL"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_its_volume_again),
        cmocka_unit_test(the_second_waits_its_time),
        cmocka_unit_test(one_that_dies_frees_its_volume),
        cmocka_unit_test(who_leaves_the_line_holds_up_nobody),
        cmocka_unit_test(a_volume_that_cannot_be_made_is_not_there),
        cmocka_unit_test(renewals_and_their_limits),
        cmocka_unit_test(keys_are_checked),
        cmocka_unit_test(an_expired_volume_is_deleted_once_nobody_has_it),
        cmocka_unit_test(a_deletion_that_fails_is_done_again),
        cmocka_unit_test(a_renewal_races_the_reaper),
        cmocka_unit_test(figures_follow_the_volumes),
        cmocka_unit_test(without_its_database_nothing_is_deleted),
        cmocka_unit_test(what_spec_000_names_in_the_environment_counts),
    };
    return cmocka_run_group_tests_name("engine_volumes", tests, NULL, NULL);
}
