// The operations: takes requests from the engine's channel and answers them.
#ifndef JAILER_SERVER_H
#define JAILER_SERVER_H

#include "jailer/host.h"

struct server;

// Descriptors that stay free for the ends of sandboxes, and for the starts under way: a request that takes more of them is
// refused with -EMFILE while there are fewer.
enum { JAILER_SPARE_FDS = 128 };

// Serves `channel` (taken over on success) on the host's loop.  `on_end(arg)` is called once: the engine has gone or broke
// the protocol, and every sandbox and template is gone too.
int server_new(struct host *host, int channel, void (*on_end)(void *arg), void *arg, struct server **ret_server);
struct server *server_free(struct server *server);

// Ends it from this side: kills all sandboxes; on_end follows.
void server_stop(struct server *server);

#endif
