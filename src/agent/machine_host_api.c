#include "agent/machine_host_api.h"

#include "base/cleanup.h"
#include "sys/fdpass.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

enum { RELAY_BYTES = 16 * 1024 };

// Bytes from one socket to the other.
struct direction {
    size_t at, len;
    bool ended;   // no more will come
    bool closed;  // and the other side has been told
    uint8_t bytes[RELAY_BYTES];
};

enum side { INSIDE, OUTSIDE, SIDES };

struct relay {
    LIST_ENTRY(relay) link;
    struct machine_host_api *owner;
    bool calling;
    int fd[SIDES];
    struct watch *watch[SIDES];
    struct direction from[SIDES];
};

struct machine_host_api {
    struct loop *loop;
    int feed;
    struct watch *on_feed;
    unsigned count;
    LIST_HEAD(relays, relay) relays;
};

static void relay_free(struct relay *r)
{
    struct machine_host_api *h = r->owner;
    for (int i = 0; i < SIDES; i++) {
        r->watch[i] = watch_remove(r->watch[i]);
        close_fd(&r->fd[i]);
    }
    LIST_REMOVE(r, link);
    if (h->count-- == MACHINE_HOST_API_RELAYS_MAX && h->on_feed != NULL)
        watch_set(h->on_feed, EPOLLIN);
    free(r);
}

// ---- bytes ----

// False: the connection has failed.
static bool read_some(struct relay *r, enum side side)
{
    struct direction *d = &r->from[side];
    if (d->len > 0 || d->ended)
        return true;
    ssize_t n = recv(r->fd[side], d->bytes, sizeof d->bytes, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    d->ended = n == 0;
    d->at = 0;
    d->len = (size_t)n;
    return true;
}

static bool write_some(struct relay *r, enum side side)
{
    struct direction *d = &r->from[side];
    int to = r->fd[!side];
    if (d->len > 0) {
        ssize_t n = send(to, d->bytes + d->at, d->len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        d->at += (size_t)n;
        d->len -= (size_t)n;
    }
    if (d->len == 0 && d->ended && !d->closed) {
        d->closed = true;
        shutdown(to, SHUT_WR);
    }
    return true;
}

static void set_watches(struct relay *r)
{
    for (int i = 0; i < SIDES; i++) {
        const struct direction *from = &r->from[i], *to = &r->from[!i];
        uint32_t events = from->len == 0 && !from->ended ? EPOLLIN : 0;
        watch_set(r->watch[i], events | (to->len > 0 ? EPOLLOUT : 0));
    }
}

// What can be moved is; the relay may be gone after this.
static void move(struct relay *r)
{
    for (int i = 0; i < SIDES; i++)
        if (!read_some(r, (enum side)i) || !write_some(r, (enum side)i)) {
            relay_free(r);
            return;
        }
    if (r->from[INSIDE].closed && r->from[OUTSIDE].closed)
        relay_free(r);
    else
        set_watches(r);
}

static bool has_hung_up(struct relay *r, enum side side, uint32_t events)
{
    // With something still to be read it is not over.
    return (events & (EPOLLERR | EPOLLHUP)) != 0 && (r->from[side].ended || r->from[side].len > 0);
}

static void on_inside(void *arg, uint32_t events)
{
    struct relay *r = arg;
    if (has_hung_up(r, INSIDE, events))
        relay_free(r);
    else
        move(r);
}

static void on_outside(void *arg, uint32_t events)
{
    struct relay *r = arg;
    int error = 0;
    socklen_t n = sizeof error;
    if (r->calling) {
        if (getsockopt(r->fd[OUTSIDE], SOL_SOCKET, SO_ERROR, &error, &n) < 0 || error != 0) {
            relay_free(r);
            return;
        }
        r->calling = false;
        if (watch_add(r->owner->loop, r->fd[INSIDE], EPOLLIN, on_inside, r, &r->watch[INSIDE]) < 0) {
            relay_free(r);
            return;
        }
    }
    if (has_hung_up(r, OUTSIDE, events))
        relay_free(r);
    else
        move(r);
}

// ---- connections ----

static int call_host(int *ret_fd)
{
    cleanup_fd int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const struct sockaddr_vm host = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = HOST_API_VSOCK_PORT};
    if (fd < 0 || (connect(fd, (const struct sockaddr *)&host, sizeof host) < 0 && errno != EINPROGRESS))
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

// Takes over `inside` on success.
static int relay_new(struct machine_host_api *h, int inside)
{
    cleanup_fd int outside = -1;
    int r = call_host(&outside);
    if (r == 0 && fcntl(inside, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    struct relay *relay = r == 0 ? calloc(1, sizeof *relay) : NULL;
    if (relay == NULL)
        return r < 0 ? r : -ENOMEM;
    relay->owner = h;
    relay->calling = true;
    relay->fd[INSIDE] = -1;
    relay->fd[OUTSIDE] = take_fd(&outside);
    LIST_INSERT_HEAD(&h->relays, relay, link);
    h->count++;
    r = watch_add(h->loop, relay->fd[OUTSIDE], EPOLLOUT, on_outside, relay, &relay->watch[OUTSIDE]);
    if (r < 0)
        relay_free(relay);
    else
        relay->fd[INSIDE] = inside;
    return r;
}

static bool is_stream(int fd)
{
    int domain = 0, type = 0;
    socklen_t n = sizeof domain, m = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) == 0 && domain == AF_UNIX &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &m) == 0 && type == SOCK_STREAM;
}

static void on_feed(void *arg, uint32_t events)
{
    struct machine_host_api *h = arg;
    (void)events;
    char byte;
    int fds[1];
    size_t count = 1;
    ssize_t n = fdpass_recv(h->feed, &byte, sizeof byte, fds, &count);
    if (n == -EAGAIN || n == -EPROTO)
        return;
    if (n <= 0) {
        h->on_feed = watch_remove(h->on_feed);
        return;
    }
    cleanup_fd int fd = count == 1 ? fds[0] : -1;
    if (fd < 0 || !is_stream(fd) || relay_new(h, fd) < 0)
        return;
    take_fd(&fd);
    if (h->count == MACHINE_HOST_API_RELAYS_MAX)
        watch_set(h->on_feed, 0);
}

// ---- life ----

int machine_host_api_new(struct loop *loop, struct machine_host_api **ret, int *ret_agent_end)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    struct machine_host_api *h = calloc(1, sizeof *h);
    if (h == NULL)
        return -ENOMEM;
    h->loop = loop;
    h->feed = take_fd(&ours);
    int r = watch_add(loop, h->feed, EPOLLIN, on_feed, h, &h->on_feed);
    if (r < 0) {
        machine_host_api_free(h);
        return r;
    }
    *ret = h;
    *ret_agent_end = take_fd(&theirs);
    return 0;
}

struct machine_host_api *machine_host_api_free(struct machine_host_api *h)
{
    if (h == NULL)
        return NULL;
    h->on_feed = watch_remove(h->on_feed);
    while (!LIST_EMPTY(&h->relays))
        relay_free(LIST_FIRST(&h->relays));
    close_fd(&h->feed);
    free(h);
    return NULL;
}
