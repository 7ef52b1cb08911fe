// Opening what a guest put there.
#ifndef AGENT_FILE_OPEN_H
#define AGENT_FILE_OPEN_H

#include "agent/resolve.h"

#include <sys/stat.h>

// Opens the regular file at a place, never waiting and never following a link.  A descriptor and *ret_stat, or -EISDIR,
// -EMEDIUMTYPE (a FIFO, device, socket or link), or another negative errno.
int file_open_regular(const struct place *p, int flags, struct stat *ret_stat);

// The same by a path below `dir` that is followed as the kernel follows it, for requests that may reach everything.
int file_open_path(int dir, const char *path, int flags, mode_t mode, struct stat *ret_stat);

#endif
