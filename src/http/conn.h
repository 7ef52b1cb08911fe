// A server's connection, between server.c (who may connect), conn.c (its life) and answer.c (what is written to it).
#ifndef HTTP_CONN_H
#define HTTP_CONN_H

#include "base/buf.h"
#include "http/body.h"
#include "http/patience.h"
#include "http/piped.h"
#include "http/server.h"

#include <sys/queue.h>

enum conn_state { CONN_HEAD, CONN_HANDLER, CONN_LINGER, CONN_TAKEN, CONN_DEAD };
enum body_mode { BODY_UNASKED, BODY_WHOLE, BODY_STREAM, BODY_GIVEN };

struct http_taken {
    const struct http_taker *taker;
    void *arg;
};

struct http_conn {
    struct http_taken taken;  // first: struct http_taken * is struct http_conn *
    struct http_exchange x;
    TAILQ_ENTRY(http_conn) link, idle_link;
    struct http_server *server;
    struct http_peer peer;
    struct bufferevent *bev;
    struct event *later;   // goes on from the loop
    struct event *closed;  // while nothing is read: the client sends no more
    enum conn_state state;
    bool idle;     // in the list of those between requests, whose answers have been taken
    bool counted;  // against max_connections
    bool told;     // one beyond the ceiling
    bool full;     // the input holds HTTP_WINDOW: nothing is read
    bool eof;      // the client has sent its last byte
    bool head_begun;
    bool patient;  // the patience is running for an exchange
    struct http_head head;
    struct http_request *request;  // x.request; views into head
    // the body
    enum body_mode mode;
    struct http_mover mover;
    struct evbuffer *body;  // NULL until it is asked for
    bool body_told;         // on_body has been told of the end
    bool expects_continue;
    uint64_t body_max;
    http_whole_fn *whole;
    void *whole_arg;
    // the answer
    bool begun, chunked, keep, no_body;
    uint64_t length, sent;  // of the body; HTTP_UNKNOWN_LENGTH
    struct buf headers;
    struct http_piped piped;
    struct patience patience;
    size_t lingered;
};

TAILQ_HEAD(http_conns, http_conn);

struct http_server {
    struct event_base *base;
    struct http_server_limits limits;
    const struct http_server_handler *handler;
    void *arg;
    struct http_conns conns, idle;  // idle: those that wait longest first
    unsigned counted, busy;
    unsigned pipes;  // of http_piped
    bool draining;
    uint64_t accepted, refused;
    struct http_listener *listeners;
    // The Date field, made anew when the second changes.
    time_t date_of;
    char date[40];
};

// ---- conn.c ----

// Takes over `bev`.  NULL without memory; then it is freed.
struct http_conn *conn_new(struct http_server *s, struct bufferevent *bev, const struct http_peer *peer, void *listener);
// One beyond the ceiling: it is told so, by the handler's on_error, and ended.
void conn_refuse(struct http_conn *c);
// Ends it at once, telling its handler or taker.
void conn_end(struct http_conn *c);
// What may be asked of an idle connection when a place is needed, or at the end.
void conn_close_idle(struct http_conn *c);
// No further request is taken: it ends, at once or when its answer has been taken.
void conn_drain(struct http_conn *c);
// Its last answer has been taken, and only its end is awaited.
bool conn_is_over(const struct http_conn *c);
// The exchange is over, and its answer is in the output or (aborted) never will be.
void conn_finish(struct http_conn *c, bool aborted);
// Goes on from the loop.
void conn_later(struct http_conn *c);
// Reading stops while as much has come as may wait, and goes on when it is less: to be called when bytes were taken.
void conn_mind_window(struct http_conn *c);
// Something is to be waited for: the patience runs.
void conn_pending(struct http_conn *c);
// Some of what was written has been taken: whoever waits for that goes on.
void conn_written(struct http_conn *c);
// Bytes of answers that the client has not taken.
size_t conn_unsent(const struct http_conn *c);
// The exchange is over, the connection is its taker's from now on.
void conn_taken(struct http_conn *c);

// ---- conn_body.c ----

// What has come of a body that was asked for goes to who asked.
void conn_body_step(struct http_conn *c);
// Reads away a body that nobody asked for, as far as it has come; whether the connection stands behind its end now.
bool conn_skip_body(struct http_conn *c);

static inline struct evbuffer *conn_input(const struct http_conn *c)
{
    return bufferevent_get_input(c->bev);
}

static inline struct http_conn *conn_of(struct http_exchange *x)
{
    return (struct http_conn *)((char *)x - offsetof(struct http_conn, x));
}

#endif
