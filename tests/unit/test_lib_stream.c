// libsandbox: streams, from an honest agent and a hostile one.
#include "base/cleanup.h"
#include "base/clock.h"
#include "fake_engine.h"
#include "libsandbox.h"
#include "unit.h"
#include "wire/frame.h"
#include "wire/stream_frame.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

struct world {
    struct fake_engine *engine;
    sandbox_conn_t *conn;
    sandbox_handle_t *h;
    bool without_fd, refuse, full;
    struct rlimit files;
    atomic_int agent;  // the agent's end of the last stream
    Sandbox__StreamRequest__OpCase op;
    bool terminal, open_stdin;
    uint32_t rows, cols;
    uint32_t floor;
    char grant[32], principal[32];
};

static void close_agent(struct world *w)
{
    int fd = atomic_exchange(&w->agent, -1);
    close_fd(&fd);
}

static void handle(struct fake_peer *peer, const Sandbox__ClientMessage *m, void *arg)
{
    struct world *w = arg;
    if (m->request_case != SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM) {
        fake_behave(peer, m, NULL);
        return;
    }
    if (w->refuse) {
        fake_error(peer, m->request_id, SANDBOX_ERR_GUEST_UNAVAILABLE, "not now");
        return;
    }
    w->op = m->stream->op_case;
    w->floor = m->stream->min_isolation;
    snprintf(w->grant, sizeof w->grant, "%s", m->stream->grant_profile);
    bool given = m->stream->opt_principal_case == SANDBOX__STREAM_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
    snprintf(w->principal, sizeof w->principal, "%s", given ? m->stream->principal : "not given");
    if (w->op == SANDBOX__STREAM_REQUEST__OP_EXEC) {
        w->terminal = m->stream->exec->terminal != NULL;
        w->open_stdin = m->stream->exec->open_stdin;
        if (w->terminal)
            w->rows = m->stream->exec->terminal->rows, w->cols = m->stream->exec->terminal->cols;
    }
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        abort();
    w->agent = pair[0];
    if (w->full) {
        const struct rlimit none = {.rlim_max = w->files.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
    }
    fake_stream(peer, m, w->without_fd ? -1 : pair[1]);
    close(pair[1]);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    w->agent = -1;
    w->engine = fake_start(handle, w);
    assert_int_equal(sandbox_conn_open(fake_path(w->engine), &w->conn), SANDBOX_OK);
    sandbox_spec_t spec = {.template_name = "t"};
    assert_int_equal(sandbox_conn_create(w->conn, &spec, &w->h), SANDBOX_OK);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    close_agent(w);
    sandbox_destroy(w->h);
    sandbox_conn_close(w->conn);
    fake_stop(w->engine);
    free(w);
    return 0;
}

static sandbox_stream_t *start(struct world *w, const sandbox_stream_options_t *options)
{
    sandbox_exec_spec_t spec = {.command = "true"};
    sandbox_stream_t *s = NULL;
    close_agent(w);
    assert_int_equal(sandbox_exec_stream(w->h, &spec, options, &s), SANDBOX_OK);
    assert_non_null(s);
    return s;
}

static void say(int fd, uint8_t type, const void *payload, size_t n)
{
    uint8_t head[FRAME_HEAD + 1];
    frame_put_head(head, (uint32_t)(n + 1));
    head[FRAME_HEAD] = type;
    assert_int_equal(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
    if (n > 0)
        assert_int_equal(send(fd, payload, n, MSG_NOSIGNAL), n);
}

static void say_result(int fd, uint8_t type, const Sandbox__Guest__Result *result)
{
    uint8_t bytes[512];
    say(fd, type, bytes, sandbox__guest__result__pack(result, bytes));
}

static void say_exit(int fd, int code)
{
    Sandbox__Guest__ExecResult e = SANDBOX__GUEST__EXEC_RESULT__INIT;
    e.exit_code = code;
    e.out_total = 7;
    Sandbox__Guest__Result r = SANDBOX__GUEST__RESULT__INIT;
    r.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    r.exec = &e;
    say_result(fd, FRAME_EXIT, &r);
}

// The next frame that the library sent.
static struct stream_frame hear(int fd, uint8_t body[STREAM_FRAME_MAX])
{
    uint8_t head[FRAME_HEAD];
    assert_int_equal(recv(fd, head, sizeof head, MSG_WAITALL), sizeof head);
    size_t n = (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    assert_true(n <= STREAM_FRAME_MAX);
    assert_int_equal(recv(fd, body, n, MSG_WAITALL), n);
    struct stream_frame f;
    assert_int_equal(stream_frame_parse(body, n, STREAM_TO_AGENT, &f), 0);
    return f;
}

static void events_come_in_order(void **state)
{
    struct world *w = *state;
    sandbox_stream_options_t options = {.terminal = 1, .rows = 3, .cols = 4};
    sandbox_stream_t *s = start(w, &options);
    assert_true(w->terminal && w->rows == 3 && w->cols == 4 && !w->open_stdin);
    sandbox_event_t e = {0};
    assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
    assert_int_equal(e.type, SANDBOX_EVENT_NONE);
    uint64_t before = mono_ns();
    assert_int_equal(sandbox_stream_read(s, 30, &e), SANDBOX_OK);
    assert_int_equal(e.type, SANDBOX_EVENT_NONE);
    assert_true(mono_ns() - before >= 25 * NS_PER_MS);
    say(w->agent, FRAME_STDOUT, "out", 3);
    say(w->agent, FRAME_STDERR, "er\0r", 4);
    say_exit(w->agent, 7);
    struct pollfd p = {.fd = sandbox_stream_fd(s), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_OK);
    assert_true(e.type == SANDBOX_EVENT_STDOUT && e.len == 3 && memcmp(e.data, "out", 3) == 0);
    assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
    assert_true(e.type == SANDBOX_EVENT_STDERR && e.len == 4 && memcmp(e.data, "er\0r", 4) == 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
        assert_int_equal(e.type, SANDBOX_EVENT_EXIT);
        assert_int_equal(e.result->exit_code, 7);
        assert_int_equal(e.result->out_total, 7);
        assert_string_equal((const char *)e.result->out, "");
        assert_false(e.result->output_truncated);
    }
    sandbox_stream_free(s);
    sandbox_stream_free(NULL);
    assert_int_equal(sandbox_stream_fd(NULL), -1);
}

// Never an exit code, and the same answer each time.
static void a_stream_that_breaks_off_is_an_error(void **state)
{
    struct world *w = *state;
    static uint8_t huge[STREAM_PAYLOAD_MAX + 1];
    Sandbox__Guest__Result wrong = SANDBOX__GUEST__RESULT__INIT, ok = SANDBOX__GUEST__RESULT__INIT;
    wrong.status = SANDBOX__GUEST__STATUS__STATUS_NOT_FOUND;
    for (int i = 0; i < 10; i++) {
        sandbox_stream_t *s = start(w, NULL);
        int fd = w->agent;
        if (i == 1)
            say(fd, 99, "x", 1);  // no such frame
        else if (i == 2)
            say(fd, FRAME_STDIN, "x", 1);  // one of the other direction
        else if (i == 3)
            say(fd, FRAME_STDOUT, huge, sizeof huge);
        else if (i == 4)
            say(fd, FRAME_EXIT, "\xff\xff", 2);
        else if (i == 5)
            say_result(fd, FRAME_EXIT, &wrong);  // says both
        else if (i == 6)
            say_result(fd, FRAME_ERROR, &ok);
        else if (i == 7)
            say_result(fd, FRAME_EXIT, &ok);  // no result in it
        else if (i == 8)
            say(fd, FRAME_STARTED, "\0\0\0\1", 4);  // nothing was started
        else if (i == 9)
            assert_int_equal(send(fd, "\0\0", 2, 0), 2);  // cut off
        if (i == 0 || i == 9)
            close_agent(w);
        for (int again = 0; again < 2; again++) {
            sandbox_event_t e = {.type = 77};
            assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_ERR_GUEST_UNAVAILABLE);
            assert_int_equal(e.type, 77);
            assert_true(sandbox_last_error()[0] != '\0');
        }
        sandbox_stream_free(s);
    }
}

static void a_refusal_of_the_agent_has_its_code(void **state)
{
    struct world *w = *state;
    sandbox_stream_t *s = start(w, NULL);
    Sandbox__Guest__Result r = SANDBOX__GUEST__RESULT__INIT;
    r.status = SANDBOX__GUEST__STATUS__STATUS_BAD_REQUEST;
    r.message = (char *)"no \x1b[31m";
    say_result(w->agent, FRAME_ERROR, &r);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_ERR_INVALID_SPEC);
    assert_string_equal(sandbox_last_error(), "no ?[31m");
    sandbox_stream_free(s);
}

static void what_the_engine_says_of_a_stream_is_checked(void **state)
{
    struct world *w = *state;
    sandbox_exec_spec_t spec = {.command = "true"};
    sandbox_stream_t *s = (sandbox_stream_t *)w;
    w->refuse = true;
    assert_int_equal(sandbox_exec_stream(w->h, &spec, NULL, &s), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_string_equal(sandbox_last_error(), "not now");
    w->refuse = false;
    w->without_fd = true;
    assert_int_equal(sandbox_exec_stream(w->h, &spec, NULL, &s), SANDBOX_ERR_INTERNAL);
    assert_ptr_equal(s, w);
    w->without_fd = false;
    sandbox_stream_options_t bad[] = {{.terminal = 2}, {.open_stdin = -1}, {.reserved = {[5] = 1}}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sandbox_exec_stream(w->h, &spec, &bad[i], &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec_stream(NULL, &spec, NULL, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec_stream(w->h, NULL, NULL, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_exec_stream(w->h, &spec, NULL, NULL), SANDBOX_ERR_INVALID_SPEC);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(NULL, 0, &e), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_stream_kill(NULL), SANDBOX_ERR_INVALID_SPEC);
}

// A program that has as many files open as it may loses the stream, not its connection and every sandbox.
static void a_full_process_gets_an_error_and_keeps_its_connection(void **state)
{
    struct world *w = *state;
    sandbox_exec_spec_t spec = {.command = "true"};
    sandbox_stream_t *s = (sandbox_stream_t *)w;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &w->files), 0);
    for (int i = 0; i < 3; i++) {
        w->full = true;
        close_agent(w);
        sandbox_error_t r = sandbox_exec_stream(w->h, &spec, NULL, &s);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &w->files), 0);
        assert_int_equal(r, SANDBOX_ERR_INTERNAL);
        assert_non_null(strstr(sandbox_last_error(), "descriptor"));
        assert_ptr_equal(s, w);
        w->full = false;
        sandbox_stream_t *next = start(w, NULL);
        say_exit(w->agent, 3);
        sandbox_event_t e;
        assert_int_equal(sandbox_stream_read(next, -1, &e), SANDBOX_OK);
        assert_int_equal(e.type, SANDBOX_EVENT_EXIT);
        assert_int_equal(e.result->exit_code, 3);
        sandbox_stream_free(next);
    }
}

