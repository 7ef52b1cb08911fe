// Unix sockets by name: listening ones, and connections.
#ifndef SYS_UNIXSOCK_H
#define SYS_UNIXSOCK_H

#include <sys/socket.h>
#include <sys/types.h>

// Makes a non-blocking, close-on-exec listening socket at `name`: an absolute path, or a name inside the directory `dir_fd`
// (bound through /proc/self/fd, so that the directories above it need not be searchable).  The file has exactly `mode`.
// A socket file that nobody listens on any more is replaced; one that is in use gives -EADDRINUSE, and so does anything else
// of that name.  -ENAMETOOLONG when the address does not fit.  Changes the umask for a moment: call it before threads are
// started that make files.
int unixsock_listen(int dir_fd, const char *name, mode_t mode, int *ret_fd);

// Removes the file of a listening socket; 0 or a negative errno.
int unixsock_unlink(int dir_fd, const char *name);

// A non-blocking, close-on-exec connection to `name` (as above), of `type` SOCK_STREAM or SOCK_SEQPACKET.  Never waits: -EAGAIN
// when so many wait there already.
int unixsock_dial(int dir_fd, const char *name, int type, int *ret_fd);

// One waiting connection, non-blocking and close-on-exec, and who is on the other side.  -EAGAIN when there is none.
int unixsock_accept(int listener, int *ret_fd, struct ucred *ret_peer);

#endif
