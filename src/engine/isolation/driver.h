// What the engine asks of an isolation tier.  The core knows tiers only through this table, so that a tier is added by
// writing a driver and naming it in tiers.c.
//
// Rules: everything runs on the loop's thread.  A call that returns 0 is answered later, exactly once, through `done`; a call
// that returns a negative errno is not answered.  Handles belong to one driver.
// A started sandbox ends with exactly one `exited`, after which its handle means nothing; that is the only way it ends.
// Freeing a driver answers what is open with -ECANCELED and ends what runs.
#ifndef ENGINE_ISOLATION_DRIVER_H
#define ENGINE_ISOLATION_DRIVER_H

#include "engine/network.h"

#include <stdbool.h>
#include <stdint.h>

struct driver_stats {
    uint64_t memory_bytes;   // resident
    uint64_t private_bytes;  // of these: the sandbox's alone
    uint64_t shared_bytes;   // of these: what others may share
    uint64_t page_faults;    // since the start
    uint64_t oom_kills;
};

// The answer to a call; which members mean something depends on the call.
struct driver_answer {
    int error;               // 0 or a negative errno
    const char *detail;      // for the log and the operator; valid during the callback
    uint32_t handle;         // template_attach: the template; start: the sandbox
    int control;             // start: where the agent's control line is or will come from (agent_line.h); the callback's now
    int dial;                // start: likewise, how operation lines are made; -1: through the control line
    bool restored;           // start: it is a clone of a booted template: its agent must be given an identity, and told of its
                             // line and its volume
    bool waits;              // start: it is built, and will be silent until it is claimed
    struct network network;  // start: what was asked for; its descriptors are the callback's now
    struct driver_stats stats;
    uint64_t pause_us;                   // snapshot: for how long the sandbox stood still
    uint64_t bytes;                      // snapshot: what it takes on the host's disk
    struct driver_suspended *suspended;  // suspend: the caller's from now on
    uint32_t volume_count;               // a list of volumes or layers: their ids
    const uint8_t (*volumes)[16];
};
typedef void driver_done_fn(void *arg, const struct driver_answer *answer);

struct driver_start {
    uint32_t template_handle;
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint32_t vcpus;
    uint32_t pids_max;
    uint32_t disk_mib_s, disk_iops;  // 0: no limit
    const char *hostname;            // [a-z0-9-]
    const uint8_t *volume;           // 16 bytes: what /workspace is; NULL: part of the disk
    bool waits;                      // it may wait for `claim` before it runs
    enum network_kind network;
    const uint8_t (*layers)[16];  // a fork: what its snapshot's disk is made of, uppermost first
    uint32_t layer_count;
    bool copy_layer;  // its disk is a copy of the first of them, over the others, and not an empty one over all
    // A fork where snapshots have memory: its id, and the folder it is in, which stay there until this is answered.
    const char *snapshot;
    int folder;
    struct driver_suspended *suspended;  // or: what comes back.  It is used up when this is answered without an error
    void *owner;                         // comes back with `exited`
};

struct driver_snapshot {
    const uint8_t *layer;  // 16 bytes: the name of what becomes of the disk; or, where snapshots have memory:
    const char *id;        // the snapshot's
    int folder;            // for files, empty; the caller removes it when this fails
    bool paused;           // the sandbox stands still, and is to go on doing so
};

struct driver_suspended;  // a sandbox that is on disk; the driver's

struct driver_exit {
    bool by_signal;
    int status;          // exit code or signal of what held the sandbox
    bool oom;            // it was killed for memory
    const char *reason;  // a sentence part, valid during the callback; NULL: the above says it
};
typedef void driver_exited_fn(void *owner, const struct driver_exit *how);

struct driver {
    uint32_t level;           // sandbox_isolation_t
    bool volumes;             // a sandbox can have a session's volume
    bool network;             // a sandbox can have a network
    bool host_api;            // and a line to route grants
    bool memory;              // its snapshots hold the memory: processes go on in forks
    const char *no_snapshot;  // why there are none: a sentence's end, or NULL
    const char *no_suspend;   // likewise
    // Does this tier work here?  answer->detail says why not.
    int (*probe)(void *self, driver_done_fn *done, void *arg);
    // Makes a template usable.  `rootfs` stays the caller's; `digest` is its.
    int (*template_attach)(void *self, int rootfs, const uint8_t *digest, driver_done_fn *done, void *arg);
    // Lets it go; sandboxes that run on it keep it.
    void (*template_detach)(void *self, uint32_t handle);
    int (*start)(void *self, const struct driver_start *what, driver_done_fn *done, void *arg);
    // One that was started with `waits` is needed now.  Optional.
    void (*claim)(void *self, uint32_t handle);
    // Kills, or where a volume has to be written first, ends it in order and kills it if that takes long; `exited` follows.
    // The agent's line has been closed.
    int (*stop)(void *self, uint32_t handle);
    int (*pause)(void *self, uint32_t handle, driver_done_fn *done, void *arg);
    int (*resume)(void *self, uint32_t handle, driver_done_fn *done, void *arg);
    // Keeps what the sandbox, running or paused, is now; it goes on in any case.  Nothing is kept when it fails; -ECANCELED:
    // the sandbox ended meanwhile.  Only where no_snapshot is NULL.
    int (*snapshot)(void *self, uint32_t handle, const struct driver_snapshot *what, driver_done_fn *done, void *arg);
    // Puts what the sandbox, running or paused, is now on disk.  If that works it stands still, for the caller to stop it; else
    // it goes on as it did.  Only where no_suspend is NULL.
    int (*suspend)(void *self, uint32_t handle, bool paused, driver_done_fn *done, void *arg);
    // One that will not come back.
    void (*forget)(void *self, struct driver_suspended *suspended);
    // The snapshot is gone: what is held of it for its next fork is let go.  NULL: nothing is.
    void (*unload)(void *self, const char *snapshot);
    int (*stats)(void *self, uint32_t handle, driver_done_fn *done, void *arg);
};

#endif
