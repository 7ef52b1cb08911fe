// One connection of a client.
//
// Order of answers (spec 000, "Request correlation"): a request with an id is dispatched when it arrives.  A request with id 0
// waits until every earlier id-0 request is answered and every create that arrived before it, with or without an id, is
// finished; so its kind is answered in order and never overtakes a create.  A frame that cannot be parsed is answered with
// id 0 in its turn among those.
//
// An exec whose standard input does not fit its frame (exec_input.h) waits here until the rest has come, before it is a
// request: one at most, because nothing may come in between.
//
// Ceilings: PENDING_MAX requests and QUEUED_BYTES_MAX of waiting frames; beyond, nothing more is read (back-pressure).
// FDS_UNREAD_MAX descriptors in a socket that is not read: they are open files of the engine's.
// SEND_QUEUE_MAX bytes of answers; a client that reads slower than that is dropped.
// The end: everything it owns is reclaimed, its operations are cancelled, answers still due go nowhere.
#ifndef ENGINE_CLIENT_H
#define ENGINE_CLIENT_H

#include "engine/engine.h"
#include "engine/request.h"
#include "sys/stream.h"

#include <sys/socket.h>

enum {
    CLIENT_PENDING_MAX = 256,
    CLIENT_QUEUED_BYTES_MAX = 256 * 1024,
    CLIENT_SEND_QUEUE_MAX = 256 * 1024,
    CLIENT_FDS_UNREAD_MAX = 16,
    CLIENT_LINGER_MS = 2000,  // a refused client has this long to read why
};

TAILQ_HEAD(request_list, request);
TAILQ_HEAD(queued_list, queued);

struct client {
    TAILQ_ENTRY(client) link;
    struct engine *engine;
    struct stream *stream;
    struct ucred peer;
    bool held;            // over a ceiling: not read
    bool refused;         // it has been told an error and only lingers
    bool dropped;         // shut down; closed as soon as the loop comes round
    struct timer linger;  // when refused

    struct request_list in_flight;
    struct queued_list queued;  // id-0 requests that wait
    struct request *legacy;     // the id-0 request being worked on
    unsigned pending;           // in flight and queued
    size_t queued_bytes;
    uint64_t arrivals;
    bool pumping;
    struct exec_input *input;  // an exec whose standard input is still coming

    struct create_list creates;  // not answered yet
    struct sandbox_list owned;
    unsigned owned_count;  // with those of creates that have one
    unsigned guest_ops;    // with its streams
    unsigned fds_unread;   // descriptors it was sent since it last had read everything
};

// Takes over `fd`.  0 or a negative errno (then closed).
int client_new(struct engine *e, int fd, const struct ucred *peer, struct client **ret_client);
// Ends the connection and reclaims what it owns.  Not from inside the handling of one of its requests.
void client_close(struct client *c);
// Tells the client an error (id 0), reclaims what it owns, and closes when it has read that or CLIENT_LINGER_MS have passed.
void client_refuse(struct client *c, int code, const char *text);

#endif
