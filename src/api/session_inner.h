// What session.c (the table, uses, time) and session_guest.c (sandboxes that start and end) share.
#ifndef API_SESSION_INNER_H
#define API_SESSION_INNER_H

#include "api/session.h"

enum { SESSION_BUCKETS = 4096 };

LIST_HEAD(bucket, session);
TAILQ_HEAD(session_list, session);

struct sessions {
    struct api *api;
    struct bucket buckets[SESSION_BUCKETS];
    struct session_list list;
    struct session_list ready;  // those used longest ago first
    struct session_list queue;  // for a place below max_running
    unsigned n, running, stopping;
    bool ending;
    struct event *tick;
};

// ---- session.c ----

// Starts what can be started, and makes others give way for the rest.
void sessions_pump(struct sessions *all);
// Gives the sandbox to those who wait for it; or tells them that there will be none.
void session_give_all(struct session *s);
void session_fail_all(struct session *s, sandbox_error_t error, const char *text);
// Somebody waits: it takes its place in the queue.
void session_enqueue(struct session *s);
// Nobody uses it, and it has no sandbox.
void session_remove(struct session *s);

// ---- session_guest.c ----

// From idle or queued: a place below max_running is its own.
void session_start(struct session *s);
// From ready; who uses the sandbox keeps it until they are done.
void session_stop(struct session *s);
// One share less; the last one destroys it.
void guest_unref(struct guest *g);

#endif
