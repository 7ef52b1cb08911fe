// remove: one file at once; a tree in a child process, because it can take long and the event loop must not wait.
#ifndef AGENT_REMOVAL_H
#define AGENT_REMOVAL_H

#include "agent/agent.h"
#include "agent/answer.h"

struct removal;

// Called once, from the loop, unless the removal was cancelled.  The answer is the callee's to read during the call.
typedef void removal_done_fn(void *arg, struct answer *a);

// NULL: `a` is the answer already.  Else it goes on in a child and `done` will be called.
struct removal *removal_start(struct agent *agent, const Sandbox__Guest__Remove *request, bool allow_outside,
                              removal_done_fn *done, void *arg, struct answer *a);

// The host went away: stops where it is.
void removal_cancel(struct removal *r);

#endif
