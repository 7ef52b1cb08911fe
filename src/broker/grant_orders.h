// The engine's orders about lines and grants (wire/broker.h), and what goes back with their answers.
#ifndef BROKER_GRANT_ORDERS_H
#define BROKER_GRANT_ORDERS_H

#include "broker/broker.h"
#include "wire/broker.h"

// Does what a request that passed broker_check asks for: LINE_ADD (with `fd`, which it takes over), LINE_REMOVE, GRANT_OPEN,
// GRANT_CLOSE.  *ret_fd is a memfd for the reply, or stays as it is.  0 or a negative errno, and *ret_why for the engine's log.
int grant_order(struct broker *b, const struct broker_request *request, int fd, int *ret_fd, const char **ret_why);

// The engine is gone: so are all lines and grants.
void grant_orders_end(struct broker *b);

#endif
