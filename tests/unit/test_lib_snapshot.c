// libsandbox: snapshots and forks, with an engine that answers as it should, and with one that does not.
#include "base/cleanup.h"
#include "lib_world.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum lie { HONEST, NO_ID, LONG_ID, LONG_TEMPLATE, NO_SNAPSHOT, ENDLESS, UNSORTED, ONE_LESS, ONE_MORE, NONE_MADE };

struct teller {
    enum lie lie;
    unsigned in_list;
    atomic_uint parts;
    uint32_t count;  // of the last fork
    char env[64];
};

enum { PART = 3, MANY_FORKS = 600 };

static void name_of(unsigned n, char name[static 20])
{
    snprintf(name, 20, "snp_%013u", n);
}

static void fill(Sandbox__Snapshot *s, char name[static 20], unsigned n, enum lie lie)
{
    static char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    sandbox__snapshot__init(s);
    name_of(n, name);
    s->id = lie == NO_ID ? (char *)"" : lie == LONG_ID ? longer : name;
    s->template_name = lie == LONG_TEMPLATE ? longer : (char *)"debian";
    s->source_sandbox_id = 5;
    s->vcpu_count = 2;
    s->memory_mib = 64;
    s->disk_mib = 128;
    s->isolation = SANDBOX_ISOLATION_CONTAINER;
    s->created_at = 1700000000;
    s->bytes = 4096;
    s->pause_us = 77;
    s->depth = 3;
    s->volume_left_out = true;
}

static void tell_list(struct fake_peer *peer, Sandbox__ServerMessage *reply, const char *after, struct teller *t)
{
    Sandbox__SnapshotListResponse list = SANDBOX__SNAPSHOT_LIST_RESPONSE__INIT;
    Sandbox__Snapshot s[PART], *pointers[PART];
    char names[PART][20];
    unsigned begin = after[0] == '\0' ? 0 : (unsigned)atoi(after + 4) + 1;
    atomic_fetch_add(&t->parts, 1);
    for (unsigned i = 0; i < PART && begin + i < t->in_list; i++) {
        fill(&s[i], names[i], t->lie == UNSORTED ? 100 - i : begin + i, t->lie);
        pointers[list.n_snapshots++] = &s[i];
    }
    list.snapshots = pointers;
    list.more = t->lie == ENDLESS || begin + list.n_snapshots < t->in_list;
    reply->snapshot_list = &list;
    fake_reply(peer, reply);
}

static void tell_fork(struct fake_peer *peer, Sandbox__ServerMessage *reply, const Sandbox__ForkRequest *fork, struct teller *t)
{
    static Sandbox__CreateResponse made[MANY_FORKS + 1];
    static Sandbox__CreateResponse *pointers[MANY_FORKS + 1];
    Sandbox__ForkResponse forked = SANDBOX__FORK_RESPONSE__INIT;
    forked.n_sandboxes = fork->count + (t->lie == ONE_MORE) - (t->lie == ONE_LESS);
    if (t->lie == NONE_MADE)
        forked.n_sandboxes = 0;
    t->count = fork->count;
    t->env[0] = '\0';
    if (fork->n_env_vars > 0)
        snprintf(t->env, sizeof t->env, "%.*s", (int)fork->env_vars[0].len, (char *)fork->env_vars[0].data);
    for (size_t i = 0; i < forked.n_sandboxes; i++) {
        sandbox__create_response__init(&made[i]);
        made[i].sandbox_id = 100 + (uint32_t)i;
        made[i].isolation = SANDBOX_ISOLATION_CONTAINER;
        made[i].start = (char *)"fork";
        pointers[i] = &made[i];
    }
    forked.sandboxes = pointers;
    reply->fork = &forked;
    fake_reply(peer, reply);
}

