#include "sys/fdpass.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t fdpass_send(int socket, const void *bytes, size_t n, const int *fds, size_t fd_count)
{
    if (fd_count > FDPASS_MAX)
        return -EINVAL;
    union {
        char space[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count > 0) {
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &m, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}

// Takes the descriptors out of a received message; those beyond `room` are closed.  Returns how many there were in all.
static size_t collect(struct msghdr *m, int *fds, size_t room)
{
    size_t seen = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++, seen++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (seen < room)
                fds[seen] = fd;
            else
                close(fd);
        }
    }
    return seen;
}

ssize_t fdpass_recv(int socket, void *bytes, size_t n, int *fds, size_t *fd_count)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = bytes, .iov_len = n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t got;
    do
        got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    size_t room = fd_count != NULL ? *fd_count : 0;
    size_t seen = collect(&m, fds, room);
    // Cut though there was room for more: the kernel found no free number, or no memory, for the rest.
    bool lost = (m.msg_flags & MSG_CTRUNC) != 0 && seen < room;
    bool bad = seen > room || (m.msg_flags & MSG_TRUNC) != 0 || ((m.msg_flags & MSG_CTRUNC) != 0 && !lost);
    for (size_t i = 0; (bad || lost) && i < seen && i < room; i++)
        close(fds[i]);
    if (bad)
        return -EPROTO;
    if (fd_count != NULL)
        *fd_count = lost ? FDPASS_LOST : seen;
    return got;
}
