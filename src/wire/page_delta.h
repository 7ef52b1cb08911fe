// A file with some of a machine's pages: what a snapshot's memory differs by from that of the template below it.
//
//     [0, M)            the memory, page by page where it has its place; what is not listed is a hole, or means nothing
//     [M, M + M/32768)  the list: a bit for each page, lowest first, set for those that are in the file
//
// M is the memory's size, a multiple of 2 MiB, so that the list is whole words.  The list says what holes cannot: a page of
// zeros that was written is listed, and takes no room; and a host's file system may know only holes larger than a page.
// Trust: a monitor wrote it, which a guest may have taken over.  Every list is a valid one, and so is every page.
#ifndef WIRE_PAGE_DELTA_H
#define WIRE_PAGE_DELTA_H

#include <stdbool.h>
#include <stdint.h>

enum { PAGE_DELTA_PAGE = 4096, PAGE_DELTA_STEP = 2 * 1024 * 1024 };

// Of the list, for a memory of `memory_bytes`.
static inline uint64_t page_delta_list_bytes(uint64_t memory_bytes)
{
    return memory_bytes / PAGE_DELTA_PAGE / 8;
}

static inline uint64_t page_delta_file_bytes(uint64_t memory_bytes)
{
    return memory_bytes + page_delta_list_bytes(memory_bytes);
}

static inline bool page_delta_has(const uint8_t *list, uint64_t page)
{
    return (list[page / 8] >> (page % 8) & 1) != 0;
}

// [page, page + pages)
static inline void page_delta_add(uint8_t *list, uint64_t page, uint64_t pages)
{
    for (; pages > 0; page++, pages--)
        list[page / 8] |= (uint8_t)(1U << (page % 8));
}

// The end of the run of pages from `page` on that are all in the file or all not, at most `end`.
static inline uint64_t page_delta_run_end(const uint8_t *list, uint64_t page, uint64_t end)
{
    bool first = page_delta_has(list, page);
    for (page++; page < end && page_delta_has(list, page) == first; page++)
        ;
    return page;
}

#endif
