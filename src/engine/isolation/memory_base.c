#include "engine/isolation/memory_base.h"

#include "base/cleanup.h"

#include <stdlib.h>
#include <string.h>

struct memory_base *memory_base_new(int root, uint64_t bytes, const uint8_t digest[DIGEST_LEN], int delta)
{
    struct memory_base *base = malloc(sizeof *base);
    if (base == NULL) {
        close_fd(&root);
        close_fd(&delta);
        return NULL;
    }
    *base = (struct memory_base){.refs = 1, .root = root, .root_bytes = bytes, .delta = delta};
    if (root >= 0)
        memcpy(base->root_digest, digest, sizeof base->root_digest);
    return base;
}

struct memory_base *memory_base_ref(struct memory_base *base)
{
    if (base != NULL)
        base->refs++;
    return base;
}

struct memory_base *memory_base_unref(struct memory_base *base)
{
    if (base != NULL && --base->refs == 0) {
        close_fd(&base->root);
        close_fd(&base->delta);
        free(base);
    }
    return NULL;
}
