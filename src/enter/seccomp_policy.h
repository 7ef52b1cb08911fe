// The system calls a sandbox may make, on every tier that runs Linux programs.
#ifndef ENTER_SECCOMP_POLICY_H
#define ENTER_SECCOMP_POLICY_H

#include "enter/filter.h"

// Whose kernel the calls are made to: the host's, or that of a machine which is the sandbox's own.
enum seccomp_kernel { SECCOMP_KERNEL_HOST, SECCOMP_KERNEL_OWN };

// The programs' instructions are allocated; free with seccomp_policy_free.  0 or a negative errno.
int seccomp_policy_build(enum seccomp_kernel kernel, struct filter *ret_filter);
void seccomp_policy_free(struct filter *filter);

#endif
