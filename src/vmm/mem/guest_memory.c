#include "vmm/mem/guest_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    GUARD_BYTES = 4096,
    HUGE_BYTES = 2 * 1024 * 1024,
    SMALL_HOLE = 32 * 1024,  // of a file: not worth a mapping of its own
    DATA_MAPS_MAX = 8192,    // in a region; the rest of one with more is mapped as if it had no holes
};

struct guest_memory {
    bool mapped;
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

// The next bytes of the file in [*from, end), with the small holes between them; false: there are none.
static bool next_data(int fd, uint64_t end, uint64_t *from, uint64_t *to)
{
    off_t data = lseek(fd, (off_t)*from, SEEK_DATA);
    if (data < 0 && errno != ENXIO)  // it cannot tell: all of it
        data = (off_t)*from;
    if (data < 0 || (uint64_t)data >= end)
        return false;
    *from = (uint64_t)data;
    off_t hole = data;
    do {
        hole = lseek(fd, data, SEEK_HOLE);
        if (hole < 0 || (uint64_t)hole >= end)
            break;
        data = lseek(fd, hole, SEEK_DATA);
    } while (data >= 0 && data - hole <= SMALL_HOLE);
    *to = hole < 0 || (uint64_t)hole > end ? end : (uint64_t)hole;
    return true;
}

// What the file has, over memory that is the process's own.  Its holes are left out: a page of a hole that somebody touches
// becomes one of the file, for good and at the expense of whoever was first, and what is written then is a second one.
static int map_data(char *host, size_t bytes, int fd, uint64_t offset)
{
    uint64_t end = offset + bytes, from = offset, to;
    for (unsigned n = 1; next_data(fd, end, &from, &to); n++) {
        if (n == DATA_MAPS_MAX)
            to = end;
        if (mmap(host + (from - offset), (size_t)(to - from), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
                 fd, (off_t)from) == MAP_FAILED)
            return -errno;
        from = to;
    }
    return 0;
}

// A private mapping of the file `fd` from `offset` on, or of nothing (-1).  KVM can use a huge page only where guest and host
// addresses agree in their lower bits; where the host gives some, a machine that boots faults five hundred times less.
static int map_region(size_t bytes, int fd, uint64_t offset, void **ret_host)
{
    char *host = reserve(bytes);
    if (host == NULL)
        return -errno;
    int r = mprotect(host, bytes, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
    // A host that has no huge pages gives small ones.  A clone's own pages are few, and not side by side.
    madvise(host, bytes, fd < 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (r == 0 && fd >= 0)
        r = map_data(host, bytes, fd, offset);
    if (r < 0) {
        munmap(host - GUARD_BYTES, bytes + (size_t)2 * GUARD_BYTES);
        return r;
    }
    *ret_host = host;
    return 0;
}

static int add_region(struct guest_memory *memory, uint64_t start, uint64_t bytes, int fd)
{
    struct guest_region *region = &memory->region[memory->count];
    void *host = NULL;
    uint64_t offset = memory->count > 0 ? memory->region[0].bytes : 0;
    int r = map_region(bytes, fd, offset, &host);
    if (r < 0)
        return r;
    *region = (struct guest_region){.start = {start}, .bytes = bytes, .host = host};
    memory->count++;
    return 0;
}

static int new_memory(size_t bytes, int fd, struct guest_memory **ret_memory)
{
    if (bytes < GUEST_MEMORY_MIN || bytes > GUEST_MEMORY_MAX || bytes % GUEST_MEMORY_STEP != 0)
        return -EINVAL;
    struct guest_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return -ENOMEM;
    memory->mapped = fd >= 0;
    uint64_t low = bytes < GUEST_HOLE_START ? bytes : GUEST_HOLE_START;
    int r = add_region(memory, 0, low, fd);
    if (r == 0 && bytes > low)
        r = add_region(memory, GUEST_HOLE_END, bytes - low, fd);
    if (r < 0) {
        guest_memory_free(memory);
        return r;
    }
    *ret_memory = memory;
    return 0;
}

int guest_memory_new(size_t bytes, struct guest_memory **ret_memory)
{
    return new_memory(bytes, -1, ret_memory);
}

// A file has no seals to ask for.
static bool may_change(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS), all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    return seals >= 0 && (seals & all) != all;
}

int guest_memory_map(size_t bytes, int fd, struct guest_memory **ret_memory)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes || may_change(fd))
        return -EBADMSG;
    return new_memory(bytes, fd, ret_memory);
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

uint64_t guest_memory_bytes(const struct guest_memory *memory)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < memory->count; i++)
        bytes += memory->region[i].bytes;
    return bytes;
}

bool guest_memory_is_mapped(const struct guest_memory *memory)
{
    return memory->mapped;
}
