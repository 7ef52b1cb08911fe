#include "agent/lines.h"

#include "agent/answer.h"
#include "agent/brief.h"
#include "agent/control.h"
#include "agent/exec.h"
#include "agent/exec_stream.h"
#include "agent/files.h"
#include "agent/processes.h"
#include "agent/removal.h"
#include "agent/request_check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/stream.h"
#include "wire/frame.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <errno.h>
#include <stdlib.h>

enum { LINE_QUEUE_MAX = 4 * STREAM_PAYLOAD_MAX };

struct line {
    struct lines *owner;
    struct line *next;
    uint64_t id;
    struct stream *stream;
    struct timer timer;  // for the request, then for the answer to be taken
    bool refused;
    bool asked;      // the request has been received
    bool streaming;  // and was a stream's
    const struct line_user *user;
    void *user_arg;
    struct exec *exec;
    struct removal *removal;
};

struct lines {
    struct agent *agent;
    struct line *list;
    size_t served, refused;
};

static void line_close(struct line *l)
{
    struct lines *all = l->owner;
    for (struct line **at = &all->list; *at != NULL; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    *(l->refused ? &all->refused : &all->served) -= 1;
    timer_cancel(all->agent->loop, &l->timer);
    if (l->exec != NULL)
        exec_cancel(take_ptr(&l->exec));
    if (l->removal != NULL)
        removal_cancel(take_ptr(&l->removal));
    const struct line_user *user = take_ptr(&l->user);
    if (user != NULL)
        user->on_gone(l->user_arg);
    stream_free(l->stream);
    if (l->streaming || !l->asked)
        control_stream_ended(all->agent, l->id);
    free(l);
}

// Closes the line when what is queued has been taken.
static void finish(struct line *l)
{
    struct loop *loop = l->owner->agent->loop;
    if (stream_queued(l->stream) == 0) {
        line_close(l);
        return;
    }
    stream_finish(l->stream);
    if (!l->streaming)
        timer_set(loop, &l->timer, mono_ns() + ANSWER_WAIT_S * NS_PER_S);
}

static void reply(struct line *l, const guest_result *result)
{
    if (l->streaming)
        line_end(l, result);
    else if (stream_send(l->stream, result) < 0)
        line_close(l);
    else
        finish(l);
}

static void reply_answer(struct line *l, struct answer *a)
{
    // The parts are cut to fit where they are made; that they do is checked here, once, for all.
    if (sandbox__guest__result__get_packed_size(&a->result) > AGENT_RESULT_MAX) {
        struct err e;
        err_set(&e, EMSGSIZE, "The answer is too long to be sent.");
        answer_refuse(a, STATUS(TOO_LARGE), &e);
    }
    reply(l, &a->result);
}

static void refuse(struct line *l, guest_status status, const struct err *e)
{
    cleanup_answer struct answer a;
    answer_init(&a);
    answer_refuse(&a, status, e);
    reply_answer(l, &a);
}

static void on_exec_done(void *arg, const Sandbox__Guest__ExecResult *result)
{
    struct line *l = arg;
    l->exec = NULL;
    cleanup_answer struct answer a;
    answer_init(&a);
    a.result.result_case = SANDBOX__GUEST__RESULT__RESULT_EXEC;
    a.result.exec = (Sandbox__Guest__ExecResult *)result;
    reply_answer(l, &a);
}

static void on_removal_done(void *arg, struct answer *a)
{
    struct line *l = arg;
    l->removal = NULL;
    reply_answer(l, a);
}

static void serve_stream(struct line *l, const Sandbox__Agent__Request *request)
{
    struct agent *agent = l->owner->agent;
    switch (request->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM:
        exec_stream_start(agent, l, request->exec_stream);
        break;
    case SANDBOX__AGENT__REQUEST__OP_SPAWN:
        process_spawn(agent->processes, l, request->spawn);
        break;
    case SANDBOX__AGENT__REQUEST__OP_ATTACH:
        process_attach(agent->processes, l, request->attach);
        break;
    default:
        if (!brief_start(l, request))
            job_stream_start(agent, l, request);
    }
}

static void serve(struct line *l, const Sandbox__Agent__Request *request)
{
    struct agent *agent = l->owner->agent;
    if (l->streaming) {
        serve_stream(l, request);
        return;
    }
    cleanup_answer struct answer a;
    answer_init(&a);
    if (request->op_case == SANDBOX__AGENT__REQUEST__OP_EXEC) {
        struct err e;
        guest_status status = exec_start(agent, request->exec, NULL, on_exec_done, l, &l->exec, &e);
        if (status != STATUS(OK))
            refuse(l, status, &e);
        return;
    }
    if (request->op_case == SANDBOX__AGENT__REQUEST__OP_REMOVE) {
        l->removal = removal_start(agent, request->remove, request->allow_outside, on_removal_done, l, &a);
        if (l->removal != NULL)
            return;
    } else if (request->op_case == SANDBOX__AGENT__REQUEST__OP_LIST_PROCESSES) {
        processes_list(agent->processes, &a);
    } else if (request->op_case == SANDBOX__AGENT__REQUEST__OP_SIGNAL_PROCESS) {
        process_signal(agent->processes, request->signal_process, &a);
    } else {
        files_run(request, &a);
    }
    reply_answer(l, &a);
}

// Everything that is wrong with a request before it is served.
static guest_status judge(const struct line *l, const Sandbox__Agent__Request *request, struct err *e)
{
    if (l->refused) {
        err_set(e, EBUSY, "The sandbox is doing %d operations already; try again when one has ended.", AGENT_STREAMS_MAX);
        return STATUS(BUSY);
    }
    if (request == NULL) {
        err_set(e, EBADMSG, "The request cannot be read: it is malformed, or needs too much memory.");
        return STATUS(BAD_REQUEST);
    }
    guest_status status = request_check(request, e);
    if (status == STATUS(OK) && !l->owner->agent->configured) {
        err_set(e, ENOTCONN, "The sandbox has not been configured yet.");
        return STATUS(NO_WORKSPACE);
    }
    return status;
}

static void on_request(struct line *l, const uint8_t *body, size_t len)
{
    timer_cancel(l->owner->agent->loop, &l->timer);
    Sandbox__Agent__Request *request = (void *)pb_unpack(&sandbox__agent__request__descriptor, body, len);
    l->streaming = request != NULL && request->op_case >= SANDBOX__AGENT__REQUEST__OP_EXEC_STREAM;
    l->asked = true;
    struct err e;
    guest_status status = judge(l, request, &e);
    if (status == STATUS(OK))
        serve(l, request);
    else
        refuse(l, status, &e);
    pb_free(request);
}

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct line *l = arg;
    struct stream_frame frame;
    if (!l->asked)
        on_request(l, body, len);
    else if (!l->streaming || stream_frame_parse(body, len, STREAM_TO_AGENT, &frame) < 0)
        line_close(l);  // one request a line: a second one is the host's mistake
    else if (l->user != NULL)
        l->user->on_frame(l->user_arg, &frame);
}

