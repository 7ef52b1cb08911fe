// HTTP/1.1 as a server: connections, requests, bodies and answers.  What requests mean is the handler's.
//
// Actors: clients, who are hostile; the handler, a program's own code (src/api), which is told of each request and answers it.
//
// A connection is HEAD (a request's head is awaited) -> HANDLER (an exchange is under way) -> HEAD ..., any -> LINGER (the last
// answer is on its way, whatever still comes in is thrown away) -> gone; HANDLER -> TAKEN (its bytes are no HTTP any more and
// are somebody else's, e.g. http/websocket.h).  One exchange at a time: what a client sends ahead waits, at most HTTP_WINDOW of
// it.
//
// Bodies.  Nothing is read of a body, and no 100 (Continue) sent, before the handler asks for it: http_read_whole collects one
// up to a limit, http_read_stream hands it over as it comes.  What the handler leaves in the buffer it was given stops the
// client at HTTP_WINDOW.  An answer that is begun before the body has all come ends the connection behind it.
//
// Answers.  http_reply is one in a piece; http_begin, http_send, http_end are one in pieces, with a Content-Length where it is
// known, else chunked (or, to HTTP/1.0, ended by the close).  http_unsent says how much of it the client has not taken; the
// handler stops at HTTP_WINDOW and goes on in `on_room`.  To a HEAD all of it is written but the body.
//
// Time.  A head has head_ms from its first byte; between requests there are idle_ms; a client that owes body bytes, or does not
// take what is sent, ends after progress_ms without a byte.  Nothing limits how long an answer, or a body that comes, may last.
//
// Lifetime.  An exchange is the connection's.  The handler may use it until it calls http_reply, http_end, http_abort or
// http_take_over, or until its `on_gone`, whichever is first; none of these functions calls the handler back or frees the
// connection from inside.  Everything here belongs to the thread of the event base.
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include "http/head.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <openssl/ssl.h>
#include <stdarg.h>

enum {
    HTTP_WINDOW = 64 * 1024,  // held of each direction of a connection
    HTTP_PIPES_MAX = 64,      // connections that pass bytes on without a copy at once, each at most PAGES_PIECE (base/pages.h)
    HTTP_READ_PIECE = 64 * 1024,  // of a body, in one read
    HTTP_LINGER_MS = 2000,
    HTTP_LINGER_BYTES = 16 * 1024 * 1024,
    HTTP_BUSY_MAX = 64,              // connections beyond max_connections that are told so; more are closed
    HTTP_ACCEPTS_MAX = 64,           // in one turn of the loop
    HTTP_ANSWER_HEADERS_MAX = 4096,  // bytes of the fields that a handler adds
    HTTP_LOG_TARGET_MAX = 512,       // bytes of a target that are kept for the log
};

#define HTTP_UNKNOWN_LENGTH UINT64_MAX

struct http_server;
struct http_exchange;

struct http_peer {
    bool local;  // came through a Unix socket: `uid` is its user
    uint32_t uid;
    bool tls;
    char address[64];  // "192.0.2.1:4711", "[2001:db8::1]:4711" or "uid:1000"
};

struct http_server_limits {
    uint64_t head_ms, idle_ms, progress_ms;
    unsigned max_connections;
};

struct http_server_handler {
    // A request's head has come.  To be answered from here, or later.
    void (*on_request)(void *arg, struct http_exchange *x);
    // The server itself refuses: to be answered with http_reply, at once.  x->request is NULL when the head could not be read.
    void (*on_error)(void *arg, struct http_exchange *x, unsigned status, const char *code, const char *sentence);
    // An exchange is over; nothing of it may be kept.
    void (*on_finish)(void *arg, const struct http_exchange *x);
};

// What an exchange's handler is told; all but on_gone may be NULL.
struct http_exchange_ops {
    // More of the body, and with `over` the end of it, is in `in`, to be drained as far as wanted; what is left is there the
    // next time.  When something was left, http_body_more asks to be called again.
    void (*on_body)(void *arg, struct evbuffer *in, bool over);
    // There is room for more of the answer.
    void (*on_room)(void *arg);
    // The client sends no more; it may have gone.
    void (*on_eof)(void *arg);
    // The exchange is over without the handler: the client went, or was ended.
    void (*on_gone)(void *arg);
};

typedef void http_whole_fn(void *arg, struct http_exchange *x, const char *body, size_t n);

