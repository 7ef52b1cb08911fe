#include "base/base64.h"

#include <errno.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *bytes, size_t n, char *text)
{
    const uint8_t *in = bytes;
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t bits = (uint32_t)in[i] << 16 | (have > 1 ? (uint32_t)in[i + 1] << 8 : 0) | (have > 2 ? in[i + 2] : 0);
        *text++ = alphabet[bits >> 18];
        *text++ = alphabet[bits >> 12 & 63];
        *text++ = '=';
        *text++ = '=';
        if (have > 1)
            text[-2] = alphabet[bits >> 6 & 63];
        if (have > 2)
            text[-1] = alphabet[bits & 63];
    }
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int base64_decode(const char *text, size_t n, uint8_t *bytes, size_t *ret_len)
{
    if (n % 4 != 0)
        return -EINVAL;
    size_t pad = n > 0 && text[n - 1] == '=' ? 1 + (text[n - 2] == '=') : 0, len = 0;
    for (size_t i = 0; i < n; i += 4) {
        size_t have = i + 4 == n ? 4 - pad : 4;
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = k < have ? value_of(text[i + k]) : 0;
            if (value < 0)
                return -EINVAL;
            bits = bits << 6 | (uint32_t)value;
        }
        if ((have == 3 && (bits & 0xFF) != 0) || (have == 2 && (bits & 0xFFFF) != 0))
            return -EINVAL;
        for (size_t k = 0; k + 1 < have; k++)
            bytes[len++] = (uint8_t)(bits >> (16 - 8 * k));
    }
    *ret_len = len;
    return 0;
}
