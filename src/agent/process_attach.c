// One line that watches a process: it has a place of its own in each ring, so that a slow one falls behind, is told of what
// it missed, and stalls nobody.
#include "agent/processes.h"
#include "base/cleanup.h"

#include <errno.h>
#include <signal.h>

struct attachment {
    TAILQ_ENTRY(attachment) link;  // in process->attachments
    struct process *process;
    struct line *line;
    uint64_t at[2];
    size_t under_way, owed;  // its input, as in exec_stream.c
};

enum { WINDOW_STEP = STREAM_WINDOW / 4 };

static void detach(struct attachment *a)
{
    struct process *p = a->process;
    if (p->input == a) {
        p->input = NULL;
        p->input_orphaned += a->under_way;
    }
    TAILQ_REMOVE(&p->attachments, a, link);
    free(a);
}

// ---- what goes out ----

// Sends from one ring while there is room; whether all of it has been sent.
static bool pump_ring(struct attachment *a, int which)
{
    const struct ring *r = &a->process->ring[which];
    while (a->at[which] < r->end && line_room(a->line)) {
        uint64_t start = ring_start(r);
        if (a->at[which] < start) {
            line_send_number(a->line, FRAME_DROPPED, start - a->at[which]);
            a->at[which] = start;
            continue;
        }
        const uint8_t *bytes;
        size_t n = ring_peek(r, a->at[which], &bytes);
        if (n > STREAM_PAYLOAD_MAX)
            n = STREAM_PAYLOAD_MAX;
        line_send(a->line, which == EXEC_OUT ? FRAME_STDOUT : FRAME_STDERR, bytes, n);
        a->at[which] += n;
    }
    return a->at[which] == r->end;
}

static void give_window(struct attachment *a)
{
    if (a->owed == 0 || (a->owed < WINDOW_STEP && a->under_way > 0) || !line_room(a->line))
        return;
    if (line_send_number(a->line, FRAME_WINDOW, a->owed) == 0)
        a->owed = 0;
}

static void pump(struct attachment *a)
{
    give_window(a);
    bool all_out = pump_ring(a, EXEC_OUT);
    bool all_err = pump_ring(a, EXEC_ERR);
    if (!a->process->ended || !all_out || !all_err)
        return;
    guest_result answer = SANDBOX__GUEST__RESULT__INIT;
    answer.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    answer.exec = &a->process->result;
    struct line *l = a->line;
    detach(a);
    line_end(l, &answer);
}

void attachments_pump(struct process *p)
{
    for (struct attachment *a = TAILQ_FIRST(&p->attachments), *next; a != NULL; a = next) {
        next = TAILQ_NEXT(a, link);
        pump(a);
    }
}

void attachments_input_taken(struct process *p, size_t n)
{
    size_t orphaned = n < p->input_orphaned ? n : p->input_orphaned;
    p->input_orphaned -= orphaned;
    struct attachment *a = p->input;
    if (a == NULL || n == orphaned)
        return;
    a->under_way -= n - orphaned;
    a->owed += n - orphaned;
    give_window(a);
}

// ---- what comes in ----

static void on_stdin(struct attachment *a, const struct stream_frame *f)
{
    struct process *p = a->process;
    if (p->input != a || a->under_way + a->owed + f->n > STREAM_WINDOW) {
        line_break(a->line);
        return;
    }
    a->under_way += f->n;
    if (p->exec == NULL || exec_write(p->exec, f->payload, f->n) < 0)
        attachments_input_taken(p, f->n);
}

static void on_frame(void *arg, const struct stream_frame *f)
{
    struct attachment *a = arg;
    struct process *p = a->process;
    if (f->type == FRAME_STDIN) {
        on_stdin(a, f);
        return;
    }
    if (p->exec == NULL)
        return;
    if (f->type == FRAME_STDIN_END && p->input == a) {
        p->input_open = false;
        exec_end_input(p->exec);
    } else if (f->type == FRAME_RESIZE) {
        exec_resize(p->exec, f->rows, f->cols);
    } else if (f->type == FRAME_SIGNAL && f->number > 0 && f->number < NSIG) {
        exec_signal(p->exec, (int)f->number);
    } else if (f->type == FRAME_KILL) {
        exec_kill(p->exec);
    }
}

// Closing the sending side is no end of the process's input: that takes a frame.
static void on_input_end(void *arg)
{
    (void)arg;
}

static void on_room(void *arg)
{
    pump(arg);
}

static void on_gone(void *arg)
{
    detach(arg);
}

guest_status attach(struct process *p, struct line *l, bool input, bool spawned, struct err *e)
{
    static const struct line_user user = {
        .on_frame = on_frame, .on_input_end = on_input_end, .on_room = on_room, .on_gone = on_gone};
    if (input && p->input != NULL) {
        err_set(e, EBUSY, "Another stream has the input of process %u; wait until it is closed.", p->id);
        return STATUS(BUSY);
    }
    struct attachment *a = malloc(sizeof *a);
    if (a == NULL) {
        err_set(e, ENOMEM, "The sandbox's agent is out of memory; try again.");
        return STATUS(BUSY);
    }
    *a = (struct attachment){.process = p, .line = l};
    TAILQ_INSERT_TAIL(&p->attachments, a, link);
    if (input)
        p->input = a;
    line_use(l, &user, a);
    if (spawned)
        line_send_number(l, FRAME_STARTED, p->id);
    pump(a);
    return STATUS(OK);
}
