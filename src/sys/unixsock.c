#include "sys/unixsock.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { BACKLOG = 128 };

static int address_of(int dir_fd, const char *name, struct sockaddr_un *ret_address)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = name[0] == '/' ? snprintf(address.sun_path, sizeof address.sun_path, "%s", name)
                           : snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir_fd, name);
    if (n < 0 || (size_t)n >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    *ret_address = address;
    return 0;
}

static int new_socket(int type, int *ret_fd)
{
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    *ret_fd = fd;
    return 0;
}

// The mode is right from the first instant, because the umask leaves exactly it.
static int bind_with_mode(int fd, const struct sockaddr_un *address, mode_t mode)
{
    mode_t before = umask(~mode & 0777);
    int r = bind(fd, (const struct sockaddr *)address, sizeof *address) < 0 ? -errno : 0;
    umask(before);
    return r;
}

// Unlinks what is at `address` if it is a socket that refuses connections.  0, or -EADDRINUSE.
static int remove_stale(const struct sockaddr_un *address)
{
    struct stat st;
    if (lstat(address->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return -EADDRINUSE;
    cleanup_fd int probe = -1;
    int r = new_socket(SOCK_STREAM, &probe);
    if (r < 0)
        return r;
    // EAGAIN is a listener whose backlog is full: alive.
    if (connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 || errno != ECONNREFUSED)
        return -EADDRINUSE;
    return unlink(address->sun_path) < 0 ? -errno : 0;
}

int unixsock_listen(int dir_fd, const char *name, mode_t mode, int *ret_fd)
{
    struct sockaddr_un address;
    int r = address_of(dir_fd, name, &address);
    if (r < 0)
        return r;
    cleanup_fd int fd = -1;
    r = new_socket(SOCK_STREAM, &fd);
    if (r < 0)
        return r;
    r = bind_with_mode(fd, &address, mode);
    if (r == -EADDRINUSE) {
        r = remove_stale(&address);
        if (r == 0)
            r = bind_with_mode(fd, &address, mode);
    }
    if (r < 0)
        return r;
    if (listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

int unixsock_unlink(int dir_fd, const char *name)
{
    return unlinkat(name[0] == '/' ? AT_FDCWD : dir_fd, name, 0) < 0 ? -errno : 0;
}

int unixsock_dial(int dir_fd, const char *name, int type, int *ret_fd)
{
    struct sockaddr_un address;
    int r = address_of(dir_fd, name, &address);
    if (r < 0)
        return r;
    cleanup_fd int fd = -1;
    r = new_socket(type, &fd);
    if (r < 0)
        return r;
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

int unixsock_accept(int listener, int *ret_fd, struct ucred *ret_peer)
{
    cleanup_fd int fd = -1;
    do
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0)
        return -errno;
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    *ret_peer = peer;
    return 0;
}
