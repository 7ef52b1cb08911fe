// sandbox-engine: the pool of warm sandboxes, with a played jailer and played agents.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define AUTO(count) "--set", "pool_auto=" #count
#define KEEP(list) "--set", "pool=" list

// ---- what is seen of it ----

static unsigned long metric(const struct rig *rig, const char *name)
{
    char *text = rig_http(rig, "GET /metrics HTTP/1.1\r\n\r\n");
    char line[96];
    snprintf(line, sizeof line, "\nsandbox_engine_%s ", name);
    const char *at = strstr(text, line);
    if (at == NULL)
        fail_msg("there is no metric %s in: %s", name, text);
    unsigned long value = strtoul(at + strlen(line), NULL, 10);
    free(text);
    return value;
}

static void await_ready(const struct rig *rig, unsigned long count)
{
    RIG_AWAIT(metric(rig, "pool_ready") == count && metric(rig, "pool_filling") == 0);
}

struct made {
    uint32_t id;
    char start[8];  // "" after a failure
    int code;
};

static struct made make(int fd, const Sandbox__CreateRequest *spec)
{
    struct made made = {.id = 0};
    rig_send_create(fd, 500, spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->request_id, 500);
    if (m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE) {
        made.id = m->create->sandbox_id;
        snprintf(made.start, sizeof made.start, "%s", m->create->start);
    } else {
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        made.code = m->error->error_code;
    }
    pb_free(m);
    return made;
}

static uint32_t expect_start(int fd, const Sandbox__CreateRequest *spec, const char *start)
{
    struct made made = make(fd, spec);
    assert_string_equal(made.start, start);
    return made.id;
}

static void destroy(int fd, uint32_t id)
{
    rig_send_simple(fd, RIG_DESTROY, 501, id);
    rig_expect(fd, 501, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
}

static bool logged(const struct rig *rig, const char *text)
{
    char *log = rig_log(rig);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

static unsigned count_logged(const struct rig *rig, const char *text)
{
    char *log = rig_log(rig);
    unsigned n = 0;
    for (const char *at = log; (at = strstr(at, text)) != NULL; at++)
        n++;
    free(log);
    return n;
}

// ---- hits, misses, refills ----

static void the_first_is_cold_and_then_they_are_warm(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(2)));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "cold");
    await_ready(rig, 2);
    assert_true(rig_status_has(fd,
                               "\"pool\":[{\"template\":\"debian\",\"isolation\":\"container\",\"memory_mib\":64,\"vcpus\":1,"
                               "\"disk_mib\":1024,\"network\":\"none\",\"ready\":2,\"filling\":0,\"target\":2}]"));
    uint32_t id = expect_start(fd, &spec, "pool");
    rig_send_simple(fd, RIG_INSPECT, 8, id);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_string_equal(m->inspect->start, "pool");
    assert_true(m->inspect->uptime_ms < RIG_WAIT_MS);
    pb_free(m);
    await_ready(rig, 2);  // what was taken is replaced
    for (int i = 0; i < 5; i++) {
        destroy(fd, expect_start(fd, &spec, "pool"));
        await_ready(rig, 2);
    }
    assert_int_equal(metric(rig, "pool_hits_total"), 6);
    assert_int_equal(metric(rig, "pool_misses_total"), 1);
    assert_int_equal(metric(rig, "pool_fill_seconds_count"), 8);
    // Nobody is given one that somebody else has had: every sandbox was started once and stopped once.
    assert_int_equal(rig->play.starts, 9);
    assert_int_equal(rig->play.stops, 5);
    rig_stop(rig);
}

static void without_a_wait_an_empty_pool_fails_at_once(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(1)));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    spec.pool_wait_ms = 0;
    rig->play.hold_starts = true;
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "pool_wait_ms is 0");
    RIG_AWAIT(rig->play.held_starts == 1);  // the shape counts as asked for
    rig_send_create(fd, 2, &spec);
    rig_expect_error(fd, 2, SANDBOX_ERR_POOL_EXHAUSTED, "pool_wait_ms is 0");
    rig->play.hold_starts = false;
    await_ready(rig, 1);
    expect_start(fd, &spec, "pool");
    rig_stop(rig);
}

