// see system.h
#include "system.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *variable(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : otherwise;
}

const struct setting *setting(void)
{
    static struct setting s;
    if (s.socket != NULL)
        return &s;
    static const char *const names[] = {"none", "process", "container", "kernel", "vm"};
    s.tier_name = variable("SANDBOX_TEST_TIER", "container");
    for (unsigned i = 1; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], s.tier_name) == 0)
            s.tier = (sandbox_isolation_t)i;
    s.template_name = variable("SANDBOX_TEST_TEMPLATE", "debian");
    s.small_template = variable("SANDBOX_TEST_SMALL_TEMPLATE", s.template_name);
    s.slow = (unsigned)atoi(variable("SANDBOX_TEST_SLOW", "1"));
    s.probe = variable("SANDBOX_TEST_PROBE", "");
    s.hostile = variable("SANDBOX_TEST_HOSTILE", "");
    s.on_host = s.tier == SANDBOX_ISOLATION_CONTAINER;
    s.stack_dir = variable("SANDBOX_STACK_DIR", "");
    s.instance = variable("SANDBOX_STACK_INSTANCE", "");
    s.jailer = (pid_t)atoi(variable("SANDBOX_STACK_PID", "0"));
    s.socket = variable("SANDBOX_SOCKET", NULL);
    if (s.socket == NULL || s.tier == SANDBOX_ISOLATION_NONE || s.slow == 0) {
        printf("Bail out! start system tests through tests/support/with-stack, which sets SANDBOX_SOCKET\n");
        exit(1);
    }
    return &s;
}

int open_connection(void **state)
{
    sandbox_error_t e = sandbox_init(setting()->socket);
    if (e != SANDBOX_OK)
        print_message("# sandbox_init(%s): %s: %s\n", setting()->socket, sandbox_error_string(e), sandbox_last_error());
    return e;
}

int close_connection(void **state)
{
    sandbox_cleanup();
    return 0;
}

int open_with_sandbox(void **state)
{
    if (open_connection(state) != 0)
        return -1;
    sandbox_handle_t *h = NULL;
    sandbox_spec_t spec = plain_spec();
    sandbox_error_t e = sandbox_create(&spec, &h);
    if (e != SANDBOX_OK) {
        print_message("# sandbox_create: %s: %s\n", sandbox_error_string(e), sandbox_last_error());
        return -1;
    }
    put_probe(h);
    *state = h;
    return 0;
}

int close_with_sandbox(void **state)
{
    sandbox_error_t e = sandbox_destroy(*state);
    sandbox_cleanup();
    return e;
}

sandbox_spec_t plain_spec(void)
{
    sandbox_spec_t spec = {0};
    spec.memory_mib = 256;
    spec.vcpu_count = 1;
    spec.template_name = setting()->template_name;
    spec.pool_wait_ms = patient(20000);
    spec.min_isolation = setting()->tier;
    return spec;
}

sandbox_spec_t small_spec(void)
{
    sandbox_spec_t spec = plain_spec();
    spec.template_name = setting()->small_template;
    spec.memory_mib = 64;
    return spec;
}

sandbox_handle_t *create(const sandbox_spec_t *spec)
{
    sandbox_spec_t plain = plain_spec();
    sandbox_handle_t *h = NULL;
    assert_ok(sandbox_create(spec != NULL ? spec : &plain, &h));
    assert_non_null(h);
    return h;
}

void put_program(sandbox_handle_t *h, const char *path, const char *name)
{
    cleanup_file FILE *f = fopen(path, "rb");
    if (f == NULL)
        fail_msg("cannot read the guest program '%s' (SANDBOX_TEST_PROBE, SANDBOX_TEST_HOSTILE)", path);
    cleanup_free uint8_t *bytes = malloc(SANDBOX_MAX_FILE);
    size_t n = fread(bytes, 1, SANDBOX_MAX_FILE, f);
    assert_true(n > 0 && n < SANDBOX_MAX_FILE);
    assert_ok(sandbox_write_file(h, name, bytes, n, 0755, 0));
}

void put_probe(sandbox_handle_t *h)
{
    put_program(h, setting()->probe, PROBE);
}

void put_hostile(sandbox_handle_t *h)
{
    put_program(h, setting()->hostile, HOSTILE);
}

