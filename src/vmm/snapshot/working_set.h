// The pages a clone of a snapshot needs first: recorded once, on a clone that did what all clones do, and fetched ahead for
// those that come after, because taking them one by one is what a restore really costs.
//
// The list (wire/vmstate.h) says read or written.  A page that will only be read is mapped; one that will be written is copied,
// as the guest's first write would have done.  Both are bounded: a list is advice, and memory of a machine that waits for its
// claim is memory.
#ifndef VMM_SNAPSHOT_WORKING_SET_H
#define VMM_SNAPSHOT_WORKING_SET_H

#include "base/err.h"
#include "vmm/mem/guest_memory.h"

enum {
    PREFETCH_READ_PAGES = 32 * 256,  // mapped ahead at most: 32 MiB
    PREFETCH_WRITE_PAGES = 2 * 256,  // copied ahead at most: 2 MiB
};

// What is present now, to `fd`, an empty file.  0 or a negative errno.
int working_set_record(const struct guest_memory *memory, int pagemap, int fd);

// Fetches what the file `fd` lists.  0; -EBADMSG for a file that is no list for this memory; or a negative errno; with a
// sentence in *err.
int working_set_prefetch(const struct guest_memory *memory, int fd, struct err *err);

#endif