// T61: more creates at once than are warm.
static void beyond_what_is_warm_they_start_cold(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=3")));
    cleanup_fd int fd = rig_connect(rig);
    await_ready(rig, 3);
    Sandbox__CreateRequest spec = rig_spec();
    for (uint64_t i = 1; i <= 8; i++)
        rig_send_create(fd, i, &spec);
    unsigned pool = 0, cold = 0;
    for (int i = 0; i < 8; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        pool += strcmp(m->create->start, "pool") == 0;
        cold += strcmp(m->create->start, "cold") == 0;
        pb_free(m);
    }
    assert_int_equal(pool + cold, 8);
    assert_true(pool >= 3);
    await_ready(rig, 3);
    rig_stop(rig);
}

static void one_that_waits_for_a_start_takes_what_becomes_warm(void **state)
{
    struct rig *rig = rig_launch(ARGS(KEEP("debian:64:1=1"), "--set", "max_creates=1"), NULL);
    rig->play.hold_starts = true;
    rig_await_ready(rig);
    RIG_AWAIT(rig->play.held_starts == 1);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);  // has the only place
    RIG_AWAIT(rig->play.held_starts == 2);
    rig_send_create(fd, 2, &spec);  // waits for it
    assert_true(rig_silent(fd, 100));
    rig->play.hold_starts = false;
    bool from_pool = false;
    for (int i = 0; i < 2; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        assert_string_equal(m->create->start, m->request_id == 2 ? "pool" : "cold");
        from_pool |= m->request_id == 2;
        pb_free(m);
    }
    assert_true(from_pool);
    rig_stop(rig);
}

static void a_warm_one_has_been_told_nothing(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=2")));
    cleanup_fd int fd = rig_connect(rig);
    await_ready(rig, 2);
    assert_int_equal(rig->play.configures, 0);
    Sandbox__CreateRequest spec = rig_spec();
    ProtobufCBinaryData env[] = {{.len = 3, .data = (uint8_t *)"A=1"}, {.len = 2, .data = (uint8_t *)"B="}};
    spec.n_env_vars = 2;
    spec.env_vars = env;
    expect_start(fd, &spec, "pool");
    assert_int_equal(rig->play.configures, 1);
    assert_int_equal(rig->play.env_vars, 2);
    await_ready(rig, 2);
    assert_int_equal(rig->play.configures, 1);
    rig_stop(rig);
}

// ---- shapes ----

static void shapes_are_never_mixed(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=1")));
    cleanup_fd int fd = rig_connect(rig);
    rig_write_template(rig, "other", "another filesystem");
    Sandbox__CreateRequest spec = rig_spec();
    await_ready(rig, 1);
    spec.memory_mib = 65;
    expect_start(fd, &spec, "cold");
    assert_int_equal(rig->play.memory_mib, 65);
    spec = rig_spec();
    spec.disk_mib = 512;
    expect_start(fd, &spec, "cold");
    assert_int_equal(rig->play.disk_mib, 512);
    spec = rig_spec();
    spec.template_name = (char *)"other";
    expect_start(fd, &spec, "cold");
    spec = rig_spec();
    spec.vcpu_count = 2;
    struct made made = make(fd, &spec);  // a machine with one processor refuses it
    assert_true(made.code == SANDBOX_ERR_INVALID_SPEC || strcmp(made.start, "cold") == 0);
    assert_int_equal(metric(rig, "pool_ready"), 1);
    // The same in other words.
    spec = rig_spec();
    spec.template_name = (char *)"python-agent";
    spec.disk_mib = 1024;
    expect_start(fd, &spec, "pool");
    rig_stop(rig);
}

