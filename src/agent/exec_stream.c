#include "agent/exec_stream.h"

#include "agent/exec.h"
#include "base/cleanup.h"

#include <errno.h>
#include <signal.h>

// Given back to the host in pieces of this size, or when nothing more is pending.
enum { WINDOW_STEP = STREAM_WINDOW / 4 };

struct exec_stream {
    struct line *line;
    struct exec *exec;
    size_t under_way;  // bytes of stdin that the host sent and the command has not taken
    size_t owed;       // of its window, not given back yet
};

// Gives the host its window back, unless its line is full; then it comes with on_room.
static void give_window(struct exec_stream *s)
{
    if (s->owed == 0 || (s->owed < WINDOW_STEP && s->under_way > 0) || !line_room(s->line))
        return;
    if (line_send_number(s->line, FRAME_WINDOW, s->owed) == 0)
        s->owed = 0;
}

static void on_input_taken(void *arg, size_t n)
{
    struct exec_stream *s = arg;
    s->under_way -= n;
    s->owed += n;
    give_window(s);
}

static void on_output(void *arg, enum exec_stream_name which, const uint8_t *bytes, size_t n)
{
    struct exec_stream *s = arg;
    line_send(s->line, which == EXEC_OUT ? FRAME_STDOUT : FRAME_STDERR, bytes, n);
    if (!line_room(s->line))
        exec_hold(s->exec, true);
}

static void on_done(void *arg, const Sandbox__Guest__ExecResult *result)
{
    struct exec_stream *s = arg;
    // What is said about a command that could not be started.
    if (result->err.len > 0)
        line_send(s->line, FRAME_STDERR, result->err.data, result->err.len);
    Sandbox__Guest__ExecResult bare = *result;
    bare.out = bare.err = (ProtobufCBinaryData){0};
    guest_result answer = SANDBOX__GUEST__RESULT__INIT;
    answer.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    answer.exec = &bare;
    line_end(s->line, &answer);
    free(s);
}

// ---- the host's doings ----

static void on_stdin(struct exec_stream *s, const struct stream_frame *f)
{
    if (s->under_way + s->owed + f->n > STREAM_WINDOW) {
        line_break(s->line);
        return;
    }
    s->under_way += f->n;
    // Input behind its end is thrown away; so is what finds no memory, rather than the command be lost.
    if (exec_write(s->exec, f->payload, f->n) < 0)
        on_input_taken(s, f->n);
}

static void on_frame(void *arg, const struct stream_frame *f)
{
    struct exec_stream *s = arg;
    switch (f->type) {
    case FRAME_STDIN:
        on_stdin(s, f);
        break;
    case FRAME_STDIN_END:
        exec_end_input(s->exec);
        break;
    case FRAME_RESIZE:
        exec_resize(s->exec, f->rows, f->cols);
        break;
    case FRAME_SIGNAL:
        if (f->number > 0 && f->number < NSIG)
            exec_signal(s->exec, (int)f->number);
        break;
    default:
        exec_kill(s->exec);
    }
}

static void on_input_end(void *arg)
{
    struct exec_stream *s = arg;
    exec_end_input(s->exec);
}

static void on_room(void *arg)
{
    struct exec_stream *s = arg;
    give_window(s);
    if (line_room(s->line))
        exec_hold(s->exec, false);
}

static void on_gone(void *arg)
{
    struct exec_stream *s = arg;
    exec_cancel(s->exec);
    free(s);
}

void exec_stream_start(struct agent *agent, struct line *l, const Sandbox__Guest__ExecStream *request)
{
    static const struct line_user user = {
        .on_frame = on_frame, .on_input_end = on_input_end, .on_room = on_room, .on_gone = on_gone};
    const struct exec_io io = {.on_output = on_output,
                               .on_input_taken = on_input_taken,
                               .open_stdin = request->open_stdin,
                               .no_time_limit = request->terminal != NULL,
                               .terminal = request->terminal};
    struct err e;
    struct exec_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        err_set(&e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        line_end_refused(l, STATUS(BUSY), &e);
        return;
    }
    s->line = l;
    guest_status status = exec_start(agent, request->exec, &io, on_done, s, &s->exec, &e);
    if (status != STATUS(OK)) {
        free(s);
        line_end_refused(l, status, &e);
        return;
    }
    line_use(l, &user, s);
}
