#include "agent_stream.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/pb.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static uint64_t last_id = 100;

void talk_open(struct talk *t, const struct rig *rig, const Sandbox__Agent__Request *request)
{
    memset(t, 0, sizeof *t);
    t->window = STREAM_WINDOW;
    t->id = ++last_id;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    rig_request(pair[0], request);
    Sandbox__Agent__OpenStream open_stream = SANDBOX__AGENT__OPEN_STREAM__INIT;
    open_stream.id = t->id;
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_OPEN_STREAM;
    command.open_stream = &open_stream;
    rig_command(rig, &command, pair[1]);
    close(pair[1]);
    t->fd = pair[0];
}

void talk_start_with(struct talk *t, const struct rig *rig, const char *script, const struct talk_options *o)
{
    ProtobufCBinaryData argv[1] = {bytes_of(script != NULL ? script : o->program)};
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.argv = argv;
    exec.n_argv = 1;
    exec.shell = script != NULL;
    exec.timeout_ms = o->timeout_ms;
    exec.max_output = o->max_output;
    Sandbox__Guest__Terminal terminal = SANDBOX__GUEST__TERMINAL__INIT;
    terminal.rows = o->rows;
    terminal.cols = o->cols;
    Sandbox__Guest__ExecStream stream = SANDBOX__GUEST__EXEC_STREAM__INIT;
    stream.exec = &exec;
    stream.open_stdin = o->open_stdin;
    stream.terminal = o->terminal ? &terminal : NULL;
    Sandbox__Agent__Request request = SANDBOX__AGENT__REQUEST__INIT;
    request.version = AGENT_PROTOCOL_VERSION;
    request.op_case = SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM;
    request.exec_stream = &stream;
    talk_open(t, rig, &request);
}

void talk_free(struct talk *t)
{
    close_fd(&t->fd);
    pb_free(t->result);
}

void talk_send_raw(struct talk *t, const void *body, size_t n)
{
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, (uint32_t)n);
    assert_int_equal(send(t->fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(t->fd, (const char *)body + at, n - at, MSG_NOSIGNAL);
        assert_true(sent > 0);
        at += (size_t)sent;
    }
}

void talk_send(struct talk *t, enum stream_frame_type type, const void *payload, size_t n)
{
    static uint8_t body[STREAM_FRAME_MAX];
    body[0] = (uint8_t)type;
    if (n > 0)
        memcpy(body + 1, payload, n);
    talk_send_raw(t, body, 1 + n);
}

static void keep(struct talk *t, int which, const struct stream_frame *f)
{
    t->bytes[which] += f->n;
    size_t room = TALK_TEXT_MAX - 1 - t->text_len[which];
    size_t n = f->n < room ? f->n : room;
    memcpy(t->text[which] + t->text_len[which], f->payload, n);
    t->text_len[which] += n;
}

static void take(struct talk *t, const struct stream_frame *f)
{
    assert_int_equal(t->end, 0);
    switch (f->type) {
    case FRAME_STDOUT:
    case FRAME_STDERR:
        keep(t, f->type == FRAME_STDERR, f);
        break;
    case FRAME_WINDOW:
        t->window += (size_t)f->number;
        break;
    case FRAME_STARTED:
        t->process = (uint32_t)f->number;
        break;
    case FRAME_DROPPED:
        t->dropped += f->number;
        break;
    default:
        t->end = f->type;
        t->result = (void *)pb_unpack(&sandbox__guest__result__descriptor, f->payload, f->n);
        assert_non_null(t->result);
    }
}

// 1 after a frame, 0 at the end, -1 when nothing came in time.
static int step(struct talk *t, int ms)
{
    for (;;) {
        const uint8_t *body;
        size_t n;
        int r = frame_find(t->in, t->in_len, STREAM_FRAME_MAX, &body, &n);
        assert_true(r >= 0);
        if (r == 1) {
            struct stream_frame f;
            assert_int_equal(stream_frame_parse(body, n, STREAM_TO_CLIENT, &f), 0);
            take(t, &f);
            t->in_len -= FRAME_HEAD + n;
            memmove(t->in, t->in + FRAME_HEAD + n, t->in_len);
            return 1;
        }
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        if (poll(&p, 1, ms) <= 0)
            return -1;
        ssize_t got = recv(t->fd, t->in + t->in_len, sizeof t->in - t->in_len, 0);
        if (got <= 0)
            return 0;
        t->in_len += (size_t)got;
    }
}

bool talk_step(struct talk *t)
{
    int r = step(t, RIG_WAIT_MS);
    assert_true(r >= 0);
    return r == 1;
}

bool talk_until(struct talk *t, const char *text)
{
    while (strstr(t->text[0], text) == NULL)
        if (!talk_step(t))
            return false;
    return true;
}

bool talk_until_ms(struct talk *t, const char *text, int ms)
{
    uint64_t until = mono_ns() + (uint64_t)ms * NS_PER_MS;
    while (strstr(t->text[0], text) == NULL)
        if (mono_ns() > until || step(t, ms) != 1)
            return false;
    return true;
}

guest_result *talk_end(struct talk *t)
{
    while (t->end == 0)
        assert_true(talk_step(t));
    assert_int_equal(step(t, RIG_WAIT_MS), 0);
    return t->result;
}

void talk_await_ended(const struct rig *rig, uint64_t id)
{
    for (bool found = false; !found;) {
        Sandbox__Agent__Report *report = rig_report(rig);
        found = report->report_case == SANDBOX__AGENT__REPORT__REPORT_STREAM_ENDED && report->stream_ended->id == id;
        pb_free(report);
    }
}
