// One request of a client that is being worked on.
//
// Whoever holds a request answers it exactly once, with request_reply or request_fail, which also frees it; that may be long
// after the client has gone, when the answer goes nowhere.
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "base/err.h"
#include "sandbox.pb-c.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct client;

struct request {
    TAILQ_ENTRY(request) link;  // in client->in_flight
    struct client *client;      // NULL when it has gone
    uint64_t id;                // 0: legacy mode
    uint64_t arrival;           // counts the connection's frames
    bool is_create;
    bool dispatched;  // code of the caller's may have run because of it
    int not_run;      // a NotRun for its failure; 0: by the code
};

// Sends `message`, with the request's id put in.
void request_reply(struct request *r, Sandbox__ServerMessage *message);
// The same with a descriptor attached, which is taken over.
void request_reply_fd(struct request *r, Sandbox__ServerMessage *message, int fd);
// Whether that may be done: not when the client leaves too many of the descriptors it has been sent unread.
bool request_may_have_fd(struct request *r);
// Sends an ErrorResponse, which says why nothing ran unless the request was dispatched.  `code` is a sandbox_error_t; returned,
// for counting.
int request_fail(struct request *r, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int request_fail_err(struct request *r, const struct err *err);

#endif
