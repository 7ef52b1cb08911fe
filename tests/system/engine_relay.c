// An engine that leaves its part to a test: connects to the Unix socket PATH, passes the jailer's channel on, and lives for as
// long as that connection.
//     engine-relay PATH
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CHANNEL = 3 };

static int pass_on(int to)
{
    char byte = 'c';
    struct iovec bytes = {&byte, 1};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    const int fd = CHANNEL;
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    const struct msghdr message = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    return sendmsg(to, &message, 0) == 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (argc != 2 || snprintf(at.sun_path, sizeof at.sun_path, "%s", argv[1]) >= (int)sizeof at.sun_path)
        return 2;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof at) < 0 || pass_on(fd) < 0)
        return 1;
    close(CHANNEL);
    char byte;
    return read(fd, &byte, 1) == 0 ? 0 : 1;
}
