// Snapshots and forks as a client sees them, with a jailer that is played (engine_rig.h): all or none, caps, owners, what is
// kept and what is deleted when.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIND(name) SANDBOX__CLIENT_MESSAGE__REQUEST_##name
#define ANSWER(name) SANDBOX__SERVER_MESSAGE__RESPONSE_##name

struct name {
    char text[32];
};

static void send_take(int fd, uint64_t id, uint32_t sandbox)
{
    Sandbox__SnapshotCreateRequest create = SANDBOX__SNAPSHOT_CREATE_REQUEST__INIT;
    create.sandbox_id = sandbox;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = id;
    m.request_case = KIND(SNAPSHOT_CREATE);
    m.snapshot_create = &create;
    rig_send(fd, &m);
}

static struct name expect_taken(int fd, uint64_t id)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != ANSWER(SNAPSHOT_CREATE))
        fail_msg("no snapshot: %s", m->response_case == ANSWER(ERROR) ? m->error->message : "?");
    assert_int_equal(m->request_id, id);
    assert_false(m->snapshot_create->snapshot->memory);
    struct name name;
    snprintf(name.text, sizeof name.text, "%s", m->snapshot_create->snapshot->id);
    pb_free(m);
    return name;
}

static struct name take(int fd, uint32_t sandbox)
{
    send_take(fd, 70, sandbox);
    return expect_taken(fd, 70);
}

static void send_fork_with(int fd, uint64_t id, const char *name, uint32_t count, const char *variable)
{
    Sandbox__ForkRequest fork = SANDBOX__FORK_REQUEST__INIT;
    ProtobufCBinaryData env = {.len = variable != NULL ? strlen(variable) : 0, .data = (uint8_t *)variable};
    fork.snapshot_id = (char *)name;
    fork.count = count;
    fork.n_env_vars = variable != NULL ? 1 : 0;
    fork.env_vars = &env;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = id;
    m.request_case = KIND(FORK);
    m.fork = &fork;
    rig_send(fd, &m);
}

static void send_fork(int fd, uint64_t id, const char *name, uint32_t count)
{
    send_fork_with(fd, id, name, count, NULL);
}

// The ids of `count` forks, each with a token of its own.
static void expect_forked(int fd, uint64_t id, uint32_t count, uint32_t *ret_ids)
{
    Sandbox__ServerMessage *m = rig_receive(fd);
    if (m->response_case != ANSWER(FORK))
        fail_msg("no forks: %s", m->response_case == ANSWER(ERROR) ? m->error->message : "?");
    assert_int_equal(m->request_id, id);
    assert_false(m->fork->memory);
    assert_int_equal(m->fork->n_sandboxes, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(m->fork->sandboxes[i]->start, "fork");
        assert_int_equal(strlen(m->fork->sandboxes[i]->session_token), 64);
        for (uint32_t k = 0; k < i; k++) {
            assert_true(m->fork->sandboxes[i]->sandbox_id != m->fork->sandboxes[k]->sandbox_id);
            assert_string_not_equal(m->fork->sandboxes[i]->session_token, m->fork->sandboxes[k]->session_token);
        }
        if (ret_ids != NULL)
            ret_ids[i] = m->fork->sandboxes[i]->sandbox_id;
    }
    pb_free(m);
}

static void send_about(int fd, uint64_t id, int kind, const char *name)
{
    Sandbox__SnapshotInspectRequest inspect = SANDBOX__SNAPSHOT_INSPECT_REQUEST__INIT;
    Sandbox__SnapshotDeleteRequest gone = SANDBOX__SNAPSHOT_DELETE_REQUEST__INIT;
    Sandbox__SnapshotListRequest list = SANDBOX__SNAPSHOT_LIST_REQUEST__INIT;
    inspect.id = gone.id = list.after = (char *)name;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = id;
    m.request_case = (Sandbox__ClientMessage__RequestCase)kind;
    if (kind == KIND(SNAPSHOT_INSPECT))
        m.snapshot_inspect = &inspect;
    else if (kind == KIND(SNAPSHOT_DELETE))
        m.snapshot_delete = &gone;
    else
        m.snapshot_list = &list;
    rig_send(fd, &m);
}

static void delete (int fd, const char *name)
{
    send_about(fd, 71, KIND(SNAPSHOT_DELETE), name);
    rig_expect(fd, 71, ANSWER(SNAPSHOT_DELETE));
}

