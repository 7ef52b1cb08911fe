// A taken-over agent: what the engine, the jailer and this library make of an agent that lies, floods, falls silent and tries
// to leave its sandbox with the descriptors an agent has (tests/system/guest/evil_agent.c, which runs here as every sandbox's
// agent).  The host's deadlines fire, the lies are errors, other tenants never notice, and nothing is left.
#include "innocent.h"
#include "system.h"

#include <stdio.h>
#include <string.h>

enum { EXEC_MS = 500 };

static int start_with_tenant(void **state)
{
    int r = open_connection(state);
    if (r == 0)
        innocent_start("evil:ok");
    return r;
}

static int stop_with_tenant(void **state)
{
    innocent_stop();
    return close_connection(state);
}

static sandbox_error_t attack(sandbox_handle_t *h, const char *name, sandbox_exec_result_t *ret_result)
{
    char command[64];
    snprintf(command, sizeof command, "evil:%s", name);
    sandbox_exec_spec_t spec = {0};
    spec.command = command;
    spec.timeout_ms = patient(EXEC_MS);
    return sandbox_exec(h, &spec, ret_result);
}

static sandbox_handle_t *create_evil(void)
{
    sandbox_spec_t spec = plain_spec();
    spec.memory_mib = 64;
    return create(&spec);
}

// ---- leaving ---------------------------------------------------------------------------------------------------------

// Attacks that print a line for each way out they found.
static void descriptors_of_an_agent_lead_nowhere(void **state)
{
    static const char *const attacks[] = {"walk", "spaces", "limits"};
    cleanup_sandbox sandbox_handle_t *h = create_evil();
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        cleanup_result sandbox_exec_result_t r = {0};
        assert_ok(attack(h, attacks[i], &r));
        if (r.out_len > 0)
            fail_msg("%s: %s", attacks[i], (const char *)r.out);
        innocent_look(attacks[i]);
    }
}

static void groups_of_any_number_and_depth_are_removed(void **state)
{
    static const char *const attacks[] = {"dig-deep", "dig-wide"};
    struct holdings before;
    look_at_holdings(&before);
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        sandbox_handle_t *h = create_evil();
        cleanup_result sandbox_exec_result_t r = {0};
        sandbox_exec_spec_t spec = {0};
        spec.command = i == 0 ? "evil:dig-deep" : "evil:dig-wide";
        run_spec(h, &spec, &r);
        assert_true(r.out_len > 0);
        assert_ok(sandbox_destroy(h));
        innocent_look(attacks[i]);
    }
    assert_settles_beside(&before);
}

static void beside_the_guests_limits_are_limits_too(void **state)
{
    cleanup_sandbox sandbox_handle_t *h = create_evil();
    cleanup_free char *text = output(h, "evil:storm");
    int processes = 0;
    unsigned long long used = 0, wall = 0;
    assert_int_equal(sscanf(text, "%d %llu %llu", &processes, &used, &wall), 3);
    assert_in_range(processes, 1, 64);
    assert_in_range(used, 1, wall + wall / 4);
    innocent_look("storm");
}

// ---- answers -----------------------------------------------------------------------------------------------------------

enum { MAY_LIVE, MUST_DIE };  // the sandbox, after the attack

static void await_death(sandbox_handle_t *h, const char *name)
{
    sandbox_exec_spec_t spec = {0};
    spec.command = "evil:ok";
    spec.timeout_ms = patient(EXEC_MS);
    for (uint64_t end = now_ms() + patient(5000);; wait_ms(20)) {
        cleanup_result sandbox_exec_result_t r = {0};
        sandbox_error_t e = sandbox_exec(h, &spec, &r);
        if (e == SANDBOX_ERR_GUEST_UNAVAILABLE)
            return;
        if (now_ms() > end)
            fail_msg("%s: the sandbox is not reported as dead: %s", name, sandbox_error_string(e));
    }
}

