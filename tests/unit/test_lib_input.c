// Standard input of up to 64 KiB beside a frame of up to 64 KiB: libsandbox sends an exec in as many frames as it takes.
#include "lib_world.h"
#include "wire/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 20 };

// What one connection's engine thread has put together.  Interleaved parts of two requests fail the test here.
struct collected {
    struct fake_engine *engine;
    uint64_t waiting_id;  // 0: nothing
    uint32_t rest;
    size_t have;
    uint8_t bytes[EXEC_STDIN_MAX];
    atomic_uint frames, argv_bytes;
    atomic_bool broken;
};

static uint8_t pattern(size_t i, uint8_t seed)
{
    return (uint8_t)((i * 2654435761u >> 24) + seed);
}

// The first byte says with which seed the others were made.
static bool as_made(const struct collected *c)
{
    for (size_t i = 1; i < c->have; i++)
        if (c->bytes[i] != pattern(i, c->bytes[0]))
            return false;
    return true;
}

static void take(struct collected *c, const ProtobufCBinaryData *part)
{
    if (c->have + part->len > EXEC_STDIN_MAX) {
        c->broken = true;
        return;
    }
    if (part->len > 0)
        memcpy(c->bytes + c->have, part->data, part->len);
    c->have += part->len;
}

static void ran(struct fake_peer *peer, const struct collected *c, uint64_t request_id, uint32_t sandbox)
{
    Sandbox__Guest__ExecResult exec = SANDBOX__GUEST__EXEC_RESULT__INIT;
    exec.out_total = c->have;
    Sandbox__Guest__Result result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    result.exec = &exec;
    Sandbox__GuestRequest guest = SANDBOX__GUEST_REQUEST__INIT;
    guest.sandbox_id = sandbox;
    Sandbox__ClientMessage m = SANDBOX__CLIENT_MESSAGE__INIT;
    m.request_id = request_id;
    m.guest = &guest;
    fake_guest(peer, &m, &result);
}

static void collect(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct collected *c = arg;
    atomic_fetch_add(&c->frames, 1);
    if (c->waiting_id != 0) {
        size_t before = c->have;
        bool right = m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST_INPUT && m->request_id == c->waiting_id;
        if (right)
            take(c, &m->guest_input->stdin);
        if (!right || c->have == before || c->have - before > c->rest || m->guest_input->sandbox_id != 1) {
            c->broken = true;
            fake_hang_up(peer);
            return;
        }
        c->rest -= (uint32_t)(c->have - before);
    } else if (m->request_case == SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST) {
        const Sandbox__Guest__Exec *exec = m->guest->exec;
        c->have = 0;
        take(c, &exec->stdin);
        c->rest = exec->stdin_rest;
        unsigned argv = 0;
        for (size_t i = 0; i < exec->n_argv; i++)
            argv += (unsigned)exec->argv[i].len;
        c->argv_bytes = argv;
    } else {
        fake_behave(peer, m, NULL);
        return;
    }
    c->waiting_id = c->rest > 0 ? m->request_id : 0;
    if (c->rest > 0)
        return;
    c->broken = c->broken || !as_made(c);
    ran(peer, c, m->request_id, 1);
}

static char *text_of(size_t n)
{
    char *text = malloc(n + 1);
    memset(text, 'a', n);
    text[n] = '\0';
    return text;
}

static uint8_t *input_of(size_t n, uint8_t seed)
{
    uint8_t *bytes = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern(i, seed);
    if (n > 0)
        bytes[0] = seed;
    return bytes;
}

static sandbox_error_t exec_with(sandbox_handle_t *h, size_t script_len, size_t stdin_len, uint8_t seed, uint64_t *ret_total)
{
    char *script = text_of(script_len);
    uint8_t *input = input_of(stdin_len, seed);
    sandbox_exec_spec_t spec = {.command = script, .stdin_data = input, .stdin_len = stdin_len};
    sandbox_exec_result_t result = {0};
    sandbox_error_t r = sandbox_exec(h, &spec, &result);
    *ret_total = result.out_total;
    sandbox_exec_result_free(&result);
    free(script);
    free(input);
    return r;
}