static void at_most_eight_shapes_are_kept(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(1), KEEP("debian:100:1=1")));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    for (spec.memory_mib = 64; spec.memory_mib < 72; spec.memory_mib++)
        destroy(fd, expect_start(fd, &spec, "cold"));
    await_ready(rig, 9);
    spec.memory_mib = 64;
    destroy(fd, expect_start(fd, &spec, "pool"));
    spec.memory_mib = 72;  // the place of 65, which was used longest ago
    destroy(fd, expect_start(fd, &spec, "cold"));
    await_ready(rig, 9);
    assert_false(rig_status_has(fd, "\"memory_mib\":65,"));
    assert_true(rig_status_has(fd, "\"memory_mib\":64,"));
    assert_true(rig_status_has(fd, "\"memory_mib\":72,"));
    assert_true(rig_status_has(fd, "\"memory_mib\":100,"));
    spec.memory_mib = 64;
    expect_start(fd, &spec, "pool");
    spec.memory_mib = 65;
    expect_start(fd, &spec, "cold");
    rig_stop(rig);
}

static void an_idle_shape_is_given_up(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(2), KEEP("debian:100:1=1"), "--set", "pool_idle_s=1"));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "cold");
    spec.memory_mib = 100;
    make(fd, &spec);
    RIG_AWAIT(metric(rig, "pool_ready") == 4);
    await_ready(rig, 1);  // of the settings' own as many as they say
    assert_true(rig_status_has(fd, "\"memory_mib\":100,"));
    assert_false(rig_status_has(fd, "\"memory_mib\":64,"));
    rig_stop(rig);
}

// ---- the shapes of the settings ----

static void the_settings_are_filled_at_the_start(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("python-agent:64:1=3, debian:96:1:256=1")));
    await_ready(rig, 4);
    assert_int_equal(rig->play.starts, 4);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "pool");
    spec.memory_mib = 96;
    spec.disk_mib = 256;
    expect_start(fd, &spec, "pool");
    await_ready(rig, 4);
    assert_int_equal(metric(rig, "pool_misses_total"), 0);
    rig_stop(rig);
}

static void a_template_of_the_settings_may_come_later(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("later:64:1=1")));
    RIG_AWAIT(logged(rig, "\"event\":\"pool_template\""));
    assert_int_equal(rig->play.starts, 0);
    cleanup_fd int fd = rig_connect(rig);
    assert_true(rig_silent(fd, 1500));  // it is asked for again, and complained of once
    assert_int_equal(count_logged(rig, "\"event\":\"pool_template\""), 1);
    rig_write_template(rig, "later", "at last");
    await_ready(rig, 1);
    rig_stop(rig);
}

static void settings_that_cannot_be(void **state)
{
    static const struct {
        const char *assignment, *text;
    } cases[] = {
        {"pool=debian:512:1=65", "more than pool_max (64)"},
        {"pool=debian:512:1=33,debian:256:1=32", "65 sandboxes warm"},
        {"pool=debian:512:1:99999=1", "disk"},
        {"pool=debian:512=1", "pool cannot be"},
        {"pool=debian:512:1=0", "pool cannot be"},
        {"pool=debian:8:1=1", "pool cannot be"},
        {"pool=:512:1=1", "pool cannot be"},
        {"pool=debian:512:1=1x", "pool cannot be"},
        {"pool_auto=65", "from 0 to 64"},
    };
    char out[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(rig_run_program(ARGS("--check-config", "--set", cases[i].assignment), out, sizeof out), 78);
        if (strstr(out, cases[i].text) == NULL)
            fail_msg("%s: %s", cases[i].assignment, out);
    }
    assert_int_equal(
        rig_run_program(ARGS("--check-config", "--set", "memory_mib_max=256", "--set", "pool=debian:512:1=1"), out, sizeof out),
        78);
    assert_non_null(strstr(out, "memory_mib_max (256)"));
    assert_int_equal(
        rig_run_program(ARGS("--check-config", "--set", "vcpus_max=1", "--set", "pool=debian:512:2=1"), out, sizeof out), 78);
    assert_non_null(strstr(out, "vcpus_max (1)"));
}

