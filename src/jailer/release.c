#include "jailer/release.h"

#include "base/cleanup.h"
#include "enter/privileges.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HELPER_LINE = 3 };

struct releases {
    int line;
    pid_t helper;
};

int release_helper(void)
{
    prctl(PR_SET_NAME, "sandbox-release");
    for (;;) {
        char byte;
        int fd = -1;
        size_t count = 1;
        ssize_t n = fdpass_recv(HELPER_LINE, &byte, 1, &fd, &count);
        if (n <= 0 && n != -EINTR)
            return n == 0 ? 0 : 1;
        if (n > 0 && count == 1)
            close(fd);
    }
}

static void run_helper(int line) __attribute__((noreturn));
static void run_helper(int line)
{
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    // The same number would leave close-on-exec set.
    if (line == HELPER_LINE)
        line = fcntl(line, F_DUPFD_CLOEXEC, HELPER_LINE + 1);
    if (line >= 0 && dup2(line, HELPER_LINE) >= 0 && close_range(HELPER_LINE + 1, ~0U, 0) == 0 && privileges_drop_all() == 0 &&
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0)
        execl("/proc/self/exe", "sandbox-release", RELEASE_HELPER, (char *)NULL);
    _exit(1);
}

int releases_new(struct releases **ret_releases)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    cleanup_free struct releases *r = calloc(1, sizeof *r);
    if (r == NULL)
        return -ENOMEM;
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    r->helper = fork();
    if (r->helper < 0)
        return -errno;
    if (r->helper == 0)
        run_helper(theirs);
    r->line = take_fd(&ours);
    *ret_releases = take_ptr(&r);
    return 0;
}

struct releases *releases_free(struct releases *releases)
{
    if (releases == NULL)
        return NULL;
    close_fd(&releases->line);  // what was sent is still received
    while (waitpid(releases->helper, NULL, 0) < 0 && errno == EINTR)
        ;
    free(releases);
    return NULL;
}

void release(struct releases *releases, int fd)
{
    cleanup_fd int owned = fd;
    // Where it cannot be sent, or nobody receives any more, the close at the end of this function is the last one.
    if (fd >= 0 && releases != NULL)
        fdpass_send(releases->line, "r", 1, &fd, 1);
}
