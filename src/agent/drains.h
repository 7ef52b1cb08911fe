// Output pipes of commands that ended while children of theirs live on.
//
// Such a child must neither get SIGPIPE nor block for ever because nobody reads: what it writes is read and thrown away,
// slowly (a child that floods its pipe costs the agent next to nothing), until it closes the pipe.
#ifndef AGENT_DRAINS_H
#define AGENT_DRAINS_H

#include "sys/loop.h"

struct drains;

enum { DRAINS_MAX = 256 };  // pipes kept; beyond it the oldest is closed

int drains_new(struct loop *loop, struct drains **ret_drains);
struct drains *drains_free(struct drains *drains);

// Takes over `fd`, a non-blocking pipe.  If it cannot be watched it is closed.
void drains_add(struct drains *drains, int fd);

#endif
