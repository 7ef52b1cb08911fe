// Children: PID 1 reaps everything, and tells the owner of a child it knows.
#ifndef AGENT_REAP_H
#define AGENT_REAP_H

#include "sys/loop.h"

#include <sys/resource.h>
#include <sys/types.h>

struct reaper;

// Memory of its owner, who removes it before freeing it.
struct child {
    pid_t pid;
    // `status` as from wait(2).  The entry has been removed already.
    void (*on_exit)(void *arg, int status, const struct rusage *usage);
    void *arg;
    struct child *next;
};

// SIGCHLD must be blocked.  0 or a negative errno.
int reaper_new(struct loop *loop, struct reaper **ret_reaper);
struct reaper *reaper_free(struct reaper *reaper);

// To be called before the loop runs again after the fork, so that the child's end cannot be missed.
void reaper_add(struct reaper *reaper, struct child *child);
void reaper_remove(struct reaper *reaper, struct child *child);

#endif
