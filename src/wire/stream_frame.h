// The frames of a stream line (proto/agent.proto, "Stream lines"): 1 byte of type and a payload, inside wire/frame.h's frames.
// Pure: no I/O, no allocation.
#ifndef WIRE_STREAM_FRAME_H
#define WIRE_STREAM_FRAME_H

#include "wire/limits.h"

#include <stddef.h>
#include <stdint.h>

enum stream_frame_type {
    // client -> agent
    FRAME_STDIN = 1,
    FRAME_STDIN_END = 2,
    FRAME_RESIZE = 3,
    FRAME_SIGNAL = 4,
    FRAME_KILL = 5,
    // agent -> client
    FRAME_STDOUT = 16,
    FRAME_STDERR = 17,
    FRAME_EXIT = 18,
    FRAME_STARTED = 19,
    FRAME_DROPPED = 20,
    FRAME_ERROR = 21,
    FRAME_WINDOW = 22,
};

enum stream_direction { STREAM_TO_AGENT, STREAM_TO_CLIENT };

enum { STREAM_FRAME_MAX = 1 + STREAM_PAYLOAD_MAX, STREAM_SMALL_MAX = 8 /* longest payload of numbers */ };

struct stream_frame {
    enum stream_frame_type type;
    const uint8_t *payload;  // STDIN, STDOUT, STDERR, EXIT and ERROR
    size_t n;
    uint64_t number;      // SIGNAL, STARTED, DROPPED, WINDOW
    uint16_t rows, cols;  // RESIZE
};

// The frame in `body`, whose payload it points into.  0; -EBADMSG: no type of this direction, or a payload of the wrong
// length (STDIN, STDOUT and STDERR hold 1 to STREAM_PAYLOAD_MAX bytes, EXIT and ERROR at most as many).
int stream_frame_parse(const uint8_t *body, size_t len, enum stream_direction direction, struct stream_frame *ret_frame);

// The payload of a frame of numbers (SIGNAL, STARTED, DROPPED, WINDOW), and of RESIZE.  Its length.
size_t stream_frame_put_number(enum stream_frame_type type, uint64_t number, uint8_t payload[STREAM_SMALL_MAX]);
size_t stream_frame_put_size(uint16_t rows, uint16_t cols, uint8_t payload[STREAM_SMALL_MAX]);

#endif
