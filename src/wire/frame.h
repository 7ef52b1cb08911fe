// Length-prefixed frames: a 4-byte big-endian length, then that many bytes.  Pure: no I/O, no allocation.
#ifndef WIRE_FRAME_H
#define WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEAD = 4 };

// Looks for one whole frame at the start of `bytes`.
// 1: *ret_body and *ret_len are its contents, inside `bytes`; the frame took FRAME_HEAD + *ret_len bytes.
// 0: more bytes are needed (the length alone is enough to be refused).
// -EMSGSIZE: it is longer than `max`.  Outputs are untouched unless 1 is returned.
int frame_find(const uint8_t *bytes, size_t n, size_t max, const uint8_t **ret_body, size_t *ret_len);

void frame_put_head(uint8_t head[FRAME_HEAD], uint32_t len);

#endif
