#include "base/num.h"

#include <errno.h>

int parse_u64(const char *text, uint64_t least, uint64_t most, uint64_t *ret_value)
{
    if (*text == '\0')
        return -EINVAL;
    uint64_t value = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9')
            return -EINVAL;
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value))
            return -ERANGE;
    }
    if (value < least || value > most)
        return -ERANGE;
    *ret_value = value;
    return 0;
}
