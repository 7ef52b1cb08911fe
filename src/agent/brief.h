// Brief transfers: one file inside /workspace, of at most FILE_MAX bytes, in or out through a stream line.
//
// They are done by the loop itself, where larger and unconfined ones have a child (job.h): a child and its control group cost
// more than such a file.  What one of them does in a turn of the loop is bounded as for read_file and write_file: at most what
// the line's socket takes, or one frame's payload.  A file goes out without being copied (base/pages.h) where its file system
// lets it.
//
// States of one out: its head, then pieces as the line takes them -> the last frame.  Of one in: frames, each written as it
// comes and given back to the host's window -> the host's end -> in its place -> the last frame.  The line's end breaks either
// off.
#ifndef AGENT_BRIEF_H
#define AGENT_BRIEF_H

#include "agent/lines.h"

// Serves the request, whose fields have been checked, if it is a brief transfer; false: it is none, and nothing was done.
bool brief_start(struct line *l, const Sandbox__Agent__Request *request);

#endif