static void input_stays_within_the_window(void **state)
{
    struct world *w = *state;
    sandbox_stream_options_t options = {.open_stdin = 1};
    sandbox_stream_t *s = start(w, &options);
    static uint8_t data[STREAM_WINDOW + 1000], body[STREAM_FRAME_MAX];
    size_t written = 0;
    assert_int_equal(sandbox_stream_write_stdin(s, data, sizeof data, &written), SANDBOX_OK);
    assert_int_equal(written, STREAM_WINDOW);
    assert_int_equal(sandbox_stream_write_stdin(s, data, 1, &written), SANDBOX_OK);
    assert_int_equal(written, 0);
    for (size_t got = 0; got < STREAM_WINDOW;) {
        struct stream_frame f = hear(w->agent, body);
        assert_int_equal(f.type, FRAME_STDIN);
        got += f.n;
    }
    uint8_t payload[STREAM_SMALL_MAX];
    say(w->agent, FRAME_WINDOW, payload, stream_frame_put_number(FRAME_WINDOW, 10, payload));
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_OK);
    assert_int_equal(e.type, SANDBOX_EVENT_STDIN_ROOM);
    assert_int_equal(sandbox_stream_write_stdin(s, data, 100, &written), SANDBOX_OK);
    assert_int_equal(written, 10);
    assert_int_equal(hear(w->agent, body).n, 10);
    // What was never taken is not given back.
    say(w->agent, FRAME_WINDOW, "\xff\xff\xff\xff", 4);
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_OK);
    assert_int_equal(sandbox_stream_write_stdin(s, data, sizeof data, &written), SANDBOX_OK);
    assert_int_equal(written, STREAM_WINDOW);
    sandbox_stream_free(s);
}

