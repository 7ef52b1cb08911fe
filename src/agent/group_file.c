#include "agent/group_file.h"

#include "base/cleanup.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

int group_write(int dir, const char *path, const char *text)
{
    cleanup_fd int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n;
    do
        n = write(fd, text, strlen(text));
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

int group_read(int dir, const char *path, char *text, unsigned room)
{
    cleanup_fd int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n;
    do
        n = read(fd, text, room - 1);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    return 0;
}

int group_read_key(int dir, const char *path, const char *key, uint64_t *ret_value)
{
    char text[512];
    int r = group_read(dir, path, text, sizeof text);
    if (r < 0)
        return r;
    size_t n = strlen(key);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            return parse_u64(line + n + 1, 0, UINT64_MAX, ret_value);
    return -ENODATA;
}
