#include "broker/listener.h"

#include "base/log.h"
#include "http/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct listener {
    struct sandbox *sandbox;
    struct acceptor *acceptor;
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

static void on_connection(void *arg, int fd, const struct sockaddr *from, socklen_t n)
{
    struct listener *l = arg;
    (void)n;
    if (!is_guest(l->sandbox, (const struct sockaddr_in *)from)) {
        log_warn("stranger", log_u64("sandbox_id", l->sandbox->id));
        close(fd);
        return;
    }
    broker_watch_peer(l->sandbox->broker, fd);
    l->sandbox->broker->metrics.connections++;
    l->fn(l->sandbox, fd);
}

int listener_new(struct sandbox *s, int fd, accept_fn *fn, struct listener **ret)
{
    struct listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        close(fd);
        return -ENOMEM;
    }
    *l = (struct listener){.sandbox = s, .fn = fn};
    int r = acceptor_new(s->broker->base, fd, on_connection, l, &l->acceptor);
    if (r < 0) {
        free(l);
        return r;
    }
    *ret = l;
    return 0;
}

struct listener *listener_free(struct listener *l)
{
    if (l == NULL)
        return NULL;
    acceptor_free(l->acceptor);
    free(l);
    return NULL;
}