static int setup(void **state)
{
    struct collected *c = calloc(1, sizeof *c);
    c->engine = fake_start(collect, c);
    *state = c;
    return 0;
}

static int teardown(void **state)
{
    struct collected *c = *state;
    fake_stop(c->engine);
    bool broken = c->broken;
    free(c);
    return broken ? -1 : 0;
}

// The longest script that fits one frame with no standard input, found by trying.
static size_t longest_script(sandbox_handle_t *h)
{
    uint64_t total;
    size_t n = IPC_FRAME_MAX - 64;
    while (exec_with(h, n + 1, 0, 0, &total) == SANDBOX_OK)
        n++;
    return n;
}

static void input_of_any_size_beside_arguments_of_any_size(void **state)
{
    struct collected *c = *state;
    sandbox_conn_t *conn = open_to(c->engine);
    sandbox_handle_t *h = create_on(conn);
    size_t longest = longest_script(h);
    assert_true(longest > IPC_FRAME_MAX - 64 && longest < IPC_FRAME_MAX);
    // A script near the limit loses some room to the word that more input comes.
    enum { SAY_MORE_COMES = 8 };
    const size_t scripts[] = {4, 100, 127, 128, 16383, 16384, 32768, longest - 200, longest - 64, longest - SAY_MORE_COMES};
    static const size_t inputs[] = {1,          100,        16384,      32768, 65536 - 200, 65536 - 64,
                                    65536 - 23, 65536 - 22, 65536 - 21, 65535, 65536};
    for (size_t s = 0; s < sizeof scripts / sizeof scripts[0]; s++)
        for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
            uint64_t total = 0;
            unsigned frames = c->frames;
            sandbox_error_t r = exec_with(h, scripts[s], inputs[i], (uint8_t)i, &total);
            if (r != SANDBOX_OK)
                fail_msg("script %zu, stdin %zu: %s", scripts[s], inputs[i], sandbox_last_error());
            assert_int_equal(total, inputs[i]);
            assert_int_equal(c->argv_bytes, scripts[s]);
            assert_in_range(c->frames - frames, 1, 3);
            // As few frames as it takes: one when everything fits.
            if (scripts[s] + inputs[i] < IPC_FRAME_MAX - 64)
                assert_int_equal(c->frames - frames, 1);
        }
    sandbox_destroy(h);
    sandbox_conn_close(conn);
}

static void too_much_is_refused_before_anything_is_sent(void **state)
{
    struct collected *c = *state;
    sandbox_conn_t *conn = open_to(c->engine);
    sandbox_handle_t *h = create_on(conn);
    size_t longest = longest_script(h);
    unsigned frames = c->frames;
    uint64_t total;
    assert_int_equal(exec_with(h, 4, SANDBOX_MAX_STDIN + 1, 0, &total), SANDBOX_ERR_TOO_LARGE);
    assert_non_null(strstr(sandbox_last_error(), "stdin"));
    assert_int_equal(exec_with(h, longest + 1, 0, 0, &total), SANDBOX_ERR_TOO_LARGE);
    assert_non_null(strstr(sandbox_last_error(), "one frame"));
    assert_int_equal(exec_with(h, longest + 1, SANDBOX_MAX_STDIN, 0, &total), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(c->frames, frames);
    assert_int_equal(exec_with(h, 4, SANDBOX_MAX_STDIN, 0, &total), SANDBOX_OK);
    sandbox_destroy(h);
    sandbox_conn_close(conn);
}

static void *keep_asking(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t total = 0;
        if (exec_with(arg, 30000, SANDBOX_MAX_STDIN - (size_t)i, (uint8_t)i, &total) != SANDBOX_OK)
            return arg;
    }
    return NULL;
}

static void requests_of_many_threads_do_not_mix(void **state)
{
    struct collected *c = *state;
    sandbox_conn_t *conn = open_to(c->engine);
    sandbox_handle_t *h = create_on(conn);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, keep_asking, h), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    sandbox_destroy(h);
    sandbox_conn_close(conn);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(input_of_any_size_beside_arguments_of_any_size),
        TEST(too_much_is_refused_before_anything_is_sent),
        TEST(requests_of_many_threads_do_not_mix),
    };
    return cmocka_run_group_tests_name("lib-input", tests, NULL, NULL);
}
