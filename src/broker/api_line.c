#include "broker/api_line.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "broker/api_conn.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <linux/vm_sockets.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { ACCEPTS_MAX = 16 };  // in one turn of the loop

struct api_line {
    LIST_ENTRY(api_line) all;
    struct broker *broker;
    uint32_t sandbox_id;
    enum broker_line_kind kind;
    int fd;  // -1: the feed has ended
    struct event *event, *pause;
    struct grant *grant;
    struct route_caps *caps;
    LIST_HEAD(api_conns, api_conn) conns;
    unsigned connections;
};

// ---- descriptors ----

static int int_option(int fd, int option)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &n) == 0 ? value : -1;
}

static bool socket_is(int fd, int type, int listening)
{
    int family = int_option(fd, SO_DOMAIN);
    return (family == AF_UNIX || (family == AF_VSOCK && type == SOCK_STREAM)) && int_option(fd, SO_TYPE) == type &&
           int_option(fd, SO_ACCEPTCONN) == listening;
}

// A connection of a machine's guest, or one that was dialled into a room without a network.
static bool is_connection(int fd)
{
    int family = int_option(fd, SO_DOMAIN);
    return socket_is(fd, SOCK_STREAM, 0) || ((family == AF_INET || family == AF_INET6) &&
                                             int_option(fd, SO_TYPE) == SOCK_STREAM && int_option(fd, SO_ACCEPTCONN) == 0);
}

static bool fd_fits(int fd, enum broker_line_kind kind)
{
    return kind == BROKER_LINE_LISTENER ? socket_is(fd, SOCK_STREAM, 1) : socket_is(fd, SOCK_SEQPACKET, 0);
}

// ---- connections ----

struct broker *api_line_broker(const struct api_line *l)
{
    return l->broker;
}

static bool full(const struct api_line *l)
{
    return l->connections >= API_CONNECTIONS_MAX;
}

void api_line_opened(struct api_line *l, struct api_conn *c)
{
    LIST_INSERT_HEAD(&l->conns, c, all);
    l->connections++;
    l->broker->grant_conns++;
    if (full(l))
        event_del(l->event);
}

void api_line_closed(struct api_line *l, struct api_conn *c)
{
    LIST_REMOVE(c, all);
    l->broker->grant_conns--;
    if (l->connections-- == API_CONNECTIONS_MAX && l->fd >= 0)
        event_add(l->event, NULL);
}

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
    struct api_line *l = arg;
    (void)fd;
    (void)what;
    if (!full(l) && l->fd >= 0)
        event_add(l->event, NULL);
}

// The next connection, non-blocking.  A negative errno; -EPIPE: there will be no more.
static int next_connection(struct api_line *l)
{
    if (l->kind == BROKER_LINE_LISTENER) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        return fd >= 0 ? fd : -errno;
    }
    char byte;
    int fd = -1;
    size_t n_fds = 1;
    ssize_t n = fdpass_recv(l->fd, &byte, sizeof byte, &fd, &n_fds);
    if (n <= 0)
        return n == -EAGAIN ? -EAGAIN : -EPIPE;
    if (n_fds == FDPASS_LOST)
        return -EMFILE;
    if (n_fds != 1)
        return -EPIPE;
    if (!is_connection(fd)) {
        close(fd);
        return -EPIPE;
    }
    evutil_make_socket_nonblocking(fd);
    return fd;
}

static void on_line(evutil_socket_t listening, short what, void *arg)
{
    struct api_line *l = arg;
    (void)listening;
    (void)what;
    for (int i = 0; i < ACCEPTS_MAX && !full(l); i++) {
        int fd = next_connection(l);
        if (fd >= 0) {
            if (l->connections > 0 && l->broker->grant_conns >= l->broker->config.grant_conns)
                close(fd);
            else
                api_conn_new(l, fd);
            continue;
        }
        if (fd == -EPIPE) {
            event_del(l->event);
            close_fd(&l->fd);
            log_info("grant_line_ended", log_u64("sandbox_id", l->sandbox_id));
        } else if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS) {
            // Out of descriptors: this loop must not spin on what waits.
            event_del(l->event);
            evtimer_add(l->pause, &(struct timeval){.tv_usec = 100000});
        }
        return;
    }
}

// ---- life ----

struct api_line *api_line_find(const struct broker *b, uint32_t sandbox_id)
{
    struct api_line *l;
    LIST_FOREACH(l, &b->api_lines->all, all)
    if (l->sandbox_id == sandbox_id)
        return l;
    return NULL;
}

struct grant *api_line_grant(const struct api_line *l)
{
    return l->grant;
}

void api_line_lend(struct api_line *l, struct grant *g)
{
    l->grant = g;
}

struct route_caps *api_line_caps(struct api_line *l)
{
    return l->caps;
}

static void line_free(struct api_line *l)
{
    struct api_conn *c;
    if (l->grant != NULL)
        grant_close(l->grant, NULL);
    while ((c = LIST_FIRST(&l->conns)) != NULL)
        api_conn_free(c);
    if (l->event != NULL)
        event_free(l->event);
    if (l->pause != NULL)
        event_free(l->pause);
    close_fd(&l->fd);
    route_caps_free(l->caps);
    free(l);
}

int api_line_add(struct broker *b, uint32_t sandbox_id, enum broker_line_kind kind, int fd)
{
    cleanup_fd int held = fd;
    if (api_line_find(b, sandbox_id) != NULL)
        return -EEXIST;
    if (b->api_lines->n == BROKER_SANDBOXES_MAX)
        return -ENOSPC;
    if (!fd_fits(fd, kind))
        return -EINVAL;
    struct api_line *l = calloc(1, sizeof *l);
    if (l == NULL)
        return -ENOMEM;
    *l = (struct api_line){.broker = b, .sandbox_id = sandbox_id, .kind = kind, .fd = take_fd(&held)};
    evutil_make_socket_nonblocking(l->fd);
    l->event = event_new(b->base, l->fd, EV_READ | EV_PERSIST, on_line, l);
    l->pause = evtimer_new(b->base, on_pause_over, l);
    if (l->event == NULL || l->pause == NULL || event_add(l->event, NULL) < 0 || route_caps_new(&l->caps) < 0) {
        line_free(l);
        return -ENOMEM;
    }
    LIST_INSERT_HEAD(&b->api_lines->all, l, all);
    b->api_lines->n++;
    return 0;
}

static void forget(struct api_line *l)
{
    LIST_REMOVE(l, all);
    l->broker->api_lines->n--;
    line_free(l);
}

int api_line_remove(struct broker *b, uint32_t sandbox_id)
{
    struct api_line *l = api_line_find(b, sandbox_id);
    if (l == NULL)
        return -ENOENT;
    forget(l);
    return 0;
}

void api_line_remove_all(struct broker *b)
{
    struct api_line *l;
    while ((l = LIST_FIRST(&b->api_lines->all)) != NULL)
        forget(l);
}
