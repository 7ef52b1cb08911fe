// The vm tier: one sandbox-vmm a sandbox, which sandbox-jailer starts and jails, and to which this driver speaks
// (wire/vmm.h).
//
// Actors: the jailer is trusted; a monitor is not, since a guest may have taken it over: its messages are checked, and all it
// can break is its own sandbox.
// A sandbox is a clone of a booted template of its shape, where there is one (vm_template.h), and boots else.  A clone may be
// started to wait: it is built, and runs when it is claimed.  Network and volume are no part of a shape: every machine has the
// devices for both, and its monitor is given what is behind them, or nothing.
// States of a machine: starting (START_VM is with the jailer) -> live -> gone, when the jailer says EXITED; what a monitor says
// of its end before that is only kept as the reason.  A machine with a session's volume is not killed at once: its guest, which
// has seen the agent's line close, writes what it still holds and switches itself off; after settle_ms it is killed, as one
// without a volume is at once.
// Limits: one request to a monitor at a time; one that does not answer within answer_ms is killed (what writes
// a snapshot has the time that vm_template.h says).
#ifndef ENGINE_ISOLATION_VM_H
#define ENGINE_ISOLATION_VM_H

#include "engine/isolation/container.h"
#include "engine/isolation/driver.h"
#include "sys/workers.h"

struct vm_driver;

extern const struct driver vm_driver;  // its `self` is a struct vm_driver

struct vm_config {
    struct loop *loop;
    struct workers *workers;
    struct container *jailer;                         // outlives the driver
    int run_dir;                                      // where a socket has a name for a moment
    int store;                                        // of templates; the kernels are beside them
    int state_dir;                                    // where snapshots of booted templates are kept
    const char *kernel;                               // the name of the one to boot
    uint64_t settle_ms;                               // longest wait for a guest to write its volume
    uint64_t start_ms;                                // what a machine has until its agent is ready
    uint64_t answer_ms;                               // what a monitor has to answer a request
    uint64_t template_memory_mib, template_disk_mib;  // what snapshots may hold of each
};

int vm_driver_new(const struct vm_config *config, struct vm_driver **ret_driver);
// Makes no templates any more: before the workers are freed.  NULL is fine.
void vm_driver_stop(struct vm_driver *d);
// After the jailer's channel has been freed, so that nothing of it runs any more.  NULL is fine; returns NULL.
struct vm_driver *vm_driver_free(struct vm_driver *d);

#endif
