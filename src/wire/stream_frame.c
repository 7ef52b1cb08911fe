#include "wire/stream_frame.h"

#include <errno.h>
#include <stdbool.h>

static uint64_t big_endian(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | bytes[i];
    return value;
}

// Bytes of the number that a frame of this type holds, or 0.
static size_t number_size(enum stream_frame_type type)
{
    switch (type) {
    case FRAME_SIGNAL:
        return 1;
    case FRAME_STARTED:
    case FRAME_WINDOW:
        return 4;
    case FRAME_DROPPED:
        return 8;
    default:
        return 0;
    }
}

static bool length_fits(enum stream_frame_type type, size_t n)
{
    switch (type) {
    case FRAME_STDIN:
    case FRAME_STDOUT:
    case FRAME_STDERR:
        return n >= 1 && n <= STREAM_PAYLOAD_MAX;
    case FRAME_EXIT:
    case FRAME_ERROR:
        return n <= STREAM_PAYLOAD_MAX;
    case FRAME_STDIN_END:
    case FRAME_KILL:
        return n == 0;
    case FRAME_RESIZE:
        return n == 4;
    default:
        return n == number_size(type);
    }
}

static bool known(uint8_t type, enum stream_direction direction)
{
    return direction == STREAM_TO_AGENT ? type >= FRAME_STDIN && type <= FRAME_KILL
                                        : type >= FRAME_STDOUT && type <= FRAME_WINDOW;
}

int stream_frame_parse(const uint8_t *body, size_t len, enum stream_direction direction, struct stream_frame *ret_frame)
{
    if (len == 0 || !known(body[0], direction))
        return -EBADMSG;
    struct stream_frame f = {.type = (enum stream_frame_type)body[0], .payload = body + 1, .n = len - 1};
    if (!length_fits(f.type, f.n))
        return -EBADMSG;
    f.number = big_endian(f.payload, number_size(f.type));
    if (f.type == FRAME_RESIZE) {
        f.rows = (uint16_t)big_endian(f.payload, 2);
        f.cols = (uint16_t)big_endian(f.payload + 2, 2);
    }
    *ret_frame = f;
    return 0;
}

size_t stream_frame_put_number(enum stream_frame_type type, uint64_t number, uint8_t payload[STREAM_SMALL_MAX])
{
    size_t n = number_size(type);
    for (size_t i = 0; i < n && i < STREAM_SMALL_MAX; i++)
        payload[i] = (uint8_t)(number >> (8 * (n - 1 - i)));
    return n;
}

size_t stream_frame_put_size(uint16_t rows, uint16_t cols, uint8_t payload[STREAM_SMALL_MAX])
{
    payload[0] = (uint8_t)(rows >> 8);
    payload[1] = (uint8_t)rows;
    payload[2] = (uint8_t)(cols >> 8);
    payload[3] = (uint8_t)cols;
    return 4;
}
