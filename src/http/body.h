// Bodies of HTTP messages, moved from one libevent buffer to another: out of the framing they came in, into the one they are to
// have.  Nothing is held: what there is no room for stays in the source, whose high watermark then stops the peer.
#ifndef HTTP_BODY_H
#define HTTP_BODY_H

#include "wire/http_chunk.h"
#include "wire/http_head.h"

#include <event2/buffer.h>

struct http_mover {
    struct http_body body;  // how it comes
    bool chunked_out;       // whether it is to be chunked; else it leaves as bare bytes
    bool over;
    uint64_t limit;  // bytes of data, beyond which it is refused
    uint64_t moved;  // bytes of data so far
    struct chunk_decoder chunks;
};

void http_mover_init(struct http_mover *m, const struct http_body *body, bool chunked_out, uint64_t limit);

// Moves what is in `in`, until `out` holds `window` bytes or more.  1: the body is over, with its end written to `out`.  0:
// more input, or room, is needed.  -EBADMSG: bad chunks.  -EMSGSIZE: beyond the limit; no end has been written.  -ENOMEM. A
// body until close is over when the caller says so: http_mover_close.
int http_move(struct http_mover *m, struct evbuffer *in, struct evbuffer *out, size_t window);

// The source has ended, and `in` is empty.  0: the body is whole, with its end written to `out`.  -EBADMSG: it is cut.
int http_mover_close(struct http_mover *m, struct evbuffer *out);

#endif