static void what_is_asked_is_sent(void **state)
{
    struct world *w = *state;
    static uint8_t body[STREAM_FRAME_MAX];
    sandbox_stream_options_t options = {.open_stdin = 1};
    sandbox_stream_t *s = start(w, &options);
    assert_true(w->open_stdin && !w->terminal);
    assert_int_equal(sandbox_stream_resize(s, 1, 65535), SANDBOX_OK);
    assert_int_equal(sandbox_stream_signal(s, 15), SANDBOX_OK);
    assert_int_equal(sandbox_stream_signal(s, 0), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_stream_signal(s, 65), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_stream_close_stdin(s), SANDBOX_OK);
    assert_int_equal(sandbox_stream_close_stdin(s), SANDBOX_OK);
    size_t written;
    assert_int_equal(sandbox_stream_write_stdin(s, "x", 1, &written), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_stream_kill(s), SANDBOX_OK);
    struct stream_frame f = hear(w->agent, body);
    assert_true(f.type == FRAME_RESIZE && f.rows == 1 && f.cols == 65535);
    f = hear(w->agent, body);
    assert_true(f.type == FRAME_SIGNAL && f.number == 15);
    assert_int_equal(hear(w->agent, body).type, FRAME_STDIN_END);
    assert_int_equal(hear(w->agent, body).type, FRAME_KILL);
    close_agent(w);
    while (sandbox_stream_kill(s) == SANDBOX_OK)
        ;
    assert_int_equal(sandbox_stream_kill(s), SANDBOX_ERR_GUEST_UNAVAILABLE);
    sandbox_stream_free(s);
}

