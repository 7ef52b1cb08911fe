// One operation on a file: a use of the session's sandbox, a job that asks, and the caller who waits.  Shared by all of them.
#ifndef API_FILE_OP_H
#define API_FILE_OP_H

#include "api/session_ops.h"

struct file_op {
    struct job job;  // first
    struct use use;
    struct api *api;
    struct call *call;  // NULL: the client has gone
    sandbox_handle_t *handle;
    bool tried_again, gone, has_room;
    char path[PATH_PARAM_MAX + 1];
    sandbox_error_t error;
    char text[384];
    // On a worker: does it, and returns what the library did.
    sandbox_error_t (*run)(struct file_op *op);
    // On the loop, with error, or the answer; frees op with file_op_free, now or later.
    void (*done)(struct file_op *op);
    void (*gone_fn)(struct file_op *op);  // the client went, or the session is closed, after `done`
    void (*discard)(struct file_op *op);  // may be NULL: `done` will not be called, and what `run` made is to be freed
    bool running;                         // between submit and finish
};

// A transfer: an operation whose job opens a stream, which the loop then reads.
struct file_stream {
    struct file_op op;  // first
    sandbox_stream_t *stream;
    struct event *readable;
};

// The session of the caller's path and a zeroed operation of `size` bytes, to be freed, with `run` and `done` set.  NULL: the
// caller has had an answer.
void *file_op_new(struct call *call, size_t size, sandbox_error_t (*run)(struct file_op *op), void (*done)(struct file_op *op),
                  struct session **ret_session);
// Begins; `op` is zeroed memory with run, done and path set, at the start of something malloc'd.
void file_op_begin(struct file_op *op, struct call *call, struct session *s);
// Frees it, with its use.
void file_op_free(struct file_op *op);
// Answers with op->error and op->text, and frees it.
void file_op_fail(struct file_op *op);
// Takes the caller away, to be answered.
struct call *file_op_take_call(struct file_op *op);

// `done` of a transfer, whose job has opened its stream, or not: from now on `on_readable`, with the operation, reads it, and
// the exchange has `ops`.  False: it is over.
bool file_stream_begin(struct file_op *op, const struct http_exchange_ops *ops, event_callback_fn on_readable);
// For ops->on_gone.
void file_stream_on_gone(void *arg);
// For op->discard.
void file_stream_discard(struct file_op *op);
// Ends it, with nothing more said.
void file_stream_free(struct file_op *op);
// Ends it with that error, or, where the answer has begun, by breaking that off.
void file_stream_fail(struct file_stream *s, sandbox_error_t error, const char *text);
// The same with what the library said last.
void file_stream_fail_last(struct file_stream *s, sandbox_error_t error);

#endif
