#include "lib/conn.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "lib/connect.h"
#include "lib/errors.h"
#include "lib/frames.h"
#include "wire/pb.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>

static sandbox_conn_t *conn_new(const char *path)
{
    sandbox_conn_t *conn = calloc(1, sizeof *conn);
    if (conn == NULL)
        return NULL;
    conn->path = strdup(path);
    if (conn->path == NULL) {
        free(conn);
        return NULL;
    }
    conn->fd = -1;
    conn->owner = getpid();
    atomic_init(&conn->refs, 1);
    atomic_init(&conn->next_id, 1);
    pthread_mutex_init(&conn->send_lock, NULL);
    pthread_mutex_init(&conn->lock, NULL);
    return conn;
}

sandbox_conn_t *conn_ref(sandbox_conn_t *conn)
{
    atomic_fetch_add(&conn->refs, 1);
    return conn;
}

void conn_unref(sandbox_conn_t *conn)
{
    if (atomic_fetch_sub(&conn->refs, 1) != 1)
        return;
    close_fd(&conn->fd);
    if (conn_is_ours(conn)) {
        pthread_mutex_destroy(&conn->send_lock);
        pthread_mutex_destroy(&conn->lock);
    }
    free(conn->path);
    free(conn);
}

bool conn_is_ours(const sandbox_conn_t *conn)
{
    return conn->owner == getpid();
}

bool conn_usable(sandbox_conn_t *conn)
{
    if (!conn_is_ours(conn))
        return false;
    pthread_mutex_lock(&conn->lock);
    bool usable = !conn->broken && !conn->closed;
    pthread_mutex_unlock(&conn->lock);
    return usable;
}

bool conn_closed(sandbox_conn_t *conn)
{
    if (!conn_is_ours(conn))
        return true;
    pthread_mutex_lock(&conn->lock);
    bool closed = conn->closed;
    pthread_mutex_unlock(&conn->lock);
    return closed;
}

bool conn_mark_closed(sandbox_conn_t *conn)
{
    if (!conn_is_ours(conn))
        return true;
    pthread_mutex_lock(&conn->lock);
    bool first = !conn->closed;
    conn->closed = true;
    pthread_mutex_unlock(&conn->lock);
    return first;
}

// The program's signals are not for a thread it does not know of.
static int start_reader(sandbox_conn_t *conn)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&conn->reader, NULL, reader_main, conn);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -r;
}

// An engine too old to know the question answers INVALID_SPEC: it has let us in all the same.
static sandbox_error_t greet(sandbox_conn_t *conn)
{
    Sandbox__StatusRequest status = SANDBOX__STATUS_REQUEST__INIT;
    DEFINE_REQUEST(request, STATUS, status, &status);
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS, NULL);
    if (r == SANDBOX_ERR_INVALID_SPEC)
        r = SANDBOX_OK;
    if (r != SANDBOX_OK)
        return r == SANDBOX_ERR_PERMISSION_DENIED ? r : SANDBOX_ERR_DAEMON_UNREACHABLE;
    pthread_mutex_lock(&conn->lock);
    conn->established = true;
    pthread_mutex_unlock(&conn->lock);
    return SANDBOX_OK;
}

sandbox_error_t conn_open(const char *path, sandbox_conn_t **ret_conn)
{
    cleanup_fd int fd = -1;
    sandbox_error_t r = connect_socket(path, &fd);
    if (r != SANDBOX_OK)
        return r;
    sandbox_conn_t *conn = conn_new(path);
    if (conn == NULL)
        return fail_memory();
    conn->fd = take_fd(&fd);
    int e = start_reader(conn);
    if (e < 0) {
        conn_unref(conn);
        return fail(SANDBOX_ERR_INTERNAL, "cannot start a thread: %s", strerror(-e));
    }
    r = greet(conn);
    if (r != SANDBOX_OK) {
        conn_shut(conn);
        conn_unref(conn);
        return r;
    }
    *ret_conn = conn;
    return SANDBOX_OK;
}

void conn_shut(sandbox_conn_t *conn)
{
    if (!conn_is_ours(conn)) {
        // The socket is shared with the parent, whose connection goes on; so no shutdown(2), and its locks are not ours.
        close_fd(&conn->fd);
        return;
    }
    conn_mark_closed(conn);
    shutdown(conn->fd, SHUT_RDWR);
    pthread_join(conn->reader, NULL);
    pthread_mutex_lock(&conn->send_lock);
    close_fd(&conn->fd);
    pthread_mutex_unlock(&conn->send_lock);
}

static sandbox_error_t broken_error(sandbox_conn_t *conn)
{
    return fail_with_text_of_peer((sandbox_error_t)conn->reason.code, conn->reason.text);
}

static sandbox_error_t enlist(sandbox_conn_t *conn, struct pending *p)
{
    pthread_mutex_lock(&conn->lock);
    sandbox_error_t r = SANDBOX_OK;
    if (conn->broken) {
        r = broken_error(conn);
    } else {
        struct pending **bucket = &conn->waiting[p->id % PENDING_BUCKETS];
        p->next = *bucket;
        *bucket = p;
    }
    pthread_mutex_unlock(&conn->lock);
    return r;
}

