#include "engine/isolation/memory_base.h"

#include "base/cleanup.h"

#include <stdlib.h>
#include <string.h>

struct memory_base *memory_base_new(int root, uint64_t bytes, const uint8_t digest[DIGEST_LEN])
{
    struct memory_base *base = malloc(sizeof *base);
    if (base == NULL) {
        close_fd(&root);
        return NULL;
    }
    *base = (struct memory_base){.refs = 1, .root = root, .root_bytes = bytes, .memory = -1};
    if (root >= 0)
        memcpy(base->root_digest, digest, sizeof base->root_digest);
    return base;
}

void memory_base_add(struct memory_base *base, int memory, uint64_t bytes, uint8_t *list)
{
    base->memory = memory;
    base->memory_bytes = bytes;
    base->list = list;
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
        close_fd(&base->memory);
        free(base->list);
        free(base);
    }
    return NULL;
}
