#include "base/cleanup.h"
#include "base/num.h"
#include "sys/fdpass.h"
#include "vmm/virtio/vsock_inside.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void on_socket(void *arg, uint32_t events);

void vsock_conn_watch(struct vsock_conn *c)
{
    if (c->watch == NULL)
        return;
    uint32_t events = 0;
    if (c->stage == VSOCK_GREETING || (c->stage == VSOCK_OPEN && !c->readable && !c->host_sent_all && !c->guest_takes_no_more))
        events |= EPOLLIN;
    if (c->kept_len > 0)
        events |= EPOLLOUT;
    watch_set(c->watch, events);
}

static bool adopt(struct vsock *v, struct vsock_conn *c, int *fd)
{
    c->vsock = v;
    if (watch_add(v->loop, *fd, 0, on_socket, c, &c->watch) < 0)
        return false;
    c->fd = take_fd(fd);
    vsock_conn_watch(c);
    return true;
}

// ---- begun by the host ----

// "CONNECT <port>\n" or "OPEN <port>\n"
static bool parse_greeting(const char *line, uint32_t *ret_port, bool *ret_quiet)
{
    static const char *const words[] = {"CONNECT ", "OPEN "};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i]);
        uint64_t port;
        if (strncmp(line, words[i], n) != 0 || parse_u64(line + n, 0, UINT32_MAX - 1, &port) < 0)
            continue;
        *ret_port = (uint32_t)port;
        *ret_quiet = i == 1;
        return true;
    }
    return false;
}

// Takes the client's line out of the socket, and nothing behind it.  1: it is whole; 0: not yet; -1: it will not be.
static int read_greeting(struct vsock_conn *c)
{
    char peeked[VSOCK_GREETING_MAX];
    ssize_t n = recv(c->fd, peeked, VSOCK_GREETING_MAX - c->greeting_len, MSG_PEEK | MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    const char *end = memchr(peeked, '\n', (size_t)n);
    size_t take = end != NULL ? (size_t)(end - peeked) + 1 : (size_t)n;
    if (recv(c->fd, c->greeting + c->greeting_len, take, MSG_DONTWAIT) != (ssize_t)take)
        return -1;
    c->greeting_len += take;
    if (end == NULL)
        return c->greeting_len < VSOCK_GREETING_MAX ? 0 : -1;
    c->greeting[c->greeting_len - 1] = '\0';
    return 1;
}

static void on_greeting(struct vsock *v, struct vsock_conn *c)
{
    uint32_t port;
    int r = read_greeting(c);
    if (r == 0)
        return;
    if (r < 0 || !parse_greeting(c->greeting, &port, &c->quiet)) {
        vsock_conn_remove(v, c);
        return;
    }
    vsock_table_name(&v->table, c, vsock_table_host_port(&v->table, port), port);
    c->stage = VSOCK_ASKED;
    c->owes = VSOCK_OWES_REQUEST;
    vsock_conn_watch(c);
    vsock_conn_look(v, c);
    vsock_pump(v);
}

bool vsock_greet(struct vsock_conn *c)
{
    if (c->quiet)
        return true;
    char line[VSOCK_GREETING_MAX];
    int n = snprintf(line, sizeof line, "OK %u\n", c->host_port);
    return send(c->fd, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) == n;
}

static void accept_one(struct vsock *v, int *fd)
{
    struct vsock_conn *c = vsock_table_add(&v->table, false);
    if (c == NULL)
        return;
    c->stage = VSOCK_GREETING;
    if (!adopt(v, c, fd))
        vsock_table_remove(&v->table, c);
}

void vsock_on_listener(void *arg, uint32_t events)
{
    (void)events;
    struct vsock *v = arg;
    virtio_lock(v->mmio);
    bool possible = true;
    unsigned budget = v->forget || !virtio_active(v->mmio) ? 0 : VIRTIO_BUDGET;
    for (; budget > 0 && vsock_table_has_room(&v->table, false); budget--) {
        cleanup_fd int fd = accept4(v->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            possible = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
            break;
        }
        accept_one(v, &fd);
    }
    // Without a place, a descriptor or a driver, clients wait in the listener's queue until a connection ends.
    if (!possible || !virtio_active(v->mmio) || !vsock_table_has_room(&v->table, false))
        watch_set(v->listener_watch, 0);
    virtio_unlock(v->mmio);
}

// ---- begun by the guest ----

static bool is_allowed(const struct vsock *v, uint32_t port)
{
    for (size_t i = 0; i < v->ports; i++)
        if (v->port[i] == port)
            return v->dial >= 0;
    return false;
}

bool vsock_dial(struct vsock *v, uint32_t host_port, uint32_t guest_port, struct vsock_conn **ret_conn)
{
    if (!is_allowed(v, host_port) || !vsock_table_has_room(&v->table, true))
        return false;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return false;
    cleanup_fd int ours = pair[0];
    cleanup_fd int theirs = pair[1];
    struct vsock_conn *c = vsock_table_add(&v->table, true);
    if (c == NULL)
        return false;
    c->stage = VSOCK_OPEN;
    uint32_t packet = htole32(host_port);
    if (!adopt(v, c, &ours) || fdpass_send(v->dial, &packet, sizeof packet, &theirs, 1) != (ssize_t)sizeof packet) {
        vsock_table_remove(&v->table, c);
        return false;
    }
    vsock_table_name(&v->table, c, host_port, guest_port);
    *ret_conn = c;
    return true;
}

// ---- bytes towards the host ----

static bool keep(struct vsock_conn *c, const struct iovec *iov, size_t count, size_t skip, size_t n)
{
    if (c->kept == NULL && (c->kept = malloc(VSOCK_BUFFER)) == NULL)
        return false;
    if (c->kept_len == 0)
        c->kept_at = 0;
    uint32_t end = (c->kept_at + c->kept_len) % VSOCK_BUFFER;
    size_t first = VSOCK_BUFFER - end < n ? VSOCK_BUFFER - end : n;
    iov_read(iov, count, skip, c->kept + end, first);
    iov_read(iov, count, skip + first, c->kept, n - first);
    c->kept_len += (uint32_t)n;
    return true;
}

// What was thrown away counts as taken: nobody waits for it.
static void take_no_more(struct vsock_conn *c)
{
    c->host_takes_no_more = true;
    c->kept_len = 0;
    free(take_ptr(&c->kept));
    c->forwarded = c->received;
}

static void forwarded(struct vsock_conn *c, size_t n)
{
    c->forwarded += (uint32_t)n;
    if (c->forwarded - c->forwarded_told >= VSOCK_BUFFER / 2)
        c->owes |= VSOCK_OWES_CREDIT;
}

// How many bytes the socket took; take_no_more when it never will again.
static size_t send_some(struct vsock_conn *c, struct iovec *iov, size_t count)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = count};
    ssize_t n = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0) {
        forwarded(c, (size_t)n);
        return (size_t)n;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
        take_no_more(c);
    return 0;
}

