// The system calls a container sandbox may make.
#ifndef JAILER_SECCOMP_POLICY_H
#define JAILER_SECCOMP_POLICY_H

#include <linux/filter.h>

struct seccomp_policy {
    struct sock_fprog allowed;     // an allow-list; what is known and dangerous is EPERM, what is unknown (newer than the list)
                                   // is ENOSYS, so that programs fall back
    struct sock_fprog exceptions;  // arguments with which an allowed call is refused (seccomp_exceptions.h)
};

// The programs' instructions are allocated; free with seccomp_policy_free.  0 or a negative errno.
int seccomp_policy_build(struct seccomp_policy *ret_policy);
void seccomp_policy_free(struct seccomp_policy *policy);

// Puts both filters on the calling process (which must have no_new_privs).  0 or a negative errno.
int seccomp_policy_apply(const struct seccomp_policy *policy);

#endif
