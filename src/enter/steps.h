// Steps that the first process of any jailed program takes, whichever tier it is for.  0 or a negative errno.
#ifndef ENTER_STEPS_H
#define ENTER_STEPS_H

#include "sys/cgroup.h"

enum { ENTER_FIRST_KEPT = 3 };  // descriptors from here on are the program's, in an order of its own

// Joins its groups and makes the namespace whose root they are.
int enter_join_cgroups(const struct cgroup_entry *groups);
// Only the line stays open, as ENTER_FIRST_KEPT, and the standard descriptors; says "c" on it.
int enter_keep_line(int *line);
// Becomes root of its user namespace, in a session and with a keyring of its own, at no better a priority than anybody's.
int enter_take_ids(void);
// No new privileges; dies with its parent, and does not begin if that has gone (the other end of `line`).
int enter_bind_to_parent(int line);
// Moves descriptors to ENTER_FIRST_KEPT, ENTER_FIRST_KEPT + 1, ... and keeps them over exec; `kept` (two of them) are moved out
// of the way and close on exec, as everything else does.  `out` and `err` (-1: /dev/null) become 1 and 2.
int enter_arrange(const int *fds, unsigned count, int out, int err, int *const kept[2]);

#endif
