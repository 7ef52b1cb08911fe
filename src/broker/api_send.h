// One request to a grant's API and its answer, both whole: nothing streams.
//
//   request    METHOD and the approved target as they are, Host, Accept, the credential, and for a body its length and that it
//   is
//              JSON; nothing of the guest's but method, target and body
//   response   heads of 1xx are passed over (API_INTERIM_MAX of them); 101 and whatever cannot be read is a failure, and so are
//   a
//              body over GRANT_RESPONSE_MAX (an announced one is not even read), one that is cut short, one in a coding that
//              was not asked for.  Redirects are answers like any other.
//
// Connections are kept for the grant's next calls, and for no other grant's.  Where a kept one turns out to be closed before a
// byte of the answer, a request that may be repeated and has no body is sent once more.
#ifndef BROKER_API_SEND_H
#define BROKER_API_SEND_H

#include "broker/grant.h"
#include "wire/http_text.h"

enum { API_TYPE_MAX = 255, API_RETRY_AFTER_MAX = 63, API_INTERIM_MAX = 16, API_HEAD_OUT_MAX = 48 * 1024 };

#define API_TYPE_FALLBACK "application/octet-stream"

struct api_reply {
    bool whole;       // there is a status and all of the body
    unsigned status;  // 0: no answer
    const char *why;  // !whole: a few words for the log
    char type[API_TYPE_MAX + 1];
    char retry_after[API_RETRY_AFTER_MAX + 1];  // "" without one
    struct evbuffer *body;                      // the callee may empty it
};

struct api_send;
typedef void api_send_fn(void *arg, struct api_reply *reply);

// Appends the request's head.  0; -EPERM: no credential could be made; -ENOMEM, -ENOSPC.
int api_send_head(struct grant *g, const char *method, struct http_text target, size_t body, struct buf *out);
// Whether the target that stands in a head, read as a server would, is byte for byte `approved`.
bool api_send_head_is(const struct buf *head, struct http_text approved);

// Sends `head`, and behind it what is in `body` (NULL: nothing), which is emptied; calls fn(arg, ...) once, from the loop,
// after at most `limit_ms`.  `repeatable`: GET, PUT and DELETE.  NULL if there is no memory.
struct api_send *api_send_start(struct grant *g, const struct buf *head, struct evbuffer *body, bool repeatable,
                                uint64_t limit_ms, api_send_fn *fn, void *arg);
// fn will not be called.  NULL is fine; returns NULL.
struct api_send *api_send_cancel(struct api_send *s);

#endif
