// One connection to an engine, used by any number of threads.
//
// Actors.  Callers send requests and wait; one reader thread per connection takes every answer and hands it to the caller
// whose request_id it carries, so answers may come in any order.  The engine is trusted to decide, not to be free of
// faults: an answer that fits no request ends the connection rather than being guessed at.
//
// States.  open -> broken (the peer closed, an error, or nonsense on the wire; every waiting call fails at once and so does
// every later one) -> closed (by the user).  There is no reconnect: sandboxes end with their connection.  There are no
// timeouts here: the engine owns deadlines, and answers every request.
//
// Locks.  `send_lock` makes a frame whole on the socket and guards `fd`'s closing; `lock` guards the rest.  Neither is ever
// taken while holding the other.
//
// After fork() only the parent may use a connection.  In the child every call on it fails, without touching the locks, and
// closing it or destroying its handles frees memory and says nothing to the engine.
#ifndef LIB_CONN_H
#define LIB_CONN_H

#include "base/err.h"
#include "libsandbox.h"
#include "sandbox.pb-c.h"
#include "wire/frame.h"
#include "wire/limits.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

// One request on its way; lives on its caller's stack until conn_finish returns.
struct pending {
    uint64_t id;
    struct pending *next;  // in its bucket
    pthread_cond_t arrived;
    bool finished;
    Sandbox__ServerMessage *reply;  // NULL when the connection broke instead
    int fd;                         // came with a StreamResponse; else -1
};

enum { PENDING_BUCKETS = 64, READER_FDS_MAX = 64, FD_NONE = -1, FD_LOST = -2 };

struct sandbox_conn_t {
    int fd;       // -1 once closed
    pid_t owner;  // the process that opened it
    char *path;
    pthread_t reader;
    atomic_uint refs;  // the user's, and one per handle or call that needs it to outlive the user's
    atomic_uint_fast64_t next_id;

    pthread_mutex_t send_lock;
    pthread_mutex_t lock;
    bool established;  // the first answer has come
    bool broken;
    bool closed;
    struct err reason;  // why it broke
    struct pending *waiting[PENDING_BUCKETS];
    sandbox_handle_t *handles;  // sandboxes created on it and not destroyed (handle.h)

    // The reader's alone.  A descriptor comes no later than the frame it belongs to: the next StreamResponse.
    int fds[READER_FDS_MAX];
    size_t n_fds;
    size_t in_len;
    uint8_t in[FRAME_HEAD + IPC_FRAME_MAX];
};

// Connects and asks one question, so that a refusal is known now.  `path` is not NULL.
// DAEMON_UNREACHABLE, PERMISSION_DENIED, INTERNAL (no memory, no thread).
sandbox_error_t conn_open(const char *path, sandbox_conn_t **ret_conn);
// Ends the connection: waiting calls fail, the reader thread is gone when this returns.  Once; the caller's reference stays.
void conn_shut(sandbox_conn_t *conn);
sandbox_conn_t *conn_ref(sandbox_conn_t *conn);
void conn_unref(sandbox_conn_t *conn);
// Neither broken, nor closed, nor another process's.
bool conn_usable(sandbox_conn_t *conn);
// Whether the user closed it, or it belongs to the parent of this process: its sandboxes are no business of this caller.
bool conn_closed(sandbox_conn_t *conn);
// Whether this process opened it.
bool conn_is_ours(const sandbox_conn_t *conn);
// From now on conn_call fails; conn_begin still works, for the last goodbyes.  False if somebody was here before.
bool conn_mark_closed(sandbox_conn_t *conn);

// Gives `request` an id and sends it.  After SANDBOX_OK conn_finish must be called with the same `pending`.
// TOO_LARGE (more than one frame), DAEMON_UNREACHABLE, INTERNAL.
sandbox_error_t conn_begin(sandbox_conn_t *conn, Sandbox__ClientMessage *request, struct pending *pending);
// Waits for the answer.  It must be of the kind `want`, and is freed with pb_free; `ret_reply` NULL: freed here.
// The engine's error, DAEMON_UNREACHABLE when the connection broke, INTERNAL for an answer of another kind.
sandbox_error_t conn_finish(sandbox_conn_t *conn, struct pending *pending, Sandbox__ServerMessage__ResponseCase want,
                            Sandbox__ServerMessage **ret_reply);
// What a StreamResponse says, and the descriptor that came with it, the caller's.
struct stream_made {
    int fd;
    uint32_t isolation, grant_id;
};
// As conn_finish for a StreamResponse.
sandbox_error_t conn_finish_stream(sandbox_conn_t *conn, struct pending *pending, uint32_t sandbox_id, struct stream_made *ret);
// Both.
sandbox_error_t conn_call(sandbox_conn_t *conn, Sandbox__ClientMessage *request, Sandbox__ServerMessage__ResponseCase want,
                          Sandbox__ServerMessage **ret_reply);

// reader.c: the thread, its `arg` a connection.
void *reader_main(void *arg);

#define DEFINE_REQUEST(name, kind, member, part)                                                                               \
    Sandbox__ClientMessage name = SANDBOX__CLIENT_MESSAGE__INIT;                                                               \
    name.request_case = SANDBOX__CLIENT_MESSAGE__REQUEST_##kind;                                                               \
    name.member = (part)

#endif
