// The snapshots of this engine: what is known of each, on disk and in memory, and which layers of disk they need.
//
// On disk: "snapshots/ID/snapshot.bin" in the engine's state folder (wire/snapshot_meta.h, with a SHA-256 behind it), and where
// a tier keeps more of one, further files beside it.  The disks themselves are layers (jailer/layer.h), which only the jailer
// has. A snapshot is written into a folder ".new-ID", synced, and renamed: it is there as a whole or not at all, wherever a
// crash comes.  One that goes is renamed to ".old-ID" first.  Folders with a dot are removed at the next start.
//
// A layer is kept as long as a snapshot, a running fork, or work under way stands on it: each of these counts.  With the last
// of them it is deleted.  At start the counts are those of the snapshots found; layers that none of them needs were never told
// to anybody and are deleted, and a snapshot whose layers are gone is dropped.  Where a snapshot.bin is damaged, the start
// keeps everything: what it stood on cannot be known.
//
// Files are written on a worker thread; everything else happens on the loop's.
#ifndef ENGINE_SNAPSHOT_STORE_H
#define ENGINE_SNAPSHOT_STORE_H

#include "base/err.h"
#include "engine/engine.h"
#include "wire/snapshot_meta.h"

struct snapshot_store;

struct snapshot {
    TAILQ_ENTRY(snapshot) link;
    struct snapshot_store *store;
    struct snapshot_meta meta;  // its variables point into `body`
    uint8_t *body;
    unsigned pins;
    bool deleted;  // nobody can find it any more
};

// `state_dir` stays the caller's.  Calls ready(arg) when the snapshots are known, or known to be in trouble.  0 or a negative
// errno.
int snapshot_store_new(struct engine *e, int state_dir, void (*ready)(void *arg), void *arg, struct snapshot_store **ret_store);
// After the workers, the drivers and all sandboxes are freed.  NULL is fine; returns NULL.
struct snapshot_store *snapshot_store_free(struct snapshot_store *store);
// A sentence part if there can be no snapshots; NULL: all is well.
const char *snapshot_store_trouble(const struct snapshot_store *store);

// The owner's snapshot of this id, or NULL.
struct snapshot *snapshot_store_find(struct snapshot_store *store, const char *owner, const char *id);
// The first of the owner's behind `after`, in the order of ids, or NULL.
struct snapshot *snapshot_store_next(struct snapshot_store *store, const char *owner, const char *after);
unsigned snapshot_store_count(const struct snapshot_store *store, const char *owner);
// All owners'; *ret_bytes is what they take on the host's disk.
unsigned snapshot_store_total(const struct snapshot_store *store, uint64_t *ret_bytes);

// What is pinned stays in memory, and its layers on disk, also when it is deleted.
void snapshot_pin(struct snapshot *s);
void snapshot_unpin(struct snapshot *s);

// A folder for the files of a snapshot with memory that is to have this id: a descriptor, the caller's, or a negative errno.
int snapshot_store_begin(struct snapshot_store *store, const char *id);
// Removes it, some time.  Also done by snapshot_store_add when that fails later.
void snapshot_store_abandon(struct snapshot_store *store, const char *id);
// The files of a snapshot with memory, which stay as long as it is pinned: a descriptor, the caller's, or a negative errno.
int snapshot_store_folder(const struct snapshot *s);

// Makes it durable.  `done` is called later, exactly once, unless a negative errno is returned: with the snapshot, or NULL and
// a negative errno; then nothing of it is left.  The layers must be held by the caller until then; the snapshot counts anew.
typedef void snapshot_added_fn(void *arg, int error, struct snapshot *s);
int snapshot_store_add(struct snapshot_store *store, const struct snapshot_meta *meta, snapshot_added_fn *done, void *arg);
// Takes it away: nobody finds it from now on.  `done` (may be NULL) as above; -EIO and the like: it is back at the next start.
int snapshot_store_remove(struct snapshot *s, void (*done)(void *arg, int error), void *arg);

// Counts the layers once more, or once less.
void snapshot_layers_hold(struct snapshot_store *store, const uint8_t (*layers)[SNAPSHOT_LAYER_ID], uint32_t count);
void snapshot_layers_drop(struct snapshot_store *store, const uint8_t (*layers)[SNAPSHOT_LAYER_ID], uint32_t count);

#endif
