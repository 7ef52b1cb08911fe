// What the parts of the agent share.  Everything runs on one event-loop thread.
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/strv.h"
#include "sys/loop.h"

#include <stdbool.h>
#include <sys/queue.h>

struct reaper;
struct groups;
struct drains;
struct lines;
struct host_api;
struct netlink_gate;
struct oom_storm;
struct control;
struct exec;
struct processes;

TAILQ_HEAD(exec_list, exec);

struct agent {
    struct loop *loop;
    struct reaper *reaper;
    struct groups *groups;
    struct drains *drains;
    struct netlink_gate *gate;
    struct oom_storm *storm;
    struct lines *lines;
    struct strv env;  // from Configure: the base of every exec's environment
    bool configured;
    bool suspended;  // between Suspend and Resume: no deadline passes
    bool far;        // what the host says is under way for a while (vm tier): it is asked before a deadline counts
    struct control *control;
    struct host_api *host_api;  // NULL until it was asked for
    struct exec_list execs;     // that are running
    struct processes *processes;
    int null_fd;  // /dev/null, opened before any guest code ran; -1 if this root has none
};

#endif
