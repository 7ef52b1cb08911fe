// Bad clients: slow, silent, greedy, torn off in the middle, a thousand of them; and bytes that are no protocol at all.  Each
// hurts only itself: the others are answered, and nothing of it is left.  meson.build allows CONNECTIONS of them
// and the one of this group.
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 1024, SEED = 20240229 };

static uint64_t random_state = SEED;

// xorshift64*: the same races in every run, as far as the machine lets them.
static uint32_t dice(uint32_t sides)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * 2685821657736338717u) >> 33) % sides;
}

// ---- bytes ---------------------------------------------------------------------------------------------------------------

static size_t example_frame(int which, uint8_t frame[FRAME_ROOM])
{
    Sandbox__CreateRequest create = small_create();
    create.template_name = (char *)"no-such-template";
    ProtobufCBinaryData vars[2] = {{.data = (uint8_t *)"A=1", .len = 3}, {.data = (uint8_t *)"B=2", .len = 3}};
    create.env_vars = vars;
    create.n_env_vars = 2;
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.argv = vars;
    exec.n_argv = 2;
    exec.cwd = (ProtobufCBinaryData){.data = (uint8_t *)"/tmp", .len = 4};
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = 7;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    guest.exec = &exec;
    Sandbox__PauseRequest pause = SANDBOX__PAUSE_REQUEST__INIT;
    pause.sandbox_id = UINT32_MAX;
    Sandbox__ClientMessage m = CLIENT_MESSAGE(.request_id = 1000);
    m.request_case = which == 0   ? SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE
                     : which == 1 ? SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST
                                  : SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE;
    if (which == 0)
        m.create = &create;
    else if (which == 1)
        m.guest = &guest;
    else
        m.pause = &pause;
    return pack(&m, frame);
}

