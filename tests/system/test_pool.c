// Warm sandboxes as a client sees them: a hit is reported, no sandbox shows anything of another one, and nothing is left over.
#include "system.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { CREATES = 50 };

// A shape of its own, so that what other cases have warmed does not matter.
static sandbox_spec_t pool_spec(uint64_t memory_mib)
{
    sandbox_spec_t spec = small_spec();
    spec.memory_mib = memory_mib;
    return spec;
}

// ---- what the engine says of its pool ----

struct pool_state {
    json_int_t memory_mib, ready, filling, target;  // of the shape with this memory
    json_int_t all_ready, all_filling, all_target;  // of all shapes
};

static void look_at_pool(struct pool_state *state)
{
    char *text = NULL;
    assert_ok(sandbox_conn_engine_status(NULL, &text));
    json_t *status = json_loads(text, 0, NULL);
    assert_non_null(status);
    free(text);
    state->ready = state->filling = state->target = state->all_ready = state->all_filling = state->all_target = 0;
    size_t i;
    json_t *shape;
    json_array_foreach(json_object_get(status, "pool"), i, shape)
    {
        json_int_t ready = json_integer_value(json_object_get(shape, "ready"));
        json_int_t filling = json_integer_value(json_object_get(shape, "filling"));
        json_int_t target = json_integer_value(json_object_get(shape, "target"));
        state->all_ready += ready;
        state->all_filling += filling;
        state->all_target += target;
        if (json_integer_value(json_object_get(shape, "memory_mib")) != state->memory_mib)
            continue;
        state->ready += ready;
        state->filling += filling;
        state->target += target;
    }
    json_decref(status);
}

static bool is_full(void *arg)
{
    struct pool_state *state = arg;
    look_at_pool(state);
    return state->target > 0 && state->ready == state->target && state->all_ready == state->all_target &&
           state->all_filling == 0;
}

static void await_full(uint64_t memory_mib)
{
    struct pool_state state = {.memory_mib = (json_int_t)memory_mib};
    if (!eventually(is_full, &state, 20000))
        fail_msg("the pool did not fill: %d ready, %d filling, %d wanted", (int)state.ready, (int)state.filling,
                 (int)state.target);
}

static sandbox_handle_t *create_warm(const sandbox_spec_t *spec)
{
    await_full(spec->memory_mib);
    sandbox_handle_t *h = create(spec);
    assert_string_equal(sandbox_start_kind(h), "pool");
    return h;
}

// ---- cases ----

static void a_hit_is_reported(void **state)
{
    sandbox_spec_t spec = pool_spec(66);
    spec.pool_wait_ms = 0;
    sandbox_handle_t *h = NULL;
    assert_fails(sandbox_create(&spec, &h), SANDBOX_ERR_POOL_EXHAUSTED);
    await_full(66);  // the refusal counts as asking
    cleanup_sandbox sandbox_handle_t *warm = create(&spec);
    assert_string_equal(sandbox_start_kind(warm), "pool");
    assert_int_equal(sandbox_isolation(warm), setting()->tier);
    assert_answers(warm);
    sandbox_status_t status;
    assert_ok(sandbox_inspect(warm, &status));
    assert_true(status.is_running);
}

static void limits_hold_in_a_warm_one(void **state)
{
    sandbox_spec_t spec = pool_spec(67);
    spec.disk_mib = 32;
    sandbox_destroy(create(&spec));
    cleanup_sandbox sandbox_handle_t *h = create_warm(&spec);
    cleanup_result sandbox_exec_result_t r = {0};
    run(h, "head -c 200m /dev/zero | tail -n 1 >/dev/null; head -c 100m /dev/zero >/workspace/fill", &r);
    assert_true(r.oom_killed);
    assert_true(number(h, "stat -c %%s /workspace/fill") < 32 << 20);
    assert_answers(h);
}

// What one sandbox leaves behind, for the next to find.
static void leave_traces(sandbox_handle_t *h, int i)
{
    cleanup_free char *text =
        output(h,
               "echo mine-%d >/workspace/trace && echo mine-%d >/tmp/trace && echo mine-%d >/root/trace &&"
               " echo mine-%d >/etc/trace && echo mine-%d >/dev/shm/trace && hostname taken-%d;"
               " sleep 766006 >/dev/null 2>&1 & echo left",
               i, i, i, i, i, i);
    assert_string_equal(text, "left");
}

