#include "agent/ring.h"

#include <stdlib.h>
#include <string.h>

size_t ring_peek(const struct ring *r, uint64_t at, const uint8_t **ret_bytes)
{
    size_t n = (size_t)(r->end - at);
    if (n == 0)
        return 0;
    size_t place = (size_t)(at % r->size);
    *ret_bytes = r->data + place;
    return n < r->size - place ? n : r->size - place;
}

// Puts bytes where their offsets say; they fit.
static void put(uint8_t *data, size_t size, uint64_t at, const uint8_t *bytes, size_t n)
{
    size_t place = (size_t)(at % size);
    size_t first = n < size - place ? n : size - place;
    memcpy(data + place, bytes, first);
    memcpy(data, bytes + first, n - first);
}

// A larger place for what is kept, if there can be one.
static void grow(struct ring *r, size_t wanted)
{
    size_t size = r->size > 0 ? r->size : RING_SIZE_MIN;
    // The first piece is small in any case; more of it while the budget lasts.
    while (size < wanted && size < r->max && (r->size > 0 || (int64_t)size * 2 <= r->budget->left))
        size *= 2;
    if (size > r->max)
        size = r->max;
    size_t more = size > r->size ? size - r->size : 0;
    if (r->size > 0 && (int64_t)more > r->budget->left)
        return;
    uint8_t *data = more > 0 ? malloc(size) : NULL;
    if (data == NULL)
        return;
    const uint8_t *piece;
    for (uint64_t at = ring_start(r); at < r->end;) {
        size_t n = ring_peek(r, at, &piece);
        put(data, size, at, piece, n);
        at += n;
    }
    r->budget->left -= (int64_t)more;
    free(r->data);
    r->data = data;
    r->size = size;
}

void ring_write(struct ring *r, const uint8_t *bytes, size_t n)
{
    if (r->len + n > r->size)
        grow(r, r->len + n);
    size_t kept = n < r->size ? n : r->size;
    if (kept > 0)
        put(r->data, r->size, r->end + (n - kept), bytes + (n - kept), kept);
    r->end += n;
    r->len = r->len + n < r->size ? r->len + n : r->size;
}

void ring_free(struct ring *r)
{
    free(r->data);
    r->budget->left += (int64_t)r->size;
    r->data = NULL;
    r->size = r->len = 0;
}
