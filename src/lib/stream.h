// One stream: frames on a descriptor whose other end the sandbox's agent holds (proto/agent.proto, "Stream lines").
//
// Trust: as guest.h; every frame is hostile until it has been checked here.  Memory does not depend on what comes: one frame at
// a time, and nothing more is read before the caller has had it.
//
// States: open -> over (the last frame came, or the stream failed; each read says so again).
// Locks: `send_lock` makes a frame whole on the socket.  Reading is for one thread at a time.
#ifndef LIB_STREAM_H
#define LIB_STREAM_H

#include "lib/guest.h"
#include "wire/stream_frame.h"

#include <pthread.h>
#include <stdatomic.h>

// What the operation's result, in the last frame, is turned into.
typedef sandbox_error_t stream_result_fn(sandbox_stream_t *stream, const Sandbox__Guest__Result *result);

struct sandbox_stream_t {
    int fd;
    uint32_t isolation, grant_id;  // as the engine said
    Sandbox__StreamRequest__OpCase op;
    stream_result_fn *take_result;
    pthread_mutex_t send_lock;
    atomic_size_t window;  // bytes of stdin that may be sent
    atomic_bool send_failed;
    atomic_bool stdin_closed;

    uint32_t process;    // of a Spawn, when it has started
    unsigned head_left;  // of a described file: bytes of STREAM_FILE_HEAD still to come
    uint64_t head[2];    // its size, and where reading begins
    size_t rest;         // bytes of an output frame that sandbox_stream_splice has begun
    bool over;
    struct {
        sandbox_error_t code;
        char text[256];
    } end;  // of a stream that failed
    sandbox_exec_result_t result;
    sandbox_transfer_t transfer;

    size_t in_len, in_used;
    uint8_t in[FRAME_HEAD + STREAM_FRAME_MAX];
};

// Asks the engine for a stream (`op` with op_case set; its sandbox_id is set here).
sandbox_error_t stream_start(sandbox_handle_t *handle, Sandbox__StreamRequest *op, stream_result_fn *take_result,
                             sandbox_stream_t **ret_stream);
// The result of a command.
sandbox_error_t stream_take_exec_result(sandbox_stream_t *stream, const Sandbox__Guest__Result *result);
// Sends one whole frame, waiting at most SEND_WAIT_MS for room.  GUEST_UNAVAILABLE.
sandbox_error_t stream_send_frame(sandbox_stream_t *stream, enum stream_frame_type type, const void *payload, size_t n);

enum { SEND_WAIT_MS = 10000, STREAM_FILE_HEAD = 16 };

#define DEFINE_STREAM(name, kind, member, part)                                                                                \
    Sandbox__StreamRequest name = SANDBOX__STREAM_REQUEST__INIT;                                                               \
    name.op_case = SANDBOX__STREAM_REQUEST__OP_##kind;                                                                         \
    name.member = (part)

#endif
