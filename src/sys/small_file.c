#include "sys/small_file.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int file_write_at(int dir_fd, const char *path, const char *text)
{
    cleanup_fd int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, strlen(text));
    return n < 0 ? -errno : 0;
}

ssize_t file_read_at(int dir_fd, const char *path, char *text, size_t room)
{
    cleanup_fd int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t have = 0;
    while (have < room - 1) {
        ssize_t n = read(fd, text + have, room - 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    text[have] = '\0';
    return (ssize_t)have;
}
