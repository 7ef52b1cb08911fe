// What a machine's memory began as, on the host's disk: the memory of a template, and what a snapshot of a sandbox differs from
// it by.  Kept with every machine, because a snapshot of it is described by the same two.
//
// Counted; everything but memory_base_new on the loop's thread.
#ifndef ENGINE_ISOLATION_MEMORY_BASE_H
#define ENGINE_ISOLATION_MEMORY_BASE_H

#include "wire/manifest.h"

#include <stdint.h>

struct memory_base {
    unsigned refs;
    int root;  // the file of the template's memory; -1: memory that began with zeros
    uint64_t root_bytes;
    uint8_t root_digest[DIGEST_LEN];  // as it was checked when the machine's memory was made of it
    int delta;                        // a file as wire/page_delta.h says, or -1
};

// Takes over both descriptors.  `digest` and `bytes` are of `root`.  NULL: no memory, and they are closed.
struct memory_base *memory_base_new(int root, uint64_t bytes, const uint8_t digest[DIGEST_LEN], int delta);
// NULL is fine for both; the first returns `base`, the second NULL.
struct memory_base *memory_base_ref(struct memory_base *base);
struct memory_base *memory_base_unref(struct memory_base *base);

#endif