// A failed send is not reported here: both directions are shut, the reader takes what the engine said last (it may be the
// reason), then finds the end and fails every waiting call, this one too.
static void send_frames(sandbox_conn_t *conn, const struct buf *frames)
{
    pthread_mutex_lock(&conn->send_lock);
    for (size_t sent = 0; sent < frames->len && conn->fd >= 0;) {
        ssize_t n = send(conn->fd, frames->data + sent, frames->len - sent, MSG_NOSIGNAL);
        if (n >= 0) {
            sent += (size_t)n;
        } else if (errno != EINTR) {
            shutdown(conn->fd, SHUT_RDWR);
            break;
        }
    }
    pthread_mutex_unlock(&conn->send_lock);
}

sandbox_error_t conn_begin(sandbox_conn_t *conn, Sandbox__ClientMessage *request, struct pending *pending)
{
    if (!conn_is_ours(conn))
        return fail_not_run(
            fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "this connection belongs to the parent process: open one after fork()"),
            SANDBOX_NOT_RUN_ENVIRONMENT);
    *pending = (struct pending){.id = atomic_fetch_add(&conn->next_id, 1), .fd = -1};
    request->request_id = pending->id;
    cleanup_buf struct buf frames = BUF_INIT(REQUEST_FRAMES_MAX);
    int e = append_request_frames(&frames, request);
    if (e == -EMSGSIZE)
        return fail(SANDBOX_ERR_TOO_LARGE, "the request has more than the %d bytes that one frame can carry", IPC_FRAME_MAX);
    if (e < 0)
        return fail_memory();
    pthread_cond_init(&pending->arrived, NULL);
    sandbox_error_t r = enlist(conn, pending);
    if (r != SANDBOX_OK) {
        pthread_cond_destroy(&pending->arrived);
        return fail_not_run(r, SANDBOX_NOT_RUN_ENVIRONMENT);
    }
    send_frames(conn, &frames);
    return SANDBOX_OK;
}

static sandbox_error_t judge(Sandbox__ServerMessage *reply, Sandbox__ServerMessage__ResponseCase want)
{
    if (reply->response_case == want)
        return SANDBOX_OK;
    if (reply->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR) {
        bool known = (unsigned)reply->error->not_run <= SANDBOX_NOT_RUN_ENVIRONMENT;
        return fail_not_run(fail_with_text_of_peer(error_from_wire(reply->error->error_code), reply->error->message),
                            known ? (sandbox_not_run_t)reply->error->not_run : SANDBOX_NOT_RUN_UNKNOWN);
    }
    return fail(SANDBOX_ERR_INTERNAL, "the engine's answer is of another kind than the request");
}

sandbox_error_t conn_finish(sandbox_conn_t *conn, struct pending *pending, Sandbox__ServerMessage__ResponseCase want,
                            Sandbox__ServerMessage **ret_reply)
{
    sandbox_error_t r = SANDBOX_OK;
    pthread_mutex_lock(&conn->lock);
    while (!pending->finished)
        pthread_cond_wait(&pending->arrived, &conn->lock);
    if (pending->reply == NULL)
        r = broken_error(conn);
    pthread_mutex_unlock(&conn->lock);
    pthread_cond_destroy(&pending->arrived);
    if (r == SANDBOX_OK)
        r = judge(pending->reply, want);
    if (r != SANDBOX_OK)
        close_fd(&pending->fd);
    if (r == SANDBOX_OK && ret_reply != NULL)
        *ret_reply = pending->reply;
    else
        pb_free(pending->reply);
    return r;
}

sandbox_error_t conn_finish_stream(sandbox_conn_t *conn, struct pending *pending, uint32_t sandbox_id, struct stream_made *ret)
{
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_finish(conn, pending, SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM, &reply);
    if (r != SANDBOX_OK)
        return r;
    cleanup_fd int fd = pending->fd;
    if (fd == FD_LOST)
        r = fail(SANDBOX_ERR_INTERNAL,
                 "this process has no file descriptor left for the stream: close some, or raise its limit");
    else if (fd < 0)
        r = fail(SANDBOX_ERR_INTERNAL, "the engine's answer should have come with a descriptor, and did not");
    else if (reply->stream->sandbox_id != sandbox_id)
        r = fail(SANDBOX_ERR_INTERNAL, "the engine's answer is about another sandbox");
    else
        *ret = (struct stream_made){
            .fd = take_fd(&fd), .isolation = reply->stream->isolation, .grant_id = reply->stream->grant_id};
    pb_free(reply);
    return r;
}

sandbox_error_t conn_call(sandbox_conn_t *conn, Sandbox__ClientMessage *request, Sandbox__ServerMessage__ResponseCase want,
                          Sandbox__ServerMessage **ret_reply)
{
    if (conn_is_ours(conn) && conn_closed(conn))
        return fail_not_run(fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection was closed, and its sandboxes with it"),
                            SANDBOX_NOT_RUN_ENVIRONMENT);
    struct pending pending = {0};
    sandbox_error_t r = conn_begin(conn, request, &pending);
    return r == SANDBOX_OK ? conn_finish(conn, &pending, want, ret_reply) : r;
}
