#include "broker/guard.h"

#include "base/cleanup.h"
#include "broker/guard_conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/socket.h>

enum { ACCEPTS_MAX = 16 };  // in one turn of the loop

// ---- connections ----

void guard_conn_listed(struct guard *g, struct guard_conn *c)
{
    LIST_INSERT_HEAD(&g->conns, c, all);
    if (++g->connections == GUARD_CONNECTIONS_MAX)
        event_del(g->event);
}

void guard_conn_unlisted(struct guard *g, struct guard_conn *c)
{
    LIST_REMOVE(c, all);
    if (g->connections-- == GUARD_CONNECTIONS_MAX)
        event_add(g->event, NULL);
}

static void on_connection(evutil_socket_t listening, short what, void *arg)
{
    struct guard *g = arg;
    (void)what;
    for (int i = 0; i < ACCEPTS_MAX && g->connections < GUARD_CONNECTIONS_MAX; i++) {
        int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        broker_watch_peer(g->broker, fd);
        guard_conn_new(g, fd);
    }
}

void guard_grant_ended(struct guard *g, const struct grant *grant)
{
    struct guard_conn *c = LIST_FIRST(&g->conns), *next;
    for (; c != NULL; c = next) {
        next = LIST_NEXT(c, all);
        if (c->grant == grant)
            guard_conn_grant_ended(c);
    }
}

// ---- setting up ----

static int complain(struct err *err, const char *setting, const char *value)
{
    unsigned long code = ERR_peek_last_error();
    const char *why = code != 0 ? ERR_reason_error_string(code) : NULL;
    return err_set(err, -EINVAL, "%s \"%.150s\" cannot be used: %s", setting, value, why != NULL ? why : "it is not PEM");
}

int guard_read_tls(const struct config *config, SSL_CTX **ret, struct err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (ctx == NULL)
        return err_set(err, -ENOMEM, "no memory");
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(ctx, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    int r = 0;
    if (SSL_CTX_use_certificate_chain_file(ctx, config->guard_certificate) != 1)
        r = complain(err, "guard_certificate", config->guard_certificate);
    else if (SSL_CTX_use_PrivateKey_file(ctx, config->guard_key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        r = complain(err, "guard_key", config->guard_key);
    if (r < 0)
        SSL_CTX_free(ctx);
    else
        *ret = ctx;
    return r;
}

void guard_use(struct guard *g, SSL_CTX *tls)
{
    SSL_CTX_free(g->tls);  // connections keep theirs
    g->tls = tls;
}

static int read_address(const char *text, struct sockaddr_storage *ret, socklen_t *ret_n, struct err *err)
{
    struct host host;
    uint16_t port;
    enum host_problem why;
    memset(ret, 0, sizeof *ret);
    if (host_port_parse(text, strlen(text), &(struct host_idna){0}, &host, &port, &why) < 0 || !host.is_address || port == 0)
        return err_set(err, -EINVAL, "guard_listen is \"%.100s\"; it must be ADDRESS:PORT", text);
    if (host.addr.v6) {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)ret;
        *a = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&a->sin6_addr, host.addr.bytes, 16);
        *ret_n = sizeof *a;
    } else {
        struct sockaddr_in *a = (struct sockaddr_in *)ret;
        *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&a->sin_addr, host.addr.bytes, 4);
        *ret_n = sizeof *a;
    }
    return 0;
}

static int listen_on(const char *text, int *ret_fd, struct err *err)
{
    struct sockaddr_storage a;
    socklen_t n = 0;
    int r = read_address(text, &a, &n, err);
    if (r < 0)
        return r;
    cleanup_fd int fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(err, -errno, "guard_listen: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(fd, (struct sockaddr *)&a, n) < 0 || listen(fd, SOMAXCONN) < 0)
        return err_set(err, -errno, "guard_listen \"%.100s\" cannot be listened on: %s", text, strerror(errno));
    *ret_fd = take_fd(&fd);
    return 0;
}

int guard_new(struct broker *b, struct guard **ret, struct err *err)
{
    struct guard *g = calloc(1, sizeof *g);
    if (g == NULL)
        return err_set(err, -ENOMEM, "no memory");
    g->broker = b;
    g->fd = -1;
    int r = guard_url_parse(b->config.guard_url, &g->url, err);
    if (r == 0)
        r = guard_read_tls(&b->config, &g->tls, err);
    if (r == 0)
        r = listen_on(b->config.guard_listen, &g->fd, err);
    if (r == 0) {
        g->event = event_new(b->base, g->fd, EV_READ | EV_PERSIST, on_connection, g);
        if (g->event == NULL || event_add(g->event, NULL) < 0)
            r = err_set(err, -ENOMEM, "no memory");
    }
    if (r < 0)
        guard_free(g);
    else
        *ret = g;
    return r;
}

struct guard *guard_free(struct guard *g)
{
    if (g == NULL)
        return NULL;
    while (!LIST_EMPTY(&g->conns))
        guard_conn_free(LIST_FIRST(&g->conns));
    if (g->event != NULL)
        event_free(g->event);
    close_fd(&g->fd);
    SSL_CTX_free(g->tls);
    free(g);
    return NULL;
}