static void bad_answers_are_errors_in_time(void **state)
{
    static const struct {
        const char *name;
        sandbox_error_t want, or ;  // either
        int fate;
    } cases[] = {
        {"silent", SANDBOX_ERR_TIMEOUT, SANDBOX_ERR_TIMEOUT, MAY_LIVE},
        {"drip", SANDBOX_ERR_TIMEOUT, SANDBOX_ERR_TIMEOUT, MAY_LIVE},
        {"mute", SANDBOX_ERR_TIMEOUT, SANDBOX_ERR_TIMEOUT, MAY_LIVE},
        {"close", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_GUEST_UNAVAILABLE, MAY_LIVE},
        {"half", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_GUEST_UNAVAILABLE, MAY_LIVE},
        {"oversize", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_GUEST_UNAVAILABLE, MAY_LIVE},
        {"empty", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"noise", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"short-noise", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"nested", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"lie", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"stat", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"twice", SANDBOX_OK, SANDBOX_OK, MAY_LIVE},
        {"descriptors", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_INTERNAL, MAY_LIVE},
        {"linger", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_TIMEOUT, MAY_LIVE},
        {"exit", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_GUEST_UNAVAILABLE, MUST_DIE},
        {"control-descriptors", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-linger", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_ERR_GUEST_UNAVAILABLE, MUST_DIE},
        {"control-noise", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-empty", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-configured", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-pongs", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-long", SANDBOX_ERR_GUEST_UNAVAILABLE, SANDBOX_OK, MUST_DIE},
        {"control-questions", SANDBOX_ERR_TIMEOUT, SANDBOX_ERR_GUEST_UNAVAILABLE, MAY_LIVE},
    };
    struct holdings before;
    look_at_holdings(&before);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sandbox_handle_t *h = create_evil();
        cleanup_result sandbox_exec_result_t r = {0};
        uint64_t start = now_ms();
        sandbox_error_t e = attack(h, cases[i].name, &r);
        if (e != cases[i].want && e != cases[i].or)
            fail_msg("%s: %s (%s), wanted %s", cases[i].name, sandbox_error_string(e),
                     e != SANDBOX_OK ? sandbox_last_error() : "", sandbox_error_string(cases[i].want));
        if (now_ms() - start > patient(EXEC_MS + 5000))
            fail_msg("%s: the host's deadline did not fire for %u ms", cases[i].name, (unsigned)(now_ms() - start));
        for (const char *c = e != SANDBOX_OK ? sandbox_last_error() : ""; *c != '\0'; c++)
            if ((unsigned char)*c < ' ' || *c == 127)
                fail_msg("%s: the error text has a control character", cases[i].name);
        if (cases[i].fate == MUST_DIE)
            await_death(h, cases[i].name);
        innocent_look(cases[i].name);
        assert_ok(sandbox_destroy(h));
    }
    assert_settles_beside(&before);
}

// ---- the handshake -------------------------------------------------------------------------------------------------------

static void a_bad_handshake_fails_the_create_in_time(void **state)
{
    static const char *const ways[] = {"silent", "exit", "noise", "pongs", "version", "refuse"};
    struct holdings before;
    look_at_holdings(&before);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "EVIL=%s", ways[i]);
        const char *variables[] = {variable, NULL};
        sandbox_spec_t spec = plain_spec();
        spec.memory_mib = 64;
        spec.env_vars = variables;
        sandbox_handle_t *h = NULL;
        uint64_t start = now_ms();
        sandbox_error_t e = sandbox_create(&spec, &h);
        if (e == SANDBOX_OK || h != NULL)
            fail_msg("%s: there is a sandbox", ways[i]);
        if (now_ms() - start > patient(10000))
            fail_msg("%s: the create failed only after %u ms", ways[i], (unsigned)(now_ms() - start));
        for (const char *c = sandbox_last_error(); *c != '\0'; c++)
            if ((unsigned char)*c < ' ' || *c == 127)
                fail_msg("%s: the error text has a control character", ways[i]);
        innocent_look(ways[i]);
    }
    assert_settles_beside(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_of_an_agent_lead_nowhere),
        cmocka_unit_test(groups_of_any_number_and_depth_are_removed),
        cmocka_unit_test(beside_the_guests_limits_are_limits_too),
        cmocka_unit_test(bad_answers_are_errors_in_time),
        cmocka_unit_test(a_bad_handshake_fails_the_create_in_time),
    };
    return cmocka_run_group_tests_name("takeover", tests, start_with_tenant, stop_with_tenant);
}
