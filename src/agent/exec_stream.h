// Commands whose input and output are a stream line.
#ifndef AGENT_EXEC_STREAM_H
#define AGENT_EXEC_STREAM_H

#include "agent/lines.h"

// The command lives no longer than its line: when the host goes away, everything of it is killed.  Takes over the line.
void exec_stream_start(struct agent *agent, struct line *l, const Sandbox__Guest__ExecStream *request);

// The same for a transfer (job.h).
void job_stream_start(struct agent *agent, struct line *l, const Sandbox__Agent__Request *request);

#endif
