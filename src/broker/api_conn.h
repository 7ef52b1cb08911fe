// A connection over a sandbox's line: plain HTTP/1.1, one request after the other.
//
// Of a request, the method, the target as it came and the body count; every header is ignored, but for those that frame the
// body and say whether the connection goes on.  Of an answer, there is a status, a content type and a body, and nothing else.
//
// States: HEAD -> BODY -> CALL (api_call.h has it) -> WRITE (the answer goes out) -> HEAD ...; any -> LINGER (the last answer
// is on its way, what still comes in is thrown away) -> gone.
//
// Slow guests: config.api_head_ms for a head from its first byte, api_request_ms for its body, api_write_ms for the answer,
// api_idle_ms between requests.
#ifndef BROKER_API_CONN_H
#define BROKER_API_CONN_H

#include "broker/api_call.h"
#include "http/body.h"
#include "http/head.h"
#include "http/patience.h"

enum { API_LINGER_MS = 2000, API_LINGER_BYTES = 2 * 1024 * 1024 };

struct api_conn {
    LIST_ENTRY(api_conn) all;
    struct api_line *line;
    struct bufferevent *bev;
    enum { CONN_HEAD, CONN_BODY, CONN_CALL, CONN_WRITE, CONN_LINGER } state;
    bool eof, begun, keep, head_only, shut;
    struct http_head head;
    struct http_text method, target;  // views into head
    struct http_mover mover;
    struct evbuffer *body;
    struct api_call *call;
    struct patience patience;
    size_t lingered;
};

// Takes over `fd`.
void api_conn_new(struct api_line *l, int fd);
void api_conn_free(struct api_conn *c);

#endif
