// Heads of HTTP messages, taken out of and put into libevent's buffers.  What they mean is wire/http_head.h's.
#ifndef HTTP_HEAD_H
#define HTTP_HEAD_H

#include "wire/http_head.h"

#include <event2/buffer.h>

// A head that was taken out of a buffer: the views of a parsed message point into it.  All zero when there is none.
struct http_head {
    struct http_scan scan;
    char *bytes;
    size_t n;
};

// Looks for a head at the start of `in`.  1: it is taken out of the buffer and is in *head.  0: more bytes are needed.
// -EBADMSG: *ret_why.  -ENOMEM.  To be called again whenever there are more bytes; each is looked at once.
int http_head_take(struct http_head *head, struct evbuffer *in, enum http_refusal *ret_why);

// Frees the head and makes it ready for the next message's; `response` as in struct http_scan.
void http_head_reset(struct http_head *head, bool response);

// ---- writing; memory that runs out shows as -ENOMEM of http_put_end ----

// A head that is being written: counts what could not be.
struct http_writer {
    struct evbuffer *out;
    bool failed;
};

void http_put(struct http_writer *w, struct http_text text);
void http_put_text(struct http_writer *w, const char *text);
// "name: value" and the line's end.  Both must be free of line ends, which those of parsed messages are.
void http_put_field(struct http_writer *w, const char *name, struct http_text value);
void http_put_number(struct http_writer *w, const char *name, uint64_t value);
// Those fields of a parsed message that are forwarded: not the hop-by-hop ones, not Content-Length (which the framing writes
// anew), and none that `drop` says true of.
typedef bool http_drop_fn(void *arg, struct http_text name);
void http_put_forwarded(struct http_writer *w, const struct http_fields *fields, http_drop_fn *drop, void *arg);
// The empty line.  0 or -ENOMEM, if anything of this head could not be written.
int http_put_end(struct http_writer *w);

#endif
