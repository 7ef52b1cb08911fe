// see innocent.h
#include "innocent.h"

#include "system.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { PACE_MS = 20 };

static struct {
    pthread_t thread;
    sandbox_conn_t *conn;
    sandbox_handle_t *sandbox;
    const char *command;
    atomic_bool stop;
    atomic_uint runs, slowest_ms, failures;
    char why[256];  // of the first failure; written before `failures`
} tenant;

static void run_once(void)
{
    sandbox_exec_spec_t spec = {0};
    spec.command = tenant.command;
    spec.timeout_ms = patient(INNOCENT_WAIT_MS);
    cleanup_result sandbox_exec_result_t r = {0};
    uint64_t start = now_ms();
    sandbox_error_t e = sandbox_exec(tenant.sandbox, &spec, &r);
    unsigned took = (unsigned)(now_ms() - start);
    if (took > atomic_load(&tenant.slowest_ms))
        atomic_store(&tenant.slowest_ms, took);
    if (e != SANDBOX_OK || r.exit_code != 0 || r.timed_out) {
        if (atomic_load(&tenant.failures) == 0)
            snprintf(tenant.why, sizeof tenant.why, "%s: %s (exit code %d)", sandbox_error_string(e),
                     e != SANDBOX_OK ? sandbox_last_error() : "", r.exit_code);
        atomic_fetch_add(&tenant.failures, 1);
    }
    atomic_fetch_add(&tenant.runs, 1);
}

static void *live(void *arg)
{
    while (!atomic_load(&tenant.stop)) {
        run_once();
        wait_ms(PACE_MS);
    }
    return arg;
}

void innocent_start(const char *command)
{
    tenant.command = command;
    atomic_store(&tenant.stop, false);
    assert_ok(sandbox_conn_open(setting()->socket, &tenant.conn));
    sandbox_spec_t spec = plain_spec();
    spec.memory_mib = 64;
    assert_ok(sandbox_conn_create(tenant.conn, &spec, &tenant.sandbox));
    assert_int_equal(pthread_create(&tenant.thread, NULL, live, NULL), 0);
}

static bool has_run(void *since)
{
    // The one under way when this was asked may have begun long before: the one after it counts.
    return atomic_load(&tenant.runs) >= *(unsigned *)since + 2;
}

void innocent_look(const char *what)
{
    unsigned since = atomic_load(&tenant.runs);
    bool ran = eventually(has_run, &since, 2 * INNOCENT_WAIT_MS);
    unsigned slowest = atomic_exchange(&tenant.slowest_ms, 0), failures = atomic_exchange(&tenant.failures, 0);
    if (!ran)
        fail_msg("%s: another tenant's commands are not answered any more", what);
    if (failures > 0)
        fail_msg("%s: %u commands of another tenant failed, the first with %s", what, failures, tenant.why);
    if (slowest > patient(INNOCENT_WAIT_MS))
        fail_msg("%s: a command of another tenant took %u ms", what, slowest);
}

void innocent_stop(void)
{
    if (tenant.conn == NULL)
        return;
    atomic_store(&tenant.stop, true);
    pthread_join(tenant.thread, NULL);
    sandbox_destroy(tenant.sandbox);
    sandbox_conn_close(tenant.conn);
    tenant.conn = NULL;
}
