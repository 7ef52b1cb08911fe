// GET /metrics on a Unix socket of its own: nothing of it is on a network.
#ifndef BROKER_METRICS_SERVER_H
#define BROKER_METRICS_SERVER_H

#include "broker/broker.h"

enum { METRICS_CONNECTIONS_MAX = 16, METRICS_MS = 2000 };

struct metrics_server;

// Binds config.metrics_socket (mode 0660).  0, or a negative errno with a sentence.
int metrics_server_new(struct broker *b, struct metrics_server **ret, struct err *err);
struct metrics_server *metrics_server_free(struct metrics_server *s);

#endif
