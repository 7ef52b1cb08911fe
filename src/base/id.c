#include "base/id.h"

#include <errno.h>
#include <sys/random.h>

int random_bytes(void *bytes, size_t n)
{
    uint8_t *at = bytes;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

void hex_encode(const void *bytes, size_t n, char *text)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[b[i] >> 4];
        text[2 * i + 1] = digits[b[i] & 15];
    }
    text[2 * n] = '\0';
}

int random_hex(char *text, size_t digits)
{
    uint8_t bytes[64];
    if (digits % 2 != 0 || digits / 2 > sizeof bytes)
        return -EINVAL;
    int r = random_bytes(bytes, digits / 2);
    if (r < 0)
        return r;
    hex_encode(bytes, digits / 2, text);
    return 0;
}