// ---- templates that change ----

static void a_changed_template_drops_what_is_warm(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(2)));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    destroy(fd, expect_start(fd, &spec, "cold"));
    await_ready(rig, 2);
    rig_write_template(rig, "debian", "built anew");
    expect_start(fd, &spec, "cold");
    RIG_AWAIT(rig->play.stops == 3);  // the destroyed one and both warm ones
    RIG_AWAIT(rig->play.unmounts == 1);
    await_ready(rig, 2);
    expect_start(fd, &spec, "pool");
    rig_stop(rig);
}

static void a_changed_template_of_the_settings_is_noticed_by_itself(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=2")));
    await_ready(rig, 2);
    rig_write_template(rig, "debian", "built anew");
    RIG_AWAIT(rig->play.stops == 2);
    await_ready(rig, 2);
    assert_int_equal(rig->play.mounts, 2);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "pool");
    rig_stop(rig);
}

// ---- death ----

static void one_that_dies_warm_is_replaced(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=2")));
    await_ready(rig, 2);
    rig->play.kill_slot = 1;
    RIG_AWAIT(rig->play.starts == 3);
    await_ready(rig, 2);
    assert_int_equal(rig->play.live, 2);
    cleanup_fd int fd = rig_connect(rig);
    assert_true(rig_status_has(fd, "\"gone\":0}"));
    rig_stop(rig);
}

static void one_that_dies_being_configured_is_replaced_by_a_start(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=2")));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    await_ready(rig, 2);
    rig->play.configure = CONFIGURE_CLOSE_ONCE;
    uint32_t id = expect_start(fd, &spec, "cold");
    destroy(fd, id);
    await_ready(rig, 2);
    // Without a wait, the other warm one is the replacement.
    spec.pool_wait_ms = 0;
    rig->play.configure = CONFIGURE_CLOSE_ONCE;
    destroy(fd, expect_start(fd, &spec, "pool"));
    await_ready(rig, 2);
    // Agents that all end so fail the create, and do not go round for ever.
    spec.pool_wait_ms = RIG_WAIT_MS;
    rig->play.configure = CONFIGURE_CLOSE;
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended before it was ready");
    rig->play.configure = CONFIGURE_OK;
    await_ready(rig, 2);
    RIG_AWAIT(rig->play.live == 2);
    rig_stop(rig);
}

static void without_a_wait_and_without_another_its_death_is_said(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=1")));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    spec.pool_wait_ms = 0;
    await_ready(rig, 1);
    rig->play.hold_starts = true;
    rig->play.configure = CONFIGURE_CLOSE_ONCE;
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "pool_wait_ms is 0");
    rig->play.hold_starts = false;
    await_ready(rig, 1);
    rig_stop(rig);
}

static void one_that_does_not_answer_fails_its_create(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=1"), "--set", "start_deadline_ms=200"));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    await_ready(rig, 1);
    rig->play.configure = CONFIGURE_SILENT;
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "not ready within 200 ms");
    RIG_AWAIT(rig->play.stops == 1);
    await_ready(rig, 1);
    rig_stop(rig);
}

static void one_that_speaks_unasked_is_thrown_away(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=1")));
    await_ready(rig, 1);
    rig->play.speak_slot = 1;
    RIG_AWAIT(rig->play.stops == 1);
    await_ready(rig, 1);
    assert_int_equal(rig->play.configures, 0);
    rig_stop(rig);
}

static void a_client_that_goes_takes_its_warm_one_along(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=2")));
    await_ready(rig, 2);
    rig->play.configure = CONFIGURE_SILENT;
    int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(rig->play.configures == 1);
    close(fd);
    RIG_AWAIT(rig->play.stops == 1);
    rig->play.configure = CONFIGURE_OK;
    await_ready(rig, 2);
    RIG_AWAIT(rig->play.live == 2);
    cleanup_fd int other = rig_connect(rig);
    expect_start(other, &spec, "pool");
    rig_stop(rig);
}

