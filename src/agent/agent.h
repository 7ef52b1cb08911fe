// What the parts of the agent share.  Everything runs on one event-loop thread.
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/strv.h"
#include "sys/loop.h"

#include <stdbool.h>

struct reaper;
struct groups;
struct drains;
struct lines;

struct agent {
    struct loop *loop;
    struct reaper *reaper;
    struct groups *groups;
    struct drains *drains;
    struct lines *lines;
    struct strv env;  // from Configure: the base of every exec's environment
    bool configured;
    int null_fd;  // /dev/null, opened before any guest code ran; -1 if this root has none
};

#endif