static void the_specs_input_goes_first(void **state)
{
    struct world *w = *state;
    static uint8_t input[SANDBOX_MAX_STDIN], body[STREAM_FRAME_MAX];
    sandbox_exec_spec_t spec = {.command = "true", .stdin_data = input, .stdin_len = sizeof input};
    sandbox_stream_t *s = NULL;
    assert_int_equal(sandbox_exec_stream(w->h, &spec, NULL, &s), SANDBOX_OK);
    struct stream_frame f = hear(w->agent, body);
    assert_true(f.type == FRAME_STDIN && f.n == sizeof input);
    assert_int_equal(hear(w->agent, body).type, FRAME_STDIN_END);
    sandbox_stream_free(s);
    spec.stdin_len++;
    assert_int_equal(sandbox_exec_stream(w->h, &spec, NULL, &s), SANDBOX_ERR_TOO_LARGE);
}

// ---- background processes ----

static void *start_process(void *arg)
{
    struct world *w = arg;
    while (w->agent < 0)
        poll(NULL, 0, 1);
    say(w->agent, FRAME_STARTED, "\0\0\0\x07", 4);
    return NULL;
}

static void a_spawn_gives_the_process(void **state)
{
    struct world *w = *state;
    sandbox_exec_spec_t spec = {.command = "true"};
    pthread_t agent;
    assert_int_equal(pthread_create(&agent, NULL, start_process, w), 0);
    uint32_t id = 0;
    assert_int_equal(sandbox_spawn(w->h, &spec, NULL, &id), SANDBOX_OK);
    assert_int_equal(w->op, SANDBOX__STREAM_REQUEST__OP_SPAWN);
    assert_int_equal(id, 7);
    pthread_join(agent, NULL);
    assert_int_equal(w->floor, 0);
    assert_string_equal(w->principal, "not given");
    close_agent(w);
    // What it asks for goes along, also what the engine refuses: nothing is dropped on the way.
    spec.min_isolation = SANDBOX_ISOLATION_VM;
    spec.grant_profile = "inventory";
    spec.principal = "alice";
    assert_int_equal(pthread_create(&agent, NULL, start_process, w), 0);
    assert_int_equal(sandbox_spawn(w->h, &spec, NULL, &id), SANDBOX_OK);
    pthread_join(agent, NULL);
    assert_int_equal(w->floor, SANDBOX_ISOLATION_VM);
    assert_string_equal(w->grant, "inventory");
    assert_string_equal(w->principal, "alice");
    spec.min_isolation = SANDBOX_ISOLATION_VM + 1;
    assert_int_equal(sandbox_spawn(w->h, &spec, NULL, &id), SANDBOX_ERR_INVALID_SPEC);
    spec.min_isolation = 0;
    sandbox_spawn_options_t bad[] = {{.terminal = 3}, {.open_stdin = 2}, {.ring_bytes = 262145}, {.reserved = {1}}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sandbox_spawn(w->h, &spec, &bad[i], &id), SANDBOX_ERR_INVALID_SPEC);
}

