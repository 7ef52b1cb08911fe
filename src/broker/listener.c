#include "broker/listener.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_MAX = 64 };  // in one turn of the loop

struct listener {
    struct sandbox *sandbox;
    int fd;
    struct event *event, *pause;
    accept_fn *fn;
};

static int int_option(int fd, int option)
{
    int value = -1;
    socklen_t n = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &n) == 0 ? value : -1;
}

bool listener_fd_ok(int fd, bool tcp)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    if (int_option(fd, SO_DOMAIN) != AF_INET || int_option(fd, SO_TYPE) != (tcp ? SOCK_STREAM : SOCK_DGRAM))
        return false;
    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0 || a.sin_addr.s_addr == htonl(INADDR_ANY) || a.sin_port == 0)
        return false;
    return !tcp || int_option(fd, SO_ACCEPTCONN) == 1;
}

static bool is_guest(const struct sandbox *s, const struct sockaddr_in *from)
{
    return from->sin_family == AF_INET && memcmp(&from->sin_addr, s->guest.bytes, 4) == 0;
}

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
    struct listener *l = arg;
    (void)fd;
    (void)what;
    event_add(l->event, NULL);
}

static void on_connection(evutil_socket_t listening, short what, void *arg)
{
    struct listener *l = arg;
    (void)what;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_in from;
        socklen_t n = sizeof from;
        int fd = accept4(listening, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            // Out of descriptors: the connection waits, and this loop must not spin on it.
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                event_del(l->event);
                evtimer_add(l->pause, &(struct timeval){.tv_usec = 100000});
            }
            return;
        }
        if (!is_guest(l->sandbox, &from)) {
            log_warn("stranger", log_u64("sandbox_id", l->sandbox->id));
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
        l->sandbox->broker->metrics.connections++;
        l->fn(l->sandbox, fd);
    }
}

int listener_new(struct sandbox *s, int fd, accept_fn *fn, struct listener **ret)
{
    struct listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        close(fd);
        return -ENOMEM;
    }
    *l = (struct listener){.sandbox = s, .fd = fd, .fn = fn};
    evutil_make_socket_nonblocking(fd);
    l->event = event_new(s->broker->base, fd, EV_READ | EV_PERSIST, on_connection, l);
    l->pause = evtimer_new(s->broker->base, on_pause_over, l);
    if (l->event == NULL || l->pause == NULL || event_add(l->event, NULL) < 0) {
        listener_free(l);
        return -ENOMEM;
    }
    *ret = l;
    return 0;
}

struct listener *listener_free(struct listener *l)
{
    if (l == NULL)
        return NULL;
    if (l->event != NULL)
        event_free(l->event);
    if (l->pause != NULL)
        event_free(l->pause);
    close(l->fd);
    free(l);
    return NULL;
}
