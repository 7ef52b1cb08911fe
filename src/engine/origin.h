// What a sandbox was made from, kept while it lives: a snapshot of it is made from the same.
#ifndef ENGINE_ORIGIN_H
#define ENGINE_ORIGIN_H

#include "engine/pool.h"
#include "engine/snapshot_store.h"
#include "sandbox.pb-c.h"

struct origin {
    struct snapshot_store *store;
    Sandbox__CreateRequest *message;            // its variables
    char template_name[TEMPLATE_NAME_MAX + 1];  // the real one, of no alias
    uint8_t rootfs[DIGEST_LEN];
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint32_t vcpus;
    bool has_volume;
    char snapshot_id[SNAPSHOT_ID_LEN + 1];  // it is a fork of this one; "": of none
    uint32_t layers;                        // below its disk, which are counted
    uint8_t layer[SNAPSHOT_LAYERS_MAX][SNAPSHOT_LAYER_ID];
};

// Takes over `message` on success.  `snapshot` NULL: it is no fork.  NULL: no memory.
struct origin *origin_new(struct snapshot_store *store, Sandbox__CreateRequest *message, const struct shape *shape,
                          const char *template_name, const uint8_t rootfs[static DIGEST_LEN], bool has_volume,
                          const struct snapshot *snapshot, bool copy_layer);
// NULL is fine; returns NULL.
struct origin *origin_free(struct origin *origin);

#endif
