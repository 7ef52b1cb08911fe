// From a CreateRequest to a running sandbox.
//
//     checked -> (a slot of max_creates) -> template loaded and attached -> driver starts it -> agent configured -> answered
//
// A create that finds no free slot waits up to pool_wait_ms for one; with pool_wait_ms 0 it fails at once.  A failure, the
// client's going or a deadline at any point undoes everything: the sandbox is closed and the slot is free again.
#ifndef ENGINE_CREATE_H
#define ENGINE_CREATE_H

#include "engine/sandbox.h"

struct create;

// Takes over the request.
void create_begin(struct request *r, const Sandbox__CreateRequest *message);

// Answers the request with an error and undoes everything.
void create_fail(struct create *c, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
// The sandbox is being disowned by its client's going: the same without disowning it again.
void create_cancel(struct create *c);

// The driver has started the sandbox and the agent's line is up, or `error` is a negative errno.
void create_started(struct create *c, int error, const char *detail);
// What the agent said to its configuration.
void create_configured(struct create *c, uint32_t error_number, const char *message);

#endif