static void assert_no_traces(sandbox_handle_t *h, int i)
{
    // Its own variable, and no other one of this kind.
    cleanup_free char *mine = output(h, "echo \"$MINE\"; env | grep -c ^OF_ || true");
    char want[64];
    snprintf(want, sizeof want, "value-%d\n1", i);
    assert_string_equal(mine, want);
    cleanup_free char *of = output(h, "echo \"$OF_%d\"", i);
    assert_string_equal(of, "here");
    cleanup_free char *files =
        output(h, "find / -xdev -name trace 2>/dev/null; ls -A /workspace /tmp /dev/shm | grep trace || true");
    assert_string_equal(files, "");
    cleanup_free char *processes = output(h, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 76600[6]' || true");
    assert_string_equal(processes, "0");
}

static char *identity(sandbox_handle_t *h)
{
    cleanup_free char *machine = output(h, "cat /etc/machine-id");
    cleanup_free char *host = output(h, "hostname");
    assert_int_equal(strspn(machine, "0123456789abcdef"), 32);
    assert_int_equal(strlen(machine), 32);
    assert_memory_equal(host, "sbx-", 4);
    char *both = NULL;
    if (asprintf(&both, "%s %s", machine, host) < 0)
        fail_msg("out of memory");
    return both;
}

static void fifty_in_a_row_see_nothing_of_each_other(void **state)
{
    sandbox_spec_t spec = pool_spec(68);
    char *identities[CREATES] = {0};
    int hits = 0;
    for (int i = 0; i < CREATES; i++) {
        char value[32], of[32];
        snprintf(value, sizeof value, "MINE=value-%d", i);
        snprintf(of, sizeof of, "OF_%d=here", i);
        const char *env[] = {value, of, NULL};
        spec.env_vars = env;
        cleanup_sandbox sandbox_handle_t *h = create(&spec);
        hits += strcmp(sandbox_start_kind(h), "pool") == 0;
        assert_no_traces(h, i);
        identities[i] = identity(h);
        for (int k = 0; k < i; k++) {
            assert_memory_not_equal(identities[i], identities[k], 32);
            assert_string_not_equal(identities[i] + 33, identities[k] + 33);
        }
        leave_traces(h, i);
    }
    print_message("# %d of %d came from the pool\n", hits, CREATES);
    assert_true(hits > CREATES / 4);
    for (int i = 0; i < CREATES; i++)
        free(identities[i]);
}

struct settled {
    struct holdings want, now;
};

static bool has_settled(void *arg)
{
    struct settled *s = arg;
    struct pool_state pool = {.memory_mib = 69};
    if (!is_full(&pool))
        return false;
    look_at_holdings(&s->now);
    return same_holdings(&s->want, &s->now);
}

// With as many warm as before, the stack holds as much as before.
static void the_pool_leaks_nothing(void **state)
{
    if (setting()->jailer == 0) {
        print_message("# only on a stack of its own\n");
        skip();
    }
    sandbox_spec_t spec = pool_spec(69);
    sandbox_destroy(create(&spec));
    await_full(69);
    struct settled s;
    look_when_calm(&s.want);
    for (int i = 0; i < 20; i++) {
        sandbox_handle_t *h = create(&spec);
        if (i % 2 == 0)
            assert_answers(h);
        sandbox_destroy(h);
    }
    // Clients that come and go with a claim in flight.
    for (int i = 0; i < 5; i++) {
        sandbox_conn_t *conn = NULL;
        sandbox_handle_t *h = NULL;
        assert_ok(sandbox_conn_open(setting()->socket, &conn));
        assert_ok(sandbox_conn_create(conn, &spec, &h));
        sandbox_conn_close(conn);
        sandbox_destroy(h);
    }
    if (!eventually(has_settled, &s, 20000))
        fail_msg(
            "before and after: processes %d %d, mounts %d %d, loops %d %d, cgroups %d %d, jailer's files %d %d, engine's %d %d",
            s.want.processes, s.now.processes, s.want.mounts, s.now.mounts, s.want.loops, s.now.loops, s.want.cgroups,
            s.now.cgroups, s.want.jailer_fds, s.now.jailer_fds, s.want.engine_fds, s.now.engine_fds);
}

static void a_warm_one_that_is_killed_is_replaced(void **state)
{
    if (setting()->jailer == 0) {
        print_message("# only on a stack of its own\n");
        skip();
    }
    sandbox_spec_t spec = pool_spec(70);
    sandbox_destroy(create(&spec));
    await_full(70);
    kill_holders();
    cleanup_sandbox sandbox_handle_t *h = create(&spec);
    assert_answers(h);
    await_full(70);
    assert_ok(sandbox_destroy(take_ptr(&h)));
    sandbox_handle_t *warm = create_warm(&spec);
    assert_answers(warm);
    sandbox_destroy(warm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_is_reported),
        cmocka_unit_test(limits_hold_in_a_warm_one),
        cmocka_unit_test(fifty_in_a_row_see_nothing_of_each_other),
        cmocka_unit_test(the_pool_leaks_nothing),
        cmocka_unit_test(a_warm_one_that_is_killed_is_replaced),
    };
    return cmocka_run_group_tests_name("pool", tests, open_connection, close_connection);
}
