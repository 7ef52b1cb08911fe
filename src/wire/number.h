// Numbers and bytes of our own file formats: big-endian, of fixed width.
#ifndef WIRE_NUMBER_H
#define WIRE_NUMBER_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What is left to read.  `failed` is sticky and reads then give zeros, so that a parser may look once for a whole record.
struct number_reader {
    const uint8_t *at;
    size_t left;
    bool failed;
};

void number_take_bytes(struct number_reader *r, void *out, size_t n);
// `width`: 1 to 8 bytes.
uint64_t number_take(struct number_reader *r, size_t width);
// Appends; the buffer's error is sticky.
void number_put(struct buf *out, uint64_t value, size_t width);

#endif