struct http_exchange {
    // To be read by the handler.
    void *listener;  // of http_server_listen
    const struct http_peer *peer;
    const struct http_request *request;  // until the answer has begun; NULL when it could not be read
    bool head_only;                      // HEAD: the body of the answer is left out
    uint64_t begun_ns;                   // mono_ns of the head's first byte
    uint64_t number;                     // of the request, from 1
    // For the log.
    char method[HTTP_METHOD_MAX + 1];
    char target[HTTP_LOG_TARGET_MAX + 1];
    unsigned status;               // 0: nothing was answered
    uint64_t bytes_in, bytes_out;  // of the bodies
    bool aborted;                  // ended before the answer was whole
    // The handler's.
    const struct http_exchange_ops *ops;
    void *arg;
    void *note;  // whatever on_finish wants to know; not looked at
};

// `handler` outlives the server.  0 or -ENOMEM.
int http_server_new(struct event_base *base, const struct http_server_limits *limits, const struct http_server_handler *handler,
                    void *arg, struct http_server **ret);
// Ends every connection.  NULL is fine; returns NULL.
struct http_server *http_server_free(struct http_server *s);
// Takes over a listening socket, with TLS if there is a context (which outlives the server).  0 or -ENOMEM; then `fd` is
// closed.
int http_server_listen(struct http_server *s, int fd, SSL_CTX *tls, void *listener);
// No new connections, idle ones end, the others end behind their answer; takers are told.
void http_server_drain(struct http_server *s);
// Connections that are open, those waiting for a request included.
unsigned http_server_connections(const struct http_server *s);
uint64_t http_server_accepted(const struct http_server *s);
uint64_t http_server_refused(const struct http_server *s);

// ---- a request's body; once each ----

// fn(arg, x, body, n) is called with all of it (terminated by a NUL that does not count); above `max` bytes the client is told
// so with 413, by on_error.  In the meantime the exchange may be gone without a call.  Called at once when there is no body.
void http_read_whole(struct http_exchange *x, size_t max, http_whole_fn *fn, void *arg);
// on_body of x->ops, which must be set, is called with what comes.  Above `max` bytes: on_gone, then 413 by on_error.
void http_read_stream(struct http_exchange *x, uint64_t max);
void http_body_more(struct http_exchange *x);

// ---- the answer ----

// Adds a field to the head that is to be written.  The value must hold no line ends; what does not fit is left out.
void http_add_header(struct http_exchange *x, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
void http_reply(struct http_exchange *x, unsigned status, const char *type, const void *body, size_t n);
// `type` NULL: none.  `length`: of the body that follows; HTTP_UNKNOWN_LENGTH: until http_end.
void http_begin(struct http_exchange *x, unsigned status, const char *type, uint64_t length);
void http_send(struct http_exchange *x, const void *bytes, size_t n);
// Moves all of `from`.
void http_send_buffer(struct http_exchange *x, struct evbuffer *from);
// The end of an empty pipe to which up to PAGES_PIECE of the answer's body may be moved, which http_send_piped then sends from
// there; -1: this connection cannot do that, or not now, and http_send is to be used.  Stays the connection's.
int http_pipe(struct http_exchange *x);
void http_send_piped(struct http_exchange *x, size_t n);
// Whether some of that is still in the pipe; on_room comes when none is.
bool http_piping(const struct http_exchange *x);
void http_end(struct http_exchange *x);
// The client must not take what it got for whole.
void http_abort(struct http_exchange *x);
size_t http_unsent(const struct http_exchange *x);

// ---- connections that become something else ----

struct http_taken;

struct http_taker {
    void (*on_read)(void *arg);
    void (*on_write)(void *arg);
    void (*on_end)(void *arg);  // the client has gone, or the server ends: http_taken_close must be called, from here or soon
    // May be NULL.  The server drains: to be ended in its own way, soon.
    void (*on_drain)(void *arg);
};

// Writes a head of `status` (101, or 200 with no length) and gives the connection to the taker; bytes that came early are in
// the bufferevent's input.  The exchange is over.  The connection counts, and ends, with the server.
struct http_taken *http_take_over(struct http_exchange *x, unsigned status, const struct http_taker *taker, void *arg);
struct bufferevent *http_taken_bev(struct http_taken *t);
// What is written goes out, then the connection ends; the taker is not called any more.
void http_taken_close(struct http_taken *t);

#endif
