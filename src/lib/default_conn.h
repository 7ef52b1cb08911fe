// The connection of sandbox_init.
#ifndef LIB_DEFAULT_CONN_H
#define LIB_DEFAULT_CONN_H

#include "lib/conn.h"

// The default connection, for the time of one call: conn_unref it.  DAEMON_UNREACHABLE when there is none.
sandbox_error_t default_conn_ref(sandbox_conn_t **ret_conn);

#endif
