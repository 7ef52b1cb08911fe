// Base64 (RFC 4648, 4), with padding and nothing else between.  Pure.
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

// Characters for `n` bytes.
static inline size_t base64_length(size_t n)
{
    return (n + 2) / 3 * 4;
}

// Writes base64_length(n) characters, without a terminator.
void base64_encode(const void *bytes, size_t n, char *text);

// Writes at most n / 4 * 3 bytes.  0 with *ret_len, or -EINVAL: a strange character, a length that is no multiple of 4, padding
// that is not at the end, or bits that stand for nothing.
int base64_decode(const char *text, size_t n, uint8_t *bytes, size_t *ret_len);

#endif
