// libsandbox: one connection: how it ends, many threads on it, and what it leaves alone in its process.
#include "lib_world.h"
#include "wire/frame.h"
#include "wire/limits.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- Connections that end ------------------------------------------------------------------------------------------

enum { WAITERS = 16 };

// Holds what it gets until WAITERS pauses are there, then does to the connection what `end` says.
struct trap {
    void (*end)(struct fake_peer *peer, const Sandbox__ClientMessage *m);
    atomic_uint held;
};

static void hold_then_end(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct trap *trap = arg;
    if (m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE)
        fake_behave(peer, m, NULL);
    else if (atomic_fetch_add(&trap->held, 1) + 1 == WAITERS)
        trap->end(peer, m);
}

struct waiter {
    sandbox_handle_t *handle;
    sandbox_error_t result;
    char text[256];
};

static void *pause_main(void *arg)
{
    struct waiter *w = arg;
    w->result = sandbox_pause(w->handle);
    snprintf(w->text, sizeof w->text, "%s", sandbox_last_error());
    return NULL;
}

static void all_waiters_fail(void (*end)(struct fake_peer *, const Sandbox__ClientMessage *), const char *why)
{
    struct trap trap = {.end = end};
    struct fake_engine *engine = fake_start(hold_then_end, &trap);
    sandbox_conn_t *conn = open_to(engine);
    struct waiter waiters[WAITERS];
    pthread_t threads[WAITERS];
    for (int i = 0; i < WAITERS; i++) {
        waiters[i] = (struct waiter){.handle = create_on(conn)};
        pthread_create(&threads[i], NULL, pause_main, &waiters[i]);
    }
    for (int i = 0; i < WAITERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(waiters[i].result, SANDBOX_ERR_DAEMON_UNREACHABLE);
        if (strstr(waiters[i].text, why) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", waiters[i].text, why);
    }
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *h = UNTOUCHED;
    assert_int_equal(sandbox_conn_create(conn, &spec, &h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    for (int i = 0; i < WAITERS; i++)
        assert_int_equal(sandbox_destroy(waiters[i].handle), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void end_by_hanging_up(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_hang_up(peer);
}

static void end_by_id_0(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_error(peer, 0, SANDBOX_ERR_PERMISSION_DENIED, "malformed frame");
}

static void end_by_id_0_without_error(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    Sandbox__PauseResponse pause = SANDBOX__PAUSE_RESPONSE__INIT;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE;
    reply.pause = &pause;
    fake_reply(peer, &reply);
}

static void end_by_unknown_id(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_error(peer, m->request_id + 1000, SANDBOX_ERR_INTERNAL, "");
}

static void end_by_garbage(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_send(peer, "\0\0\0\3\xff\xff\xff", 7);
}

static void end_by_long_frame(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_send(peer, "\0\1\0\1", 4);
}

static void end_by_half_a_frame(struct fake_peer *peer, const Sandbox__ClientMessage *m)
{
    fake_send(peer, "\0\0\0\3\xff", 5);
    fake_hang_up(peer);
}

static void a_broken_connection_fails_every_call(void **state)
{
    all_waiters_fail(end_by_hanging_up, "closed the connection");
    all_waiters_fail(end_by_id_0, "malformed frame");
    all_waiters_fail(end_by_id_0_without_error, "id 0");
    all_waiters_fail(end_by_unknown_id, "nobody made");
    all_waiters_fail(end_by_garbage, "cannot be parsed");
    all_waiters_fail(end_by_long_frame, "64 KiB");
    all_waiters_fail(end_by_half_a_frame, "closed the connection");
}

static void stop_reading_after_pause(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE)
        fake_stop_reading(peer);
    fake_behave(peer, m, NULL);
}

// Without a signal (SIGPIPE would end this program) and without waiting for an answer that cannot come.
static void a_failed_send_fails_the_call(void **state)
{
    struct fake_engine *engine = fake_start(stop_reading_after_pause, NULL);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = create_on(conn);
    assert_int_equal(sandbox_pause(h), SANDBOX_OK);
    assert_int_equal(sandbox_resume(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_resume(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(sandbox_destroy(h), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

// A status whose frame has exactly *arg bytes, sent a few bytes at a time at its start.
static void long_status(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    static atomic_uint asked;
    if (!is_status(m) || atomic_fetch_add(&asked, 1) % 2 == 0) {
        fake_behave(peer, m, NULL);
        return;
    }
    size_t size = *(size_t *)arg;
    // ServerMessage: tag 1, length 3; request_id: 3.  StatusResponse: tag 1, length 3.
    size_t n = size - 4 - 3 - 4;
    uint8_t *frame = malloc(FRAME_HEAD + size), *p = frame;
    frame_put_head(p, (uint32_t)size);
    p += FRAME_HEAD;
    size_t outer = n + 4;
    *p++ = 7 << 3 | 2;
    *p++ = (uint8_t)(outer | 0x80), *p++ = (uint8_t)(outer >> 7 | 0x80), *p++ = (uint8_t)(outer >> 14);
    *p++ = 1 << 3 | 2;
    *p++ = (uint8_t)(n | 0x80), *p++ = (uint8_t)(n >> 7 | 0x80), *p++ = (uint8_t)(n >> 14);
    memset(p, 'j', n);
    p += n;
    *p++ = 0xA0, *p++ = 0x06, *p++ = (uint8_t)m->request_id;
    assert_int_equal(p - frame, FRAME_HEAD + size);
    for (int i = 0; i < 8; i++)
        fake_send(peer, frame + i, 1);
    fake_send(peer, frame + 8, FRAME_HEAD + size - 8);
    free(frame);
}

static void an_answer_fills_one_frame_and_no_more(void **state)
{
    size_t size = IPC_FRAME_MAX;
    struct fake_engine *engine = fake_start(long_status, &size);
    sandbox_conn_t *conn = open_to(engine);
    char *json = NULL;
    assert_int_equal(sandbox_conn_engine_status(conn, &json), SANDBOX_OK);
    assert_int_equal(strlen(json), IPC_FRAME_MAX - 11);
    free(json);
    sandbox_conn_close(conn);
    size = IPC_FRAME_MAX + 1;
    conn = open_to(engine);
    json = UNTOUCHED;
    assert_int_equal(sandbox_conn_engine_status(conn, &json), SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_ptr_equal(json, UNTOUCHED);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void post_when_paused(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE)
        sem_post(arg);
    else
        fake_behave(peer, m, NULL);
}

static void cleanup_ends_calls_in_flight(void **state)
{
    sem_t asked;
    sem_init(&asked, 0, 0);
    struct fake_engine *engine = fake_start(post_when_paused, &asked);
    assert_int_equal(sandbox_init(fake_path(engine)), SANDBOX_OK);
    sandbox_spec_t spec = small_spec();
    struct waiter w = {0};
    assert_int_equal(sandbox_create(&spec, &w.handle), SANDBOX_OK);
    pthread_t thread;
    pthread_create(&thread, NULL, pause_main, &w);
    while (sem_wait(&asked) < 0)
        ;
    sandbox_cleanup();
    pthread_join(thread, NULL);
    assert_int_equal(w.result, SANDBOX_ERR_DAEMON_UNREACHABLE);
    assert_int_equal(fake_destroyed(), 1);
    assert_int_equal(sandbox_destroy(w.handle), SANDBOX_OK);
    fake_stop(engine);
    sem_destroy(&asked);
}

// Holds the first destroy until there is a second, then refuses the first: the sandbox is gone already.
struct two_destroys {
    sem_t first_came;
    uint64_t first_id;
};

static void refuse_first_destroy(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct two_destroys *two = arg;
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY && two->first_id == 0) {
        two->first_id = m->request_id;
        sem_post(&two->first_came);
        return;
    }
    if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY)
        fake_error(peer, two->first_id, SANDBOX_ERR_PERMISSION_DENIED, "not your sandbox");
    fake_behave(peer, m, NULL);
}

static void *destroy_main(void *arg)
{
    struct waiter *w = arg;
    w->result = sandbox_destroy(w->handle);
    return NULL;
}

static void a_destroy_overtaken_by_the_close_has_succeeded(void **state)
{
    struct two_destroys two = {0};
    sem_init(&two.first_came, 0, 0);
    struct fake_engine *engine = fake_start(refuse_first_destroy, &two);
    assert_int_equal(sandbox_init(fake_path(engine)), SANDBOX_OK);
    sandbox_spec_t spec = small_spec();
    struct waiter w = {0};
    assert_int_equal(sandbox_create(&spec, &w.handle), SANDBOX_OK);
    pthread_t thread;
    pthread_create(&thread, NULL, destroy_main, &w);
    while (sem_wait(&two.first_came) < 0)
        ;
    sandbox_cleanup();
    pthread_join(thread, NULL);
    assert_int_equal(w.result, SANDBOX_OK);
    fake_stop(engine);
    sem_destroy(&two.first_came);
}

// ---- Threads -------------------------------------------------------------------------------------------------------

enum { THREADS = 64, ROUNDS = 20 };

// Answers creates last first, once all are there.
struct reversal {
    uint64_t ids[THREADS];
    size_t n;
};

static void answer_in_reverse(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct reversal *r = arg;
    if (m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE) {
        fake_behave(peer, m, NULL);
        return;
    }
    r->ids[r->n++] = m->request_id;
    while (r->n == THREADS) {
        for (size_t i = THREADS; i-- > 0;) {
            Sandbox__CreateResponse create = SANDBOX__CREATE_RESPONSE__INIT;
            create.sandbox_id = (uint32_t)r->ids[i];
            Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
            reply.request_id = r->ids[i];
            reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE;
            reply.create = &create;
            fake_reply(peer, &reply);
        }
        r->n = 0;
    }
}

struct creator {
    sandbox_conn_t *conn;
    sandbox_handle_t *handle;
    sandbox_error_t result;
};

static void *create_main(void *arg)
{
    struct creator *c = arg;
    sandbox_spec_t spec = small_spec();
    c->result = sandbox_conn_create(c->conn, &spec, &c->handle);
    return NULL;
}

static void answers_come_in_any_order(void **state)
{
    struct reversal reversal = {0};
    struct fake_engine *engine = fake_start(answer_in_reverse, &reversal);
    sandbox_conn_t *conn = open_to(engine);
    pthread_t threads[THREADS];
    struct creator creators[THREADS];
    for (int i = 0; i < THREADS; i++) {
        creators[i] = (struct creator){.conn = conn};
        pthread_create(&threads[i], NULL, create_main, &creators[i]);
    }
    uint64_t seen = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(creators[i].result, SANDBOX_OK);
        // Ids 2 to 65: the first was the greeting.
        seen |= UINT64_C(1) << (sandbox_id(creators[i].handle) - 2);
        sandbox_destroy(creators[i].handle);
    }
    assert_true(seen == UINT64_MAX);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

// A life of a sandbox; counts what went wrong, because cmocka's asserts belong to the main thread.
static void *live_main(void *arg)
{
    sandbox_conn_t *conn = arg;
    sandbox_spec_t spec = small_spec();
    intptr_t faults = 0;
    for (int i = 0; i < ROUNDS; i++) {
        sandbox_handle_t *h = NULL;
        sandbox_status_t status = {0};
        sandbox_exec_spec_t cmd = {.command = "true"};
        sandbox_exec_result_t result = {0};
        faults += sandbox_conn_create(conn, &spec, &h) != SANDBOX_OK;
        faults += sandbox_exec(h, &cmd, &result) != SANDBOX_OK || strcmp((char *)result.out, "out") != 0;
        sandbox_exec_result_free(&result);
        faults += sandbox_inspect(h, &status) != SANDBOX_OK || status.sandbox_id != sandbox_id(h);
        faults += sandbox_remove(h, "/workspace/x", false) != SANDBOX_ERR_GUEST_IO;
        faults += sandbox_last_error()[0] == '\0';
        faults += sandbox_destroy(h) != SANDBOX_OK;
    }
    return (void *)faults;
}

static void many_threads_share_one_connection(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, live_main, conn);
    for (int i = 0; i < THREADS; i++) {
        void *faults;
        pthread_join(threads[i], &faults);
        assert_null(faults);
    }
    assert_int_equal(fake_destroyed(), THREADS * ROUNDS);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

// ---- The process -----------------------------------------------------------------------------------------------------

static void a_child_process_cannot_use_the_connection(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sandbox_conn_t *conn = open_to(engine);
    sandbox_handle_t *h = create_on(conn);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int faults = sandbox_pause(h) != SANDBOX_ERR_DAEMON_UNREACHABLE;
        faults += sandbox_destroy(h) != SANDBOX_OK;
        sandbox_conn_close(conn);
        _exit(faults);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(fake_destroyed(), 0);
    assert_int_equal(sandbox_pause(h), SANDBOX_OK);
    assert_int_equal(sandbox_destroy(h), SANDBOX_OK);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

static void the_reader_leaves_signals_and_descriptors_alone(void **state)
{
    struct fake_engine *engine = fake_start(fake_behave, NULL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    // Open to this thread while the reader is made, so that the reader would inherit it.
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    sandbox_conn_t *conn = open_to(engine);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (int fd = 3; fd < 64; fd++) {
        int flags = fcntl(fd, F_GETFD);
        struct sockaddr_un peer;
        socklen_t n = sizeof peer;
        if (flags >= 0 && getpeername(fd, (struct sockaddr *)&peer, &n) == 0)
            assert_true((flags & FD_CLOEXEC) != 0);
    }
    // Every thread the test knows of blocks it (main() does, before any is made): if the reader did not, this would kill the
    // program.
    kill(getpid(), SIGUSR1);
    assert_int_equal(sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = 10}), SIGUSR1);
    sandbox_conn_close(conn);
    fake_stop(engine);
}

int main(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_connection_fails_every_call),
        cmocka_unit_test(a_failed_send_fails_the_call),
        cmocka_unit_test(an_answer_fills_one_frame_and_no_more),
        cmocka_unit_test(cleanup_ends_calls_in_flight),
        cmocka_unit_test(a_destroy_overtaken_by_the_close_has_succeeded),
        cmocka_unit_test(answers_come_in_any_order),
        cmocka_unit_test(many_threads_share_one_connection),
        cmocka_unit_test(a_child_process_cannot_use_the_connection),
        cmocka_unit_test(the_reader_leaves_signals_and_descriptors_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
