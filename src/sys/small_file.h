// Whole small files of /proc, /sys and cgroup: written with one write, read with one read.
#ifndef SYS_SMALL_FILE_H
#define SYS_SMALL_FILE_H

#include <stddef.h>
#include <sys/types.h>

// Writes `text` to an existing file.  0 or a negative errno.
int file_write_at(int dir_fd, const char *path, const char *text);

// Reads at most room-1 bytes and ends them with a NUL.  The number of bytes or a negative errno.
ssize_t file_read_at(int dir_fd, const char *path, char *text, size_t room);

#endif
