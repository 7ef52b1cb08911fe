// The second seccomp filter: what every command runs under in addition to the jailer's allow-list.
#ifndef AGENT_CHILD_FILTER_H
#define AGENT_CHILD_FILTER_H

// Makes clone3 fail with ENOSYS from here on.  The jailer's list must allow clone3 for the agent itself
// (CLONE_INTO_CGROUP), but a filter cannot look into clone3's flags, so that a command could ask for namespaces by it;
// with ENOSYS every libc falls back to clone, whose flags the jailer's list checks.
// Needs no_new_privs.  0 or a negative errno.
int child_filter_install(void);

#endif
