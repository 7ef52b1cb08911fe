// A connection to the guard (guard.h).
#ifndef BROKER_GUARD_CONN_H
#define BROKER_GUARD_CONN_H

#include "broker/api_call.h"
#include "broker/guard.h"
#include "broker/guard_envelope.h"
#include "http/body.h"
#include "http/head.h"
#include "http/patience.h"

struct guard_conn {
    LIST_ENTRY(guard_conn) all;
    struct guard *guard;
    struct grant *grant;  // while a request of it waits, or is read, or answered
    struct bufferevent *bev;
    enum { GUARD_HEAD, GUARD_WAIT, GUARD_BODY, GUARD_CALL, GUARD_WRITE, GUARD_LINGER } state;
    bool eof, begun, keep, reading, shut;
    uint64_t turn;  // in GUARD_WAIT: who waits longest comes first
    struct http_head head;
    struct http_mover mover;
    struct evbuffer *body;
    struct guard_envelope envelope;
    struct evbuffer *payload;  // the envelope's body
    struct api_call *call;
    struct patience patience;
    size_t lingered;
};

// Its grant is no more.
void guard_conn_grant_ended(struct guard_conn *c);

#endif
