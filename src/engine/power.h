// Pause, resume and suspend.  One at a time per sandbox, in the order they were asked for; all are idempotent.
#ifndef ENGINE_POWER_H
#define ENGINE_POWER_H

#include "engine/sandbox.h"

enum power_kind { POWER_PAUSE, POWER_RESUME, POWER_SUSPEND };

// Takes over the request.
void power_request(struct sandbox *sb, struct request *r, enum power_kind kind);
// Whether one is being done.
bool powers_busy(const struct sandbox *sb);
// What they waited for (snapshot.h) is over.
void powers_go_on(struct sandbox *sb);
// The sandbox is closing: answers those that wait; the one being done is answered when the driver is.
void powers_fail(struct sandbox *sb);

#endif
