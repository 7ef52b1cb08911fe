// The system calls a container sandbox may make.
#ifndef JAILER_SECCOMP_POLICY_H
#define JAILER_SECCOMP_POLICY_H

#include <linux/filter.h>

// Builds the filter: an allow-list; what is known and dangerous is EPERM, what is unknown (newer than the list) is ENOSYS, so
// that programs fall back.  *ret_program's instructions are allocated; free with seccomp_policy_free.
// 0 or a negative errno.
int seccomp_policy_build(struct sock_fprog *ret_program);
void seccomp_policy_free(struct sock_fprog *program);

// Puts the filter on the calling process (which must have no_new_privs).  0 or a negative errno.
int seccomp_policy_apply(const struct sock_fprog *program);

#endif
