// WebSocket (RFC 6455) on a server's connection.  The frames are wslay's; the connection is http/server.h's.
//
// States: open -> closing (a close frame is sent, the other side's is awaited for WEBSOCKET_CLOSE_MS) -> over: on_close, once,
// with the code that was received: 1005 none was in its frame, 1006 there was no frame.  After that the socket is freed with
// websocket_free, which may be called at any time and then ends the connection.
//
// The client is hostile: a message is at most so long (1009), text is UTF-8 (1007), frames are masked and in order (1002),
// pings are answered, and one who sends and does not read is not read from.  One who answers no ping for two intervals is gone
// (1006).  When the server drains, every socket is closed with 1001.
#ifndef HTTP_WEBSOCKET_H
#define HTTP_WEBSOCKET_H

#include "http/server.h"

enum { WEBSOCKET_CLOSE_MS = 2000 };

struct websocket;

struct websocket_ops {
    // A whole message, its fragments put together; valid during the call.
    void (*on_message)(void *arg, bool text, const uint8_t *data, size_t n);
    // What was sent has been taken, down to less than HTTP_WINDOW.  May be NULL.
    void (*on_room)(void *arg);
    void (*on_close)(void *arg, unsigned code);
};

// Whether the request asks for it at all; what is wrong with how, websocket_accept says.
bool websocket_wanted(const struct http_request *r);
// Takes the connection over with 101.  `protocol` NULL: none is chosen.  `ping_ms` 0: no pings.  0; or -EPROTO with *ret_status
// (400, 426) and *ret_why for the answer, the exchange being as before (a 426 needs "Sec-WebSocket-Version: 13"); or -ENOMEM.
int websocket_accept(struct http_exchange *x, struct event_base *base, size_t message_max, const char *protocol,
                     uint64_t ping_ms, const struct websocket_ops *ops, void *arg, struct websocket **ret, unsigned *ret_status,
                     const char **ret_why);

// One message.  0, -EPIPE when the socket is closing, -ENOMEM.
int websocket_send(struct websocket *ws, bool text, const void *data, size_t n);
// Begins to close it, with a reason of at most 123 bytes.
void websocket_close(struct websocket *ws, unsigned code, const char *reason);
size_t websocket_unsent(const struct websocket *ws);
// NULL is fine; returns NULL.
struct websocket *websocket_free(struct websocket *ws);

#endif
