// sandbox-engine at its edges: the order of answers, bad frames, ceilings, who may connect, metrics, the start by hand.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine_rig.h"
#include "libsandbox.h"
#include "sys/unixsock.h"
#include "unit.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

// ---- order ----

static void creates_with_ids_run_at_once(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    for (uint64_t i = 1; i <= 5; i++)
        rig_send_create(fd, i, &spec);
    RIG_AWAIT(rig->play.held_starts == 5);
    rig_send_simple(fd, RIG_INSPECT, 6, 99);  // overtakes them
    rig_expect_error(fd, 6, SANDBOX_ERR_PERMISSION_DENIED, "");
    rig->play.hold_starts = false;
    unsigned seen = 0;
    for (int i = 0; i < 5; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
        seen |= 1u << m->request_id;
        pb_free(m);
    }
    assert_int_equal(seen, 0x3E);
    rig_stop(rig);
}

static void legacy_answers_keep_their_order(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 0, &spec);
    rig_send_create(fd, 0, &spec);
    rig_send_simple(fd, RIG_INSPECT, 0, 99);
    rig_send_frame(fd, "\xff\xff\xff\xff", 4);
    rig_send_simple(fd, RIG_STATUS, 0, 0);
    RIG_AWAIT(rig->play.held_starts == 1);
    assert_true(rig_silent(fd, 200));
    assert_int_equal(rig->play.starts, 1);  // one create at a time
    rig->play.hold_starts = false;
    rig_expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect_error(fd, 0, SANDBOX_ERR_PERMISSION_DENIED, "");
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "not a ClientMessage");
    rig_expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    rig_stop(rig);
}

