// wire/frame: whatever the bytes, a frame found lies inside them and is no longer than was allowed.
#include "wire/frame.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SMALL = 64, LARGE = 64 * 1024 };

static void check(const uint8_t *data, size_t size, size_t max)
{
    const uint8_t *body = NULL;
    size_t len = 0;
    int r = frame_find(data, size, max, &body, &len);
    if (r != 1) {
        if (body != NULL || len != 0)
            abort();
        return;
    }
    uint8_t head[FRAME_HEAD];
    frame_put_head(head, (uint32_t)len);
    if (len > max || body != data + FRAME_HEAD || len > size - FRAME_HEAD)
        abort();
    for (size_t i = 0; i < FRAME_HEAD; i++)
        if (head[i] != data[i])
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size, SMALL);
    check(data, size, LARGE);
    return 0;
}
