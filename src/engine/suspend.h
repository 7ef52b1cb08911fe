// Putting a sandbox on disk and bringing it back: the same sandbox, with the same id, owner, names and processes.
//
//     running or paused -> keeping (driver) -> leaving (its machine is stopped) -> suspended, and told
//     suspended -> loading (template) -> starting (driver) -> naming (its init takes fresh random numbers and the time)
//               -> running, and told
//
// Its operations in flight end when it is suspended; what was started in the background goes on when it comes back.  Until then
// it has no machine and takes no memory, but counts as its owner's, and goes with it.  One that cannot be kept goes on as it
// did; one that cannot be started stays on disk; one that was started and did not come back has ended.
#ifndef ENGINE_SUSPEND_H
#define ENGINE_SUSPEND_H

#include "base/err.h"
#include "engine/sandbox.h"

// How it went: NULL, or why not (code: a sandbox_error_t).
typedef void suspend_done_fn(void *arg, const struct err *err);

// Of one that is running or paused, and has been told of a pause.  `done` is called, exactly once, before or after this
// returns.
void suspend_begin(struct sandbox *sb, suspend_done_fn *done, void *arg);
// Of one that is suspended.  Likewise.
void suspend_end(struct sandbox *sb, suspend_done_fn *done, void *arg);

// ---- for sandbox.c ----

// The driver's answer to its start: 0, or a negative errno.
void suspend_started(struct sandbox *sb, int error, const char *detail);
void suspend_named(struct sandbox *sb);
// Its machine has gone.  True: as it should.
bool suspend_left(struct sandbox *sb);
// It is closing.
void suspend_sandbox_ends(struct sandbox *sb);

#endif
