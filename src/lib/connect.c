#include "lib/connect.h"

#include "base/cleanup.h"
#include "lib/errors.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

// A path that fits goes in as it is.  A longer one is reached through a descriptor of its folder.
static int make_address(const char *path, int *ret_dir, struct sockaddr_un *ret_address)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if (n < sizeof a.sun_path) {
        memcpy(a.sun_path, path, n + 1);
        *ret_address = a;
        return 0;
    }
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return -ENAMETOOLONG;
    cleanup_free char *folder = strndup(path, (size_t)(slash - path) + 1);
    if (folder == NULL)
        return -ENOMEM;
    cleanup_fd int dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    int written = snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d%s", dir, slash);
    if (written < 0 || (size_t)written >= sizeof a.sun_path)
        return -ENAMETOOLONG;
    *ret_address = a;
    *ret_dir = take_fd(&dir);
    return 0;
}

static sandbox_error_t explain(const char *path, int error)
{
    const char *advice = "";
    if (error == ENOENT)
        advice = "; is sandbox-engine running, and is this its socket?";
    else if (error == ECONNREFUSED)
        advice = "; the socket is there, but no sandbox-engine listens on it";
    else if (error == EACCES || error == EPERM)
        advice = "; this user may not open the socket: ask for membership of the group that owns it";
    return fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "cannot connect to %s: %s%s", path, strerror(error), advice);
}

sandbox_error_t connect_socket(const char *path, int *ret_fd)
{
    if (path[0] == '\0')
        return fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "the path of the engine's socket is empty");
    cleanup_fd int dir = -1;
    struct sockaddr_un address;
    int r = make_address(path, &dir, &address);
    if (r < 0)
        return explain(path, -r);
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return explain(path, errno);
    do
        r = connect(fd, (const struct sockaddr *)&address, sizeof address);
    while (r < 0 && errno == EINTR);
    if (r < 0 && errno != EISCONN)
        return explain(path, errno);
    *ret_fd = take_fd(&fd);
    return SANDBOX_OK;
}
