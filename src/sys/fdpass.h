// Packets with file descriptors attached, over Unix sockets (SCM_RIGHTS).
#ifndef SYS_FDPASS_H
#define SYS_FDPASS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { FDPASS_MAX = 24 };  // descriptors in one packet

// Instead of a number of descriptors: some came, and this process had no number free for them.
#define FDPASS_LOST SIZE_MAX

// Sends `n` bytes (n > 0) with `fd_count` descriptors; they stay open here.  The number of bytes sent, or a negative errno
// (-EAGAIN when a non-blocking socket is full).  Never raises SIGPIPE.
ssize_t fdpass_send(int socket, const void *bytes, size_t n, const int *fds, size_t fd_count);

// Receives into `bytes`; descriptors that came along are close-on-exec, at most *fd_count of them are put into `fds`, and
// *fd_count becomes their number, or FDPASS_LOST, with all of them closed.  More than *fd_count are closed and -EPROTO is
// returned.  0 at the end of the stream.  With fd_count NULL, any descriptor is closed and -EPROTO returned.
ssize_t fdpass_recv(int socket, void *bytes, size_t n, int *fds, size_t *fd_count);

#endif
