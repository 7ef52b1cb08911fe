// Groups that a killed instance left somewhere else than where the next one has its own.
//
// An instance puts its groups below the group it was started in.  On cgroup v1 (and for each hierarchy apart) that is often a
// login's or a service's group, which the next start is not in any more.  So a start looks through the whole hierarchy for
// groups of its name.  One counts as left over when root owns it and no living process has the lock on it (flock on the folder,
// as cgroup_tree_open takes it): a living instance of that name, in another place, is left alone.
#ifndef SYS_CGROUP_STRAYS_H
#define SYS_CGROUP_STRAYS_H

enum { CGROUP_STRAYS_DEPTH = 24 };  // below the mount; what is deeper is not found

// Kills what is in groups called `name` below `mount`, other than the one `own_fd` is, and removes them.  How many groups were
// removed.  Any thread.
int cgroup_strays_remove(const char *mount, const char *name, int own_fd);

#endif
