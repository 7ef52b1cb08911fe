// The system call filters of a sandbox, as the kernel takes them.  They are made by seccomp_policy.h: by the jailer when it
// starts, and at build time for the agent, which has them in its program (guest_filter.h).
#ifndef ENTER_FILTER_H
#define ENTER_FILTER_H

#include <linux/filter.h>

struct filter {
    struct sock_fprog allowed;     // an allow-list; what is known and dangerous is EPERM, what is unknown (newer than the list)
                                   // is ENOSYS, so that programs fall back
    struct sock_fprog exceptions;  // arguments with which an allowed call is refused (seccomp_exceptions.h)
};

// Puts both programs on the calling process (which must have no_new_privs).  0 or a negative errno.
int filter_apply(const struct filter *filter);

#endif
