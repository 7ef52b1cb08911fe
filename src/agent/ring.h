// The last bytes of an output.  Every byte has an offset, counted from the first that was ever written.
#ifndef AGENT_RING_H
#define AGENT_RING_H

#include <stddef.h>
#include <stdint.h>

// What all rings together may take; shared by them.
struct ring_budget {
    int64_t left;  // below 0 by what RING_SIZE_MIN took beyond it
};

struct ring {
    uint8_t *data;
    size_t size, max;  // allocated; it grows as it fills, while the budget lasts
    size_t len;        // bytes that are kept
    uint64_t end;      // offset behind the last one
    struct ring_budget *budget;
};

enum { RING_SIZE_MIN = 4096 };  // a ring gets this much whatever the budget says

#define RING_INIT(most, from) ((struct ring){.max = (most), .budget = (from)})

void ring_write(struct ring *r, const uint8_t *bytes, size_t n);
static inline uint64_t ring_start(const struct ring *r)
{
    return r->end - r->len;
}
// Bytes from offset `at` (ring_start <= at <= end) that lie in one piece; how many.
size_t ring_peek(const struct ring *r, uint64_t at, const uint8_t **ret_bytes);
// Forgets the bytes, not the offsets.
void ring_free(struct ring *r);

#endif