static void an_attachment_may_miss_bytes(void **state)
{
    struct world *w = *state;
    sandbox_stream_t *s = NULL;
    assert_int_equal(sandbox_attach(w->h, 9, 0, &s), SANDBOX_OK);
    assert_int_equal(w->op, SANDBOX__STREAM_REQUEST__OP_ATTACH);
    say(w->agent, FRAME_DROPPED, "\0\0\0\1\0\0\0\2", 8);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_OK);
    assert_int_equal(e.type, SANDBOX_EVENT_DROPPED);
    assert_int_equal(e.dropped, 0x100000002);
    size_t n;
    assert_int_equal(sandbox_stream_write_stdin(s, "x", 1, &n), SANDBOX_ERR_INVALID_SPEC);
    sandbox_stream_free(s);
    assert_int_equal(sandbox_attach(w->h, 9, 2, &s), SANDBOX_ERR_INVALID_SPEC);
    s = start(w, NULL);  // and a command's own stream may not
    say(w->agent, FRAME_DROPPED, "\0\0\0\0\0\0\0\2", 8);
    assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_ERR_GUEST_UNAVAILABLE);
    sandbox_stream_free(s);
}

// ---- with callbacks ----

struct heard {
    struct world *w;
    char text[64];
    int calls;
    int stop_after;
};

static int hear_out(void *arg, const uint8_t *data, size_t len)
{
    struct heard *h = arg;
    strncat(h->text, (const char *)data, len);
    return ++h->calls == h->stop_after;
}

static void *play(void *arg)
{
    struct heard *h = arg;
    while (h->w->agent < 0)
        poll(NULL, 0, 1);
    say(h->w->agent, FRAME_STDOUT, "a", 1);
    if (h->stop_after == 1) {
        static uint8_t body[STREAM_FRAME_MAX];
        assert_int_equal(hear(h->w->agent, body).type, FRAME_KILL);
    }
    say(h->w->agent, FRAME_STDERR, "b", 1);
    say(h->w->agent, FRAME_STDOUT, "c", 1);
    say_exit(h->w->agent, 4);
    return NULL;
}

