// Killing all of a control group, in steps.
#ifndef AGENT_GROUP_KILL_H
#define AGENT_GROUP_KILL_H

#include <stdbool.h>

enum kill_way {
    KILL_V2,          // cgroup.kill; on a kernel without it (before 5.14) freeze and kill
    KILL_V1_FREEZER,  // freeze, signal every process, thaw: nothing can fork away in between
    KILL_PROCS,       // signal every process, again and again
};

// Zero at the start of a kill.
struct kill_state {
    bool freezing;
    unsigned waited;  // steps since the freeze was asked for
    bool no_kill_file;
};

// Whether no process is left in the group `path` below `dir`.
bool group_empty(int dir, const char *path, enum kill_way way);

// One step; true when no process is left.  Repeat a few milliseconds later otherwise.
bool group_kill_step(int dir, const char *path, enum kill_way way, struct kill_state *state);

// Sends a signal to every process of the group that is listed now.
void group_signal(int dir, const char *path, int number);

#endif
