// The second seccomp filter: what every command runs under in addition to the jailer's allow-list.
#ifndef AGENT_CHILD_FILTER_H
#define AGENT_CHILD_FILTER_H

// From here on, in this process and all it starts:
//  - clone3 fails with ENOSYS.  The jailer's list must allow clone3 for the agent itself (CLONE_INTO_CGROUP), but a filter
//    cannot look into clone3's flags, so that a command could ask for namespaces by it; with ENOSYS every libc falls back to
//    clone, whose flags the jailer's list checks;
//  - a netlink socket is made by whoever holds *ret_listener (netlink_gate.h), which is close-on-exec and the caller's.
// Needs no_new_privs.  0 or a negative errno.
int child_filter_install(int *ret_listener);

#endif
