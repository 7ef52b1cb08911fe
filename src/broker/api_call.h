// One call of a guest through a grant: the one way to the API, whatever brought the call here (a line, the guard).
//
// What is checked, in this order, and what the guest is answered; all are counted in the grant, and say in the log which it
// was:
//
//     1  16 calls of the grant are in flight, or grant_calls of all              429  not charged
//     2  the attempt is beyond the budget; it is charged, whatever comes of it    429
//     3  the body is over 1 MiB, or did not come whole                            413
//     4  R1 to R9 of wire/route_check.h                                           403  one answer for all
//     5  a capped route that it matches is used up                                429
//     6  the API has too many calls                                               503  "shed"
//     7  the target in the request's head is not the approved one                 403
//     8  the grant has ended meanwhile                                            503
//     9  no answer, or none that can be delivered                                 502  a row, undelivered
//    10  the API's answer: status, content type, body                                  a row, delivered
//
// (Before there is a call: no grant on the line, 503.)
//
// States: BODY (it has its place and is charged; its body comes) -> PROBE (the API's health route is asked first) -> SENT ->
// ANSWERED (the answer is the transport's) -> free.  The grant may end in any of them.
#ifndef BROKER_API_CALL_H
#define BROKER_API_CALL_H

#include "broker/api_answer.h"
#include "broker/api_send.h"
#include "broker/grant.h"

enum api_refusal {
    API_FINE,
    API_UNAVAILABLE,   // no grant on the line
    API_ENDED,         // the grant has ended
    API_CAPACITY,      // too many at once
    API_BUDGET,        // the run's calls are used up
    API_BODY,          // the body is too large
    API_FORBIDDEN,     // no route
    API_ROUTE_BUDGET,  // the route's calls are used up
    API_SHED,          // the API has too many
    API_FAILED,        // no answer of the API's
    API_REFUSALS,
};

unsigned api_refusal_status(enum api_refusal why);
// The body, with a line end, as text/plain.
const char *api_refusal_text(enum api_refusal why);
#define API_REFUSAL_TYPE "text/plain; charset=utf-8"

struct api_call;
typedef void api_call_fn(void *arg, const struct api_answer *answer);

// Takes a place and charges the budget: steps 1 and 2.  API_FINE and *ret, or what refuses it.
enum api_refusal api_call_begin(struct grant *g, struct api_call **ret);
// Step 3: its body is too large, or did not come whole.  The call is at its end, and to be freed.
void api_call_no_body(struct api_call *c);
// The rest, with the whole body, which is emptied.  Calls fn(arg, ...) once, perhaps before it returns; what the answer points
// at is good during that call.  `target` must stay where it is until then: it is what is sent.
void api_call_go(struct api_call *c, struct http_text method, struct http_text target, struct evbuffer *body, api_call_fn *fn,
                 void *arg);
// Gives the place back; fn will not be called any more.  NULL is fine; returns NULL.
struct api_call *api_call_free(struct api_call *c);

// For grant.c: the call has no grant any more.
void api_call_grant_ended(struct api_call *c);

#endif
