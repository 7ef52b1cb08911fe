// The machine's own limits are out of the sandbox's way: what bounds it is what bounds it on the container tier, its control
// group and the limits of enter/enter.c, not what this kernel made of the machine's size.
#include "agent/machine.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

enum { OPEN_FILES = 65536 };

static int raise_limits(void)
{
    static const int unlimited[] = {RLIMIT_NPROC, RLIMIT_MEMLOCK, RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE, RLIMIT_STACK};
    static const struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY}, files = {OPEN_FILES, OPEN_FILES};
    for (size_t i = 0; i < sizeof unlimited / sizeof unlimited[0]; i++)
        if (setrlimit(unlimited[i], &none) < 0)
            return -errno;
    return setrlimit(RLIMIT_NOFILE, &files) < 0 ? -errno : 0;
}

int machine_raise_limits(void)
{
    static const struct {
        const char *file, *value;
    } settings[] = {
        {"/proc/sys/kernel/pid_max", "4194304"},
        {"/proc/sys/kernel/threads-max", "262144"},
        // Open files are memory that the control group counts.  The agent, which could not start a command without any left, is
        // held by this number as the sandbox is.
        {"/proc/sys/fs/file-max", "9223372036854775807"},
        // Memory is promised as freely as on a large host; the control group says when there is no more of it.
        {"/proc/sys/vm/overcommit_memory", "1"},
        // A kernel that is no longer right ends the machine, which the host sees.
        {"/proc/sys/kernel/panic_on_oops", "1"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        int r = file_write_at(AT_FDCWD, settings[i].file, settings[i].value);
        if (r < 0 && r != -EINVAL)  // more than a machine of this size can have
            return r;
    }
    return raise_limits();
}
