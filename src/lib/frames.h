// A request as the frames that carry it: one; or, for an exec whose standard input does not fit in with the rest, several that
// are sent without anything in between (proto/sandbox.proto, GuestInput).  Pure.
#ifndef LIB_FRAMES_H
#define LIB_FRAMES_H

#include "base/buf.h"
#include "sandbox.pb-c.h"
#include "wire/frame.h"
#include "wire/limits.h"

enum {
    // What a GuestInput takes beside the bytes in it, at most.
    GUEST_INPUT_ENVELOPE_MAX = 64,
    GUEST_INPUT_BYTES_MAX = IPC_FRAME_MAX - GUEST_INPUT_ENVELOPE_MAX,
    // The request's frame, and two for the input if the request has no room for any.
    REQUEST_FRAMES_MAX = 3 * FRAME_HEAD + IPC_FRAME_MAX + EXEC_STDIN_MAX + 2 * GUEST_INPUT_ENVELOPE_MAX,
};

// 0, -EMSGSIZE when what cannot be split does not fit one frame, or -ENOMEM.  `request` is as before afterwards.
int append_request_frames(struct buf *out, Sandbox__ClientMessage *request);

#endif