static void legacy_does_not_overtake_a_create(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 5, &spec);
    RIG_AWAIT(rig->play.held_starts == 1);
    rig_send_simple(fd, RIG_STATUS, 0, 0);
    rig_send_simple(fd, RIG_STATUS, 6, 0);
    rig_expect(fd, 6, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    // A later create does not hold it up further: only what came before it counts.
    rig_send_create(fd, 7, &spec);
    RIG_AWAIT(rig->play.held_starts == 2);
    assert_true(rig_silent(fd, 200));
    // A frame that is no request waits for nothing but the id-0 requests before it.
    cleanup_fd int other = rig_connect(rig);
    rig_send_create(other, 5, &spec);
    RIG_AWAIT(rig->play.held_starts == 3);
    rig_send_frame(other, "\xff", 1);
    rig_expect_error(other, 0, SANDBOX_ERR_INVALID_SPEC, "");
    rig->play.hold_starts = false;
    rig_expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect(fd, 0, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    rig_expect(fd, 7, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect(other, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_stop(rig);
}

static void too_many_requests_are_not_read(void **state)
{
    enum { MANY = 300 };
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig->play.hold_stats = true;
    for (uint64_t i = 1; i <= MANY; i++)
        rig_send_simple(fd, RIG_INSPECT, i, id);
    rig_send_simple(fd, RIG_STATUS, MANY + 1, 0);
    assert_true(rig_silent(fd, 200));  // the status would be answered, had it been read
    rig->play.hold_stats = false;
    for (uint64_t i = 1; i <= MANY + 1; i++) {
        Sandbox__ServerMessage *m = rig_receive(fd);
        assert_int_not_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        pb_free(m);
    }
    rig_stop(rig);
}

// ---- frames ----

static void bad_frames(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    rig_send_frame(fd, "\x08", 1);
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "not a ClientMessage");
    rig_send_frame(fd, "", 0);  // a message with nothing in it
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "no request");
    // Field 90, unknown here, and a request_id of 5.
    rig_send_frame(fd, "\xd2\x05\x00\xa0\x06\x05", 6);
    rig_expect_error(fd, 5, SANDBOX_ERR_INVALID_SPEC, "no request");
    // A guest request without an operation.
    rig_send_frame(fd, "\x32\x02\x08\x01\xa0\x06\x06", 7);
    rig_expect_error(fd, 6, SANDBOX_ERR_INVALID_SPEC, "operation is missing");
    uint32_t id = rig_create(fd);
    // A frame of exactly the limit is read (and is no message), one byte more ends the connection.
    cleanup_free uint8_t *long_frame = calloc(1, FRAME_HEAD + IPC_FRAME_MAX + 1);
    frame_put_head(long_frame, IPC_FRAME_MAX);
    rig_send_bytes(fd, long_frame, FRAME_HEAD + IPC_FRAME_MAX);
    rig_expect_error(fd, 0, SANDBOX_ERR_INVALID_SPEC, "not a ClientMessage");
    rig_send_simple(fd, RIG_INSPECT, 9, id);
    rig_expect(fd, 9, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT);
    frame_put_head(long_frame, IPC_FRAME_MAX + 1);
    rig_send_bytes(fd, long_frame, FRAME_HEAD + IPC_FRAME_MAX + 1);
    rig_expect_error(fd, 0, SANDBOX_ERR_TOO_LARGE, "64 KiB");
    RIG_AWAIT(rig->play.live == 0);
    assert_true(rig_closed(fd));
    rig_stop(rig);
}

static void half_a_frame(void **state)
{
    struct rig *rig = rig_start(NULL);
    int fd = rig_connect(rig);
    rig_send_bytes(fd, "\x00\x00\x10\x00 half", 9);
    close(fd);
    cleanup_fd int other = rig_connect(rig);
    RIG_AWAIT(rig_status_has(other, "\"connections\":1,"));
    rig_stop(rig);
}

// ---- ceilings ----

static void caps_say_which_and_how_much(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "max_owned_per_connection=2", "--set", "max_owned_per_uid=3"));
    cleanup_fd int a = rig_connect(rig), b = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    uint32_t first = rig_create(a);
    rig_create(a);
    rig_send_create(a, 1, &spec);
    rig_expect_error(a, 1, SANDBOX_ERR_POOL_EXHAUSTED, "max_owned_per_connection is 2");
    rig_create(b);
    rig_send_create(b, 1, &spec);
    rig_expect_error(b, 1, SANDBOX_ERR_POOL_EXHAUSTED, "max_owned_per_uid is 3");
    rig_send_simple(a, RIG_DESTROY, 2, first);
    rig_expect(a, 2, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY);
    rig_create(b);
    rig_stop(rig);
}

static void one_engine_has_one_ceiling(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "max_sandboxes=1"));
    cleanup_fd int fd = rig_connect(rig);
    Sandbox__CreateRequest spec = rig_spec();
    rig_create(fd);
    rig_send_create(fd, 1, &spec);
    rig_expect_error(fd, 1, SANDBOX_ERR_POOL_EXHAUSTED, "max_sandboxes is 1");
    rig_stop(rig);
}

static void creates_wait_for_a_slot(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "max_creates=1"));
    cleanup_fd int fd = rig_connect(rig);
    rig->play.hold_starts = true;
    Sandbox__CreateRequest spec = rig_spec();
    rig_send_create(fd, 1, &spec);
    RIG_AWAIT(rig->play.held_starts == 1);
    spec.pool_wait_ms = 0;
    rig_send_create(fd, 2, &spec);
    rig_expect_error(fd, 2, SANDBOX_ERR_POOL_EXHAUSTED, "pool_wait_ms is 0");
    spec.pool_wait_ms = 150;
    rig_send_create(fd, 3, &spec);
    rig_expect_error(fd, 3, SANDBOX_ERR_POOL_EXHAUSTED, "pool_wait_ms passed");
    spec.pool_wait_ms = RIG_WAIT_MS;
    rig_send_create(fd, 4, &spec);
    assert_true(rig_silent(fd, 200));  // it stands in line before the next is sent: requests of one connection may overtake
    rig_send_create(fd, 5, &spec);
    assert_true(rig_silent(fd, 100));
    rig->play.hold_starts = false;
    rig_expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect(fd, 4, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE);
    rig_stop(rig);
}

