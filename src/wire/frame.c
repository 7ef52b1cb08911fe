#include "wire/frame.h"

#include <errno.h>

int frame_find(const uint8_t *bytes, size_t n, size_t max, const uint8_t **ret_body, size_t *ret_len)
{
    if (n < FRAME_HEAD)
        return 0;
    uint32_t len = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    if (len > max)
        return -EMSGSIZE;
    if (n - FRAME_HEAD < len)
        return 0;
    *ret_body = bytes + FRAME_HEAD;
    *ret_len = len;
    return 1;
}

void frame_put_head(uint8_t head[FRAME_HEAD], uint32_t len)
{
    head[0] = (uint8_t)(len >> 24);
    head[1] = (uint8_t)(len >> 16);
    head[2] = (uint8_t)(len >> 8);
    head[3] = (uint8_t)len;
}
