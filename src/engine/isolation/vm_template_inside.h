// What vm_template.c, which knows all templates, and vm_template_build.c, which makes one, share.  One thread, the loop's;
// while a job of a template is due, a worker is at its files.
#ifndef ENGINE_ISOLATION_VM_TEMPLATE_INSIDE_H
#define ENGINE_ISOLATION_VM_TEMPLATE_INSIDE_H

#include "base/err.h"
#include "engine/agent_line.h"
#include "engine/isolation/vm_template.h"

#include <sys/queue.h>

enum template_state { WANTED, LOADING, BOOTING, PREPARING, SAVING, SEALING, TRYING, RECORDING, COMMITTING, READY, FAILED };

struct vm_template {
    TAILQ_ENTRY(vm_template) link;
    struct vm_templates *all;
    enum template_state state;
    bool forgotten;  // freed when nothing is under way
    bool refused;    // what is on the disk is no good
    struct jail_start shape;
    struct snapshot_key key;
    char name[SNAPSHOT_KEY_DIGITS + 1];
    uint64_t used_ns, touched_ns;
    uint64_t retry_ns;
    struct snapshot_files files;  // READY: to start clones from
    uint64_t bytes;               // of its memory
    // While it is made:
    struct snapshot_files fresh;  // written to
    int dir;
    bool has_machine, asked;  // a machine lives; a callback of the driver is due
    uint32_t machine;
    struct agent_line *line;
    uint64_t give_up_ns;    // when all of it has taken too long
    struct timer deadline;  // of what it waits for now
    struct job job;
    bool job_due;
    int result;
    struct err err;
};

TAILQ_HEAD(template_list, vm_template);

struct vm_templates {
    struct vm_driver *driver;
    int store;
    struct template_list list;
    unsigned count;
    struct vm_template *building;
    bool stopping;
};

// ---- vm_template.c ----

// Begins the next one that is wanted, if none is being made.
void template_build_next(struct vm_templates *all);
// The files are loaded: `t` is ready, and others make room.
void template_become_ready(struct vm_template *t);
void template_free(struct vm_template *t);

// ---- vm_template_build.c ----

// Loads or makes it; none other is being made.
void template_build(struct vm_template *t);
// Ends what is under way, as far as it can be ended at once; what was begun on the disk is removed.  Frees one that is
// forgotten and not busy.
void template_give_up(struct vm_template *t);
// For its timer.
void template_on_deadline(void *arg);
// Whether an answer is due, of the driver's or a worker's, without which it cannot be freed.
bool template_is_busy(const struct vm_template *t);

#endif
