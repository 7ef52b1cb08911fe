// Loop devices that free themselves when their last user (a mount) goes.
#ifndef SYS_LOOPDEV_H
#define SYS_LOOPDEV_H

#include <stdbool.h>

enum { LOOPDEV_PATH_MAX = 32 };

// Attaches `file_fd` to a free loop device and opens it; *ret_path is /dev/loopN.  Autoclear: closing *ret_fd without
// having mounted the device frees it again.  A free device that somebody else has claimed, as whoever tries to mount it has,
// is waited for (56 ms), and then passed over.  0 or a negative errno.
int loopdev_attach(int file_fd, bool read_only, int *ret_fd, char ret_path[LOOPDEV_PATH_MAX]);

#endif