// Sends one frame and a status behind it.  Both must be answered, in whatever order.
static void survive(int fd, const uint8_t *frame, size_t n, uint64_t id)
{
    send_bytes(fd, frame, n);
    ask_status(fd, id);
    bool status = false;
    for (int i = 0; i < 2; i++) {
        cleanup_message Sandbox__ServerMessage *answer = receive(fd);
        assert_non_null(answer);
        if (answer->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
            assert_true(answer->error->error_code < 0 && answer->error->message[0] != '\0');
        else  // a wrong bit can make a status of something else, and nothing more
            assert_int_equal(answer->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
        status = status || (answer->request_id == id && answer->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    }
    assert_true(status);
}

static void a_frame_cut_short_anywhere_gets_an_answer(void **state)
{
    static uint8_t frame[FRAME_ROOM];
    cleanup_fd int fd = dial();
    uint64_t id = 5000;
    for (int which = 0; which < 3; which++) {
        size_t n = example_frame(which, frame);
        for (size_t body = 0; body < n - FRAME_HEAD; body++) {
            frame_put_head(frame, (uint32_t)body);
            survive(fd, frame, FRAME_HEAD + body, ++id);
        }
    }
}

static void a_frame_with_any_bit_wrong_gets_an_answer(void **state)
{
    static uint8_t frame[FRAME_ROOM];
    cleanup_fd int fd = dial();
    uint64_t id = 100000;
    for (int which = 0; which < 3; which++) {
        size_t n = example_frame(which, frame);
        for (size_t bit = 0; bit < (n - FRAME_HEAD) * 8; bit++) {
            frame[FRAME_HEAD + bit / 8] ^= (uint8_t)(1 << bit % 8);
            survive(fd, frame, n, ++id);
            frame[FRAME_HEAD + bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

static void random_frames_get_an_answer(void **state)
{
    static uint8_t frame[FRAME_ROOM];
    cleanup_fd int fd = dial();
    for (uint64_t id = 200000; id < 202000; id++) {
        size_t n = example_frame((int)dice(3), frame);
        for (uint32_t changes = 1 + dice(8); changes > 0; changes--)
            frame[FRAME_HEAD + dice((uint32_t)(n - FRAME_HEAD))] = (uint8_t)dice(256);
        survive(fd, frame, n, id);
    }
}

static void garbage_behind_a_good_frame_ends_only_what_follows(void **state)
{
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 'g', 'a', 'r', 'b'};
    static const uint8_t text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const struct {
        const void *bytes;
        size_t n;
    } garbage[] = {{huge, sizeof huge}, {text, sizeof text - 1}};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        cleanup_fd int fd = dial();
        ask_status(fd, 5);
        send_bytes(fd, garbage[i].bytes, garbage[i].n);
        expect(fd, 5, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
        expect_error(fd, 0, SANDBOX_ERR_TOO_LARGE);
        assert_null(receive(fd));
    }
    the_engine_still_answers();
}

static void a_frame_that_lies_about_its_length_takes_its_sandboxes_along(void **state)
{
    struct holdings before;
    look_when_calm(&before);
    cleanup_fd int fd = dial();
    ask_create(fd, 1);
    expect_created(fd, 1);
    ask_create(fd, 2);  // and one in the middle
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, IPC_FRAME_MAX + 1);
    send_bytes(fd, head, sizeof head);
    bool told = false;
    for (Sandbox__ServerMessage *m; (m = receive(fd)) != NULL; sandbox__server_message__free_unpacked(m, NULL))
        told = told || (m->request_id == 0 && m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
    assert_true(told);
    close_fd(&fd);
    assert_settles(&before);
}

// ---- slow and silent ones ------------------------------------------------------------------------------------------------

static void a_byte_at_a_time_from_many_at_once(void **state)
{
    enum { CLIENTS = 20 };
    static uint8_t frame[FRAME_ROOM];
    int fds[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = dial();
    size_t n = example_frame(0, frame);
    for (size_t at = 0; at < n; at++) {
        for (int i = 0; i < CLIENTS; i++)
            send_bytes(fds[i], frame + at, 1);
        if (at % 16 == 0)
            the_engine_still_answers();  // nobody waits for them
    }
    for (int i = 0; i < CLIENTS; i++) {
        expect_error(fds[i], 1000, SANDBOX_ERR_INVALID_SPEC);
        close(fds[i]);
    }
}

static bool only_we_are_connected(void *before)
{
    struct holdings now;
    look_at_holdings(&now);
    return now.engine_fds == ((struct holdings *)before)->engine_fds;
}

static void half_frames_wait_and_go_without_a_trace(void **state)
{
    enum { CLIENTS = 200 };
    static uint8_t frame[FRAME_ROOM];
    struct holdings before;
    look_when_calm(&before);
    int fds[CLIENTS];
    size_t n = example_frame(0, frame);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = dial();
        send_bytes(fds[i], frame, (size_t)i % n);
    }
    the_engine_still_answers();
    for (int i = 0; i < CLIENTS; i += 2) {  // these go on, the others hang up
        send_bytes(fds[i], frame + (size_t)i % n, n - (size_t)i % n);
        expect_error(fds[i], 1000, SANDBOX_ERR_INVALID_SPEC);
    }
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    assert_true(eventually(only_we_are_connected, &before, 10000));
}

static long engine_memory_kib(void)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", engine_pid());
    cleanup_file FILE *f = fopen(path, "re");
    long kib = -1;
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, "RssAnon:", 8) == 0)
            kib = atol(line + 8);
    assert_true(kib > 0);
    return kib;
}

// Asks until nothing more is taken.
static void ask_without_reading(int fd, uint32_t sandbox)
{
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    static const char script[] = "head -c 40000 /dev/zero; head -c 20000 /dev/zero >&2";
    ProtobufCBinaryData argv = {.data = (uint8_t *)script, .len = sizeof script - 1};
    exec.argv = &argv;
    exec.n_argv = 1;
    exec.shell = true;
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    guest.op_case = SANDBOX__GUEST_REQUEST__OP_EXEC;
    guest.exec = &exec;
    static uint8_t frame[FRAME_ROOM];
    for (uint64_t id = 100; id < 1000000; id++) {
        Sandbox__ClientMessage m =
            CLIENT_MESSAGE(.request_id = id, .request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST, .guest = &guest);
        size_t n = pack(&m, frame);
        ssize_t r = send(fd, frame, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            if (poll(&p, 1, 300) == 0)
                return;
        } else if (r != (ssize_t)n) {
            return;
        }
    }
    fail_msg("the engine took a million requests whose answers nobody reads");
}

static void those_who_ask_much_and_never_read_cost_a_bounded_amount(void **state)
{
    enum { CLIENTS = 8 };
    struct holdings before;
    look_when_calm(&before);
    long kib = engine_memory_kib();
    int fds[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = dial();
        ask_create(fds[i], 1);
        ask_without_reading(fds[i], expect_created(fds[i], 1));
        the_engine_still_answers();
    }
    // Each may have CLIENT_SEND_QUEUE_MAX of answers and 16 operations of 64 KiB.
    assert_in_range(engine_memory_kib(), 0, kib + CLIENTS * 1536 * MEMORY_SLACK);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    assert_settles(&before);
}

// ---- a thousand ----------------------------------------------------------------------------------------------------------

static int many[CONNECTIONS + 1];

static int open_many(int count)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < count; i++)
        many[i] = dial();
    return count;
}

static void close_many(int count)
{
    for (int i = 0; i < count; i++)
        close(many[i]);
}

static void a_thousand_connections_are_all_answered(void **state)
{
    struct holdings before;
    look_when_calm(&before);
    int n = open_many(1000);
    for (int i = 0; i < n; i++)
        ask_status(many[i], (uint64_t)i + 1);
    for (int i = n - 1; i >= 0; i--)
        expect(many[i], (uint64_t)i + 1, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    ask_create(many[n - 1], 1);
    uint32_t sandbox = expect_created(many[n - 1], 1);
    ask_stat(many[n - 1], 2, sandbox, "/workspace");
    expect(many[n - 1], 2, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST);
    close_many(n);
    assert_settles(&before);
}

static bool one_more_is_let_in(void *arg)
{
    int fd = dial();
    ask_status(fd, 1);
    cleanup_message Sandbox__ServerMessage *m = receive(fd);
    bool in = m != NULL && m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS;
    close(fd);
    return in;
}

static void one_more_than_the_ceiling_is_refused_with_a_sentence(void **state)
{
    struct holdings before;
    look_when_calm(&before);
    int n = open_many(CONNECTIONS);
    for (int i = 0; i < n; i++)
        ask_status(many[i], 1);
    for (int i = 0; i < n; i++)
        expect(many[i], 1, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    for (int i = 0; i < 100; i++) {  // more than may linger
        cleanup_fd int fd = dial();
        cleanup_message Sandbox__ServerMessage *m = receive(fd);
        if (m == NULL)
            continue;
        assert_int_equal(m->response_case, SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR);
        assert_int_equal(m->error->error_code, SANDBOX_ERR_POOL_EXHAUSTED);
        assert_non_null(strstr(m->error->message, "max_connections"));
        assert_null(receive(fd));
    }
    ask_status(many[n / 2], 2);
    expect(many[n / 2], 2, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS);
    close(many[n - 1]);
    assert_true(eventually(one_more_is_let_in, NULL, 10000));
    close_many(n - 1);
    assert_settles(&before);
}

static void those_who_are_refused_and_stay_do_not_keep_others_out(void **state)
{
    struct holdings before;
    look_when_calm(&before);
    int n = open_many(CONNECTIONS);
    int refused[32];
    for (int i = 0; i < 32; i++) {
        refused[i] = dial();
        expect_error(refused[i], 0, SANDBOX_ERR_POOL_EXHAUSTED);
    }
    close(many[n - 1]);
    // The refused ones stay as long as they may; the place that became free is not theirs.
    assert_true(eventually(one_more_is_let_in, NULL, 1000));
    close_many(n - 1);
    for (int i = 0; i < 32; i++)
        close(refused[i]);
    assert_settles(&before);
}

// ---- torn off in the middle ----------------------------------------------------------------------------------------------

// A client process of its own that does `what` and is killed `us` after it said so.
static void kill_a_client(void (*what)(int say), uint32_t us)
{
    int line[2];
    assert_int_equal(pipe2(line, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("CMOCKA_TEST_ABORT", "1", 1);  // what fails here must not go on as the next test
        what(line[1]);
        for (;;)
            pause();
    }
    assert_true(child > 0);
    close(line[1]);
    char byte;
    assert_int_equal(read(line[0], &byte, 1), 1);
    close(line[0]);
    struct timespec t = {.tv_nsec = (long)us * 1000};
    nanosleep(&t, NULL);  // where in the middle: that is the dice's
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void say_so(int say)
{
    if (write(say, "x", 1) != 1)
        _exit(1);
}

static void asks_creates(int say)
{
    int fd = dial();
    for (uint64_t id = 1; id <= 6; id++)
        ask_create(fd, id);
    say_so(say);
}

static void client_killed_mid_create(void **state)
{
    cleanup_sandbox sandbox_handle_t *other = create(NULL);
    assert_answers(other);
    struct holdings before;
    look_when_calm(&before);
    for (int i = 0; i < 40; i++) {
        kill_a_client(asks_creates, dice(60000));
        if (i % 8 == 0)
            assert_answers(other);
    }
    assert_settles(&before);
    assert_answers(other);
}

static void asks_execs(int say)
{
    int fd = dial();
    ask_create(fd, 1);
    uint32_t sandbox = expect_created(fd, 1);
    for (uint64_t id = 2; id < 10; id++)
        ask_exec(fd, id, sandbox, id % 2 == 0 ? "sleep 766006" : "sleep 766006 & yes");
    say_so(say);
}

static void client_killed_mid_exec(void **state)
{
    cleanup_sandbox sandbox_handle_t *other = create(NULL);
    assert_answers(other);
    struct holdings before;
    look_when_calm(&before);
    for (int i = 0; i < 20; i++)
        kill_a_client(asks_execs, dice(20000));
    assert_true(eventually(no_host_process, (void *)"sleep 766006", 10000));
    assert_settles(&before);
    assert_answers(other);
}

static void asks_everything_at_once(int say)
{
    int fd = dial();
    uint32_t sandbox[3];
    for (int i = 0; i < 3; i++) {
        ask_create(fd, 1);
        sandbox[i] = expect_created(fd, 1);
        ask_exec(fd, 2, sandbox[i], "sleep 766006");
    }
    ask_pause(fd, 3, sandbox[0]);
    ask_destroy(fd, 4, sandbox[1]);
    ask_pause(fd, 5, sandbox[2]);
    ask_resume(fd, 6, sandbox[2]);
    ask_inspect(fd, 7, sandbox[0]);
    ask_create(fd, 8);
    say_so(say);
}

static void client_killed_with_sandboxes_in_every_state(void **state)
{
    struct holdings before;
    look_when_calm(&before);
    for (int i = 0; i < 20; i++)
        kill_a_client(asks_everything_at_once, dice(10000));
    assert_true(eventually(no_host_process, (void *)"sleep 766006", 10000));
    assert_settles(&before);
}

// ---- with and without ids ------------------------------------------------------------------------------------------------

enum { REQUESTS = 60 };

struct mixture {
    Sandbox__ServerMessage__ResponseCase in_order[REQUESTS];  // what id-0 requests must get
    int without;
    Sandbox__ServerMessage__ResponseCase of_id[REQUESTS + 1];  // what the others must get; 0 once it came
    int with;
};

static void ask_one_of_many(int fd, struct mixture *x, uint64_t id)
{
    static const uint8_t nonsense[] = {0, 0, 0, 2, 0xff, 0xff};
    Sandbox__ServerMessage__ResponseCase want = SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR;
    switch (dice(id == 0 ? 5 : 4)) {
    case 0:
        ask_create(fd, id);
        want = SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE;
        break;
    case 1:
        ask_inspect(fd, id, UINT32_MAX);
        break;
    case 2:
        ask_stat(fd, id, UINT32_MAX, "/workspace");
        break;
    case 3:
        ask_status(fd, id);
        want = SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS;
        break;
    default:
        send_bytes(fd, nonsense, sizeof nonsense);
    }
    if (id == 0)
        x->in_order[x->without++] = want;
    else
        x->of_id[id] = want, x->with++;
}

static void with_and_without_ids_mixed_at_random(void **state)
{
    for (int round = 0; round < 12; round++) {
        cleanup_fd int fd = dial();
        struct mixture x = {.without = 0};
        for (uint64_t i = 1; i <= REQUESTS; i++)
            ask_one_of_many(fd, &x, dice(2) == 0 ? 0 : i);
        for (int answers = x.without + x.with, at = 0; answers > 0; answers--) {
            cleanup_message Sandbox__ServerMessage *m = receive(fd);
            assert_non_null(m);
            if (m->request_id == 0) {
                assert_int_equal(m->response_case, x.in_order[at]);
                at++;
            } else {
                assert_in_range(m->request_id, 1, REQUESTS);
                assert_int_equal(m->response_case, x.of_id[m->request_id]);
                x.of_id[m->request_id] = SANDBOX__SERVER_MESSAGE__RESPONSE__NOT_SET;
            }
        }
    }
}

static void the_same_id_twice_is_answered_twice(void **state)
{
    cleanup_fd int fd = dial();
    for (int i = 0; i < 5; i++)
        ask_create(fd, 9);
    uint32_t seen[5];
    for (int i = 0; i < 5; i++) {
        seen[i] = expect_created(fd, 9);
        for (int k = 0; k < i; k++)
            assert_int_not_equal(seen[i], seen[k]);
    }
}

// What an engine makes once and keeps, such as a mounted template, is there before anything is counted.
static int open_and_warm_up(void **state)
{
    if (open_connection(state) != 0)
        return -1;
    sandbox_spec_t specs[] = {plain_spec(), small_spec()};
    for (int i = 0; i < 2; i++) {
        sandbox_handle_t *h = NULL;
        if (sandbox_create(&specs[i], &h) != SANDBOX_OK || sandbox_destroy(h) != SANDBOX_OK)
            return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_cut_short_anywhere_gets_an_answer),
        cmocka_unit_test(a_frame_with_any_bit_wrong_gets_an_answer),
        cmocka_unit_test(random_frames_get_an_answer),
        cmocka_unit_test(garbage_behind_a_good_frame_ends_only_what_follows),
        cmocka_unit_test(a_frame_that_lies_about_its_length_takes_its_sandboxes_along),
        cmocka_unit_test(a_byte_at_a_time_from_many_at_once),
        cmocka_unit_test(half_frames_wait_and_go_without_a_trace),
        cmocka_unit_test(those_who_ask_much_and_never_read_cost_a_bounded_amount),
        cmocka_unit_test(a_thousand_connections_are_all_answered),
        cmocka_unit_test(one_more_than_the_ceiling_is_refused_with_a_sentence),
        cmocka_unit_test(those_who_are_refused_and_stay_do_not_keep_others_out),
        cmocka_unit_test(client_killed_mid_create),
        cmocka_unit_test(client_killed_mid_exec),
        cmocka_unit_test(client_killed_with_sandboxes_in_every_state),
        cmocka_unit_test(with_and_without_ids_mixed_at_random),
        cmocka_unit_test(the_same_id_twice_is_answered_twice),
    };
    return cmocka_run_group_tests_name("bad-clients", tests, open_and_warm_up, close_connection);
}
