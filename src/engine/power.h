// Pause and resume.  One at a time per sandbox, in the order they were asked for; both are idempotent.
#ifndef ENGINE_POWER_H
#define ENGINE_POWER_H

#include "engine/sandbox.h"

// Takes over the request.
void power_request(struct sandbox *sb, struct request *r, bool resume);
// The sandbox is closing: answers those that wait; the one being done is answered when the driver is.
void powers_fail(struct sandbox *sb);

#endif
