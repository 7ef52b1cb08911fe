// Machines that begin as another one was: forks of a snapshot, and suspended ones that come back.
//
//     asked for -> (loading: on a worker) -> loaded -> each that waits is started as a clone -> ... -> let go
//
// A loaded snapshot holds its memory in a sealed memfd, which its forks share.  Beyond FORKS_LOADED_MAX, or
// template_memory_mib, those used longest ago are let go, and so is one that was deleted; forks that run keep theirs.  A
// suspended machine is loaded when it comes back, for itself alone. One that is damaged, another's, or of another host is
// refused by name, and nothing runs of it.
#ifndef ENGINE_ISOLATION_VM_FORK_H
#define ENGINE_ISOLATION_VM_FORK_H

#include "engine/isolation/kept.h"
#include "engine/isolation/vm_inside.h"

enum { FORKS_LOADED_MAX = 4 };

struct vm_forks;

int vm_forks_new(struct vm_driver *driver, struct vm_forks **ret_forks);
// Begins nothing any more: before the workers are freed.
void vm_forks_stop(struct vm_forks *all);
// After the workers and the jailer's channel have been freed.  NULL is fine; returns NULL.
struct vm_forks *vm_forks_free(struct vm_forks *all);

// For a start with a snapshot or a suspended machine; as a driver's start.
int vm_fork_start(struct vm_forks *all, const struct driver_start *what, const struct jail_start *start, driver_done_fn *done,
                  void *arg);

// Takes over what `kept` has open.  NULL: no memory.
struct driver_suspended *vm_fork_suspended(struct kept *kept, const struct snapshot_key *key);
// As a driver's forget, and unload.
void vm_fork_forget(void *self, struct driver_suspended *suspended);
void vm_fork_unload(void *self, const char *snapshot);

#endif
