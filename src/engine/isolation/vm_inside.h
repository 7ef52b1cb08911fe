// What vm.c and vm_template.c share: machines, whoever they are for.
#ifndef ENGINE_ISOLATION_VM_INSIDE_H
#define ENGINE_ISOLATION_VM_INSIDE_H

#include "engine/isolation/snapshot_store.h"
#include "engine/isolation/vm.h"
#include "sys/jail.h"
#include "wire/vmm.h"

struct vm_launch {
    struct jail_start start;
    const struct snapshot_files *from;  // NULL: it boots; must stay open until `done`
    const struct snapshot_key *key;     // what it is
    const char *snapshot;               // the name of `from`; NULL: it is not known as a template yet
    const uint8_t *volume;              // the session's, as driver_start's
    enum network_kind network;
    void *owner;                                  // the sandbox it is for; NULL: it is the driver's own
    void (*gone)(void *arg, const char *reason);  // the driver's own: its end, once, after `done` gave no error
};

// `done` gets handle, control and dial, as a driver's start does; `arg` is for both.  0 or a negative errno.
int vm_launch(struct vm_driver *d, const struct vm_launch *launch, driver_done_fn *done, void *arg);
// Asks its monitor; one request at a time (-EBUSY).  `done` NULL: nobody needs the answer.  A monitor that does not answer
// within answer_ms is killed, but not when it has files to write: the caller has a deadline for that.
int vm_ask(struct vm_driver *d, uint32_t handle, enum vmm_op op, const int *fds, size_t count, driver_done_fn *done, void *arg);
// Has it write itself to the three files of `kept`, likewise, while it is paused; -ENOENT and so on as above.
int vm_ask_keep(struct vm_driver *d, uint32_t handle, const int fds[3], driver_done_fn *done, void *arg);

// What a machine stands on, for keeping it.  0; -ENOENT; or another negative errno with a sentence: it cannot be kept.
int vm_keepable(struct vm_driver *d, uint32_t handle, struct memory_base **ret_base, struct snapshot_key *ret_key,
                const char **ret_why);
// Whether the key is of a machine that this host can run, and of this shape.  0 or -ENOTSUP, with a sentence.
int vm_key_fits(struct vm_driver *d, const struct snapshot_key *key, const struct jail_start *start, const char **ret_why);
// It does what it should not: it is killed, and its end told.
void vm_kill(struct vm_driver *d, uint32_t handle, const char *why);
struct vm_forks *vm_forks_of(struct vm_driver *d);

// Ends one of the driver's own; `gone` is not called any more.
void vm_stop(struct vm_driver *d, uint32_t handle);
const struct vm_config *vm_config_of(const struct vm_driver *d);

#endif
