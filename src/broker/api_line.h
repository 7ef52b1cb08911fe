// A sandbox's line to its grants: a stream socket in the sandbox, and the connections that come over it.  Its states are in
// wire/broker.h; connections are api_conn.h's.
//
// At most API_CONNECTIONS_MAX are open; further ones wait in the socket.  Where config.grant_conns are open over all lines, a
// line that has one gets no more: further ones are closed at once.  So nobody is kept from having one by the others.
#ifndef BROKER_API_LINE_H
#define BROKER_API_LINE_H

#include "broker/grant.h"

enum { API_CONNECTIONS_MAX = 32 };

struct api_conn;
struct api_line;

struct api_lines {
    LIST_HEAD(all_api_lines, api_line) all;
    unsigned n;
};

// Begins to accept; takes over `fd`, also on failure.  0; -EEXIST, -ENOSPC, -ENOMEM, -EINVAL (not such a descriptor).
int api_line_add(struct broker *b, uint32_t sandbox_id, enum broker_line_kind kind, int fd);
// Closes everything, and a grant that is lent.  0 or -ENOENT.
int api_line_remove(struct broker *b, uint32_t sandbox_id);
void api_line_remove_all(struct broker *b);
struct api_line *api_line_find(const struct broker *b, uint32_t sandbox_id);

// The grant that is lent; NULL: it is idle.
struct grant *api_line_grant(const struct api_line *l);
void api_line_lend(struct api_line *l, struct grant *g);
struct route_caps *api_line_caps(struct api_line *l);

// ---- for api_conn.c ----

struct broker *api_line_broker(const struct api_line *l);
// A connection has begun, has ended.
void api_line_opened(struct api_line *l, struct api_conn *c);
void api_line_closed(struct api_line *l, struct api_conn *c);

#endif
