#include "vmm/mem/guest_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GUARD_BYTES = 4096, HUGE_BYTES = 2 * 1024 * 1024 };

struct guest_memory {
    size_t count;
    struct guest_region region[GUEST_REGIONS_MAX];
};

// Room for `bytes` that begin where a huge page can, between two pages that nobody may touch.  NULL: there is none.
static char *reserve(size_t bytes)
{
    size_t whole = bytes + HUGE_BYTES + (size_t)2 * GUARD_BYTES;
    char *at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    char *host = at + GUARD_BYTES + (-(uintptr_t)(at + GUARD_BYTES) & (HUGE_BYTES - 1));
    char *first = host - GUARD_BYTES, *end = host + bytes + GUARD_BYTES;
    if (first > at)
        munmap(at, (size_t)(first - at));
    if (at + whole > end)
        munmap(end, (size_t)(at + whole - end));
    return host;
}

// A private mapping.  KVM can use a huge page only where guest and host addresses agree in their lower bits; where the host
// gives some, a machine that boots faults five hundred times less.
static int map_region(size_t bytes, void **ret_host)
{
    char *host = reserve(bytes);
    if (host == NULL)
        return -errno;
    if (mprotect(host, bytes, PROT_READ | PROT_WRITE) < 0) {
        int r = -errno;
        munmap(host - GUARD_BYTES, bytes + (size_t)2 * GUARD_BYTES);
        return r;
    }
    madvise(host, bytes, MADV_HUGEPAGE);  // a host that has none gives small ones
    *ret_host = host;
    return 0;
}

static int add_region(struct guest_memory *memory, uint64_t start, uint64_t bytes)
{
    struct guest_region *region = &memory->region[memory->count];
    void *host = NULL;
    int r = map_region(bytes, &host);
    if (r < 0)
        return r;
    *region = (struct guest_region){.start = {start}, .bytes = bytes, .host = host};
    memory->count++;
    return 0;
}

int guest_memory_new(size_t bytes, struct guest_memory **ret_memory)
{
    if (bytes < GUEST_MEMORY_MIN || bytes > GUEST_MEMORY_MAX || bytes % GUEST_MEMORY_STEP != 0)
        return -EINVAL;
    struct guest_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return -ENOMEM;
    uint64_t low = bytes < GUEST_HOLE_START ? bytes : GUEST_HOLE_START;
    int r = add_region(memory, 0, low);
    if (r == 0 && bytes > low)
        r = add_region(memory, GUEST_HOLE_END, bytes - low);
    if (r < 0) {
        guest_memory_free(memory);
        return r;
    }
    *ret_memory = memory;
    return 0;
}

struct guest_memory *guest_memory_free(struct guest_memory *memory)
{
    if (memory == NULL)
        return NULL;
    for (size_t i = 0; i < memory->count; i++)
        munmap((char *)memory->region[i].host - GUARD_BYTES, memory->region[i].bytes + (size_t)2 * GUARD_BYTES);
    free(memory);
    return NULL;
}

void *guest_memory_at(const struct guest_memory *memory, gpa_t at, size_t len)
{
    for (size_t i = 0; i < memory->count; i++) {
        const struct guest_region *region = &memory->region[i];
        if (at.value < region->start.value)
            continue;
        uint64_t offset = at.value - region->start.value;
        if (offset < region->bytes && len > 0 && len <= region->bytes - offset)
            return (char *)region->host + offset;
    }
    return NULL;
}

const struct guest_region *guest_memory_regions(const struct guest_memory *memory, size_t *ret_count)
{
    *ret_count = memory->count;
    return memory->region;
}
