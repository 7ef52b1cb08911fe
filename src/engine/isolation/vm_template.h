// Booted templates: what makes a create on the vm tier a copy instead of a boot.
//
// One for each shape (image, kernel, memory, disk, processors, processes) that was asked for.  The first create of a shape
// boots a machine of its own; meanwhile its template is looked for on the disk (snapshot_store.h), or made:
//
//     wanted -> loading --found--> ready
//                       --not----> booting -> preparing -> saving -> sealing -> trying -> recording -> committing -> loading
//
// Booting, preparing (the agent runs a program once, so that it is in memory) and saving are of a machine nobody else ever
// sees. Trying is a first clone, which shows that the snapshot works before anybody relies on it, and gives the list of pages a
// clone needs first.  One template is made at a time, beside what max_creates lets boot.  Until it has called its host, a
// machine that boots, or the first clone until it answers, has the time that a sandbox's has; BUILD_S is all the time there is.
// A failure is logged, and the shape boots each of its sandboxes until RETRY_S have passed.
//
// Memory: a loaded template holds its bytes in a sealed memfd.  Beyond LOADED_MAX of them, or template_memory_mib, those used
// longest ago are let go (clones that run keep theirs), and loaded again when they are asked for.  SHAPES_MAX are known at
// once; the one that was asked for longest ago makes room.
//
// Trust: a snapshot is what a guest was; it is never looked into here.  A damaged file of one is refused by name, removed, and
// the template made anew; so is one that a monitor could not make a machine of.
// Everything runs on the loop's thread, but reading, copying and hashing, which workers do.
#ifndef ENGINE_ISOLATION_VM_TEMPLATE_H
#define ENGINE_ISOLATION_VM_TEMPLATE_H

#include "engine/isolation/vm_inside.h"

enum {
    TEMPLATES_LOADED_MAX = 8,
    TEMPLATE_SHAPES_MAX = 64,
    TEMPLATE_BUILD_S = 300,
    TEMPLATE_RETRY_S = 60,
    TEMPLATE_TOUCH_S = 60,  // how exactly the store knows when one was used
};

struct vm_templates;

// `state_dir` is where snapshots are kept.  0 or a negative errno.
int vm_templates_new(struct vm_driver *driver, int state_dir, struct vm_templates **ret_templates);
// Begins nothing any more: before the workers are freed.
void vm_templates_stop(struct vm_templates *all);
// After the workers and the jailer's channel have been freed.  NULL is fine; returns NULL.
struct vm_templates *vm_templates_free(struct vm_templates *all);

// What to start a clone of this shape from, valid until the loop goes on; or NULL: boot, the template is not ready.  *ret_name
// names it, for vm_template_refused.
const struct snapshot_files *vm_template_get(struct vm_templates *all, const struct snapshot_key *key,
                                             const struct jail_start *shape, char ret_name[SNAPSHOT_KEY_DIGITS + 1]);
// No machine can be made of it: it is thrown away, and made anew when it is asked for.
void vm_template_refused(struct vm_templates *all, const char *name, const char *reason);
// The image behind the slot is no longer used.
void vm_templates_forget(struct vm_templates *all, uint32_t template_slot);

#endif
