#include "vmm/snapshot/working_set.h"

#include "base/cleanup.h"
#include "vmm/snapshot/file.h"
#include "vmm/snapshot/pages.h"
#include "wire/vmstate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct recording {
    struct vmstate_range *ranges;
    size_t count;
    uint64_t pages;
};

// What does not fit is left out: the list helps, and nothing depends on it.
static int record_run(void *arg, const struct page_run *run)
{
    struct recording *rec = arg;
    if (run->kind == PAGE_ABSENT)
        return 0;
    if (rec->count == VMSTATE_RANGES_MAX || rec->pages == VMSTATE_WORKING_SET_PAGES)
        return 1;
    uint64_t room = VMSTATE_WORKING_SET_PAGES - rec->pages, pages = run->pages < room ? run->pages : room;
    rec->ranges[rec->count++] =
        (struct vmstate_range){.first = (uint32_t)run->first, .pages = (uint32_t)pages, .written = run->kind == PAGE_OWN};
    rec->pages += pages;
    return 0;
}

int working_set_record(const struct guest_memory *memory, int pagemap, int fd)
{
    cleanup_free struct vmstate_range *ranges = calloc(VMSTATE_RANGES_MAX, sizeof *ranges);
    cleanup_free struct vmstate *state = calloc(1, sizeof *state);
    if (ranges == NULL || state == NULL)
        return -ENOMEM;
    struct recording rec = {.ranges = ranges};
    int r = pages_walk(memory, pagemap, record_run, &rec);
    if (r < 0)
        return r;
    if (rec.count == 0)  // nothing ran yet
        return -ENODATA;
    vmstate_add(state, VMSTATE_WORKING_SET, 0, ranges, rec.count * sizeof *ranges);
    return snapshot_write_file(fd, state);
}

static void *host_of(const struct guest_memory *memory, uint64_t page, uint64_t pages)
{
    size_t count;
    const struct guest_region *regions = guest_memory_regions(memory, &count);
    uint64_t first = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t here = regions[i].bytes / PAGE_BYTES;
        if (page - first < here)
            return pages <= here - (page - first) ? (char *)regions[i].host + (page - first) * PAGE_BYTES : NULL;
        first += here;
    }
    return NULL;
}

// How much of `pages` may still be fetched, and takes it.
static uint64_t take(uint64_t *left, uint64_t pages)
{
    uint64_t n = pages < *left ? pages : *left;
    *left -= n;
    return n;
}

int working_set_prefetch(const struct guest_memory *memory, int fd, struct err *err)
{
    cleanup_free uint8_t *bytes = NULL;
    cleanup_free struct vmstate *state = calloc(1, sizeof *state);
    const struct vmstate_range *ranges;
    size_t count, n;
    if (state == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    int r = snapshot_read_file(fd, &bytes, &n, err);
    if (r == 0)
        r = vmstate_parse(bytes, n, state, err);
    if (r == 0)
        r = vmstate_working_set(state, guest_memory_bytes(memory) / PAGE_BYTES, &ranges, &count, err);
    uint64_t reads = PREFETCH_READ_PAGES, writes = PREFETCH_WRITE_PAGES;
    for (size_t i = 0; r == 0 && i < count; i++) {
        uint64_t pages = take(ranges[i].written != 0 ? &writes : &reads, ranges[i].pages);
        void *host = host_of(memory, ranges[i].first, ranges[i].pages);
        if (pages == 0 || host == NULL)  // of a list over the hole between regions, which none that was recorded is
            continue;
        if (madvise(host, pages * PAGE_BYTES, ranges[i].written != 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) < 0)
            r = err_set(err, -errno, "cannot fetch the working set: %s", strerror(errno));
    }
    return r;
}
