// The client socket: who is let in.
#ifndef ENGINE_LISTENER_H
#define ENGINE_LISTENER_H

#include "engine/engine.h"

struct listener;

// Binds config->socket.  0, -EADDRINUSE (another engine listens there), or another negative errno.
int listener_new(struct engine *e, struct listener **ret_listener);
// Stops listening and removes the socket's file.  NULL is fine; returns NULL.
struct listener *listener_free(struct listener *l);

#endif
