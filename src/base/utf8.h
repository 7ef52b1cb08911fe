// UTF-8, strictly (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Bytes in the character that starts at `s` (1 to 4), or 0 if the bytes there are not one, or are cut off.
size_t utf8_width(const uint8_t *s, size_t n);

// Whether all `n` bytes are UTF-8.
bool utf8_valid(const uint8_t *s, size_t n);

#endif
