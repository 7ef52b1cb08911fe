#include "vmm/snapshot/pages.h"

#include "base/cleanup.h"
#include "wire/page_delta.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENTRIES = 4096, PIECE_PAGES = 256 };  // read and written at once

// Documentation/admin-guide/mm/pagemap.rst
#define PM_PRESENT (UINT64_C(1) << 63)
#define PM_SWAPPED (UINT64_C(1) << 62)
#define PM_FILE (UINT64_C(1) << 61)
#define PM_EXCLUSIVE (UINT64_C(1) << 56)

static enum page_kind kind_of(uint64_t entry)
{
    if ((entry & (PM_PRESENT | PM_SWAPPED)) == 0)
        return PAGE_ABSENT;
    if ((entry & PM_FILE) != 0)
        return PAGE_SHARED;
    return (entry & (PM_SWAPPED | PM_EXCLUSIVE)) != 0 ? PAGE_OWN : PAGE_COMMON;
}

static int read_entries(int pagemap, const void *host, uint64_t *entries, size_t count)
{
    off_t at = (off_t)((uintptr_t)host / PAGE_BYTES * sizeof *entries);
    for (size_t done = 0, n = count * sizeof *entries; done < n;) {
        ssize_t r = pread(pagemap, (uint8_t *)entries + done, n - done, at + (off_t)done);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

struct walk {
    page_run_fn *fn;
    void *arg;
    struct page_run run;  // being gathered; 0 pages: none
};

static int end_run(struct walk *w)
{
    int r = w->run.pages > 0 ? w->fn(w->arg, &w->run) : 0;
    w->run.pages = 0;
    return r;
}

static int take_page(struct walk *w, uint64_t number, const uint8_t *host, enum page_kind kind)
{
    if (w->run.pages > 0 && w->run.kind == kind) {
        w->run.pages++;
        return 0;
    }
    int r = end_run(w);
    w->run = (struct page_run){.first = number, .pages = 1, .kind = kind, .host = host};
    return r;
}

static int walk_region(struct walk *w, const struct guest_region *region, uint64_t first, int pagemap)
{
    uint64_t entries[ENTRIES], pages = region->bytes / PAGE_BYTES;
    for (uint64_t at = 0; at < pages; at += ENTRIES) {
        size_t n = pages - at < ENTRIES ? (size_t)(pages - at) : ENTRIES;
        const uint8_t *host = (const uint8_t *)region->host + at * PAGE_BYTES;
        int r = read_entries(pagemap, host, entries, n);
        for (size_t i = 0; r == 0 && i < n; i++)
            r = take_page(w, first + at + i, host + i * PAGE_BYTES, kind_of(entries[i]));
        if (r != 0)
            return r;
    }
    return end_run(w);
}

int pages_walk(const struct guest_memory *memory, int pagemap, page_run_fn *fn, void *arg)
{
    struct walk w = {.fn = fn, .arg = arg};
    size_t count;
    const struct guest_region *regions = guest_memory_regions(memory, &count);
    uint64_t first = 0;
    for (size_t i = 0; i < count; i++) {
        int r = walk_region(&w, &regions[i], first, pagemap);
        if (r != 0)
            return r;
        first += regions[i].bytes / PAGE_BYTES;
    }
    return 0;
}

static int count_run(void *arg, const struct page_run *run)
{
    struct page_counts *counts = arg;
    if (run->kind != PAGE_ABSENT)
        counts->present += run->pages;
    if (run->kind == PAGE_OWN)
        counts->own += run->pages;
    return 0;
}

int pages_count(const struct guest_memory *memory, int pagemap, struct page_counts *ret_counts)
{
    struct page_counts counts = {0};
    int r = pages_walk(memory, pagemap, count_run, &counts);
    if (r == 0)
        *ret_counts = counts;
    return r;
}

// ---- writing ----

struct writer {
    int fd;
    bool absent_is_zero;  // memory that began empty
};

static bool is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, PAGE_BYTES - 1) == 0;
}

static int write_fully(int fd, const uint8_t *bytes, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pwrite(fd, bytes + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

// All of the run but its pages of zeros, which become holes.
static int write_pages(int fd, const struct page_run *run)
{
    for (uint64_t at = 0; at < run->pages;) {
        while (at < run->pages && is_zero(run->host + at * PAGE_BYTES))
            at++;
        uint64_t end = at;
        while (end < run->pages && end - at < PIECE_PAGES && !is_zero(run->host + end * PAGE_BYTES))
            end++;
        int r = write_fully(fd, run->host + at * PAGE_BYTES, (size_t)(end - at) * PAGE_BYTES, (run->first + at) * PAGE_BYTES);
        if (r < 0)
            return r;
        at = end;
    }
    return 0;
}

static int write_run(void *arg, const struct page_run *run)
{
    const struct writer *w = arg;
    return run->kind == PAGE_ABSENT && w->absent_is_zero ? 0 : write_pages(w->fd, run);
}

int pages_write(const struct guest_memory *memory, int pagemap, int fd)
{
    const struct writer w = {.fd = fd, .absent_is_zero = !guest_memory_is_mapped(memory)};
    if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)guest_memory_bytes(memory)) < 0)
        return -errno;
    return pages_walk(memory, pagemap, write_run, (void *)&w);
}

struct own_writer {
    int fd;
    bool absent_is_zero;
    uint8_t *list;
};

static int list_run(const struct own_writer *w, const struct page_run *run)
{
    page_delta_add(w->list, run->first, run->pages);
    return write_pages(w->fd, run);
}

// Memory that began empty has the kernel's page of zeros where it was only read.  In a snapshot's it may be what was written
// over something else, and is listed, which costs nothing.
static int list_common(const struct own_writer *w, const struct page_run *run)
{
    int r = 0;
    for (uint64_t i = 0; r == 0 && i < run->pages; i++) {
        const struct page_run page = {.first = run->first + i, .pages = 1, .host = run->host + i * PAGE_BYTES};
        if (!w->absent_is_zero || !is_zero(page.host))
            r = list_run(w, &page);
    }
    return r;
}

static int write_own_run(void *arg, const struct page_run *run)
{
    const struct own_writer *w = arg;
    return run->kind == PAGE_OWN ? list_run(w, run) : run->kind == PAGE_COMMON ? list_common(w, run) : 0;
}

_Static_assert((int)PAGE_BYTES == (int)PAGE_DELTA_PAGE, "pages");

int pages_write_own(const struct guest_memory *memory, int pagemap, int fd)
{
    uint64_t bytes = guest_memory_bytes(memory);
    cleanup_free uint8_t *list = calloc(1, page_delta_list_bytes(bytes));
    if (list == NULL)
        return -ENOMEM;
    if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    struct own_writer w = {.fd = fd, .absent_is_zero = !guest_memory_is_mapped(memory), .list = list};
    int r = pages_walk(memory, pagemap, write_own_run, &w);
    return r == 0 ? write_fully(fd, list, page_delta_list_bytes(bytes), bytes) : r;
}
