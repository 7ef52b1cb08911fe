// A non-blocking stream of frames on the event loop: whole frames in, queued bytes out, both with ceilings.
//
// The owner gets each frame in order; `on_end` is called once, when the peer is gone (0), broke the framing (-EMSGSIZE) or
// the socket failed (negative errno).  After on_end nothing more is called.  The owner may call stream_free from either
// callback.  Back-pressure: stream_hold(true) stops reading until stream_hold(false).
#ifndef SYS_STREAM_H
#define SYS_STREAM_H

#include "sys/loop.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STREAM_FDS_MAX = 16 };

struct stream;

struct stream_handler {
    // `body` is valid during the call only.
    void (*on_frame)(void *arg, const uint8_t *body, size_t len);
    void (*on_end)(void *arg, int reason);
    // Optional.  A frame is longer than frame_max: called once, in place of on_end(-EMSGSIZE).  Everything that still comes
    // is thrown away, but sending goes on, so that the peer can be told why; on_end follows when the peer goes.
    void (*on_oversize)(void *arg);
    // Optional.  What was queued has been taken by the socket; not called from inside a send.
    void (*on_drained)(void *arg);
    // Optional.  The peer has shut down its sending side, and still reads: called once, in place of on_end(0), which follows
    // when the peer closes.
    void (*on_half_close)(void *arg);
};

struct stream_limits {
    size_t frame_max;  // longest frame accepted
    size_t queue_max;  // most bytes waiting to be sent; sending beyond it fails with -ENOSPC
};

// Takes over `fd` on success only (made non-blocking; closed by stream_free).  `handler` and `arg` outlive the stream.
int stream_new(struct loop *loop, int fd, const struct stream_limits *limits, const struct stream_handler *handler, void *arg,
               struct stream **ret_stream);
// Closes.  NULL is fine; returns NULL.
struct stream *stream_free(struct stream *s);

// Queues one protobuf message as a frame and sends what the socket takes.  0, -EMSGSIZE, -ENOSPC, -ENOMEM, or -EPIPE when
// the stream has ended.
int stream_send(struct stream *s, const void *message);
// The same for one frame of bytes.
int stream_send_bytes(struct stream *s, const void *bytes, size_t n);

// The same for one frame of `type` and `n` bytes behind it.
int stream_send_typed(struct stream *s, uint8_t type, const void *bytes, size_t n);
// The first `n` bytes of `pipe`, which are whole frames and go from there without a copy.  The pipe stays the caller's, is not
// touched by it until stream_queued is 0 again, and outlives the stream.  Meanwhile nothing else can be sent (-EBUSY).
int stream_send_pages(struct stream *s, int pipe, size_t n);
// As stream_send, with `fd` on the frame's first byte (SCM_RIGHTS); it is taken over on success.  At most STREAM_FDS_MAX wait
// at once (-ENOSPC).
int stream_send_fd(struct stream *s, const void *message, int fd);

// Bytes not yet taken by the socket.
size_t stream_queued(const struct stream *s);
void stream_hold(struct stream *s, bool hold);
// After what is queued has been sent, shut down the sending side.
void stream_finish(struct stream *s);
int stream_fd(const struct stream *s);

#endif
