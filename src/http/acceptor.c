#include "http/acceptor.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <unistd.h>

enum { ACCEPTS_MAX = 64 /* in one turn of the loop */, PAUSE_US = 100000 };

struct acceptor {
    int fd;
    struct event *event, *pause;
    acceptor_fn *fn;
    void *arg;
};

static void on_pause_over(evutil_socket_t fd, short what, void *arg)
{
    struct acceptor *a = arg;
    (void)fd;
    (void)what;
    event_add(a->event, NULL);
}

static void on_connection(evutil_socket_t listening, short what, void *arg)
{
    struct acceptor *a = arg;
    (void)what;
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        struct sockaddr_storage from = {0};
        socklen_t n = sizeof from;
        int fd = accept4(listening, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            // Out of descriptors: the connection waits, and this loop must not spin on it.
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                event_del(a->event);
                evtimer_add(a->pause, &(struct timeval){.tv_usec = PAUSE_US});
            }
            return;
        }
        if (from.ss_family == AF_INET || from.ss_family == AF_INET6) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
            setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
        }
        a->fn(a->arg, fd, (struct sockaddr *)&from, n);
    }
}

int acceptor_new(struct event_base *base, int fd, acceptor_fn *fn, void *arg, struct acceptor **ret)
{
    struct acceptor *a = calloc(1, sizeof *a);
    if (a == NULL) {
        close(fd);
        return -ENOMEM;
    }
    *a = (struct acceptor){.fd = fd, .fn = fn, .arg = arg};
    evutil_make_socket_nonblocking(fd);
    a->event = event_new(base, fd, EV_READ | EV_PERSIST, on_connection, a);
    a->pause = evtimer_new(base, on_pause_over, a);
    if (a->event == NULL || a->pause == NULL || event_add(a->event, NULL) < 0) {
        acceptor_free(a);
        return -ENOMEM;
    }
    *ret = a;
    return 0;
}

struct acceptor *acceptor_free(struct acceptor *a)
{
    if (a == NULL)
        return NULL;
    if (a->event != NULL)
        event_free(a->event);
    if (a->pause != NULL)
        event_free(a->pause);
    close(a->fd);
    free(a);
    return NULL;
}
