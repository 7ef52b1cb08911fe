// Which pages of the guest's memory there are, by the monitor's own page map (/proc/self/pagemap): exact, also where the host
// swaps, and free of any logging while the guest runs.
//
// A page of a private mapping of a snapshot's file is either the file's (read at most, shared by all clones) or the guest's own
// (written).  Memory that began empty has only pages of its own.  Either may have pages that are nobody's alone, without being
// a file's: the kernel's page of zeros, where nothing was written, and pages that the kernel found alike (KSM), which were.
#ifndef VMM_SNAPSHOT_PAGES_H
#define VMM_SNAPSHOT_PAGES_H

#include "vmm/mem/guest_memory.h"

#include <stdbool.h>

enum { PAGE_BYTES = 4096 };

enum page_kind { PAGE_ABSENT, PAGE_SHARED, PAGE_COMMON, PAGE_OWN };

// A run of pages of one kind, inside one region; `first` counts from the start of the memory file.
struct page_run {
    uint64_t first, pages;
    enum page_kind kind;
    const uint8_t *host;
};
// 0 to go on; anything else ends the walk.
typedef int page_run_fn(void *arg, const struct page_run *run);

// All runs, absent ones too, in order.  0, what `fn` gave, or a negative errno.
int pages_walk(const struct guest_memory *memory, int pagemap, page_run_fn *fn, void *arg);

struct page_counts {
    uint64_t present, own;
};
int pages_count(const struct guest_memory *memory, int pagemap, struct page_counts *ret_counts);

// Writes the memory to `fd`, an empty file: as long as the memory, with zero pages as holes.  `pagemap` says which pages need
// not be looked at; where the memory is a snapshot's itself, what it shares with that is written, too.  0 or a negative errno.
int pages_write(const struct guest_memory *memory, int pagemap, int fd);

// Writes the pages that this machine has written since it began, and the list of them (wire/page_delta.h), to `fd`, an empty
// file.  Memory that began empty began with zeros.  0 or a negative errno.
int pages_write_own(const struct guest_memory *memory, int pagemap, int fd);

#endif
