// Bytes of an answer that are on their way through a pipe, without being copied (base/pages.h).
//
// They go out behind what is in the connection's output.  A connection has a pipe only while it passes such bytes on, and a
// server at most HTTP_PIPES_MAX of them: whoever gets none copies.  A pipe holds at most PAGES_PIECE, and nothing is put into
// it before it is empty.
#ifndef HTTP_PIPED_H
#define HTTP_PIPED_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>

struct http_conn;

struct http_piped {
    int pipe[2];
    size_t left;  // bytes in it
    struct event *writable;
};

#define HTTP_PIPED_INIT ((struct http_piped){.pipe = {-1, -1}})

// Sends what the socket takes, if the output before it is gone.  False: the connection has failed.
bool http_piped_flush(struct http_conn *c);
// It has no use any more: the pipe is given back if it is empty, else thrown away.
void http_piped_end(struct http_conn *c);

#endif
