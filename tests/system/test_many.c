// Many: several connections, many sandboxes, calls from many threads; nothing is mixed up and nothing is left over.
#include "system.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

// ---- the cap on operations in flight ---------------------------------------------------------------------------------------

struct job {
    sandbox_handle_t *h;
    const char *script;
    bool again;  // try again when told to
    sandbox_error_t error;
    int exit_code;
    char out[64];
};

static void *run_job(void *arg)
{
    struct job *job = arg;
    sandbox_exec_spec_t spec = {0};
    cleanup_result sandbox_exec_result_t r = {0};
    spec.command = job->script;
    spec.timeout_ms = patient(60000);
    while ((job->error = sandbox_exec(job->h, &spec, &r)) == SANDBOX_ERR_GUEST_UNAVAILABLE && job->again)
        wait_ms(10);
    job->exit_code = r.exit_code;
    if (r.out != NULL)
        snprintf(job->out, sizeof job->out, "%s", (const char *)r.out);
    return NULL;
}

static void sixteen_in_flight_and_the_next_is_told_to_try_again(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    char script[64];
    snprintf(script, sizeof script, "sleep %u; echo done", patient(4));
    struct job jobs[SANDBOX_MAX_GUEST_OPS];
    pthread_t threads[SANDBOX_MAX_GUEST_OPS];
    for (int i = 0; i < SANDBOX_MAX_GUEST_OPS; i++) {
        jobs[i] = (struct job){.h = h, .script = script, .again = true};  // the polling below takes a turn, too
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    bool refused = false;
    for (uint64_t end = now_ms() + patient(3500); !refused && now_ms() < end; wait_ms(5)) {
        sandbox_fstat_t st;
        sandbox_error_t e = sandbox_stat(h, "/workspace", &st);
        refused = e == SANDBOX_ERR_GUEST_UNAVAILABLE;
        assert_true(refused || e == SANDBOX_OK);
    }
    // Another connection has a count of its own, and asking the engine is no guest operation.
    sandbox_conn_t *conn = NULL;
    assert_ok(sandbox_conn_open(setting()->socket, &conn));
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *other = NULL;
    assert_ok(sandbox_conn_create(conn, &spec, &other));
    assert_answers(other);
    sandbox_status_t s = {0};
    assert_ok(sandbox_inspect(h, &s));
    for (int i = 0; i < SANDBOX_MAX_GUEST_OPS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].error, SANDBOX_OK);
        assert_string_equal(jobs[i].out, "done\n");
    }
    assert_true(refused);
    assert_answers(h);
    sandbox_destroy(other);
    sandbox_conn_close(conn);
}

static void replies_find_their_callers(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create(NULL);
    enum { N = 12, ROUNDS = 8 };
    for (int round = 0; round < ROUNDS; round++) {
        struct job jobs[N];
        pthread_t threads[N];
        char scripts[N][64], want[16];
        for (int i = 0; i < N; i++) {
            snprintf(scripts[i], sizeof scripts[i], "sleep 0.0%d; echo %d; exit %d", (N - i) % 10, i, i);
            jobs[i] = (struct job){.h = h, .script = scripts[i]};
            assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
        }
        for (int i = 0; i < N; i++) {
            pthread_join(threads[i], NULL);
            snprintf(want, sizeof want, "%d\n", i);
            assert_int_equal(jobs[i].error, SANDBOX_OK);
            assert_int_equal(jobs[i].exit_code, i);
            assert_string_equal(jobs[i].out, want);
        }
    }
}

// ---- creating at once ----------------------------------------------------------------------------------------------------

static void *make_use_destroy(void *arg)
{
    struct job *job = arg;
    sandbox_spec_t spec = small_spec();
    for (int i = 0; i < 3; i++) {
        sandbox_handle_t *h = NULL;
        job->error = sandbox_create(&spec, &h);
        if (job->error != SANDBOX_OK)
            return NULL;
        job->h = h;
        run_job(job);
        sandbox_error_t e = sandbox_destroy(h);
        if (job->error == SANDBOX_OK)
            job->error = e;
        if (job->error != SANDBOX_OK)
            return NULL;
    }
    return NULL;
}