static void who_may_connect(void **state)
{
    struct rig *rig = rig_start(ARGS("--set", "allowed_uids=4000000000"));
    cleanup_fd int fd = rig_connect(rig);
    rig_expect_error(fd, 0, SANDBOX_ERR_PERMISSION_DENIED, "allowed_uids");
    assert_true(rig_closed(fd));
    rig_stop(rig);
    rig = rig_start(ARGS("--set", "allowed_uids=*", "--set", "max_connections=2"));
    cleanup_fd int a = rig_connect(rig), b = rig_connect(rig), c = -1;
    rig_create(a);
    rig_create(b);
    c = rig_connect(rig);
    rig_expect_error(c, 0, SANDBOX_ERR_POOL_EXHAUSTED, "max_connections");
    assert_true(rig_closed(c));
    close_fd(&b);
    c = -1;
    RIG_AWAIT(rig_status_has(a, "\"connections\":1,"));
    c = rig_connect(rig);
    rig_create(c);
    rig_stop(rig);
}

static void strangers_take_nobodys_place(void **state)
{
    enum { STRANGERS = 100 };
    if (geteuid() != 0)
        skip();
    struct rig *rig = rig_start(ARGS("--set", "max_connections=2"));
    assert_int_equal(chmod(rig->dir, 0755), 0);
    int strange[STRANGERS];
    assert_int_equal(seteuid(64125), 0);
    for (int i = 0; i < STRANGERS; i++)
        strange[i] = rig_connect(rig);
    assert_int_equal(seteuid(0), 0);
    rig_expect_error(strange[0], 0, SANDBOX_ERR_PERMISSION_DENIED, "allowed_uids");
    cleanup_fd int a = rig_connect(rig), b = rig_connect(rig);
    rig_create(a);
    rig_create(b);
    for (int i = 0; i < STRANGERS; i++) {
        assert_true(rig_closed(strange[i]));  // none of them is kept, though they do not go by themselves
        close(strange[i]);
    }
    rig_stop(rig);
}

static void who_does_not_read_is_dropped(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int slow = rig_connect(rig), other = rig_connect(rig);
    rig_create(slow);
    assert_int_equal(fcntl(slow, F_SETFL, O_NONBLOCK), 0);
    static const char status[] = "\x00\x00\x00\x05\x3a\x00\xa0\x06\x05";
    ssize_t n = 1;
    uint64_t give_up = mono_ns() + RIG_WAIT_MS * NS_PER_MS;
    while ((n > 0 || errno == EAGAIN) && mono_ns() < give_up)
        n = send(slow, status, sizeof status - 1, MSG_NOSIGNAL);
    assert_int_equal(errno, EPIPE);
    RIG_AWAIT(rig->play.live == 0);
    rig_create(other);
    char *metrics = rig_http(rig, "GET /metrics HTTP/1.1\r\n\r\n");
    assert_non_null(strstr(metrics, "sandbox_engine_slow_clients_total 1\n"));
    free(metrics);
    rig_stop(rig);
}

// ---- metrics ----

