// Operation lines: one Request frame in, one guest.Result frame out.
//
// States of a line: waiting for its request (REQUEST_WAIT_S) -> working (exec or removal; the other operations take no time)
// -> sending the answer -> closed.  The host's closing it at any time cancels what is being done.
// A stream line goes on instead: working, with frames in both directions, until whoever uses it has sent the last one
// (proto/agent.proto, "Stream lines"); there is no deadline for the host's taking it.  Its end is told on the control line.
// At most AGENT_STREAMS_MAX lines are served at once; further ones are read and answered STATUS_BUSY, up to REFUSED_MAX;
// beyond that they are closed unread.
#ifndef AGENT_LINES_H
#define AGENT_LINES_H

#include "agent/agent.h"
#include "agent/proto.h"
#include "base/err.h"
#include "wire/stream_frame.h"

enum { REQUEST_WAIT_S = 10, ANSWER_WAIT_S = 10, REFUSED_MAX = 48 };

struct lines;
struct line;

// What uses a stream line.  Everything is called from the loop, and nothing after line_end or on_gone.
struct line_user {
    void (*on_frame)(void *arg, const struct stream_frame *frame);
    // The host will send no more.
    void (*on_input_end)(void *arg);
    // line_room is true again.
    void (*on_room)(void *arg);
    // The host went away, or broke the protocol.
    void (*on_gone)(void *arg);
};

int lines_new(struct agent *agent, struct lines **ret_lines);
struct lines *lines_free(struct lines *lines);

// Takes over `fd`, a stream socket; closes it if it cannot be served at all.  `id`: OpenStream's.
void lines_open(struct lines *lines, int fd, uint64_t id);

// From now on the stream line belongs to `user`.
void line_use(struct line *l, const struct line_user *user, void *arg);
// Whether more should be sent: what is queued for the host is less than one payload.
bool line_room(const struct line *l);
// Queues one frame.  It is lost when the line is dying, which on_gone tells, or the queue's ceiling is hit (-ENOSPC), which
// cannot be with at most one payload after line_room.
int line_send(struct line *l, enum stream_frame_type type, const void *payload, size_t n);
int line_send_number(struct line *l, enum stream_frame_type type, uint64_t number);
// Whether nothing is queued: then line_send_pages takes `n` bytes of `pipe`, which are whole frames (sys/stream.h).
bool line_idle(const struct line *l);
int line_send_pages(struct line *l, int pipe, size_t n);
// The last frame: EXIT when the status is OK, else ERROR.  The line closes by itself when it has been taken.
void line_end(struct line *l, const guest_result *result);
void line_end_refused(struct line *l, guest_status status, const struct err *e);
// The host broke the protocol: on_gone follows at once.
void line_break(struct line *l);

#endif
