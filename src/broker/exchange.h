// One request relayed to its upstream, and the response back.
//
// Both bodies move at once, each as far as there is room: the guest's input, the upstream's output, the upstream's input and
// the guest's output hold WINDOW bytes each, and whoever sends faster than the other reads is stopped by its own socket.
//
//   request   head written anew: the fields that are for this connection, the token and what a credential replaces are left
//   out,
//             Host and the credential are put in; a body by length keeps its length, a chunked one is decoded and chunked anew;
//             trailers are dropped
//   response  1xx are passed on (to HTTP/1.1); its head is written anew; a body without a length is chunked for HTTP/1.1, and
//             ended by the end of the connection for HTTP/1.0
//   101       both connections become a tunnel
//
// A redirect is a response like any other: the guest follows it or not, and what it asks for then is judged anew.
//
// Again: when a kept connection ends before a byte of the response, a request that may be repeated and has no body is sent once
// more, over a new one.
#ifndef BROKER_EXCHANGE_H
#define BROKER_EXCHANGE_H

#include "broker/guest.h"

enum { INTERIM_MAX = 16 };  // 1xx responses before the response

// Relays g->request, which g->record allows.  Its outcome comes through guest.h.
void exchange_start(struct guest *g);
// The guest's buffers have changed, or it has sent its last byte.
void exchange_guest_read(struct exchange *x);
void exchange_guest_written(struct exchange *x);
// Nothing happened for too long: 400 if the guest owes some of its body, else 502.
void exchange_timeout(struct exchange *x);
// Ends it without a word.  NULL is fine; returns NULL.
struct exchange *exchange_free(struct exchange *x);

#endif
