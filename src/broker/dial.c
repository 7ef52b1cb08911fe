#include "broker/dial.h"

#include "broker/lookup.h"
#include "http/tls.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct dial {
    struct broker *broker;
    struct host host;
    uint16_t port;
    bool tls;
    bool any_address;  // none is judged
    dial_fn *fn;
    void *arg;
    struct waiter *waiter;
    struct event *timer;  // the deadline; activated early, it tells the result
    struct dial_result result;
    bool over;
    struct ip_addr addr[DIAL_TRIES_MAX];
    unsigned n, next;
    struct bufferevent *bev;
};

static void try_next(struct dial *d);

bool dial_address_ok(const struct config *config, const struct ip_addr *addr)
{
    enum ip_class class = ip_classify(addr);
    if (class == IP_PUBLIC)
        return true;
    if (!config->allow_private_upstream)
        return false;
    // Also then only what one host can have.
    return class != IP_UNSPECIFIED && class != IP_MULTICAST && class != IP_BROADCAST && class != IP_RESERVED &&
           class != IP_EMBEDDING;
}

static void drop_bev(struct dial *d)
{
    if (d->bev != NULL)
        bufferevent_free(d->bev);
    d->bev = NULL;
}

static void dial_free(struct dial *d)
{
    d->waiter = lookup_cancel(d->waiter);
    drop_bev(d);
    event_free(d->timer);
    free(d);
}

struct dial *dial_cancel(struct dial *d)
{
    if (d != NULL)
        dial_free(d);
    return NULL;
}

// The result is told from the loop, never from inside a call of ours.
static void end(struct dial *d, enum dial_end how, const char *why)
{
    if (d->over)
        return;
    d->over = true;
    d->result.end = how;
    d->result.why = why;
    event_active(d->timer, EV_TIMEOUT, 0);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct dial *d = arg;
    (void)fd;
    (void)what;
    if (!d->over) {
        d->result.end = DIAL_SLOW;
        d->result.why = d->bev != NULL ? "no connection in time" : "no address in time";
    }
    struct dial_result result = d->result;
    if (result.end == DIAL_DONE) {
        result.bev = d->bev;
        d->bev = NULL;
    }
    dial_fn *fn = d->fn;
    void *fn_arg = d->arg;
    dial_free(d);
    fn(fn_arg, &result);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct dial *d = arg;
    if (d->over)
        return;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        bufferevent_setcb(bev, NULL, NULL, NULL, NULL);
        end(d, DIAL_DONE, "");
        return;
    }
    SSL *ssl = d->tls ? bufferevent_openssl_get_ssl(bev) : NULL;
    // An upstream that said anything was reached; another address of it will not be more trusted.
    if (ssl != NULL && BIO_number_read(SSL_get_rbio(ssl)) > 0) {
        end(d, DIAL_UNTRUSTED, tls_failure(ssl, bufferevent_get_openssl_error(bev)));
        return;
    }
    drop_bev(d);
    d->result.why = "no connection";
    try_next(d);
}

static socklen_t address_of(const struct ip_addr *addr, uint16_t port, struct sockaddr_storage *ret)
{
    memset(ret, 0, sizeof *ret);
    if (addr->v6) {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)ret;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons(port);
        memcpy(&a->sin6_addr, addr->bytes, 16);
        return sizeof *a;
    }
    struct sockaddr_in *a = (struct sockaddr_in *)ret;
    a->sin_family = AF_INET;
    a->sin_port = htons(port);
    memcpy(&a->sin_addr, addr->bytes, 4);
    return sizeof *a;
}

// A socket that is on its way to that address, as a bufferevent.  False: not even that.
static bool begin_connect(struct dial *d, const struct ip_addr *addr)
{
    int fd = socket(addr->v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    broker_watch_peer(d->broker, fd);
    SSL *ssl = NULL;
    if (d->tls && tls_client_new(d->broker->tls, &d->host, &ssl) < 0) {
        close(fd);
        return false;
    }
    int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (ssl != NULL)
        d->bev = bufferevent_openssl_socket_new(d->broker->base, fd, ssl, BUFFEREVENT_SSL_CONNECTING, options);
    else
        d->bev = bufferevent_socket_new(d->broker->base, fd, options);
    if (d->bev == NULL) {
        close(fd);
        SSL_free(ssl);
        return false;
    }
    broker_tune(d->bev);
    bufferevent_setcb(d->bev, NULL, NULL, on_event, d);
    struct sockaddr_storage to;
    socklen_t n = address_of(addr, d->port, &to);
    if (bufferevent_socket_connect(d->bev, (struct sockaddr *)&to, (int)n) < 0) {
        drop_bev(d);
        return false;
    }
    d->broker->metrics.dials++;
    return true;
}

static void try_next(struct dial *d)
{
    while (d->next < d->n) {
        const struct ip_addr *addr = &d->addr[d->next++];
        ip_format(addr, d->result.address);
        if (begin_connect(d, addr))
            return;
    }
    end(d, DIAL_UNREACHABLE, "none of its addresses accepts a connection");
}

// Every address is judged before the first is used.
static void judge(struct dial *d, const struct ip_addr *addrs, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct ip_addr addr = ip_unmap(addrs[i]);
        if (!d->any_address && !dial_address_ok(&d->broker->config, &addr)) {
            ip_format(&addrs[i], d->result.address);
            end(d, DIAL_DENIED, ip_class_name(ip_classify(&addr)));
            return;
        }
        if (d->n < DIAL_TRIES_MAX)
            d->addr[d->n++] = addr;
    }
    try_next(d);
}

static void on_lookup(void *arg, int error, const struct ip_addr *addrs, unsigned n)
{
    struct dial *d = arg;
    if (error == -ENOENT)
        end(d, DIAL_NO_NAME, "there is no such name");
    else if (error < 0)
        end(d, DIAL_UNRESOLVED, error == -ETIMEDOUT ? "the name servers did not answer" : "the name servers failed");
    else
        judge(d, addrs, n);
}

static struct dial *begin(struct broker *b, const struct host *host, uint16_t port, bool tls, bool any, dial_fn *fn, void *arg)
{
    struct dial *d = calloc(1, sizeof *d);
    if (d == NULL)
        return NULL;
    *d = (struct dial){.broker = b, .host = *host, .port = port, .tls = tls, .any_address = any, .fn = fn, .arg = arg};
    d->timer = evtimer_new(b->base, on_timer, d);
    struct timeval t = {.tv_sec = (time_t)(b->config.connect_ms / 1000),
                        .tv_usec = (suseconds_t)(b->config.connect_ms % 1000 * 1000)};
    if (d->timer == NULL || event_add(d->timer, &t) < 0) {
        if (d->timer != NULL)
            event_free(d->timer);
        free(d);
        return NULL;
    }
    if (host->is_address)
        judge(d, &host->addr, 1);
    else if (lookup_start(b, host->name, on_lookup, d, &d->waiter) < 0)
        end(d, DIAL_BUSY, "too many names are being resolved");
    return d;
}

struct dial *dial_start(struct broker *b, const struct host *host, uint16_t port, bool tls, dial_fn *fn, void *arg)
{
    return begin(b, host, port, tls, false, fn, arg);
}

struct dial *dial_origin(struct broker *b, const struct host *host, uint16_t port, bool tls, dial_fn *fn, void *arg)
{
    return begin(b, host, port, tls, true, fn, arg);
}
