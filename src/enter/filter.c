#include "enter/filter.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <unistd.h>

static int apply(const struct sock_fprog *program)
{
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, program) < 0 ? -errno : 0;
}

int filter_apply(const struct filter *filter)
{
    int r = apply(&filter->exceptions);
    return r < 0 ? r : apply(&filter->allowed);
}
