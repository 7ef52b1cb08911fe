#include "sys/notify.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int notify_state(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    if (path == NULL)
        return 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof address.sun_path)
        return -EINVAL;
    memcpy(address.sun_path, path, n);
    if (address.sun_path[0] == '@')
        address.sun_path[0] = '\0';  // an abstract name: its length counts, there is no NUL behind it
    cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address, length) < 0)
        return -errno;
    return 1;
}
