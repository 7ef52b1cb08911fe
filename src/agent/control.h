// The control line: Command packets down, Report packets up (proto/agent.proto).
#ifndef AGENT_CONTROL_H
#define AGENT_CONTROL_H

#include "agent/agent.h"

#include <stdint.h>

// Serves the SOCK_SEQPACKET socket `fd`, which stays the caller's.  When the host closes its end the loop is stopped with 0.
// Malformed packets are dropped, with any descriptor they carry.  0 or a negative errno.
int control_start(struct agent *agent, int fd);

// Reports that the line `id` (0: it has no name) is closed.  It is not dropped: what does not fit now is sent later.
void control_stream_ended(struct agent *agent, uint64_t id);

// Serves what has arrived already.  A deadline asks for this before it acts: a thawed agent finds its timers due and the
// Suspend that explains it unread.
void control_catch_up(struct agent *agent);

// Asks the host, for an agent to which that Suspend may still be under way; execs_expire follows the answer, after all that was
// said before it.  Returns the question's number, never 0; a question may be lost.
uint64_t control_ask_to_expire(struct agent *agent);

#endif