static void eight_threads_create_at_once(void **state)
{
    enum { N = 8 };
    struct job jobs[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        jobs[i] = (struct job){.script = "echo up"};
        assert_int_equal(pthread_create(&threads[i], NULL, make_use_destroy, &jobs[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++) {
        assert_int_equal(jobs[i].error, SANDBOX_OK);
        assert_string_equal(jobs[i].out, "up\n");
    }
}

static void several_sandboxes_at_once_are_apart(void **state)
{
    enum { N = 6 };
    sandbox_handle_t *all[N];
    sandbox_spec_t spec = small_spec();
    for (int i = 0; i < N; i++) {
        all[i] = create(&spec);
        assert_int_equal(exit_code(all[i], "echo %d > /workspace/number", i), 0);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(number(all[i], "cat /workspace/number"), i);
    for (int i = 0; i < N; i++)
        assert_ok(sandbox_destroy(all[i]));
}

// ---- nothing is left -----------------------------------------------------------------------------------------------------

static void one_cycle(const sandbox_spec_t *spec, int kind)
{
    sandbox_handle_t *h = create(spec);
    assert_int_equal(exit_code(h, "echo x > file; sleep 744004 >/dev/null 2>&1 & exit 7"), 7);
    if (kind == 1) {
        sandbox_exec_spec_t cmd = {0};
        cmd.command = "sleep 744004";
        cmd.timeout_ms = 50;
        cleanup_result sandbox_exec_result_t r = {0};
        run_spec(h, &cmd, &r);
        assert_true(r.timed_out);
    }
    if (kind == 2)
        assert_ok(sandbox_pause(h));
    assert_ok(sandbox_destroy(h));
}

static void twenty_cycles_leak_nothing(void **state)
{
    if (setting()->jailer == 0) {
        print_message("# only on a stack of its own\n");
        skip();
    }
    sandbox_spec_t spec = small_spec();
    for (int kind = 0; kind < 3; kind++)
        one_cycle(&spec, kind);  // what is made once and kept: a mounted template, files
    assert_true(eventually(no_host_process, (void *)"sleep 744004", 10000));
    struct holdings before;
    look_when_calm(&before);
    for (int i = 0; i < 20; i++)
        one_cycle(&spec, i % 3);
    assert_settles(&before);
}

static void a_connection_that_goes_away_takes_its_sandboxes_along(void **state)
{
    if (setting()->jailer == 0) {
        print_message("# only on a stack of its own\n");
        skip();
    }
    struct holdings before;
    look_when_calm(&before);
    pid_t child = fork();
    if (child == 0) {  // a client that dies without a word
        sandbox_conn_t *conn = NULL;
        sandbox_handle_t *h = NULL;
        sandbox_spec_t spec = small_spec();
        sandbox_exec_spec_t cmd = {0};
        sandbox_exec_result_t r = {0};
        cmd.command = "sleep 755005 >/dev/null 2>&1 & exit 0";
        bool up = sandbox_conn_open(setting()->socket, &conn) == SANDBOX_OK &&
                  sandbox_conn_create(conn, &spec, &h) == SANDBOX_OK && sandbox_exec(h, &cmd, &r) == SANDBOX_OK &&
                  (!setting()->on_host || eventually(a_host_process, (void *)"sleep 755005", 10000));
        if (up)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(eventually(no_host_process, (void *)"sleep 755005", 10000));
    assert_settles(&before);
}

static void closing_one_connection_leaves_the_other(void **state)
{
    cleanup_sandbox sandbox_handle_t *kept = create(NULL);
    sandbox_conn_t *conn = NULL;
    assert_ok(sandbox_conn_open(setting()->socket, &conn));
    sandbox_spec_t spec = small_spec();
    sandbox_handle_t *gone = NULL;
    assert_ok(sandbox_conn_create(conn, &spec, &gone));
    assert_int_not_equal(sandbox_id(kept), sandbox_id(gone));
    sandbox_conn_close(conn);
    sandbox_status_t s = {0};
    assert_fails(sandbox_inspect(gone, &s), SANDBOX_ERR_DAEMON_UNREACHABLE);
    sandbox_destroy(gone);
    assert_answers(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_in_flight_and_the_next_is_told_to_try_again),
        cmocka_unit_test(replies_find_their_callers),
        cmocka_unit_test(eight_threads_create_at_once),
        cmocka_unit_test(several_sandboxes_at_once_are_apart),
        cmocka_unit_test(twenty_cycles_leak_nothing),
        cmocka_unit_test(a_connection_that_goes_away_takes_its_sandboxes_along),
        cmocka_unit_test(closing_one_connection_leaves_the_other),
    };
    return cmocka_run_group_tests_name("many", tests, open_connection, close_connection);
}