static void callbacks_get_the_output(void **state)
{
    for (int stop = 0; stop < 2; stop++) {
        struct world *w = *state;
        close_agent(w);
        struct heard h = {.w = w, .stop_after = stop};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, play, &h), 0);
        sandbox_output_t output = {.on_stdout = hear_out, .arg = &h};
        sandbox_exec_spec_t spec = {.command = "true"};
        sandbox_exec_result_t r = {0};
        assert_int_equal(sandbox_exec_streaming(w->h, &spec, &output, &r), SANDBOX_OK);
        assert_int_equal(r.exit_code, 4);
        assert_string_equal(h.text, stop ? "a" : "ac");
        sandbox_exec_result_free(&r);
        pthread_join(thread, NULL);
        output.reserved[0] = 1;
        assert_int_equal(sandbox_exec_streaming(w->h, &spec, &output, &r), SANDBOX_ERR_INVALID_SPEC);
    }
}

// One thread reads while another writes.
static void *write_all(void *arg)
{
    static uint8_t data[1024 * 1024];
    size_t at = 0;
    while (at < sizeof data) {
        size_t n;
        if (sandbox_stream_write_stdin(arg, data + at, sizeof data - at, &n) != SANDBOX_OK)
            break;
        at += n;
        if (n == 0)
            poll(NULL, 0, 1);
    }
    sandbox_stream_close_stdin(arg);
    return NULL;
}

static void *echo(void *arg)
{
    struct world *w = arg;
    static uint8_t body[STREAM_FRAME_MAX];
    for (;;) {
        struct stream_frame f = hear(w->agent, body);
        if (f.type != FRAME_STDIN)
            break;
        uint8_t payload[STREAM_SMALL_MAX];
        say(w->agent, FRAME_STDOUT, f.payload, f.n);
        say(w->agent, FRAME_WINDOW, payload, stream_frame_put_number(FRAME_WINDOW, f.n, payload));
    }
    say_exit(w->agent, 0);
    return NULL;
}

static void threads_share_a_stream(void **state)
{
    struct world *w = *state;
    sandbox_stream_options_t options = {.open_stdin = 1};
    sandbox_stream_t *s = start(w, &options);
    pthread_t writer, agent;
    assert_int_equal(pthread_create(&writer, NULL, write_all, s), 0);
    assert_int_equal(pthread_create(&agent, NULL, echo, w), 0);
    size_t total = 0;
    for (sandbox_event_t e = {0}; e.type != SANDBOX_EVENT_EXIT;) {
        assert_int_equal(sandbox_stream_read(s, -1, &e), SANDBOX_OK);
        total += e.type == SANDBOX_EVENT_STDOUT ? e.len : 0;
    }
    assert_int_equal(total, 1024 * 1024);
    pthread_join(writer, NULL);
    pthread_join(agent, NULL);
    sandbox_stream_free(s);
}

// ---- files that the caller drives ----

static void say_transfer(int fd, uint64_t bytes)
{
    Sandbox__Guest__TransferResult t = SANDBOX__GUEST__TRANSFER_RESULT__INIT;
    t.bytes = bytes;
    Sandbox__Guest__Result r = SANDBOX__GUEST__RESULT__INIT;
    r.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    r.transfer = &t;
    say_result(fd, FRAME_EXIT, &r);
}

// The description and the file come in pieces of every size.
static void files_are_described_before_their_bytes(void **state)
{
    static const uint8_t all[] = {0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 'f', 'i', 'l', 'e'};
    struct world *w = *state;
    for (size_t piece = 1; piece <= sizeof all; piece++) {
        sandbox_stream_t *s = NULL;
        close_agent(w);
        const sandbox_read_options_t options = {.offset = 3, .inside = 1};
        assert_int_equal(sandbox_open_read(w->h, "/workspace/f", &options, &s), SANDBOX_OK);
        for (size_t at = 0; at < sizeof all; at += piece)
            say(w->agent, FRAME_STDOUT, all + at, sizeof all - at < piece ? sizeof all - at : piece);
        say_transfer(w->agent, 4);
        sandbox_event_t e;
        assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
        assert_int_equal(e.type, SANDBOX_EVENT_FILE);
        assert_int_equal(e.file_size, 0x102);
        assert_int_equal(e.file_offset, 3);
        char text[8] = "";
        for (;;) {
            assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
            if (e.type != SANDBOX_EVENT_STDOUT)
                break;
            strncat(text, (const char *)e.data, e.len);
        }
        assert_int_equal(e.type, SANDBOX_EVENT_EXIT);
        assert_string_equal(text, "file");
        sandbox_stream_free(s);
    }
}

