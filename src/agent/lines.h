// Operation lines: one Request frame in, one guest.Result frame out.
//
// States of a line: waiting for its request (REQUEST_WAIT_S) -> working (exec or removal; the other operations take no time)
// -> sending the answer -> closed.  The host's closing it at any time cancels what is being done.
// At most AGENT_STREAMS_MAX lines are served at once; further ones are read and answered STATUS_BUSY, up to REFUSED_MAX;
// beyond that they are closed unread.
#ifndef AGENT_LINES_H
#define AGENT_LINES_H

#include "agent/agent.h"

enum { REQUEST_WAIT_S = 10, ANSWER_WAIT_S = 10, REFUSED_MAX = 48 };

struct lines;

int lines_new(struct agent *agent, struct lines **ret_lines);
struct lines *lines_free(struct lines *lines);

// Takes over `fd`, a stream socket; closes it if it cannot be served at all.
void lines_open(struct lines *lines, int fd);

#endif
