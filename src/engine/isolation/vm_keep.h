// Keeping a machine as it is: for a snapshot that others are forked from, or to come back later (suspended).
//
//     pausing -> saving -> going on (not one that is suspended, or was paused before) -> finishing -> told
//
// Pausing, saving and going on are the monitor's; what has to be added of the snapshot below, synced and hashed is a worker's,
// while the machine runs again.  Whatever goes wrong, the machine is told to go on: nothing that fails here stops it, but a
// monitor that does not do what it is asked, which ends with its sandbox.
// Limits: while it is saved a machine stands still for answer_ms, and KEEP_MIB_MS for each MiB of memory more;
// then it is killed, since a monitor that is at its files can do nothing else.
#ifndef ENGINE_ISOLATION_VM_KEEP_H
#define ENGINE_ISOLATION_VM_KEEP_H

#include "engine/isolation/driver.h"
#include "engine/isolation/kept.h"

enum { KEEP_MIB_MS = 20 };

// As a driver's; `self` is the vm driver.
int vm_keep_snapshot(void *self, uint32_t handle, const struct driver_snapshot *what, driver_done_fn *done, void *arg);
int vm_keep_suspend(void *self, uint32_t handle, bool paused, driver_done_fn *done, void *arg);

#endif