static void failures_to_fill_back_off(void **state)
{
    struct rig *rig = rig_launch(ARGS(KEEP("debian:64:1=1")), NULL);
    rig->play.start_error = -ENOSPC;
    rig_await_ready(rig);
    // The first is tried again at once, the second after a second, the third after two.
    RIG_AWAIT(rig->play.starts == 2);
    uint64_t second = mono_ns();
    RIG_AWAIT(rig->play.starts == 3);
    uint64_t third = mono_ns();
    assert_true(third - second > 900 * NS_PER_MS);
    RIG_AWAIT(rig->play.starts == 4);
    assert_true(mono_ns() - third > 1900 * NS_PER_MS);
    RIG_AWAIT(count_logged(rig, "\"event\":\"pool_fill_failed\"") == 4);
    assert_int_equal(count_logged(rig, "\"retry_ms\":0}"), 1);
    assert_int_equal(count_logged(rig, "\"retry_ms\":1000}"), 1);
    assert_int_equal(count_logged(rig, "\"retry_ms\":2000}"), 1);
    // A create does not wait for that.
    rig->play.start_error = 0;
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "cold");
    await_ready(rig, 1);
    rig_stop(rig);
}

// All that were warm are killed: each is replaced at once, and only when that goes on is there a wait.
static void the_killed_are_replaced_at_once(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=3")));
    await_ready(rig, 3);
    for (int slot = 0; slot < 3; slot++) {
        rig->play.kill_slot = slot + 1;
        RIG_AWAIT(count_logged(rig, "\"event\":\"pool_lost\"") == (unsigned)slot + 1);
    }
    await_ready(rig, 3);
    assert_int_equal(count_logged(rig, "\"retry_ms\":0}"), 3);
    assert_int_equal(rig->play.starts, 6);
    rig->play.kill_slot = 4;  // the first three places are not given again at once
    RIG_AWAIT(count_logged(rig, "\"event\":\"pool_lost\"") == 4);
    assert_int_equal(count_logged(rig, "\"retry_ms\":0}"), 3);
    assert_int_equal(count_logged(rig, "\"retry_ms\":1000}"), 1);
    await_ready(rig, 3);
    rig_stop(rig);
}

// ---- ceilings ----

static void no_more_are_warm_than_pool_max(void **state)
{
    struct rig *rig = rig_start(ARGS(AUTO(4), "--set", "pool_max=3"));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    expect_start(fd, &spec, "cold");
    await_ready(rig, 3);
    spec.memory_mib = 65;
    expect_start(fd, &spec, "cold");
    assert_true(rig_silent(fd, 300));
    await_ready(rig, 3);
    assert_int_equal(rig->play.starts, 5);
    // What is taken makes room, and the shape that has none comes first.
    spec.memory_mib = 64;
    expect_start(fd, &spec, "pool");
    await_ready(rig, 3);
    spec.memory_mib = 65;
    expect_start(fd, &spec, "pool");
    rig_stop(rig);
}

static void warm_ones_give_way_to_those_that_are_asked_for(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=3"), "--set", "max_sandboxes=3"));
    cleanup_fd int fd = rig_connect(rig);
    await_ready(rig, 3);
    Sandbox__CreateRequest spec = rig_spec();
    spec.memory_mib = 65;
    spec.pool_wait_ms = 1;
    uint32_t id[3];
    for (int i = 0; i < 3; i++)
        id[i] = expect_start(fd, &spec, "cold");
    await_ready(rig, 0);
    RIG_AWAIT(rig->play.live == 3);
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "max_sandboxes is 3");
    destroy(fd, id[0]);
    await_ready(rig, 1);
    destroy(fd, id[1]);
    destroy(fd, id[2]);
    await_ready(rig, 3);
    spec.memory_mib = 64;
    for (int i = 0; i < 3; i++)
        expect_start(fd, &spec, "pool");
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "max_sandboxes is 3");
    rig_stop(rig);
}

