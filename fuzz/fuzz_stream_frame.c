// Frames of stream lines, as an agent reads a client's and a client an agent's.
#include "wire/stream_frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *data, size_t size, enum stream_direction direction)
{
    struct stream_frame f;
    if (stream_frame_parse(data, size, direction, &f) < 0)
        return;
    if (f.payload != data + 1 || f.n != size - 1 || f.n > STREAM_PAYLOAD_MAX)
        abort();
    uint8_t again[STREAM_SMALL_MAX];
    size_t n = f.type == FRAME_RESIZE ? stream_frame_put_size(f.rows, f.cols, again)
                                      : stream_frame_put_number(f.type, f.number, again);
    if (n > 0 && (n != f.n || memcmp(again, f.payload, n) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size, STREAM_TO_AGENT);
    check(data, size, STREAM_TO_CLIENT);
    return 0;
}
