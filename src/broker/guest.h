// A guest's connection that carries requests: to the proxy port, or redirected here from port 80.
//
// States: HEAD (a request's head is awaited) -> RELAY (exchange.c has it) -> HEAD ...; HEAD -> DIAL (a CONNECT's upstream is
// being reached) -> a tunnel, and the guest is no more; any -> LINGER (the last answer is on its way, whatever still comes in
// is thrown away) -> gone.  A guest's connection carries one thing at a time; what it sends ahead waits in its socket.
//
// Slow guests: a head has config.head_ms from its first byte; between requests there are config.idle_ms; a request without a
// byte either way ends after config.progress_ms; lingering, after LINGER_MS or LINGER_BYTES.
#ifndef BROKER_GUEST_H
#define BROKER_GUEST_H

#include "broker/decide.h"
#include "broker/dial.h"
#include "http/head.h"
#include "http/patience.h"

enum { LINGER_MS = 2000, LINGER_BYTES = 1024 * 1024 };
enum { BUSY_MAX = 64 };  // connections beyond a ceiling that are told so at once; more are closed

struct exchange;

struct guest {
    struct line line;  // first: struct line * is struct guest *
    struct sandbox *sandbox;
    struct bufferevent *bev;
    enum { GUEST_HEAD, GUEST_RELAY, GUEST_DIAL, GUEST_LINGER } state;
    bool eof;         // the guest has sent its last byte
    bool head_begun;  // of a request
    bool redirected;  // from port 80 of `name`: no token, and Host must be that name
    struct host name;
    struct http_head head;
    struct http_request *request;  // while there is one; views into head
    struct record record;
    struct exchange *exchange;
    struct dial *dial;
    struct patience patience;
    size_t lingered;
};

// Takes a connection to the proxy port.
void guest_accept(struct sandbox *s, int fd);
// One that was redirected from port 80 of that name.
void guest_accept_redirected(struct sandbox *s, int fd, const struct host *name);

// ---- for exchange.c ----

// Answers with a status and g->record's reason instead of an upstream, and logs the record; closes behind it when `close`, or
// when a part of the request is still to come.
void guest_answer(struct guest *g, unsigned status, bool close);
// The exchange is over, with all of its answer in the guest's buffer, and freed.
void guest_next(struct guest *g, bool keep);
// Ends the connection so that nobody can take what was sent for whole.
void guest_abort(struct guest *g);
// Gives the connection up to a tunnel: frees the guest and returns its bufferevent.
struct bufferevent *guest_release(struct guest *g);

#endif
