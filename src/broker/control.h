// The broker's end of the engine's line (wire/broker.h).
#ifndef BROKER_CONTROL_H
#define BROKER_CONTROL_H

#include "broker/broker.h"

struct control;

// Binds config.control_socket.  0, or a negative errno with a sentence.
int control_new(struct broker *b, struct control **ret, struct err *err);
// Ends the line (the file of the socket stays, and the next start replaces it).  NULL is fine; returns NULL.
struct control *control_free(struct control *c);

#endif