static void tell(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct teller *t = arg;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    Sandbox__SnapshotCreateResponse create = SANDBOX__SNAPSHOT_CREATE_RESPONSE__INIT;
    Sandbox__SnapshotInspectResponse inspect = SANDBOX__SNAPSHOT_INSPECT_RESPONSE__INIT;
    Sandbox__SnapshotDeleteResponse gone = SANDBOX__SNAPSHOT_DELETE_RESPONSE__INIT;
    Sandbox__Snapshot s;
    char name[20];
    fill(&s, name, 7, t->lie);
    create.snapshot = inspect.snapshot = t->lie == NO_SNAPSHOT ? NULL : &s;
    reply.request_id = m->request_id;
    reply.response_case = (Sandbox__ServerMessage__ResponseCase)m->request_case;
    switch (m->request_case) {
    case SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_CREATE:
        reply.snapshot_create = &create;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_INSPECT:
        reply.snapshot_inspect = &inspect;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_DELETE:
        reply.snapshot_delete = &gone;
        break;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_LIST:
        tell_list(peer, &reply, m->snapshot_list->after, t);
        return;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_FORK:
        tell_fork(peer, &reply, m->fork, t);
        return;
    case SANDBOX__CLIENT_MESSAGE__REQUEST_SUSPEND:
        fake_error(peer, m->request_id, SANDBOX_ERR_INVALID_SPEC, "not on this tier");
        return;
    default:
        fake_behave(peer, m, NULL);
        return;
    }
    fake_reply(peer, &reply);
}

static void one_is_told_as_it_is(void **state)
{
    struct teller t = {0};
    struct fake_engine *engine = fake_start(tell, &t);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = create_on(conn);
    sandbox_snapshot_t s[2];
    assert_int_equal(sandbox_snapshot_create(h, &s[0]), SANDBOX_OK);
    assert_int_equal(sandbox_snapshot_inspect(conn, "snp_0000000000007", &s[1]), SANDBOX_OK);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(s[i].id, "snp_0000000000007");
        assert_string_equal(s[i].template_name, "debian");
        assert_true(s[i].source_sandbox_id == 5 && s[i].vcpu_count == 2 && s[i].memory_mib == 64 && s[i].disk_mib == 128);
        assert_true(s[i].isolation == SANDBOX_ISOLATION_CONTAINER && s[i].depth == 3 && s[i].created_at == 1700000000);
        assert_true(s[i].bytes == 4096 && s[i].pause_us == 77 && !s[i].memory && s[i].volume_left_out);
    }
    assert_int_equal(sandbox_snapshot_delete(conn, "snp_0000000000007"), SANDBOX_OK);
    assert_int_equal(sandbox_suspend(h), SANDBOX_ERR_INVALID_SPEC);
    assert_string_equal(sandbox_last_error(), "not on this tier");
    sandbox_destroy(h);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void lies_about_one_are_found(void **state)
{
    static const enum lie lies[] = {NO_ID, LONG_ID, LONG_TEMPLATE, NO_SNAPSHOT};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct teller t = {.lie = lies[i], .in_list = 1};
        struct fake_engine *engine = fake_start(tell, &t);
        sandbox_conn_t *conn = open_to(engine);
        sandbox_handle_t *h = create_on(conn);
        sandbox_snapshot_t s;
        memset(&s, 0x5A, sizeof s);
        assert_int_equal(sandbox_snapshot_create(h, &s), SANDBOX_ERR_INTERNAL);
        assert_int_equal(sandbox_snapshot_inspect(conn, "x", &s), SANDBOX_ERR_INTERNAL);
        assert_int_equal(s.depth, 0x5A5A5A5A);
        sandbox_snapshot_t *list = UNTOUCHED;
        size_t n = 99;
        if (lies[i] != NO_SNAPSHOT)
            assert_int_equal(sandbox_snapshot_list(conn, &list, &n), SANDBOX_ERR_INTERNAL);
        assert_ptr_equal(list, UNTOUCHED);
        assert_int_equal(n, 99);
        sandbox_destroy(h);
        sandbox_conn_close(conn);
        fake_stop(engine);
    }
}

static void lists_are_put_together(void **state)
{
    for (unsigned in_list = 0; in_list <= 2 * PART + 1; in_list++) {
        struct teller t = {.in_list = in_list};
        struct fake_engine *engine = fake_start(tell, &t);
        sandbox_conn_t *conn = open_to(engine);
        sandbox_snapshot_t *list = NULL;
        size_t n = 99;
        assert_int_equal(sandbox_snapshot_list(conn, &list, &n), SANDBOX_OK);
        assert_int_equal(n, in_list);
        for (unsigned i = 0; i < in_list; i++) {
            char name[20];
            name_of(i, name);
            assert_string_equal(list[i].id, name);
        }
        assert_int_equal(t.parts, in_list == 0 ? 1 : (in_list + PART - 1) / PART);
        free(list);
        sandbox_conn_close(conn);
        fake_stop(engine);
    }
}