static void on_drained(void *arg)
{
    struct line *l = arg;
    if (l->user != NULL)
        l->user->on_room(l->user_arg);
    else if (l->streaming)
        line_close(l);
}

static void on_half_close(void *arg)
{
    struct line *l = arg;
    if (!l->streaming)
        line_close(l);
    else if (l->user != NULL)
        l->user->on_input_end(l->user_arg);
}

static void on_end(void *arg, int reason)
{
    line_close(arg);
}

static void on_timer(void *arg)
{
    line_close(arg);
}

static const struct stream_handler handler = {
    .on_frame = on_frame, .on_end = on_end, .on_drained = on_drained, .on_half_close = on_half_close};
static const struct stream_limits limits = {.frame_max = AGENT_REQUEST_MAX, .queue_max = LINE_QUEUE_MAX};

_Static_assert((int)AGENT_REQUEST_MAX >= (int)STREAM_FRAME_MAX, "a frame of a stream fits where a request does");

// ---- what a stream's user does ----

void line_use(struct line *l, const struct line_user *user, void *arg)
{
    l->user = user;
    l->user_arg = arg;
}

bool line_room(const struct line *l)
{
    return stream_queued(l->stream) < STREAM_PAYLOAD_MAX;
}

int line_send(struct line *l, enum stream_frame_type type, const void *payload, size_t n)
{
    return stream_send_typed(l->stream, (uint8_t)type, payload, n);
}

bool line_idle(const struct line *l)
{
    return stream_queued(l->stream) == 0;
}

int line_send_pages(struct line *l, int pipe, size_t n)
{
    return stream_send_pages(l->stream, pipe, n);
}

int line_send_number(struct line *l, enum stream_frame_type type, uint64_t number)
{
    uint8_t payload[STREAM_SMALL_MAX];
    return line_send(l, type, payload, stream_frame_put_number(type, number, payload));
}

void line_end(struct line *l, const guest_result *result)
{
    static uint8_t packed[AGENT_RESULT_MAX];
    l->user = NULL;
    size_t n = sandbox__guest__result__get_packed_size(result);
    if (n > sizeof packed) {  // made too long: an end without a word is no exit code either
        line_close(l);
        return;
    }
    sandbox__guest__result__pack(result, packed);
    if (line_send(l, result->status == STATUS(OK) ? FRAME_EXIT : FRAME_ERROR, packed, n) < 0)
        line_close(l);
    else
        finish(l);
}

void line_end_refused(struct line *l, guest_status status, const struct err *e)
{
    l->user = NULL;
    refuse(l, status, e);
}

void line_break(struct line *l)
{
    line_close(l);
}

// ---- all of them ----

int lines_new(struct agent *agent, struct lines **ret_lines)
{
    struct lines *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    all->agent = agent;
    *ret_lines = all;
    return 0;
}

struct lines *lines_free(struct lines *lines)
{
    if (lines == NULL)
        return NULL;
    while (lines->list != NULL)
        line_close(lines->list);
    free(lines);
    return NULL;
}

// False: it cannot be served at all.
static bool open_line(struct lines *lines, int fd, uint64_t id)
{
    cleanup_fd int owned = fd;
    bool refused = lines->served >= AGENT_STREAMS_MAX;
    if (refused && lines->refused >= REFUSED_MAX)
        return false;
    struct line *l = calloc(1, sizeof *l);
    if (l == NULL)
        return false;
    *l = (struct line){.owner = lines, .id = id, .refused = refused};
    timer_init(&l->timer, on_timer, l);
    struct loop *loop = lines->agent->loop;
    if (stream_new(loop, fd, &limits, &handler, l, &l->stream) < 0 ||
        timer_set(loop, &l->timer, mono_ns() + REQUEST_WAIT_S * NS_PER_S) < 0) {
        if (l->stream != NULL) {
            take_fd(&owned);
            stream_free(l->stream);
        }
        free(l);
        return false;
    }
    take_fd(&owned);
    l->next = lines->list;
    lines->list = l;
    *(refused ? &lines->refused : &lines->served) += 1;
    return true;
}

void lines_open(struct lines *lines, int fd, uint64_t id)
{
    if (!open_line(lines, fd, id))
        control_stream_ended(lines->agent, id);
}
