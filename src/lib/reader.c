// The reader thread: takes frames off the socket and hands each answer to the caller waiting for it.
#include "lib/conn.h"
#include "lib/errors.h"
#include "wire/pb.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// Everything this thread decides about a connection that cannot go on.
static void break_connection(sandbox_conn_t *conn, const struct err *reason)
{
    pthread_mutex_lock(&conn->lock);
    if (!conn->broken) {
        conn->broken = true;
        conn->reason = *reason;
    }
    for (size_t i = 0; i < PENDING_BUCKETS; i++) {
        while (conn->waiting[i] != NULL) {
            struct pending *p = conn->waiting[i];
            conn->waiting[i] = p->next;
            p->finished = true;
            // Signalled under the lock: once it is free, the waiter may return and its stack be gone.
            pthread_cond_signal(&p->arrived);
        }
    }
    pthread_mutex_unlock(&conn->lock);
    // A sender stuck in a full socket comes back.
    shutdown(conn->fd, SHUT_RDWR);
}

static struct pending *take_pending(sandbox_conn_t *conn, uint64_t id)
{
    for (struct pending **slot = &conn->waiting[id % PENDING_BUCKETS]; *slot != NULL; slot = &(*slot)->next) {
        struct pending *p = *slot;
        if (p->id == id) {
            *slot = p->next;
            return p;
        }
    }
    return NULL;
}

// Id 0: the engine could not read a frame of ours, or refuses us altogether.  We never ask with id 0, so whatever it says is
// about the connection (spec 000, "Request correlation").
static int refused(sandbox_conn_t *conn, const Sandbox__ServerMessage *m, struct err *ret_reason)
{
    pthread_mutex_lock(&conn->lock);
    bool established = conn->established;
    pthread_mutex_unlock(&conn->lock);
    if (m->response_case != SANDBOX__SERVER_MESSAGE__RESPONSE_ERROR)
        return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine answered with id 0, which was never asked");
    sandbox_error_t code = error_from_wire(m->error->error_code);
    bool denied = code == SANDBOX_ERR_PERMISSION_DENIED && !established;
    const char *text = m->error->message[0] != '\0' ? m->error->message : sandbox_error_string(code);
    return err_set(ret_reason, denied ? code : SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine ended the connection: %s", text);
}

// FD_NONE: there is none.  FD_LOST: it came when this process could have no more.
static int take_first_fd(sandbox_conn_t *conn)
{
    if (conn->n_fds == 0)
        return FD_NONE;
    int fd = conn->fds[0];
    conn->n_fds--;
    memmove(conn->fds, conn->fds + 1, conn->n_fds * sizeof conn->fds[0]);
    return fd;
}

// 0, or a negative code with the reason why the connection cannot go on.
static int deliver(sandbox_conn_t *conn, const uint8_t *body, size_t n, struct err *ret_reason)
{
    Sandbox__ServerMessage *m = (Sandbox__ServerMessage *)pb_unpack(&sandbox__server_message__descriptor, body, n);
    if (m == NULL)
        return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine sent a frame that cannot be parsed");
    int r = 0;
    if (m->request_id == 0) {
        r = refused(conn, m, ret_reason);
    } else {
        pthread_mutex_lock(&conn->lock);
        struct pending *p = take_pending(conn, m->request_id);
        if (p != NULL) {
            p->fd = m->response_case == SANDBOX__SERVER_MESSAGE__RESPONSE_STREAM ? take_first_fd(conn) : FD_NONE;
            p->reply = m;
            p->finished = true;
            m = NULL;
            pthread_cond_signal(&p->arrived);
        }
        pthread_mutex_unlock(&conn->lock);
        if (m != NULL)
            r = err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine answered a request nobody made");
    }
    pb_free(m);
    return r;
}

// Hands out every whole frame in the buffer and keeps the rest.
static int deliver_all(sandbox_conn_t *conn, struct err *ret_reason)
{
    size_t at = 0;
    for (;;) {
        const uint8_t *body;
        size_t n;
        int r = frame_find(conn->in + at, conn->in_len - at, IPC_FRAME_MAX, &body, &n);
        if (r < 0)
            return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine sent a frame of more than 64 KiB");
        if (r == 0)
            break;
        r = deliver(conn, body, n, ret_reason);
        if (r < 0)
            return r;
        at += FRAME_HEAD + n;
    }
    conn->in_len -= at;
    memmove(conn->in, conn->in + at, conn->in_len);
    return 0;
}

// Keeps the descriptors of a received message.  False when there are more than can be meant well.
static bool keep_fds(sandbox_conn_t *conn, struct msghdr *m)
{
    bool fits = true;
    size_t came = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
        size_t count =
            c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
        for (size_t i = 0; i < count; i++, came++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (conn->n_fds < READER_FDS_MAX) {
                conn->fds[conn->n_fds++] = fd;
            } else {
                close(fd);
                fits = false;
            }
        }
    }
    if ((m->msg_flags & MSG_CTRUNC) == 0)
        return fits;
    // Room was left and one is missing all the same: this process has as many as it may.  The engine sends one at a time.
    if (came > 0 || conn->n_fds == READER_FDS_MAX)
        return false;
    conn->fds[conn->n_fds++] = FD_LOST;
    return fits;
}

static int read_more(sandbox_conn_t *conn, struct err *ret_reason)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * 4)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = conn->in + conn->in_len, .iov_len = sizeof conn->in - conn->in_len};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t n;
    do
        n = recvmsg(conn->fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n >= 0 && !keep_fds(conn, &m))
        return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE,
                       "the engine sent more descriptors than it can have meant to");
    if (n == 0)
        return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the engine closed the connection");
    if (n < 0)
        return err_set(ret_reason, SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection to the engine broke: %s", strerror(errno));
    conn->in_len += (size_t)n;
    return 0;
}

void *reader_main(void *arg)
{
    sandbox_conn_t *conn = arg;
    struct err reason;
    while (read_more(conn, &reason) == 0 && deliver_all(conn, &reason) == 0)
        ;
    break_connection(conn, &reason);
    for (int fd; (fd = take_first_fd(conn)) != FD_NONE;)
        if (fd >= 0)
            close(fd);
    return NULL;
}