// Everything of the stream, in turns through a pipe and as events; how much of it came through the pipe.
static size_t gather(sandbox_stream_t *s, int pipe[2], size_t most, int read_every, char *text, sandbox_error_t *ret_end)
{
    size_t n = 0, piped = 0;
    for (int i = 1;; i++) {
        sandbox_event_t e = {0};
        bool reads = read_every != 0 && i % read_every == 0;
        *ret_end = reads ? sandbox_stream_read(s, 0, &e) : sandbox_stream_splice(s, pipe[1], most, &e);
        if (*ret_end != SANDBOX_OK || e.type == SANDBOX_EVENT_EXIT || e.type == SANDBOX_EVENT_NONE)
            break;
        if (e.type != SANDBOX_EVENT_STDOUT)
            continue;
        if (e.data != NULL) {
            memcpy(text + n, e.data, e.len);
        } else {
            assert_true(!reads && e.len <= most);
            assert_int_equal(read(pipe[0], text + n, e.len), e.len);
            piped += e.len;
        }
        n += e.len;
    }
    text[n] = '\0';
    return piped;
}

static void files_go_through_a_pipe(void **state)
{
    static const uint8_t head[16] = {[7] = 12};
    static const char all[] = "a whole file";
    struct world *w = *state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    for (size_t piece = 1; piece <= sizeof all - 1; piece++)
        for (size_t most = 1; most <= sizeof all; most += 3)
            for (int read_every = 0; read_every < 5; read_every++) {
                sandbox_stream_t *s = NULL;
                close_agent(w);
                assert_int_equal(sandbox_open_read(w->h, "/workspace/f", NULL, &s), SANDBOX_OK);
                say(w->agent, FRAME_STDOUT, head, sizeof head);
                for (size_t at = 0; at < sizeof all - 1; at += piece)
                    say(w->agent, FRAME_STDOUT, all + at, sizeof all - 1 - at < piece ? sizeof all - 1 - at : piece);
                say_transfer(w->agent, sizeof all - 1);
                char text[32];
                sandbox_error_t end;
                size_t piped = gather(s, ends, most, read_every, text, &end);
                assert_int_equal(end, SANDBOX_OK);
                assert_string_equal(text, all);
                // What read() took along cannot go through the pipe any more.
                assert_true(read_every != 0 || piped == sizeof all - 1);
                sandbox_event_t e;
                assert_int_equal(sandbox_stream_splice(s, ends[1], most, &e), SANDBOX_OK);
                assert_int_equal(e.type, SANDBOX_EVENT_EXIT);
                sandbox_stream_free(s);
            }
    close(ends[0]);
    close(ends[1]);
}

static void nonsense_does_not_get_into_a_pipe(void **state)
{
    static const uint8_t head[16] = {[7] = 12};
    static const uint8_t hostile[][8] = {
        {0xFF, 0xFF, 0xFF, 0xFF, FRAME_STDOUT, 'x'},  // longer than any frame
        {0, 0, 0, 1, FRAME_STDOUT, 'x'},              // without a byte
        {0, 0, 0, 0, FRAME_STDOUT, 'x'},              // without a type
        {0, 0, 0, 2, 99, 'x'},                        // of a type there is none of
        {0, 0, 0, 9, FRAME_STDOUT, 'x'},              // cut
    };
    struct world *w = *state;
    int ends[2], waiting = 0;
    assert_int_equal(pipe(ends), 0);
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        sandbox_stream_t *s = NULL;
        close_agent(w);
        assert_int_equal(sandbox_open_read(w->h, "/workspace/f", NULL, &s), SANDBOX_OK);
        say(w->agent, FRAME_STDOUT, head, sizeof head);
        assert_int_equal(write(w->agent, hostile[i], 6), 6);
        shutdown(w->agent, SHUT_WR);
        char text[32];
        sandbox_error_t end;
        gather(s, ends, 32, 0, text, &end);
        assert_int_equal(end, SANDBOX_ERR_GUEST_UNAVAILABLE);
        assert_string_equal(text, i == 4 ? "x" : "");
        sandbox_event_t e;
        assert_int_equal(sandbox_stream_splice(s, ends[1], 32, &e), SANDBOX_ERR_GUEST_UNAVAILABLE);
        sandbox_stream_free(s);
    }
    assert_int_equal(ioctl(ends[0], FIONREAD, &waiting), 0);
    assert_int_equal(waiting, 0);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_splice(NULL, ends[1], 32, &e), SANDBOX_ERR_INVALID_SPEC);
    close(ends[0]);
    close(ends[1]);
}