static void lists_that_make_no_sense_end(void **state)
{
    static const enum lie lies[] = {ENDLESS, UNSORTED};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct teller t = {.lie = lies[i], .in_list = PART};
        struct fake_engine *engine = fake_start(tell, &t);
        sandbox_conn_t *conn = open_to(engine);
        sandbox_snapshot_t *list = UNTOUCHED;
        size_t n = 99;
        assert_int_equal(sandbox_snapshot_list(conn, &list, &n), SANDBOX_ERR_INTERNAL);
        assert_true(list == UNTOUCHED && n == 99);
        sandbox_conn_close(conn);
        fake_stop(engine);
    }
}

static void forks_are_as_many_as_asked_for(void **state)
{
    struct teller t = {0};
    struct fake_engine *engine = fake_start(tell, &t);
    sandbox_conn_t *conn = open_to(engine);
    static sandbox_handle_t *h[MANY_FORKS];
    const char *env[] = {"A=1", NULL};
    const sandbox_fork_spec_t spec = {.env_vars = env};
    assert_int_equal(sandbox_fork(conn, "snp_0000000000007", &spec, 512, h), SANDBOX_OK);
    assert_string_equal(t.env, "A=1");
    for (uint32_t i = 0; i < 512; i++) {
        assert_int_equal(sandbox_id(h[i]), 100 + i);
        assert_string_equal(sandbox_start_kind(h[i]), "fork");
    }
    assert_int_equal(sandbox_fork(conn, "snp_0000000000007", NULL, 1, h + 512), SANDBOX_OK);
    assert_string_equal(t.env, "");
    sandbox_conn_close(conn);  // takes them along
    assert_int_equal(fake_destroyed(), 513);
    for (uint32_t i = 0; i <= 512; i++)
        sandbox_destroy(h[i]);
    fake_stop(engine);
    // An engine that made others than were asked for is not believed, and they are destroyed.
    static const struct {
        enum lie lie;
        unsigned made;
    } lies[] = {{ONE_LESS, 3}, {ONE_MORE, 5}, {NONE_MADE, 0}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        t.lie = lies[i].lie;
        engine = fake_start(tell, &t);
        conn = open_to(engine);
        h[0] = UNTOUCHED;
        assert_int_equal(sandbox_fork(conn, "snp_0000000000007", NULL, 4, h), SANDBOX_ERR_INTERNAL);
        assert_ptr_equal(h[0], UNTOUCHED);
        assert_int_equal(fake_destroyed(), lies[i].made);
        sandbox_conn_close(conn);
        fake_stop(engine);
    }
}

static void bad_arguments(void **state)
{
    struct teller t = {0};
    struct fake_engine *engine = fake_start(tell, &t);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_snapshot_t s, *list;
    size_t n;
    sandbox_handle_t *h;
    sandbox_details_t details;
    assert_int_equal(sandbox_snapshot_create(NULL, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_snapshot_list(conn, NULL, &n), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_snapshot_list(conn, &list, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_snapshot_inspect(conn, NULL, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_snapshot_inspect(conn, "x", NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_snapshot_delete(conn, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_fork(conn, NULL, NULL, 1, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_fork(conn, "x", NULL, 1, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_fork(conn, "x", &(sandbox_fork_spec_t){.reserved[6] = 1}, 1, &h), SANDBOX_ERR_INVALID_SPEC);
    const char *env[] = {"novalue", NULL};
    assert_int_equal(sandbox_fork(conn, "x", &(sandbox_fork_spec_t){.env_vars = env}, 1, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_suspend(NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_details(NULL, &details), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(t.count, 0);
    // Without a default connection.
    assert_int_equal(sandbox_snapshot_list(NULL, &list, &n), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_fork(NULL, "x", NULL, 1, &h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_is_told_as_it_is),           cmocka_unit_test(lies_about_one_are_found),
        cmocka_unit_test(lists_are_put_together),         cmocka_unit_test(lists_that_make_no_sense_end),
        cmocka_unit_test(forks_are_as_many_as_asked_for), cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests_name("lib_snapshot", tests, NULL, NULL);
}
