// Numbers from text, whole or not at all.
#ifndef BASE_NUM_H
#define BASE_NUM_H

#include <stdint.h>

// Decimal digits only (no sign, space or prefix), least <= value <= most.
// 0, -EINVAL (not a number) or -ERANGE; *ret_value is untouched on failure.
int parse_u64(const char *text, uint64_t least, uint64_t most, uint64_t *ret_value);

#endif
