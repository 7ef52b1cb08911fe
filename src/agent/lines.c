#include "agent/lines.h"

#include "agent/answer.h"
#include "agent/exec.h"
#include "agent/files.h"
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

struct line {
    struct lines *owner;
    struct line *next;
    struct stream *stream;
    struct timer timer;  // for the request, then for the answer to be taken
    bool refused;
    bool asked;  // the request has been received
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
    stream_free(l->stream);
    free(l);
}

// Sends the answer and closes the line when it has been taken.
static void reply(struct line *l, const guest_result *result)
{
    struct loop *loop = l->owner->agent->loop;
    if (stream_send(l->stream, result) < 0 || stream_queued(l->stream) == 0) {
        line_close(l);
        return;
    }
    stream_finish(l->stream);
    timer_set(loop, &l->timer, mono_ns() + ANSWER_WAIT_S * NS_PER_S);
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

static void serve(struct line *l, const Sandbox__Agent__Request *request)
{
    struct agent *agent = l->owner->agent;
    cleanup_answer struct answer a;
    answer_init(&a);
    if (request->op_case == SANDBOX__AGENT__REQUEST__OP_EXEC) {
        struct err e;
        guest_status status = exec_start(agent, request->exec, on_exec_done, l, &l->exec, &e);
        if (status != STATUS(OK))
            refuse(l, status, &e);
        return;
    }
    if (request->op_case == SANDBOX__AGENT__REQUEST__OP_REMOVE) {
        l->removal = removal_start(agent, request->remove, request->allow_outside, on_removal_done, l, &a);
        if (l->removal != NULL)
            return;
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

static void on_frame(void *arg, const uint8_t *body, size_t len)
{
    struct line *l = arg;
    if (l->asked) {  // one request a line: a second one is the host's mistake
        line_close(l);
        return;
    }
    l->asked = true;
    timer_cancel(l->owner->agent->loop, &l->timer);
    Sandbox__Agent__Request *request = (void *)pb_unpack(&sandbox__agent__request__descriptor, body, len);
    struct err e;
    guest_status status = judge(l, request, &e);
    if (status == STATUS(OK))
        serve(l, request);
    else
        refuse(l, status, &e);
    pb_free(request);
}

static void on_end(void *arg, int reason)
{
    line_close(arg);
}

static void on_timer(void *arg)
{
    line_close(arg);
}

static const struct stream_handler handler = {.on_frame = on_frame, .on_end = on_end};
static const struct stream_limits limits = {.frame_max = AGENT_REQUEST_MAX, .queue_max = FRAME_HEAD + AGENT_RESULT_MAX};

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

void lines_open(struct lines *lines, int fd)
{
    cleanup_fd int owned = fd;
    bool refused = lines->served >= AGENT_STREAMS_MAX;
    if (refused && lines->refused >= REFUSED_MAX)
        return;
    struct line *l = calloc(1, sizeof *l);
    if (l == NULL)
        return;
    *l = (struct line){.owner = lines, .refused = refused};
    timer_init(&l->timer, on_timer, l);
    struct loop *loop = lines->agent->loop;
    if (stream_new(loop, fd, &limits, &handler, l, &l->stream) < 0 ||
        timer_set(loop, &l->timer, mono_ns() + REQUEST_WAIT_S * NS_PER_S) < 0) {
        if (l->stream != NULL) {
            take_fd(&owned);
            stream_free(l->stream);
        }
        free(l);
        return;
    }
    take_fd(&owned);
    l->next = lines->list;
    lines->list = l;
    *(refused ? &lines->refused : &lines->served) += 1;
}
