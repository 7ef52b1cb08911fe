// Templates in use: opened, verified and made usable by a tier once, then looked at again for every create.
//
// A look (on a worker thread, short) resolves the name and takes the device, inode, size, mtime and ctime of every file.  While
// they are those of the last verification, the template is good.  Otherwise all its files are hashed again (on a worker
// thread, long; creates that want the template meanwhile wait for the one result); a file that does not fit the manifest is
// refused by name, and one that does is attached anew if it is another file.
// States of an entry: verifying -> attaching -> ready -> (changed) verifying ...; a failure ends the entry.
#ifndef ENGINE_TEMPLATE_H
#define ENGINE_TEMPLATE_H

#include "base/json_out.h"
#include "engine/isolation/tiers.h"

#include <stdint.h>
#include <sys/queue.h>

struct engine;
struct templates;

struct template_answer {
    int code;               // 0 or a sandbox_error_t
    const char *text;       // when it failed; valid during the callback
    uint32_t handle;        // for driver_start
    const char *name;       // the template's own, where it was asked for by an alias; valid during the callback
    const uint8_t *rootfs;  // digest of its root file system, likewise
};

// Embedded in who waits; `done` and `arg` are set by it, the rest belongs to templates.
struct template_waiter {
    void (*done)(void *arg, const struct template_answer *answer);
    void *arg;
    struct look *look;
    struct template *entry;
    TAILQ_ENTRY(template_waiter) link;
    unsigned tries;
};

// `store_fd` is the folder of templates; it stays the caller's.
int templates_new(struct engine *e, int store_fd, struct templates **ret_templates);
// After the workers and the drivers are freed.  NULL is fine; returns NULL.
struct templates *templates_free(struct templates *t);

// Calls waiter->done later, exactly once, unless it is cancelled.  0 or -ENOMEM.
int template_get(struct templates *t, struct tier *tier, const char *name, struct template_waiter *waiter);
// Harmless when nothing is due.
void template_cancel(struct template_waiter *waiter);

// The names of those that are ready, as elements of an array.
void templates_list(const struct templates *t, struct json_out *json);

#endif
