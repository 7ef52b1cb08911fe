// libsandbox: opening, creating, handles, and the texts of errors.
#include "lib_world.h"
#include "wire/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// ---- Opening -------------------------------------------------------------------------------------------------------

static void open_fails_where_nobody_listens(void **state)
{
    sandbox_conn_t *conn = UNTOUCHED;
    assert_int_equal(sandbox_conn_open("/nonexistent/engine.sock", &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_non_null(strstr(sandbox_last_error(), "/nonexistent/engine.sock"));
    assert_int_equal(sandbox_conn_open("", &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_conn_open("/dev/null", &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    char longer[PATH_BYTES_MAX];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(sandbox_conn_open(longer, &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    longer[0] = '/';
    assert_int_equal(sandbox_conn_open(longer, &conn), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_ptr_equal(conn, UNTOUCHED);
    assert_int_equal(sandbox_conn_open("/dev/null", NULL), SANDBOX_ERR_INVALID_SPEC);
}

static void open_takes_a_path_longer_than_an_address(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    char name[128], folder[256], path[300];
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(folder, sizeof folder, "/tmp/%d-%s", (int)getpid(), name);
    snprintf(path, sizeof path, "%s/engine.sock", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(symlink(fake_path(engine), path), 0);
    sandbox_conn_t *conn = NULL;
    assert_int_equal(sandbox_conn_open(path, &conn), SANDBOX_OK);
    sandbox_conn_close(conn);
    unlink(path);
    rmdir(folder);
    fake_stop(engine);
}

struct refusal {
    int32_t code;
    bool with_id, hang_up;
};

static void refuse(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    const struct refusal *how = arg;
    if (how->code != 0)
        fake_error(peer, how->with_id ? m->request_id : 0, how->code, "uid 4 is not on the list");
    if (how->hang_up)
        fake_hang_up(peer);
}

static sandbox_error_t open_refused(struct refusal how)
{
    struct fake_engine *engine = fake_start(refuse, &how);
    sandbox_conn_t *conn = NULL;
    sandbox_error_t r = sandbox_conn_open(fake_path(engine), &conn);
    sandbox_conn_close(conn);
    fake_stop(engine);
    return r;
}

static void open_reports_a_refusal(void **state)
{
    assert_int_equal(open_refused((struct refusal){.code = SANDBOX_ERR_PERMISSION_DENIED, .hang_up = true}),
                     SANDBOX_ERR_PERMISSION_DENIED);
    assert_non_null(strstr(sandbox_last_error(), "uid 4 is not on the list"));
    assert_int_equal(open_refused((struct refusal){.code = SANDBOX_ERR_PERMISSION_DENIED}), SANDBOX_ERR_PERMISSION_DENIED);
    assert_int_equal(open_refused((struct refusal){.code = SANDBOX_ERR_PERMISSION_DENIED, .with_id = true}),
                     SANDBOX_ERR_PERMISSION_DENIED);
    assert_int_equal(open_refused((struct refusal){.code = SANDBOX_ERR_POOL_EXHAUSTED}), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_non_null(strstr(sandbox_last_error(), "uid 4 is not on the list"));
    assert_int_equal(open_refused((struct refusal){.hang_up = true}), SANDBOX_ERR_DAEMON_UNREACHABLE);
    // An engine that does not know the question has let us in.
    assert_int_equal(open_refused((struct refusal){.code = SANDBOX_ERR_INVALID_SPEC, .with_id = true}), SANDBOX_OK);
}

// The refusal was written and the socket closed before we had sent anything.
static void *refuse_unasked(void *arg)
{
    int listener = *(int *)arg;
    int fd = accept(listener, NULL, NULL);
    // ServerMessage{error{error_code: -4, message: "no"}}
    static const uint8_t frame[] = {0,    0,    0,    17,   0x7A, 15,   0x08, 0xFC, 0xFF, 0xFF, 0xFF,
                                    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 0x12, 0x02, 'n',  'o'};
    assert_int_equal(write(fd, frame, sizeof frame), sizeof frame);
    close(fd);
    return NULL;
}

static void open_reads_the_refusal_of_a_socket_already_closed(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/tmp/refuse-%d.sock", (int)getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 1), 0);
    pthread_t thread;
    pthread_create(&thread, NULL, refuse_unasked, &listener);
    sandbox_conn_t *conn = NULL;
    assert_int_equal(sandbox_conn_open(address.sun_path, &conn), SANDBOX_ERR_PERMISSION_DENIED);
    pthread_join(thread, NULL);
    close(listener);
    unlink(address.sun_path);
}

static void init_opens_one_default_connection(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = UNTOUCHED;
    char *json = UNTOUCHED;
    assert_int_equal(sandbox_create(&spec, &h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_non_null(strstr(sandbox_last_error(), "sandbox_init"));
    assert_int_equal(sandbox_conn_engine_status(NULL, &json), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_cleanup();
    assert_int_equal(sandbox_init(fake_path(engine)), SANDBOX_OK);
    assert_int_equal(sandbox_init(fake_path(engine)), SANDBOX_OK);
    assert_int_equal(sandbox_init("/elsewhere.sock"), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_create(&spec, &h), SANDBOX_OK);
    assert_int_equal(sandbox_conn_engine_status(NULL, &json), SANDBOX_OK);
    assert_string_equal(json, "{\"version\":\"test\"}");
    free(json);
    assert_int_equal(sandbox_conn_engine_status(NULL, NULL), SANDBOX_ERR_INVALID_SPEC);
    sandbox_cleanup();
    assert_int_equal(fake_destroyed(), 1);
    assert_int_equal(sandbox_destroy(h), SANDBOX_OK);
    assert_int_equal(fake_destroyed(), 1);
    fake_stop(engine);
}

static void init_replaces_a_broken_connection(void **state)
{
    struct fake_engine *first = fake_start(fake_behave, NULL);
    assert_int_equal(sandbox_init(fake_path(first)), SANDBOX_OK);
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = NULL;
    assert_int_equal(sandbox_create(&spec, &h), SANDBOX_OK);
    fake_stop(first);
    assert_int_equal(sandbox_pause(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    struct fake_engine *second = fake_start(fake_behave, NULL);
    assert_int_equal(sandbox_init(fake_path(second)), SANDBOX_OK);
    assert_int_equal(sandbox_pause(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_handle_t *again = NULL;
    assert_int_equal(sandbox_create(&spec, &again), SANDBOX_OK);
    sandbox_destroy(h);
    sandbox_destroy(again);
    sandbox_cleanup();
    fake_stop(second);
}

// ---- Creating ------------------------------------------------------------------------------------------------------

struct seen_create {
    Sandbox__CreateRequest request;
    char template_name[32], key[32], env[64], egress[64];
};

static void join(char *to, size_t room, const ProtobufCBinaryData *list, size_t n)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(to + used, room - used, "%.*s|", (int)list[i].len, (const char *)list[i].data);
}

static void note_create(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct seen_create *seen = arg;
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE) {
        seen->request = *m->create;
        snprintf(seen->template_name, sizeof seen->template_name, "%s", m->create->template_name);
        join(seen->key, sizeof seen->key, &m->create->session_key, 1);
        join(seen->env, sizeof seen->env, m->create->env_vars, m->create->n_env_vars);
        join(seen->egress, sizeof seen->egress, m->create->egress_allow, m->create->n_egress_allow);
    }
    fake_behave(peer, m, NULL);
}

static void create_sends_the_whole_spec(void **state)
{
    struct seen_create seen = {0};
    struct fake_engine *engine = fake_start(note_create, &seen);
    sandbox_conn_t *conn = open_to(engine);
    const char *env[] = {"A=1", "B=", NULL}, *egress[] = {"index.example.org:443", "*.example.net", NULL};
    sandbox_spec_t spec = {.memory_mib = 1ull << 40,
                           .vcpu_count = 3,
                           .template_name = "python-agent",
                           .env_vars = env,
                           .pool_wait_ms = 500,
                           .session_key = "key",
                           .ttl_seconds = 60,
                           .egress_allow = egress,
                           .egress_deny_all = -1,
                           .min_isolation = SANDBOX_ISOLATION_CONTAINER,
                           .disk_mib = 99};
    sandbox_handle_t *h = NULL;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_OK);
    assert_true(seen.request.memory_mib == 1ull << 40 && seen.request.vcpu_count == 3 && seen.request.pool_wait_ms == 500);
    assert_true(seen.request.ttl_seconds == 60 && seen.request.egress_deny_all && seen.request.disk_mib == 99);
    assert_int_equal(seen.request.min_isolation, 2);
    assert_string_equal(seen.template_name, "python-agent");
    assert_string_equal(seen.key, "key|");
    assert_string_equal(seen.env, "A=1|B=|");
    assert_string_equal(seen.egress, "index.example.org:443|*.example.net|");
    assert_int_equal(sandbox_id(h), 1);
    assert_int_equal(sandbox_isolation(h), SANDBOX_ISOLATION_CONTAINER);
    assert_string_equal(sandbox_start_kind(h), "cold");
    const sandbox_network_t *network = sandbox_network(h);
    assert_int_equal(network->egress_count, 2);
    assert_string_equal(network->egress[0], "index.example.org:443");
    assert_string_equal(network->egress[1], "*.example.net");
    assert_null(network->egress[2]);
    assert_string_equal(network->guest_address, "169.254.7.2");
    assert_string_equal(network->host_address, "169.254.7.1");
    assert_true(network->prefix_bits == 30 && network->broker_port == 8080 && !network->transparent);
    assert_int_equal(sandbox_destroy(h), SANDBOX_OK);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void create_refuses_what_it_cannot_send(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = UNTOUCHED;
    sandbox_spec_t good = small_spec(), spec = good;
    assert_int_equal(sandbox_conn_create(conn, NULL, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_conn_create(conn, &spec, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_conn_create(NULL, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec.template_name = NULL;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec = good;
    spec.reserved[3] = 1;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec = good;
    spec.min_isolation = 5;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec = good;
    const char *no_equals[] = {"A=1", "B", NULL}, *no_name[] = {"=1", NULL};
    spec.env_vars = no_equals;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    spec.env_vars = no_name;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_ptr_equal(h, UNTOUCHED);
    // A weaker wall than asked for is not accepted, whatever the engine thinks of it.
    spec = good;
    spec.min_isolation = SANDBOX_ISOLATION_VM;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(fake_destroyed(), 1);
    assert_ptr_equal(h, UNTOUCHED);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

// A create of the template "t" with one variable of `n` bytes.
static sandbox_error_t create_with_variable_of(sandbox_conn_t *conn, size_t n)
{
    char *variable = malloc(n + 1);
    memset(variable, 'v', n);
    variable[1] = '=';
    variable[n] = '\0';
    const char *env[] = {variable, NULL};
    sandbox_spec_t spec = {.template_name = "t", .env_vars = env};
    sandbox_handle_t *h = NULL;
    sandbox_error_t r = sandbox_conn_create(conn, &spec, &h);
    free(variable);
    sandbox_destroy(h);
    return r;
}

static void a_request_fills_one_frame_and_no_more(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine);
    // ClientMessage: tag 1, length 3; request_id: tag 2, value 1.  CreateRequest: "t" 3; env_vars: tag 1, length 3.
    size_t most = IPC_FRAME_MAX - 4 - 3 - 3 - 4;
    assert_int_equal(create_with_variable_of(conn, most), SANDBOX_OK);
    assert_int_equal(create_with_variable_of(conn, most + 1), SANDBOX_ERR_TOO_LARGE);
    assert_non_null(strstr(sandbox_last_error(), "65536"));
    const char **many = calloc(IPC_FRAME_MAX, sizeof *many);
    for (size_t i = 0; i < IPC_FRAME_MAX - 1; i++)
        many[i] = "h";
    sandbox_spec_t spec = small_spec();
    spec.egress_allow = many;
    sandbox_handle_t *h = NULL;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_TOO_LARGE);
    free(many);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void answer_with_code(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    if (is_status(m))
        fake_behave(peer, m, NULL);
    else
        fake_error(peer, m->request_id, atomic_load((atomic_int *)arg), "evil \x1b[31m \xc2\x9b caf\xc3\xa9 \xff text");
}

// Answers renewals of "key" with 1000 and the seconds, all others with an error.
static void renew_one(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    if (m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_SESSION_RENEW) {
        fake_behave(peer, m, NULL);
        return;
    }
    const Sandbox__SessionRenewRequest *renew = m->session_renew;
    if (renew->session_key.len != 3 || memcmp(renew->session_key.data, "key", 3) != 0) {
        fake_error(peer, m->request_id, SANDBOX_ERR_SESSION_UNKNOWN, "no such volume");
        return;
    }
    Sandbox__SessionRenewResponse response = SANDBOX__SESSION_RENEW_RESPONSE__INIT;
    response.expires_at = 1000 + (uint64_t)renew->extra_seconds;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.request_id = m->request_id;
    reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SESSION_RENEW;
    reply.session_renew = &response;
    fake_reply(peer, &reply);
}

static void sessions_are_renewed(void **state)
{
    struct fake_engine *engine = fake_start(renew_one, NULL);
    uint64_t expires = 7;
    assert_int_equal(sandbox_session_renew("key", 5, &expires), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_init(fake_path(engine)), SANDBOX_OK);
    assert_int_equal(sandbox_session_renew(NULL, 5, &expires), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_session_renew("other", 5, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_string_equal(sandbox_last_error(), "no such volume");
    assert_int_equal(expires, 7);
    assert_int_equal(sandbox_session_renew("key", UINT32_MAX, &expires), SANDBOX_OK);
    assert_true(expires == 1000 + (uint64_t)UINT32_MAX);
    assert_int_equal(sandbox_session_renew("key", 5, NULL), SANDBOX_OK);
    sandbox_conn_t *conn = open_to(engine);
    assert_int_equal(sandbox_conn_session_renew(conn, "key", 5, &expires), SANDBOX_OK);
    assert_int_equal(expires, 1005);
    sandbox_conn_close(conn);
    assert_int_equal(sandbox_conn_session_renew(NULL, "key", 6, &expires), SANDBOX_OK);
    assert_int_equal(expires, 1006);
    sandbox_cleanup();
    fake_stop(engine);
}

static void every_code_of_the_engine_arrives(void **state)
{
    atomic_int code;
    struct fake_engine *engine = fake_start(answer_with_code, &code);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = UNTOUCHED;
    for (int c = SANDBOX_ERR_TIMEOUT; c < 0; c++) {
        atomic_store(&code, c);
        assert_int_equal(sandbox_conn_create(conn, &spec, &h), c);
        assert_string_equal(sandbox_last_error(), "evil ?[31m ? caf\xc3\xa9 ? text");
    }
    const int unknown[] = {0, 1, -16, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        atomic_store(&code, unknown[i]);
        assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_INTERNAL);
    }
    assert_ptr_equal(h, UNTOUCHED);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

// ---- Handles -------------------------------------------------------------------------------------------------------

static void handles_do_their_calls(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = create_on(conn);
    sandbox_status_t status;
    assert_int_equal(sandbox_pause(h), SANDBOX_OK);
    assert_int_equal(sandbox_resume(h), SANDBOX_OK);
    assert_int_equal(sandbox_inspect(h, &status), SANDBOX_OK);
    assert_true(status.sandbox_id == 1 && status.is_running && status.uptime_ms == 1234);
    assert_true(status.memory_rss_mib == 56 && status.page_faults == 78);
    assert_int_equal(sandbox_inspect(h, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_null(sandbox_network(h));
    assert_int_equal(sandbox_destroy(h), SANDBOX_OK);
    assert_int_equal(fake_destroyed(), 1);
    assert_int_equal(sandbox_pause(NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_resume(NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_inspect(NULL, &status), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_destroy(NULL), SANDBOX_OK);
    assert_int_equal(sandbox_id(NULL), 0);
    assert_int_equal(sandbox_isolation(NULL), SANDBOX_ISOLATION_NONE);
    assert_string_equal(sandbox_start_kind(NULL), "");
    assert_null(sandbox_network(NULL));
    sandbox_conn_close(conn);
    sandbox_conn_close(NULL);
    fake_stop(engine);
}

// Pause is answered with another kind, inspect about another sandbox, destroy with an error.
static void answer_wrongly(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    Sandbox__InspectResponse inspect = SANDBOX__INSPECT_RESPONSE__INIT;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.request_id = m->request_id;
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY) {
        fake_error(peer, m->request_id, SANDBOX_ERR_INTERNAL, "");
    } else if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_INSPECT) {
        inspect.sandbox_id = m->inspect->sandbox_id + 1;
        reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT;
        reply.inspect = &inspect;
        fake_reply(peer, &reply);
    } else if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE) {
        fake_reply(peer, &reply);
    } else {
        fake_behave(peer, m, NULL);
    }
}

static void wrong_answers_are_internal_errors(void **state)
{
    struct fake_engine *engine = fake_start(answer_wrongly, NULL);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = create_on(conn);
    sandbox_status_t status = {.uptime_ms = 5};
    assert_int_equal(sandbox_pause(h), SANDBOX_ERR_INTERNAL);
    assert_int_equal(sandbox_inspect(h, &status), SANDBOX_ERR_INTERNAL);
    assert_int_equal(status.uptime_ms, 5);
    assert_int_equal(sandbox_resume(h), SANDBOX_OK);
    assert_int_equal(sandbox_destroy(h), SANDBOX_ERR_INTERNAL);
    assert_string_equal(sandbox_last_error(), sandbox_error_string(SANDBOX_ERR_INTERNAL));
    sandbox_conn_close(conn);
    // The failed destroy freed the handle: nothing was left to destroy at the close.
    assert_int_equal(fake_destroyed(), 0);
    fake_stop(engine);
}

static void close_destroys_everything_and_handles_only_free(void **state)
{
    enum { MANY = SANDBOX_MAX_OWNED };
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine), *other = open_to(engine);
    sandbox_handle_t *handles[MANY], *bystander = create_on(other);
    for (int i = 0; i < MANY; i++)
        handles[i] = create_on(conn);
    assert_int_equal(sandbox_destroy(handles[MANY / 2]), SANDBOX_OK);
    sandbox_conn_close(conn);
    assert_int_equal(fake_destroyed(), MANY);
    assert_int_equal(sandbox_resume(handles[0]), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_id(handles[0]), 2);
    for (int i = 0; i < MANY; i++)
        if (i != MANY / 2)
            assert_int_equal(sandbox_destroy(handles[i]), SANDBOX_OK);
    assert_int_equal(fake_destroyed(), MANY);
    assert_int_equal(sandbox_pause(bystander), SANDBOX_OK);
    assert_int_equal(sandbox_destroy(bystander), SANDBOX_OK);
    sandbox_conn_close(other);
    fake_stop(engine);
}

// ---- Errors ---------------------------------------------------------------------------------------------------------

static void *last_error_main(void *arg)
{
    return strdup(sandbox_last_error());
}

static void errors_have_texts(void **state)
{
    for (int code = SANDBOX_ERR_TIMEOUT; code <= 0; code++) {
        assert_true(strlen(sandbox_error_string((sandbox_error_t)code)) > 3);
        for (int other = SANDBOX_ERR_TIMEOUT; other < code; other++)
            assert_string_not_equal(sandbox_error_string((sandbox_error_t)code), sandbox_error_string((sandbox_error_t)other));
    }
    assert_string_equal(sandbox_error_string((sandbox_error_t)-16), "unknown error");
    assert_string_equal(sandbox_error_string((sandbox_error_t)1), "unknown error");
    assert_int_equal(sandbox_pause(NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_true(sandbox_last_error()[0] != '\0');
    pthread_t thread;
    void *text;
    pthread_create(&thread, NULL, last_error_main, NULL);
    pthread_join(thread, &text);
    assert_string_equal(text, "");
    free(text);
    static const char *const names[] = {"none", "process", "container", "kernel", "vm", "none"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(sandbox_isolation_name((sandbox_isolation_t)i), names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_fails_where_nobody_listens),
        cmocka_unit_test(open_takes_a_path_longer_than_an_address),
        cmocka_unit_test(open_reports_a_refusal),
        cmocka_unit_test(open_reads_the_refusal_of_a_socket_already_closed),
        cmocka_unit_test(init_opens_one_default_connection),
        cmocka_unit_test(init_replaces_a_broken_connection),
        cmocka_unit_test(create_sends_the_whole_spec),
        cmocka_unit_test(create_refuses_what_it_cannot_send),
        cmocka_unit_test(a_request_fills_one_frame_and_no_more),
        cmocka_unit_test(sessions_are_renewed),
        cmocka_unit_test(every_code_of_the_engine_arrives),
        cmocka_unit_test(handles_do_their_calls),
        cmocka_unit_test(wrong_answers_are_internal_errors),
        cmocka_unit_test(close_destroys_everything_and_handles_only_free),
        cmocka_unit_test(errors_have_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
