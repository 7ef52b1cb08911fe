// The metrics socket: "GET /metrics" answered with text, and nothing else of HTTP.
//
// A connection whose first bytes are "GET /metrics " gets 200 with the metrics, any other 404, as soon as the blank line that
// ends its request's head has come, or REQUEST_MAX bytes, or REQUEST_MS have passed; then it is closed.  What the head says
// otherwise is not looked at.  At most CONNECTIONS_MAX at once; further ones wait in the socket's backlog.
#ifndef ENGINE_METRICS_SERVER_H
#define ENGINE_METRICS_SERVER_H

#include "engine/engine.h"

struct metrics_server;

// Binds config->metrics_socket.  0 or a negative errno.
int metrics_server_new(struct engine *e, struct metrics_server **ret_server);
// NULL is fine; returns NULL.
struct metrics_server *metrics_server_free(struct metrics_server *s);

#endif
