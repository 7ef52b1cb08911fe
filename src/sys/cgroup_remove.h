// Removing trees of control groups, in which a hostile agent may have made groups of any number and depth.
#ifndef SYS_CGROUP_REMOVE_H
#define SYS_CGROUP_REMOVE_H

#include <stdbool.h>

// Removes every group below `dir_fd`, deepest first, killing members first if asked, and adds their number to *count.  0, or a
// negative errno when some stay (all were tried).  Any thread.
int cgroup_remove_below(int dir_fd, bool kill_first, int *count);

#endif
