// The guest's RAM, and the only place where a guest physical address becomes a pointer.
//
// RAM starts at address 0; what does not fit below the hole (3 GiB, where devices and the interrupt controllers are) goes on
// at 4 GiB.  Each region is one private mapping with an inaccessible page on either side.  Guest addresses are a type that
// cannot be dereferenced, and are only ever translated together with a length: a buffer that leaves its region, wraps, or
// lies in the hole has no pointer at all.
//
// Everything here may be called from any thread: the layout never changes after guest_memory_new.
#ifndef VMM_MEM_GUEST_MEMORY_H
#define VMM_MEM_GUEST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A guest physical address.
typedef struct {
    uint64_t value;
} gpa_t;

#define GUEST_HOLE_START UINT64_C(0xc0000000)
#define GUEST_HOLE_END UINT64_C(0x100000000)
#define GUEST_MEMORY_MIN (UINT64_C(128) << 20)
#define GUEST_MEMORY_MAX (UINT64_C(64) << 30)
#define GUEST_MEMORY_STEP (UINT64_C(2) << 20)
enum { GUEST_REGIONS_MAX = 2 };

struct guest_memory;

struct guest_region {
    gpa_t start;
    uint64_t bytes;
    void *host;  // the mapping, page aligned
};

static inline gpa_t gpa(uint64_t value)
{
    return (gpa_t){value};
}

// RAM of `bytes`, all zero, nothing of it touched yet.  0; -EINVAL when `bytes` is not a multiple of GUEST_MEMORY_STEP from
// GUEST_MEMORY_MIN to GUEST_MEMORY_MAX; -ENOMEM.
int guest_memory_new(size_t bytes, struct guest_memory **ret_memory);
// RAM with the bytes of a snapshot's memory file, which holds the regions one after the other: private, so that what the guest
// writes is its own and the rest is shared by all clones.  `fd` stays the caller's and may be closed; the file must never
// change or shrink again (a sealed memfd, or a file nobody writes).  As guest_memory_new; -EBADMSG when the file's size is not
// `bytes`, or it is a memfd that is not sealed.
int guest_memory_map(size_t bytes, int fd, struct guest_memory **ret_memory);
// NULL is fine; returns NULL.
struct guest_memory *guest_memory_free(struct guest_memory *memory);

// The bytes [at, at + len), or NULL unless they lie wholly in one region.  `len` 0 gives NULL.
void *guest_memory_at(const struct guest_memory *memory, gpa_t at, size_t len);

// All of it.
uint64_t guest_memory_bytes(const struct guest_memory *memory);
// Whether it began as a snapshot's file.
bool guest_memory_is_mapped(const struct guest_memory *memory);

// The regions, lowest first; they live as long as `memory`.
const struct guest_region *guest_memory_regions(const struct guest_memory *memory, size_t *ret_count);

#endif
