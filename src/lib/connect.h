// The socket of a connection.
#ifndef LIB_CONNECT_H
#define LIB_CONNECT_H

#include "libsandbox.h"

// A connected stream socket.  The path may be longer than an address can hold.  DAEMON_UNREACHABLE.
sandbox_error_t connect_socket(const char *path, int *ret_fd);

#endif