static void a_file_without_a_description_is_nonsense(void **state)
{
    struct world *w = *state;
    sandbox_stream_t *s = NULL;
    close_agent(w);
    assert_int_equal(sandbox_open_read(w->h, "/workspace/f", NULL, &s), SANDBOX_OK);
    say(w->agent, FRAME_STDOUT, "short", 5);
    say_transfer(w->agent, 5);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_ERR_GUEST_UNAVAILABLE);
    sandbox_stream_free(s);
}

static void options_of_files_are_checked(void **state)
{
    struct world *w = *state;
    sandbox_stream_t *s = NULL;
    sandbox_read_options_t options = {.from_end = 2};
    assert_int_equal(sandbox_open_read(w->h, "/f", &options, &s), SANDBOX_ERR_INVALID_SPEC);
    options = (sandbox_read_options_t){.reserved = {[5] = 1}};
    assert_int_equal(sandbox_open_read(w->h, "/f", &options, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_open_read(w->h, NULL, NULL, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_open_read(w->h, "/f", NULL, NULL), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_open_write(w->h, "/f", 0, 32, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_open_write(NULL, "/f", 0, 0, &s), SANDBOX_ERR_INVALID_SPEC);
    assert_null(s);
}

static void files_are_written_piece_by_piece(void **state)
{
    struct world *w = *state;
    sandbox_stream_t *s = NULL;
    close_agent(w);
    assert_int_equal(sandbox_open_write(w->h, "/workspace/f", 0600, SANDBOX_WRITE_INSIDE, &s), SANDBOX_OK);
    assert_int_equal(w->op, SANDBOX__STREAM_REQUEST__OP_WRITE);
    size_t written = 0;
    assert_int_equal(sandbox_stream_write_stdin(s, "file", 4, &written), SANDBOX_OK);
    assert_int_equal(written, 4);
    assert_int_equal(sandbox_stream_close_stdin(s), SANDBOX_OK);
    say_transfer(w->agent, 4);
    sandbox_event_t e;
    assert_int_equal(sandbox_stream_read(s, 0, &e), SANDBOX_OK);
    assert_int_equal(e.type, SANDBOX_EVENT_EXIT);
    sandbox_stream_free(s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(files_are_described_before_their_bytes),
        TEST(files_go_through_a_pipe),
        TEST(nonsense_does_not_get_into_a_pipe),
        TEST(a_file_without_a_description_is_nonsense),
        TEST(options_of_files_are_checked),
        TEST(files_are_written_piece_by_piece),
        TEST(events_come_in_order),
        TEST(a_stream_that_breaks_off_is_an_error),
        TEST(a_refusal_of_the_agent_has_its_code),
        TEST(what_the_engine_says_of_a_stream_is_checked),
        TEST(a_full_process_gets_an_error_and_keeps_its_connection),
        TEST(input_stays_within_the_window),
        TEST(what_is_asked_is_sent),
        TEST(the_specs_input_goes_first),
        TEST(a_spawn_gives_the_process),
        TEST(an_attachment_may_miss_bytes),
        TEST(callbacks_get_the_output),
        TEST(threads_share_a_stream),
    };
    return cmocka_run_group_tests_name("lib_stream", tests, NULL, NULL);
}
