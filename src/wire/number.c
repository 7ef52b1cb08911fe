#include "wire/number.h"

#include <string.h>

void number_take_bytes(struct number_reader *r, void *out, size_t n)
{
    if (r->failed || n > r->left) {
        r->failed = true;
        memset(out, 0, n);
        return;
    }
    memcpy(out, r->at, n);
    r->at += n;
    r->left -= n;
}

uint64_t number_take(struct number_reader *r, size_t width)
{
    uint8_t bytes[8];
    number_take_bytes(r, bytes, width);
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++)
        value = value << 8 | bytes[i];
    return value;
}

void number_put(struct buf *out, uint64_t value, size_t width)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    buf_append(out, bytes, width);
}