static void send_kept(struct vsock_conn *c)
{
    while (c->kept_len > 0) {
        size_t first = VSOCK_BUFFER - c->kept_at < c->kept_len ? VSOCK_BUFFER - c->kept_at : c->kept_len;
        struct iovec part = {.iov_base = c->kept + c->kept_at, .iov_len = first};
        size_t n = send_some(c, &part, 1);
        if (n == 0)
            return;
        c->kept_at = (uint32_t)((c->kept_at + n) % VSOCK_BUFFER);
        c->kept_len -= (uint32_t)n;
    }
    free(take_ptr(&c->kept));
}

bool vsock_conn_take(struct vsock *v, struct vsock_conn *c, const struct iovec *iov, size_t count, size_t n)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    v->counters.from_guest_bytes += n;
    c->received += (uint32_t)n;
    if (c->host_takes_no_more) {
        c->forwarded = c->received;
        return true;
    }
    size_t done = 0;
    if (c->kept_len == 0 && n > 0)
        done = send_some(c, part, iov_part(iov, count, 0, n, part));
    if (done == n || c->host_takes_no_more)
        return true;
    bool kept = keep(c, iov, count, done, n - done);
    vsock_conn_watch(c);
    return kept;
}

// ---- bytes from the host ----

size_t vsock_conn_read(struct vsock_conn *c, const struct iovec *iov, size_t count)
{
    struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = count};
    ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0)
        return (size_t)n;
    c->readable = n < 0 && errno == EINTR;
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
        c->host_sent_all = true;
    return 0;
}

void vsock_conn_end_host(struct vsock_conn *c)
{
    bool takes_nothing = c->host_takes_no_more || (c->guest_sent_all && c->kept_len == 0);
    if (c->stage != VSOCK_OPEN || !c->host_sent_all || !takes_nothing)
        return;
    c->stage = VSOCK_CLOSING;
    vsock_conn_close(c);
}

bool vsock_conn_half_close(struct vsock *v, struct vsock_conn *c)
{
    bool done_to_host = c->guest_sent_all && c->kept_len == 0;
    if (c->guest_takes_no_more && (done_to_host || c->host_takes_no_more)) {
        vsock_conn_reset(v, c);
        return true;
    }
    if (c->fd >= 0 && done_to_host)
        shutdown(c->fd, SHUT_WR);
    if (c->fd >= 0 && c->guest_takes_no_more) {
        c->readable = false;
        shutdown(c->fd, SHUT_RD);
    }
    vsock_conn_end_host(c);
    vsock_conn_watch(c);
    vsock_conn_look(v, c);
    return false;
}

static void on_open(struct vsock *v, struct vsock_conn *c, uint32_t events)
{
    if ((events & EPOLLOUT) != 0)
        send_kept(c);
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
        // Bytes may still be waiting in the socket; after them reading ends.  What it does not take now, nobody takes.
        c->watch = watch_remove(c->watch);
        take_no_more(c);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !c->host_sent_all && !c->guest_takes_no_more)
        c->readable = true;
    vsock_conn_half_close(v, c);
    vsock_pump(v);
}

// The client has gone before the guest has answered: only that is watched for then.  Who wants an OK did not want to wait for
// it. Who wants none may have passed the socket on, after what it sent first; that client's end is told as at any other time,
// in its order, because whoever opened the line goes by what the guest says of its end.
static void on_early_end(struct vsock *v, struct vsock_conn *c)
{
    if (c->quiet) {
        c->watch = watch_remove(c->watch);
        take_no_more(c);
    } else {
        vsock_conn_reset(v, c);
        vsock_pump(v);
    }
}

static void on_socket(void *arg, uint32_t events)
{
    struct vsock_conn *c = arg;
    struct vsock *v = c->vsock;
    struct virtio_mmio *mmio = v->mmio;
    virtio_lock(mmio);
    if (v->forget) {
        // The connection ends as soon as the loop comes to it.
    } else if (c->stage == VSOCK_GREETING) {
        on_greeting(v, c);
    } else if (c->stage == VSOCK_ASKED) {
        on_early_end(v, c);
    } else {
        on_open(v, c, events);
    }
    virtio_unlock(mmio);
}
