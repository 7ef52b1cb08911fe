#ifndef BASE_STANDARD_FDS_H
#define BASE_STANDARD_FDS_H

// A program started with descriptor 0, 1 or 2 closed would get that number from the next open, and what it prints or logs would
// go into whatever that is: a lock, an image, a socket.  This gives each closed one to /dev/null, opened so that using it fails
// with EBADF as before.  Called first in main, before anything is opened.  0 or a negative errno.
int standard_fds_hold(void);

#endif
