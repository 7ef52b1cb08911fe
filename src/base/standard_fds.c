#include "base/standard_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int standard_fds_hold(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        // The lowest free number is this one: those below are open.
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return -errno;
    }
    return 0;
}