static size_t listed(int fd)
{
    send_about(fd, 72, KIND(SNAPSHOT_LIST), "");
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, ANSWER(SNAPSHOT_LIST));
    size_t n = m->snapshot_list->n_snapshots;
    for (size_t i = 1; i < n; i++)
        assert_true(strcmp(m->snapshot_list->snapshots[i - 1]->id, m->snapshot_list->snapshots[i]->id) < 0);
    pb_free(m);
    return n;
}

static void destroy(int fd, uint32_t sandbox)
{
    rig_send_simple(fd, RIG_DESTROY, 73, sandbox);
    rig_expect(fd, 73, ANSWER(DESTROY));
}

// ---- snapshots ----

static void what_is_told_of_one(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    spec.disk_mib = 99;
    rig_send_create(fd, 1, &spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    uint32_t sandbox = m->create->sandbox_id;
    pb_free(m);
    struct name name = take(fd, sandbox);
    send_about(fd, 2, KIND(SNAPSHOT_INSPECT), name.text);
    m = rig_receive(fd);
    assert_int_equal(m->response_case, ANSWER(SNAPSHOT_INSPECT));
    const Sandbox__Snapshot *s = m->snapshot_inspect->snapshot;
    assert_string_equal(s->id, name.text);
    assert_string_equal(s->template_name, spec.template_name);
    assert_int_equal(s->source_sandbox_id, sandbox);
    assert_int_equal(s->memory_mib, spec.memory_mib);
    assert_int_equal(s->vcpu_count, spec.vcpu_count);
    assert_int_equal(s->disk_mib, 99);
    assert_int_equal(s->isolation, SANDBOX_ISOLATION_CONTAINER);
    assert_int_equal(s->pause_us, 1500);
    assert_true(s->bytes == (uint64_t)64 << 20);
    assert_int_equal(s->depth, 1);
    assert_false(s->memory || s->volume_left_out);
    assert_true(s->created_at + 60 > wall_ns() / NS_PER_S && s->created_at <= wall_ns() / NS_PER_S);
    pb_free(m);
    assert_int_equal(listed(fd), 1);
    assert_int_equal(rig->play.layers, 1);
    delete (fd, name.text);
    assert_int_equal(listed(fd), 0);
    RIG_AWAIT(rig->play.layers == 0);
    rig_stop(rig);
}

static void one_that_fails_leaves_nothing(void **state)
{
    static const struct {
        int error, code;
        const char *text;
    } cases[] = {{-ENOSPC, SANDBOX_ERR_INTERNAL, "no room"}, {-EIO, SANDBOX_ERR_INTERNAL, "goes on"}};
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig->play.snapshot_error = cases[i].error;
        send_take(fd, 5, sandbox);
        rig_expect_error(fd, 5, cases[i].code, cases[i].text);
        assert_int_equal(listed(fd), 0);
        rig_send_stat(fd, 6, sandbox);
        rig_expect(fd, 6, ANSWER(GUEST));
    }
    rig->play.snapshot_error = 0;
    take(fd, sandbox);
    assert_int_equal(rig->play.layers, 1);
    rig_stop(rig);
}

// The engine's own folder cannot be written: the layer goes again.
static void one_that_cannot_be_described_leaves_no_layer(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    char path[128], away[128];
    rig_path(rig, "state/snapshots", path, sizeof path);
    rig_path(rig, "away", away, sizeof away);
    assert_int_equal(rmdir(path), 0);  // the engine holds it open, and nothing can be made in it
    send_take(fd, 5, sandbox);
    rig_expect_error(fd, 5, SANDBOX_ERR_INTERNAL, "goes on");
    assert_int_equal(listed(fd), 0);
    RIG_AWAIT(rig->play.layer_deletes == 1 && rig->play.layers == 0);
    rig_stop(rig);
}

