// The small files of a control group directory.
#ifndef AGENT_GROUP_FILE_H
#define AGENT_GROUP_FILE_H

#include <stdint.h>

// Writes `text` with one write(2) to the file `path` below the directory `dir`.  0 or a negative errno.
int group_write(int dir, const char *path, const char *text);

// The first bytes of a file, NUL-terminated.  0 or a negative errno.
int group_read(int dir, const char *path, char *text, unsigned room);

// The number behind "`key` " at the start of a line.  0, -ENODATA if there is no such line, or a negative errno.
int group_read_key(int dir, const char *path, const char *key, uint64_t *ret_value);

#endif