static void metrics_and_nothing_else(void **state)
{
    struct rig *rig = rig_start(NULL);
    cleanup_fd int fd = rig_connect(rig);
    uint32_t id = rig_create(fd);
    rig_send_stat(fd, 1, id);
    rig_expect(fd, 1, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    char *text = rig_http(rig, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_memory_equal(text, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strstr(text, "\nsandbox_engine_creates_total{result=\"ok\"} 1\n"));
    assert_non_null(strstr(text, "\nsandbox_engine_create_seconds_count 1\n"));
    assert_non_null(strstr(text, "\nsandbox_engine_guest_ops_total{op=\"stat\",result=\"ok\"} 1\n"));
    assert_non_null(strstr(text, "\nsandbox_engine_sandboxes{state=\"running\"} 1\n"));
    assert_non_null(strstr(text, "\nsandbox_engine_connections 1\n"));
    free(text);
    static const char *const others[] = {"GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\n\r\n",
                                         "GET /metricsx HTTP/1.1\n\n"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        text = rig_http(rig, others[i]);
        assert_memory_equal(text, "HTTP/1.1 404 Not Found\r\n", 24);
        free(text);
    }
    char *endless = malloc(4097);  // a head that never ends is answered all the same
    memset(endless, 'a', 4096);
    endless[4096] = '\0';
    text = rig_http(rig, endless);
    assert_memory_equal(text, "HTTP/1.1 404 ", 13);
    free(text);
    text = rig_http(rig, "GET /metrics HTTP/1.1\r\n");  // so is one whose rest never comes
    assert_memory_equal(text, "HTTP/1.1 200 ", 13);
    free(text);
    free(endless);
    rig_stop(rig);
}

// ---- the start ----

static void leave_a_stale_socket(struct rig *rig)
{
    struct sockaddr_un_path {
        unsigned short family;
        char path[108];
    } address = {.family = AF_UNIX};
    rig_path(rig, "run/engine.sock", address.path, sizeof address.path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    struct stat dir;
    char run[128];
    rig_path(rig, "run", run, sizeof run);
    assert_int_equal(stat(run, &dir), 0);
    assert_int_equal(chown(address.path, dir.st_uid, dir.st_gid), 0);
    close(fd);
}

static int living = -1;

static void leave_a_listener(struct rig *rig)
{
    int run = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(unixsock_listen(run, "run/engine.sock", 0666, &living), 0);
    close(run);
}

static void leave_a_file(struct rig *rig)
{
    char path[128];
    rig_path(rig, "run/engine.sock", path, sizeof path);
    cleanup_fd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
}

static void expect_bind_fails(void (*leave)(struct rig *rig))
{
    struct rig *rig = rig_launch(NULL, leave);
    assert_int_equal(rig_wait(rig), 1);
    char *log = rig_log(rig);
    assert_non_null(strstr(log, "bind_failed"));
    free(log);
    rig_free(rig);
}

static void stale_sockets_are_replaced(void **state)
{
    struct rig *rig = rig_launch(NULL, leave_a_stale_socket);
    rig_await_ready(rig);
    char path[128];
    rig_path(rig, "run/engine.sock", path, sizeof path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0666);
    rig_stop(rig);
    expect_bind_fails(leave_a_listener);
    close_fd(&living);
    expect_bind_fails(leave_a_file);
}

static void started_by_hand(void **state)
{
    char out[16384];
    assert_int_equal(rig_run_program(ARGS("--version"), out, sizeof out), 0);
    assert_memory_equal(out, "sandbox-engine ", 15);
    assert_int_equal(rig_run_program(ARGS("--help"), out, sizeof out), 0);
    assert_non_null(strstr(out, "max_owned_per_connection"));
    assert_int_equal(rig_run_program(ARGS("--check-config"), out, sizeof out), 0);
    assert_int_equal(rig_run_program(ARGS("--set", "log_level=info"), out, sizeof out), 2);
    assert_non_null(strstr(out, "start sandbox-jailer"));
    assert_int_equal(rig_run_program(ARGS("--nonsense"), out, sizeof out), 2);
    if (geteuid() != 0)
        return;
    setenv("RIG_AS_ROOT", "1", 1);
    assert_int_equal(rig_run_program(ARGS("--set", "log_level=info"), out, sizeof out), 2);
    unsetenv("RIG_AS_ROOT");
    assert_non_null(strstr(out, "must not run as root"));
}

static void settings_are_checked(void **state)
{
    static const struct {
        const char *set, *text;
    } bad[] = {
        {"max_foo=1", "no setting \"max_foo\""},
        {"max_creates=0", "max_creates cannot be \"0\": allowed is a whole number from 1 to 64"},
        {"max_creates=eight", "cannot be \"eight\""},
        {"socket_mode=888", "octal"},
        {"socket=a/b", "without '/'"},
        {"socket=", "without '/'"},
        {"metrics_socket=engine.sock", "give each its own"},
        {"log_level=loud", "debug, info, warn or error"},
        {"isolation_floor=strong", "none, process"},
        {"allowed_uids=1,x", "separated by commas"},
        {"disk_mib_default=20000", "more than disk_mib_max"},
        {"memory_mib_max=3", "no sandbox has less than 16"},
        {"nothing", "KEY=VALUE"},
    };
    char out[4096];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rig_run_program(ARGS("--check-config", "--set", bad[i].set), out, sizeof out), 78);
        if (strstr(out, bad[i].text) == NULL)
            fail_msg("%s: %s", bad[i].set, out);
    }
    assert_int_equal(rig_run_program(ARGS("--check-config", "--config", "/nonexistent"), out, sizeof out), 78);
    assert_non_null(strstr(out, "/nonexistent cannot be read"));
}

// What a file of these bytes is refused with; "" when it is good.
static void check_file(const char *bytes, const char *expected)
{
    char path[] = "/tmp/engine-conf-XXXXXX", out[4096];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
    fchmod(fd, 0644);
    close(fd);
    int status = rig_run_program(ARGS("--check-config", "--config", path), out, sizeof out);
    unlink(path);
    assert_int_equal(status, expected[0] == '\0' ? 0 : 78);
    if (strstr(out, expected) == NULL)
        fail_msg("%s: %s", bytes, out);
}

static void settings_files(void **state)
{
    check_file("[engine]\nmax_creates = 3\n", "");
    check_file("[engine]\n\nmax_creates = 99\n", ":3: max_creates cannot be \"99\"");
    check_file("[engine]\nmax_creates = 1\nmax_creates = 2\n", ":3: max_creates is already set in line 2");
    check_file("max_creates = 1\n", "section [engine]");
    check_file("[engine]\nnonsense\n", "line 2: expected key = value");
    // The reference file names every setting, with its default.
    const char *reference = getenv("ENGINE_CONF");
    assert_non_null(reference);
    char out[16384], text[32768];
    assert_int_equal(rig_run_program(ARGS("--check-config", "--config", reference), out, sizeof out), 0);
    assert_int_equal(rig_run_program(ARGS("--help"), out, sizeof out), 0);
    cleanup_file FILE *f = fopen(reference, "re");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    char *settings = strstr(out, "Settings:\n");
    unsigned seen = 0;
    for (char *save, *line = strtok_r(settings + 10, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        char name[64], value[64], expected[160];
        char *fallback = strstr(line, "(default: ");
        assert_non_null(fallback);
        assert_int_equal(sscanf(line, "%63s", name), 1);
        assert_int_equal(sscanf(fallback, "(default: %63[^)])", value), 1);
        snprintf(expected, sizeof expected, "\n#%s =%s%s\n", name, strcmp(value, "empty") == 0 ? "" : " ",
                 strcmp(value, "empty") == 0 ? "" : value);
        if (strstr(text, expected) == NULL)
            fail_msg("%s lacks the line %s", reference, expected + 1);
        seen++;
    }
    assert_true(seen >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creates_with_ids_run_at_once),
        cmocka_unit_test(legacy_answers_keep_their_order),
        cmocka_unit_test(legacy_does_not_overtake_a_create),
        cmocka_unit_test(too_many_requests_are_not_read),
        cmocka_unit_test(bad_frames),
        cmocka_unit_test(half_a_frame),
        cmocka_unit_test(caps_say_which_and_how_much),
        cmocka_unit_test(one_engine_has_one_ceiling),
        cmocka_unit_test(creates_wait_for_a_slot),
        cmocka_unit_test(who_may_connect),
        cmocka_unit_test(strangers_take_nobodys_place),
        cmocka_unit_test(who_does_not_read_is_dropped),
        cmocka_unit_test(metrics_and_nothing_else),
        cmocka_unit_test(stale_sockets_are_replaced),
        cmocka_unit_test(started_by_hand),
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(settings_files),
    };
    return cmocka_run_group_tests_name("engine-wire", tests, NULL, NULL);
}
