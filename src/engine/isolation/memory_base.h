// What a machine's memory began as: the memory of a template, on the host's disk, and what a snapshot of a sandbox differs from
// it by.  Kept with every machine, because a snapshot of it is described by the same two.
//
// Of the second this has a list of pages, and the memory that the machine was started with, which nobody can change: what was
// checked when a fork was made is what its own snapshots are made of, whatever becomes of the files meanwhile.
//
// Counted; everything but memory_base_new on the loop's thread.  What is in it never changes.
#ifndef ENGINE_ISOLATION_MEMORY_BASE_H
#define ENGINE_ISOLATION_MEMORY_BASE_H

#include "wire/manifest.h"

#include <stdint.h>

struct memory_base {
    unsigned refs;
    int root;  // the file of the template's memory; -1: memory that began with zeros
    uint64_t root_bytes;
    uint8_t root_digest[DIGEST_LEN];  // as it was checked when the machine's memory was made of it
    int memory;                       // sealed, all of it; -1: it is the root's
    uint64_t memory_bytes;            // of `memory`
    uint8_t *list;                    // which pages of it are not the root's (wire/page_delta.h), if there is a `memory`
};

// Takes over the descriptor.  `digest` and `bytes` are of `root`.  NULL: no memory, and it is closed.
struct memory_base *memory_base_new(int root, uint64_t bytes, const uint8_t digest[DIGEST_LEN]);
// To one that nobody else has yet.  Takes over descriptor and list.
void memory_base_add(struct memory_base *base, int memory, uint64_t bytes, uint8_t *list);
// NULL is fine for both; the first returns `base`, the second NULL.
struct memory_base *memory_base_ref(struct memory_base *base);
struct memory_base *memory_base_unref(struct memory_base *base);

#endif
