// sandbox-api: the engine over HTTP.
//
// Actors: clients, who are hostile to us and to each other; the engine, which owns the sandboxes and is reached through
// libsandbox's public interface alone; the operator, who wrote the settings and the tokens file.  This program holds no
// credentials, runs no code of anybody's, and has no privileges.
//
// How it is cut
//   src/http        connections, requests and answers
//   route.h         which request is which operation, and everything before one: authentication, limits, bodies
//   sessions.h ...  a dialect: operations of the core, under its own names.  A dialect is a table of routes and an error
//   writer. engine_link.h   connections to the engine;  session.h, exec_job.h, ...: what the dialects share
//
// Threads.  One thread runs the event loop, and everything in this folder that is not said to run elsewhere runs there: HTTP,
// sessions, tokens, all tables.  Nothing on it waits.
//   - What libsandbox does in one exchange with the engine (create, destroy, start of a command, stat, ...) may block and is a
//   job
//     on a thread of a bounded pool (sys/workers.h): LANE_SANDBOXES for creates and destroys, which may take seconds,
//     LANE_CALLS for the rest, so that the ones never wait for the others.  A job has a struct of its own, touched by the
//     worker from submit to finish and by the loop before and after; results come back to the loop.  A thread never waits for a
//     client.
//   - Commands and file transfers are streams of libsandbox: once a job has started one, its descriptor is polled by the loop
//   and
//     its events are taken there, without waiting (sandbox_stream_read with a timeout of 0), only as fast as the client takes
//     them.  So a thousand slow clients cost no thread, and a command whose output nobody takes waits.
//   - A handle is used by several threads at once, as libsandbox allows, and destroyed when the last user has let go of it
//     (struct guest, counted on the loop).
#ifndef API_API_H
#define API_API_H

#include "api/options.h"
#include "http/server.h"
#include "sys/workers.h"

enum lane { LANE_CALLS, LANE_SANDBOXES, LANES };
enum { CALL_THREADS = 16, SANDBOX_THREADS = 16 };
enum { EXIT_ENGINE_GONE = 75 };

struct tokens;
struct engine_link;
struct sessions;
struct replays;
struct metrics;

struct api {
    struct event_base *base;
    struct options options;
    struct http_server *server;
    struct tokens *tokens;  // NULL: none are accepted
    struct workers *lanes[LANES];
    struct engine_link *engine;
    struct sessions *sessions;
    struct replays *replays;
    struct metrics *metrics;
    struct event *drained;  // looks whether all connections have ended
    bool stopping;
    int exit_code;
};

// The loop ends, with this exit code.
void api_stop(struct api *api, int exit_code);

#endif