static void one_at_a_time_and_only_of_what_runs(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd), other = rig_create(fd);
    rig->play.hold_snapshots = true;
    send_take(fd, 1, sandbox);
    RIG_AWAIT(rig->play.held_snapshots == 1);
    send_take(fd, 2, sandbox);
    rig_expect_error(fd, 2, SANDBOX_ERR_GUEST_UNAVAILABLE, "being taken");
    send_take(fd, 3, other);
    RIG_AWAIT(rig->play.held_snapshots == 2);
    // Its end ends what is being taken of it; the other's is not touched.
    rig_send_simple(fd, RIG_DESTROY, 73, other);
    rig_expect_error(fd, 3, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    rig_expect(fd, 73, ANSWER(DESTROY));
    rig->play.hold_snapshots = false;
    expect_taken(fd, 1);
    rig->play.kill_slot = 1;
    RIG_AWAIT(rig->play.live == 0);
    send_take(fd, 4, sandbox);
    rig_expect_error(fd, 4, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended");
    send_take(fd, 5, 9999);
    rig_expect_error(fd, 5, SANDBOX_ERR_PERMISSION_DENIED, "");
    assert_int_equal(rig->play.layers, 1);
    rig_stop(rig);
}

static void a_client_that_goes_leaves_nothing_unfinished(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig->play.hold_snapshots = true;
    for (unsigned i = 1; i <= 20; i++) {
        cleanup_fd int short_lived = rig_connect(rig);
        send_take(short_lived, 1, rig_create(short_lived));
        RIG_AWAIT(rig->play.snapshots == i);
    }
    RIG_AWAIT(rig->play.live == 0);
    rig->play.hold_snapshots = false;
    assert_int_equal(listed(fd), 0);
    assert_int_equal(rig->play.layers, 0);
    rig_stop(rig);
}

static void the_cap_counts_those_being_taken(void **state)
{
    static const char *const args[] = {"--set", "max_snapshots_per_uid=3", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t a = rig_create(fd), b = rig_create(fd);
    struct name first = take(fd, a);
    take(fd, a);
    rig->play.hold_snapshots = true;
    send_take(fd, 1, a);
    RIG_AWAIT(rig->play.held_snapshots == 1);
    send_take(fd, 2, b);
    rig_expect_error(fd, 2, SANDBOX_ERR_POOL_EXHAUSTED, "max_snapshots_per_uid");
    rig->play.hold_snapshots = false;
    expect_taken(fd, 1);
    delete (fd, first.text);
    take(fd, b);
    send_take(fd, 3, b);
    rig_expect_error(fd, 3, SANDBOX_ERR_POOL_EXHAUSTED, "has 3 snapshots");
    rig_stop(rig);
}

static void lists_come_in_parts(void **state)
{
    static const char *const args[] = {"--set", "max_snapshots_per_uid=1000", NULL};
    enum { MANY = 256 };  // SNAPSHOTS_LISTED
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    for (int i = 0; i < MANY - 1; i++)
        take(fd, sandbox);
    // One more than the played jailer has room for is refused by it: the list's end is the engine's.
    take(fd, sandbox);
    send_about(fd, 1, KIND(SNAPSHOT_LIST), "");
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->snapshot_list->n_snapshots, MANY);
    assert_false(m->snapshot_list->more);
    struct name third;
    snprintf(third.text, sizeof third.text, "%s", m->snapshot_list->snapshots[2]->id);
    pb_free(m);
    send_about(fd, 1, KIND(SNAPSHOT_LIST), third.text);
    m = rig_receive(fd);
    assert_int_equal(m->snapshot_list->n_snapshots, MANY - 3);
    assert_true(strcmp(m->snapshot_list->snapshots[0]->id, third.text) > 0);
    pb_free(m);
    rig_stop(rig);
}

static void suspend_is_refused_with_the_reason(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__SuspendRequest suspend = SANDBOX__SUSPEND_REQUEST__INIT;
    suspend.sandbox_id = rig_create(fd);
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = 1;
    m.request_case = KIND(SUSPEND);
    m.suspend = &suspend;
    rig_send(fd, &m);
    rig_expect_error(fd, 1, SANDBOX_ERR_INVALID_SPEC, "cannot be put on disk");
    suspend.sandbox_id = 777;
    rig_send(fd, &m);
    rig_expect_error(fd, 1, SANDBOX_ERR_PERMISSION_DENIED, "");
    rig_stop(rig);
}

// ---- forks ----

static void forks_are_all_or_none(void **state)
{
    enum { COUNT = 12 };
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    // Whichever of them fails, none is left, and nobody can have seen one.
    for (int n = 1; n <= COUNT; n++) {
        rig->play.fail_start = n;
        send_fork(fd, 1, name.text, COUNT);
        rig_expect_error(fd, 1, SANDBOX_ERR_INTERNAL, "could not be started");
        rig->play.fail_start = 0;
        // Starts of that fork may be on their way still: they come before this one.
        destroy(fd, rig_create(fd));
        RIG_AWAIT(rig->play.live == 1);
    }
    uint32_t ids[COUNT];
    send_fork(fd, 2, name.text, COUNT);
    expect_forked(fd, 2, COUNT, ids);
    assert_int_equal(rig->play.live, COUNT + 1);
    for (int i = 0; i < COUNT; i++) {
        rig_send_stat(fd, 3, ids[i]);
        rig_expect(fd, 3, ANSWER(GUEST));
    }
    rig_stop(rig);
}

static void an_agent_that_fails_spoils_all(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    rig->play.configure = CONFIGURE_CLOSE_ONCE;
    send_fork(fd, 1, name.text, 6);
    rig_expect_error(fd, 1, SANDBOX_ERR_GUEST_UNAVAILABLE, "ended before it was ready");
    RIG_AWAIT(rig->play.live == 1);
    rig->play.configure = CONFIGURE_ERROR;
    send_fork(fd, 2, name.text, 6);
    rig_expect_error(fd, 2, SANDBOX_ERR_INTERNAL, "could not set it up");
    RIG_AWAIT(rig->play.live == 1);
    rig->play.configure = CONFIGURE_OK;
    send_fork(fd, 3, name.text, 6);
    expect_forked(fd, 3, 6, NULL);
    rig_stop(rig);
}

static void forks_cannot_be_found_before_all_run(void **state)
{
    static const char *const args[] = {"--set", "max_creates=2", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    struct name name = take(fd, sandbox);
    rig->play.configure = CONFIGURE_SILENT;
    rig->play.hold_starts = true;
    send_fork(fd, 1, name.text, 3);
    RIG_AWAIT(rig->play.held_starts == 2);
    rig->play.configure = CONFIGURE_OK;
    rig->play.hold_starts = false;
    expect_forked(fd, 1, 3, NULL);
    // One of a fork that waits is not there for anybody: ids are counted up.
    rig->play.hold_starts = true;
    send_fork(fd, 2, name.text, 3);
    RIG_AWAIT(rig->play.held_starts == 2);
    for (uint32_t id = sandbox + 4; id < sandbox + 8; id++) {
        rig_send_stat(fd, 3, id);
        rig_expect_error(fd, 3, SANDBOX_ERR_PERMISSION_DENIED, "");
        send_take(fd, 4, id);
        rig_expect_error(fd, 4, SANDBOX_ERR_PERMISSION_DENIED, "");
    }
    rig->play.hold_starts = false;
    expect_forked(fd, 2, 3, NULL);
    rig_stop(rig);
}

static void a_client_that_goes_takes_its_forks_along(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    for (unsigned i = 0; i < 20; i++) {
        rig->play.hold_starts = i % 2 == 0;
        unsigned before = rig->play.starts;
        cleanup_fd int short_lived = rig_connect(rig);
        send_fork(short_lived, 1, name.text, 10);
        RIG_AWAIT(rig->play.starts > before + i % 5);
        close_fd(&short_lived);
        rig->play.hold_starts = false;
        RIG_AWAIT(rig->play.live == 1);
    }
    send_fork(fd, 2, name.text, 10);
    expect_forked(fd, 2, 10, NULL);
    rig_stop(rig);
}

// The second start is not the fork's second, but another client's, who came after all of the fork's.
static void a_fork_does_not_keep_others_waiting(void **state)
{
    static const char *const args[] = {"--set", "max_creates=1", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig), other = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    rig->play.hold_starts = true;
    send_fork(fd, 1, name.text, 10);
    RIG_AWAIT(rig->play.held_starts == 1);
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(other, 1, &spec);
    assert_true(rig_silent(other, 200));  // its template is looked at before it waits for a slot
    rig->play.fail_start = 2;
    rig->play.hold_starts = false;
    rig_expect_error(other, 1, SANDBOX_ERR_INTERNAL, "could not be started");
    expect_forked(fd, 1, 10, NULL);
    rig_stop(rig);
}

static void counts_and_caps(void **state)
{
    static const char *const args[] = {"--set", "max_fork=8", "--set", "max_owned_per_connection=10", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    static const uint32_t bad[] = {0, 9, FORK_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        send_fork(fd, 1, name.text, bad[i]);
        rig_expect_error(fd, 1, SANDBOX_ERR_INVALID_SPEC, "max_fork");
    }
    send_fork(fd, 2, name.text, 8);
    expect_forked(fd, 2, 8, NULL);
    send_fork(fd, 3, name.text, 2);
    rig_expect_error(fd, 3, SANDBOX_ERR_POOL_EXHAUSTED, "max_owned_per_connection is 10");
    send_fork(fd, 4, name.text, 1);
    expect_forked(fd, 4, 1, NULL);
    // What a fork will have counts while it waits.
    cleanup_fd int other = rig_connect(rig);
    rig->play.hold_starts = true;
    send_fork(other, 1, name.text, 8);
    RIG_AWAIT(rig->play.held_starts > 0);
    send_fork(other, 2, name.text, 3);
    rig_expect_error(other, 2, SANDBOX_ERR_POOL_EXHAUSTED, "this connection has 8");
    rig->play.hold_starts = false;
    expect_forked(other, 1, 8, NULL);
    rig_stop(rig);
}

static void names_of_others_are_no_names(void **state)
{
    static const char *const bad[] = {"", "snp_", "snp_000000000000w", "../../../etc/passwd", "snp_0000000000000/"};
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        send_fork(fd, 1, bad[i], 1);
        rig_expect_error(fd, 1, SANDBOX_ERR_INVALID_SPEC, "snp_");
        send_about(fd, 2, KIND(SNAPSHOT_INSPECT), bad[i]);
        rig_expect_error(fd, 2, SANDBOX_ERR_INVALID_SPEC, "snp_");
        send_about(fd, 3, KIND(SNAPSHOT_DELETE), bad[i]);
        rig_expect_error(fd, 3, SANDBOX_ERR_INVALID_SPEC, "snp_");
    }
    static const char none[] = "snp_0000000000000";
    send_fork(fd, 1, none, 1);
    rig_expect_error(fd, 1, SANDBOX_ERR_NOT_FOUND, "no such snapshot");
    send_about(fd, 2, KIND(SNAPSHOT_INSPECT), none);
    rig_expect_error(fd, 2, SANDBOX_ERR_NOT_FOUND, "no such snapshot");
    send_about(fd, 3, KIND(SNAPSHOT_DELETE), none);
    rig_expect_error(fd, 3, SANDBOX_ERR_NOT_FOUND, "no such snapshot");
    rig_stop(rig);
}

static void variables_are_merged(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    ProtobufCBinaryData env[] = {{3, (uint8_t *)"A=1"}, {3, (uint8_t *)"B=2"}};
    spec.env_vars = env;
    spec.n_env_vars = 2;
    rig_send_create(fd, 1, &spec);
    Sandbox__ServerMessage *m = rig_receive(fd);
    struct name name = take(fd, m->create->sandbox_id);
    pb_free(m);
    static const struct {
        const char *given;
        unsigned have;
    } cases[] = {{NULL, 2}, {"A=x", 2}, {"AA=x", 3}, {"B=", 2}, {"C=3", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        send_fork_with(fd, 2, name.text, 1, cases[i].given);
        expect_forked(fd, 2, 1, NULL);
        assert_int_equal(rig->play.env_vars, cases[i].have);
    }
    send_fork_with(fd, 3, name.text, 1, "novalue");
    rig_expect_error(fd, 3, SANDBOX_ERR_INVALID_SPEC, "KEY=VALUE");
    rig_stop(rig);
}

// ---- layers ----

static void a_long_chain_is_compacted(void **state)
{
    enum { DEPTH_MAX = 8 };             // SNAPSHOT_LAYERS_MAX
    struct rig *rig = rig_start(NULL);  // what the played jailer keeps is larger than fork_copy_mib
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    for (unsigned step = 1; step <= 2 * DEPTH_MAX; step++) {
        struct name name = take(fd, sandbox);
        destroy(fd, sandbox);
        send_fork(fd, 1, name.text, 1);
        expect_forked(fd, 1, 1, &sandbox);
        assert_int_equal(rig->play.start_layers, step < DEPTH_MAX ? step : DEPTH_MAX);
        assert_int_equal(rig->play.start_copies, step >= DEPTH_MAX);
        assert_false(rig->play.broken);
    }
    rig_stop(rig);
}

static void little_is_copied(void **state)
{
    static const char *const args[] = {"--set", "fork_copy_mib=64", NULL};
    struct rig *rig = rig_start(args);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd);
    for (unsigned step = 0; step < 4; step++) {
        struct name name = take(fd, sandbox);
        send_fork(fd, 1, name.text, 1);
        expect_forked(fd, 1, 1, &sandbox);
        assert_int_equal(rig->play.start_layers, 1);
        assert_int_equal(rig->play.start_copies, 1);
        delete (fd, name.text);  // a copy needs it no more
        RIG_AWAIT(rig->play.layers == 0);
    }
    rig_stop(rig);
}

static void a_layer_stays_as_long_as_anything_stands_on_it(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd), fork, second;
    struct name first = take(fd, sandbox);
    send_fork(fd, 1, first.text, 1);
    expect_forked(fd, 1, 1, &fork);
    delete (fd, first.text);
    assert_int_equal(rig->play.layers, 1);  // the fork's
    struct name last = take(fd, fork);
    assert_int_equal(rig->play.layers, 2);
    destroy(fd, fork);
    assert_int_equal(rig->play.layers, 2);  // the second snapshot's
    send_fork(fd, 1, last.text, 1);
    expect_forked(fd, 1, 1, &second);
    assert_int_equal(rig->play.start_layers, 2);
    delete (fd, last.text);
    assert_int_equal(rig->play.layers, 2);
    destroy(fd, second);
    RIG_AWAIT(rig->play.layers == 0);
    assert_false(rig->play.broken);
    rig_stop(rig);
}

static void deleted_while_it_is_forked(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    struct name name = take(fd, rig_create(fd));
    rig->play.hold_starts = true;
    send_fork(fd, 1, name.text, 4);
    RIG_AWAIT(rig->play.held_starts > 0);
    delete (fd, name.text);
    assert_int_equal(listed(fd), 0);
    send_fork(fd, 2, name.text, 1);
    rig_expect_error(fd, 2, SANDBOX_ERR_NOT_FOUND, "");
    rig->play.hold_starts = false;
    uint32_t ids[4];
    expect_forked(fd, 1, 4, ids);
    assert_false(rig->play.broken);
    assert_int_equal(rig->play.layers, 1);
    for (int i = 0; i < 4; i++)
        destroy(fd, ids[i]);
    RIG_AWAIT(rig->play.layers == 0);
    rig_stop(rig);
}

static void with_strange_layers(struct rig *rig)
{
    rig->play.layers = 40;  // more than one list holds
}

static void layers_nobody_knows_are_deleted_at_start(void **state)
{
    struct rig *rig = rig_launch(NULL, with_strange_layers);
    rig_await_ready(rig);
    RIG_AWAIT(rig->play.layers == 0);
    assert_int_equal(rig->play.layer_deletes, 40);
    rig_stop(rig);
}

static void numbers_of_inspect(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t sandbox = rig_create(fd), fork;
    struct name name = take(fd, sandbox);
    send_fork(fd, 1, name.text, 1);
    expect_forked(fd, 1, 1, &fork);
    rig_send_simple(fd, RIG_INSPECT, 2, fork);
    Sandbox__ServerMessage *m = rig_receive(fd);
    assert_int_equal(m->response_case, ANSWER(INSPECT));
    assert_int_equal(m->inspect->memory_rss_mib, 6);
    assert_int_equal(m->inspect->memory_private_mib, 3);
    assert_int_equal(m->inspect->memory_shared_mib, 2);
    assert_string_equal(m->inspect->snapshot_id, name.text);
    assert_string_equal(m->inspect->state, "running");
    assert_string_equal(m->inspect->start, "fork");
    assert_false(m->inspect->memory);
    pb_free(m);
    rig_stop(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told_of_one),
        cmocka_unit_test(one_that_fails_leaves_nothing),
        cmocka_unit_test(one_that_cannot_be_described_leaves_no_layer),
        cmocka_unit_test(one_at_a_time_and_only_of_what_runs),
        cmocka_unit_test(a_client_that_goes_leaves_nothing_unfinished),
        cmocka_unit_test(the_cap_counts_those_being_taken),
        cmocka_unit_test(lists_come_in_parts),
        cmocka_unit_test(suspend_is_refused_with_the_reason),
        cmocka_unit_test(forks_are_all_or_none),
        cmocka_unit_test(an_agent_that_fails_spoils_all),
        cmocka_unit_test(forks_cannot_be_found_before_all_run),
        cmocka_unit_test(a_client_that_goes_takes_its_forks_along),
        cmocka_unit_test(a_fork_does_not_keep_others_waiting),
        cmocka_unit_test(counts_and_caps),
        cmocka_unit_test(names_of_others_are_no_names),
        cmocka_unit_test(variables_are_merged),
        cmocka_unit_test(a_long_chain_is_compacted),
        cmocka_unit_test(little_is_copied),
        cmocka_unit_test(a_layer_stays_as_long_as_anything_stands_on_it),
        cmocka_unit_test(deleted_while_it_is_forked),
        cmocka_unit_test(layers_nobody_knows_are_deleted_at_start),
        cmocka_unit_test(numbers_of_inspect),
    };
    return cmocka_run_group_tests_name("engine_snapshots", tests, NULL, NULL);
}
