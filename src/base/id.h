// Random names.
#ifndef BASE_ID_H
#define BASE_ID_H

#include <stddef.h>
#include <stdint.h>

// Fills `bytes` from the kernel's random source.  0 or a negative errno.
int random_bytes(void *bytes, size_t n);

// 2*n lower-case hex digits and a NUL for `n` bytes; `text` has room for 2*n+1.
void hex_encode(const void *bytes, size_t n, char *text);

// Random lower-case hex text of `digits` digits (even, at most 128) and a NUL.
int random_hex(char *text, size_t digits);

#endif