static void one_being_made_warm_gives_way_too(void **state)
{
    struct rig *rig = rig_launch(ARGS(KEEP("debian:64:1=2"), "--set", "max_sandboxes=2"), NULL);
    rig->play.hold_starts = true;
    rig_await_ready(rig);
    RIG_AWAIT(rig->play.held_starts == 2);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    spec.memory_mib = 65;
    rig_send_create(fd, 1, &spec);
    rig_send_create(fd, 2, &spec);
    RIG_AWAIT(rig->play.held_starts == 4);
    rig->play.hold_starts = false;
    uint64_t ids = 0;  // their agents answer in any order
    for (int i = 0; i < 2; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        ids += m->request_id;
        pb_free(m);
    }
    assert_int_equal(ids, 1 + 2);
    RIG_AWAIT(rig->play.live == 2);
    await_ready(rig, 0);
    rig_stop(rig);
}

// ---- the end ----

static void the_end_takes_the_warm_ones_along(void **state)
{
    struct rig *rig = rig_start(ARGS(KEEP("debian:64:1=3, debian:65:1=3")));
    await_ready(rig, 6);
    assert_int_equal(rig->play.live, 6);
    rig_stop(rig);  // looks that nothing lives any more
}

static void the_end_takes_along_what_is_being_made_warm(void **state)
{
    struct rig *rig = rig_launch(ARGS(KEEP("debian:64:1=3, nothing:64:1=1")), NULL);
    rig->play.hold_starts = true;
    rig_await_ready(rig);
    RIG_AWAIT(rig->play.held_starts == 2);
    kill(rig->engine, SIGTERM);
    RIG_AWAIT(logged(rig, "\"event\":\"stopping\""));
    rig->play.hold_starts = false;
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_cold_and_then_they_are_warm),
        cmocka_unit_test(without_a_wait_an_empty_pool_fails_at_once),
        cmocka_unit_test(beyond_what_is_warm_they_start_cold),
        cmocka_unit_test(one_that_waits_for_a_start_takes_what_becomes_warm),
        cmocka_unit_test(a_warm_one_has_been_told_nothing),
        cmocka_unit_test(shapes_are_never_mixed),
        cmocka_unit_test(at_most_eight_shapes_are_kept),
        cmocka_unit_test(an_idle_shape_is_given_up),
        cmocka_unit_test(the_settings_are_filled_at_the_start),
        cmocka_unit_test(a_template_of_the_settings_may_come_later),
        cmocka_unit_test(settings_that_cannot_be),
        cmocka_unit_test(a_changed_template_drops_what_is_warm),
        cmocka_unit_test(a_changed_template_of_the_settings_is_noticed_by_itself),
        cmocka_unit_test(one_that_dies_warm_is_replaced),
        cmocka_unit_test(one_that_dies_being_configured_is_replaced_by_a_start),
        cmocka_unit_test(without_a_wait_and_without_another_its_death_is_said),
        cmocka_unit_test(one_that_does_not_answer_fails_its_create),
        cmocka_unit_test(one_that_speaks_unasked_is_thrown_away),
        cmocka_unit_test(a_client_that_goes_takes_its_warm_one_along),
        cmocka_unit_test(failures_to_fill_back_off),
        cmocka_unit_test(the_killed_are_replaced_at_once),
        cmocka_unit_test(no_more_are_warm_than_pool_max),
        cmocka_unit_test(warm_ones_give_way_to_those_that_are_asked_for),
        cmocka_unit_test(one_being_made_warm_gives_way_too),
        cmocka_unit_test(the_end_takes_the_warm_ones_along),
        cmocka_unit_test(the_end_takes_along_what_is_being_made_warm),
    };
    return cmocka_run_group_tests_name("engine_pool", tests, NULL, NULL);
}
