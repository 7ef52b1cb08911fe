#include "http/acceptor.h"
#include "http/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct http_listener {
    struct http_listener *next;
    struct http_server *server;
    struct acceptor *acceptor;
    SSL_CTX *tls;
    void *arg;
};

// ---- who is there ----

static void describe(const struct sockaddr *from, int fd, struct http_peer *peer)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)from;
        inet_ntop(AF_INET, &a->sin_addr, text, sizeof text);
        snprintf(peer->address, sizeof peer->address, "%s:%u", text, ntohs(a->sin_port));
    } else if (from->sa_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)from;
        inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text);
        snprintf(peer->address, sizeof peer->address, "[%s]:%u", text, ntohs(a->sin6_port));
    } else {
        struct ucred cred;
        socklen_t n = sizeof cred;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) == 0) {
            peer->local = true;
            peer->uid = cred.uid;
            snprintf(peer->address, sizeof peer->address, "uid:%u", cred.uid);
        }
    }
}

static struct bufferevent *wrap(struct http_listener *l, int fd)
{
    struct event_base *base = l->server->base;
    // Deferred, so that nothing is called from inside a handler's own calls.
    int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (l->tls == NULL)
        return bufferevent_socket_new(base, fd, options);
    SSL *ssl = SSL_new(l->tls);
    if (ssl == NULL)
        return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, options);
    if (bev == NULL)
        SSL_free(ssl);
    return bev;
}

// ---- accepting ----

// Whether a place is free, or can be had from a connection that has had its last answer, or waits for its next request.
static bool make_room(struct http_server *s)
{
    if (s->counted < s->limits.max_connections)
        return true;
    struct http_conn *c;
    TAILQ_FOREACH(c, &s->conns, link)
    if (conn_is_over(c))
        break;
    if (c == NULL)
        c = TAILQ_FIRST(&s->idle);
    if (c == NULL)
        return false;
    conn_close_idle(c);
    return true;
}

static void on_connection(void *arg, int fd, const struct sockaddr *from, socklen_t n)
{
    struct http_listener *l = arg;
    struct http_server *s = l->server;
    (void)n;
    bool room = make_room(s);
    struct http_peer peer = {.tls = l->tls != NULL};
    describe(from, fd, &peer);
    // Nobody unknown comes through a Unix socket; a TLS client would have to shake hands before it could be told anything.
    bool known = from->sa_family != AF_UNIX || peer.local;
    if (!known || (!room && (s->busy >= HTTP_BUSY_MAX || peer.tls))) {
        s->refused++;
        close(fd);
        return;
    }
    struct bufferevent *bev = wrap(l, fd);
    if (bev == NULL) {
        close(fd);
        return;
    }
    struct http_conn *c = conn_new(s, bev, &peer, l->arg);
    if (c == NULL)
        return;
    if (room) {
        s->accepted++;
        return;
    }
    s->refused++;
    conn_refuse(c);
}

int http_server_listen(struct http_server *s, int fd, SSL_CTX *tls, void *listener)
{
    struct http_listener *l = calloc(1, sizeof *l);
    if (l == NULL) {
        close(fd);
        return -ENOMEM;
    }
    *l = (struct http_listener){.server = s, .tls = tls, .arg = listener};
    int r = acceptor_new(s->base, fd, on_connection, l, &l->acceptor);
    if (r < 0) {
        free(l);
        return r;
    }
    l->next = s->listeners;
    s->listeners = l;
    return 0;
}

// ---- life ----

int http_server_new(struct event_base *base, const struct http_server_limits *limits, const struct http_server_handler *handler,
                    void *arg, struct http_server **ret)
{
    struct http_server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    *s = (struct http_server){.base = base, .limits = *limits, .handler = handler, .arg = arg};
    TAILQ_INIT(&s->conns);
    TAILQ_INIT(&s->idle);
    *ret = s;
    return 0;
}

static void stop_listening(struct http_server *s)
{
    while (s->listeners != NULL) {
        struct http_listener *l = s->listeners;
        s->listeners = l->next;
        acceptor_free(l->acceptor);
        free(l);
    }
}

void http_server_drain(struct http_server *s)
{
    s->draining = true;
    stop_listening(s);
    struct http_conn *c;
    TAILQ_FOREACH(c, &s->conns, link)
    conn_drain(c);
}

struct http_server *http_server_free(struct http_server *s)
{
    if (s == NULL)
        return NULL;
    stop_listening(s);
    struct http_conn *c;
    TAILQ_FOREACH(c, &s->conns, link)
    conn_end(c);
    // What is to be freed is freed from the loop: it is turned until that is done.
    for (int turns = 0; turns < 1000 && !TAILQ_EMPTY(&s->conns); turns++) {
        TAILQ_FOREACH(c, &s->conns, link)
        if (c->state == CONN_LINGER)
            conn_end(c);
        event_base_loop(s->base, EVLOOP_NONBLOCK);
    }
    free(s);
    return NULL;
}

unsigned http_server_connections(const struct http_server *s)
{
    return s->counted;
}

uint64_t http_server_accepted(const struct http_server *s)
{
    return s->accepted;
}

uint64_t http_server_refused(const struct http_server *s)
{
    return s->refused;
}