void assert_ok_at(sandbox_error_t got, const char *what, const char *file, int line)
{
    if (got != SANDBOX_OK) {
        print_message("# %s: %s: %s\n", what, sandbox_error_string(got), sandbox_last_error());
        _assert_int_equal(got, SANDBOX_OK, file, line);
    }
}

void assert_fails_at(sandbox_error_t got, sandbox_error_t want, const char *what, const char *file, int line)
{
    if (got != want) {
        print_message("# %s: got %s (%s), wanted %s\n", what, sandbox_error_string(got),
                      got == SANDBOX_OK ? "" : sandbox_last_error(), sandbox_error_string(want));
        _assert_int_equal(got, want, file, line);
    }
    if (sandbox_last_error()[0] == '\0') {
        print_message("# %s: failed as it should, but sandbox_last_error() is empty\n", what);
        _fail(file, line);
    }
}

void run_spec(sandbox_handle_t *h, const sandbox_exec_spec_t *spec, sandbox_exec_result_t *ret_result)
{
    sandbox_exec_spec_t patient_spec = *spec;
    if (patient_spec.timeout_ms == 0)
        patient_spec.timeout_ms = patient(60000);
    assert_ok(sandbox_exec(h, &patient_spec, ret_result));
    assert_non_null(ret_result->out);
    assert_non_null(ret_result->err);
}

void run(sandbox_handle_t *h, const char *script, sandbox_exec_result_t *ret_result)
{
    sandbox_exec_spec_t spec = {0};
    spec.command = script;
    run_spec(h, &spec, ret_result);
}

static void run_v(sandbox_handle_t *h, sandbox_exec_result_t *ret_result, const char *format, va_list args)
{
    cleanup_free char *script = NULL;
    if (vasprintf(&script, format, args) < 0)
        fail_msg("out of memory");
    run(h, script, ret_result);
}

char *output(sandbox_handle_t *h, const char *format, ...)
{
    cleanup_result sandbox_exec_result_t r = {0};
    va_list args;
    va_start(args, format);
    run_v(h, &r, format, args);
    va_end(args);
    if (r.exit_code != 0)
        fail_msg("'%s' ended with exit code %d, signal %d, timed out %d; stderr: %s", format, r.exit_code, r.term_signal,
                 r.timed_out, (const char *)r.err);
    size_t n = r.out_len;
    if (n > 0 && r.out[n - 1] == '\n')
        r.out[n - 1] = '\0';
    return (char *)take_ptr(&r.out);
}

int exit_code(sandbox_handle_t *h, const char *format, ...)
{
    cleanup_result sandbox_exec_result_t r = {0};
    va_list args;
    va_start(args, format);
    run_v(h, &r, format, args);
    va_end(args);
    return r.exit_code;
}

long number(sandbox_handle_t *h, const char *format, ...)
{
    cleanup_result sandbox_exec_result_t r = {0};
    va_list args;
    va_start(args, format);
    run_v(h, &r, format, args);
    va_end(args);
    char *end = NULL;
    long n = strtol((const char *)r.out, &end, 10);
    if (r.exit_code != 0 || end == (const char *)r.out)
        fail_msg("'%s' printed no number but '%s' (exit code %d, stderr: %s)", format, (const char *)r.out, r.exit_code,
                 (const char *)r.err);
    return n;
}

long guest_processes(sandbox_handle_t *h, const char *needle)
{
    // Through argv: a shell's own command line would hold the needle.
    const char *argv[] = {PROBE, "count", needle, NULL};
    sandbox_exec_spec_t spec = {0};
    spec.argv = argv;
    cleanup_result sandbox_exec_result_t r = {0};
    run_spec(h, &spec, &r);
    assert_int_equal(r.exit_code, 0);
    return atol((const char *)r.out);
}

void assert_answers(sandbox_handle_t *h)
{
    cleanup_free char *text = output(h, "echo still here");
    assert_string_equal(text, "still here");
}

uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void wait_ms(unsigned ms)
{
    poll(NULL, 0, (int)ms);
}

unsigned patient(unsigned ms)
{
    return ms * setting()->slow;
}

bool eventually(bool (*done)(void *arg), void *arg, unsigned ms)
{
    for (uint64_t end = now_ms() + patient(ms);; wait_ms(20)) {
        if (done(arg))
            return true;
        if (now_ms() > end)
            return false;
    }
}
