#include "broker/names.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct given {
    char *name;
    uint32_t hash;
    uint64_t used_ns;
};

struct names {
    uint32_t first;  // of the range
    unsigned room, n;
    struct given *given;  // number i has the address first + 1 + i
};

static uint32_t hash_of(const char *text)
{
    uint32_t h = 2166136261;
    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * 16777619;
    return h;
}

int names_new(const uint8_t first[4], unsigned prefix, struct names **ret)
{
    struct names *n = calloc(1, sizeof *n);
    if (n == NULL)
        return -ENOMEM;
    n->first = (uint32_t)first[0] << 24 | (uint32_t)first[1] << 16 | (uint32_t)first[2] << 8 | first[3];
    uint32_t inside = (UINT32_MAX >> prefix) - 1;
    n->room = inside < NAMES_MAX ? inside : NAMES_MAX;
    *ret = n;
    return 0;
}

struct names *names_free(struct names *n)
{
    if (n == NULL)
        return NULL;
    for (unsigned i = 0; i < n->n; i++)
        free(n->given[i].name);
    free(n->given);
    free(n);
    return NULL;
}

static struct ip_addr address_of(const struct names *n, unsigned i)
{
    uint32_t a = n->first + 1 + i;
    return (struct ip_addr){.bytes = {(uint8_t)(a >> 24), (uint8_t)(a >> 16), (uint8_t)(a >> 8), (uint8_t)a}};
}

// Where a new name goes.  -ENOSPC, -ENOMEM.
static int place_for_one(struct names *n, uint64_t now_ns)
{
    if (n->n < n->room) {
        if ((n->n & (n->n - 1)) == 0) {  // at each power of two, twice the memory
            unsigned room = n->n == 0 ? 1 : n->n * 2;
            struct given *more = realloc(n->given, room * sizeof *more);
            if (more == NULL)
                return -ENOMEM;
            n->given = more;
        }
        n->given[n->n] = (struct given){0};
        return (int)n->n++;
    }
    unsigned oldest = 0;
    for (unsigned i = 1; i < n->n; i++)
        if (n->given[i].used_ns < n->given[oldest].used_ns)
            oldest = i;
    return now_ns - n->given[oldest].used_ns >= NAMES_KEEP_S * NS_PER_S ? (int)oldest : -ENOSPC;
}

int names_give(struct names *n, const char *name, uint64_t now_ns, struct ip_addr *ret)
{
    uint32_t hash = hash_of(name);
    for (unsigned i = 0; i < n->n; i++)
        if (n->given[i].hash == hash && strcmp(n->given[i].name, name) == 0) {
            n->given[i].used_ns = now_ns;
            *ret = address_of(n, i);
            return 0;
        }
    char *copy = strdup(name);
    int i = copy != NULL ? place_for_one(n, now_ns) : -ENOMEM;
    if (i < 0) {
        free(copy);
        return i;
    }
    free(n->given[i].name);
    n->given[i] = (struct given){.name = copy, .hash = hash, .used_ns = now_ns};
    *ret = address_of(n, (unsigned)i);
    return 0;
}

const char *names_find(struct names *n, const struct ip_addr *addr, uint64_t now_ns)
{
    if (addr->v6)
        return NULL;
    const uint8_t *b = addr->bytes;
    uint32_t i = ((uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3]) - n->first - 1;
    if (i >= n->n)
        return NULL;
    n->given[i].used_ns = now_ns;
    return n->given[i].name;
}
