// Capabilities: what the jailer keeps, and what a sandbox's root has.
#ifndef ENTER_PRIVILEGES_H
#define ENTER_PRIVILEGES_H

// In a sandbox, inside its user namespace: bounding, permitted, effective and inheritable sets become the short list of
// privileges.c (docs/isolation.md says what each is for).  0 or a negative errno.
int privileges_drop_inside(void);

// Nothing is left, not even what an exec as root would give back.
int privileges_drop_all(void);

// The jailer itself: drops every capability none of its operations needs, for good.
int privileges_drop_jailer(void);

// The process that keeps the host's ends of lines: once it is in its own network namespace; and before.
int privileges_drop_network(void);
int privileges_drop_network_begin(void);

#endif
