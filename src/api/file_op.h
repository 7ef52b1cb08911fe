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
    bool running;                         // between submit and finish
};

// Begins; `op` is zeroed memory with run, done and path set, at the start of something malloc'd.
void file_op_begin(struct file_op *op, struct call *call, struct session *s);
// Frees it, with its use.
void file_op_free(struct file_op *op);
// Answers with op->error and op->text, and frees it.
void file_op_fail(struct file_op *op);
// Takes the caller away, to be answered.
struct call *file_op_take_call(struct file_op *op);

#endif
