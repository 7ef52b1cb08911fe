// Arguments with which an allowed system call is refused all the same.
//
// A filter of its own, beside the allow-list: where one filter has a rule for a call as such and another for the call with an
// argument, libseccomp keeps only the first.  Of two filters' verdicts the kernel takes the stricter.
#ifndef ENTER_SECCOMP_EXCEPTIONS_H
#define ENTER_SECCOMP_EXCEPTIONS_H

#include <seccomp.h>

// Adds the rules to a filter that allows by default.  0 or a negative errno.
int seccomp_exceptions_add(scmp_filter_ctx ctx);

#endif
