#include "agent/exec_stream.h"

#include "agent/exec.h"
#include "agent/job.h"
#include "base/cleanup.h"
#include "wire/pb.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

// Given back to the host in pieces of this size, or when nothing more is pending.
enum { WINDOW_STEP = STREAM_WINDOW / 4 };

struct exec_stream {
    struct line *line;
    struct exec *exec;
    size_t under_way;  // bytes of stdin that the host sent and the command has not taken
    size_t owed;       // of its window, not given back yet
    bool job;
    struct buf verdict;  // what a job has said so far
};

static void stream_free_state(struct exec_stream *s)
{
    buf_free(&s->verdict);
    free(s);
}

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
    if (s->job && which == EXEC_ERR) {
        buf_append(&s->verdict, bytes, n);  // one that is too long cannot be parsed
        return;
    }
    line_send(s->line, which == EXEC_OUT ? FRAME_STDOUT : FRAME_STDERR, bytes, n);
    if (!line_room(s->line))
        exec_hold(s->exec, true);
}

// A job's end: its verdict, or that it had no time for one.
static void end_job(struct exec_stream *s, const Sandbox__Guest__ExecResult *result)
{
    guest_result *verdict = NULL;
    if (result->term_signal == 0 && result->exit_code == 0 && buf_error(&s->verdict) == 0)
        verdict = (void *)pb_unpack(&sandbox__guest__result__descriptor, s->verdict.data, s->verdict.len);
    if (verdict != NULL) {
        line_end(s->line, verdict);
        pb_free(verdict);
        return;
    }
    struct err e;
    if (result->oom_killed)
        err_set(&e, ENOMEM, "The transfer was killed because the sandbox's memory was full.");
    else if (result->start_errno != 0)
        err_set(&e, (int)result->start_errno, "The transfer could not be started: %s.", strerror((int)result->start_errno));
    else
        err_set(&e, EINTR, "The transfer was killed inside the sandbox.");
    line_end_refused(s->line, STATUS(IO), &e);
}

static void on_done(void *arg, const Sandbox__Guest__ExecResult *result)
{
    struct exec_stream *s = arg;
    if (s->job) {
        end_job(s, result);
        stream_free_state(s);
        return;
    }
    // What is said about a command that could not be started.
    if (result->err.len > 0)
        line_send(s->line, FRAME_STDERR, result->err.data, result->err.len);
    Sandbox__Guest__ExecResult bare = *result;
    bare.out = bare.err = (ProtobufCBinaryData){0};
    guest_result answer = SANDBOX__GUEST__RESULT__INIT;
    answer.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    answer.exec = &bare;
    line_end(s->line, &answer);
    stream_free_state(s);
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
    stream_free_state(s);
}

static void start(struct agent *agent, struct line *l, const Sandbox__Guest__Exec *request, struct exec_io io, bool job)
{
    static const struct line_user user = {
        .on_frame = on_frame, .on_input_end = on_input_end, .on_room = on_room, .on_gone = on_gone};
    io.on_output = on_output;
    io.on_input_taken = on_input_taken;
    struct err e;
    struct exec_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        err_set(&e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        line_end_refused(l, STATUS(BUSY), &e);
        return;
    }
    *s = (struct exec_stream){.line = l, .job = job, .verdict = BUF_INIT(VERDICT_MAX)};
    guest_status status = exec_start(agent, request, &io, on_done, s, &s->exec, &e);
    if (status != STATUS(OK)) {
        stream_free_state(s);
        line_end_refused(l, status, &e);
        return;
    }
    line_use(l, &user, s);
}

void exec_stream_start(struct agent *agent, struct line *l, const Sandbox__Guest__ExecStream *request)
{
    const struct exec_io io = {
        .open_stdin = request->open_stdin, .no_time_limit = request->terminal != NULL, .terminal = request->terminal};
    start(agent, l, request->exec, io, false);
}

void job_stream_start(struct agent *agent, struct line *l, const Sandbox__Agent__Request *request)
{
    // The program that it is not: a name for messages, and a directory to be in.
    ProtobufCBinaryData name = {8, (uint8_t *)"transfer"};
    Sandbox__Guest__Exec exec = SANDBOX__GUEST__EXEC__INIT;
    exec.argv = &name;
    exec.n_argv = 1;
    exec.cwd = (ProtobufCBinaryData){1, (uint8_t *)"/"};
    const struct exec_io io = {.open_stdin = true, .no_time_limit = true, .run = job_main, .run_arg = request};
    start(agent, l, &exec, io, true);
}
