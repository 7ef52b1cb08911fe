#include "broker/resolver.h"

#include "base/clock.h"
#include "base/log.h"
#include "broker/decide.h"
#include "broker/listener.h"
#include "http/patience.h"
#include "wire/dns_message.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct resolver {
    struct sandbox *sandbox;
    int udp;
    struct event *event;
    struct listener *tcp;
    uint64_t tokens_ns;  // of the bucket: how much time has been saved up
    uint64_t filled_ns;
};

// One connection over TCP.
struct asker {
    struct line line;  // first
    struct sandbox *sandbox;
    struct bufferevent *bev;
    struct patience patience;
};

// ---- one question ----

static bool take_one(struct resolver *r)
{
    uint64_t price = NS_PER_S / r->sandbox->broker->config.dns_per_second;
    uint64_t now = mono_ns(), most = 2 * NS_PER_S;
    r->tokens_ns += now - r->filled_ns;
    r->filled_ns = now;
    if (r->tokens_ns > most)
        r->tokens_ns = most;
    if (r->tokens_ns < price)
        return false;
    r->tokens_ns -= price;
    return true;
}

static void log_denied(const struct sandbox *s, const struct dns_query *q)
{
    log_info("dns_denied", log_u64("sandbox_id", s->id), log_str("host", q->is_text ? q->name : ""), log_u64("type", q->type));
}

// What to say about a well-formed question: a code, and *ret_n addresses (0 or 1).
static unsigned judge(struct sandbox *s, const struct dns_query *q, struct ip_addr *ret_addr, size_t *ret_n)
{
    struct metrics *m = &s->broker->metrics;
    struct host host;
    enum host_problem why;
    *ret_n = 0;
    if (q->class != DNS_CLASS_IN) {
        m->dns[DNS_REFUSED_QUERY]++;
        return DNS_REFUSED;
    }
    if (!q->is_text || host_parse(q->name, strlen(q->name), &(struct host_idna){0}, &host, &why) < 0 || host.is_address ||
        !decide_name(s, &host)) {
        m->dns[DNS_DENIED]++;
        log_denied(s, q);
        return DNS_NXDOMAIN;
    }
    if (q->type != DNS_TYPE_A) {
        m->dns[DNS_EMPTY]++;
        return DNS_NOERROR;
    }
    if (names_give(s->names, host.name, mono_ns(), ret_addr) < 0) {
        m->dns[DNS_FULL]++;
        return DNS_SERVFAIL;
    }
    m->dns[DNS_ANSWERED]++;
    *ret_n = 1;
    return DNS_NOERROR;
}

// The answer's length; 0: none.
static size_t answer(struct sandbox *s, const uint8_t *message, size_t n, bool tcp, uint8_t out[static DNS_ANSWER_MAX])
{
    struct dns_query q;
    struct ip_addr addr;
    size_t addrs = 0;
    int code = dns_query_parse(message, n, &q);
    if (code != 0)
        s->broker->metrics.dns[DNS_REFUSED_QUERY]++;
    if (code < 0)
        return 0;
    unsigned say = code == 0 ? judge(s, &q, &addr, &addrs) : (unsigned)code;
    size_t room = !tcp && q.udp_size < DNS_ANSWER_MAX ? q.udp_size : DNS_ANSWER_MAX;
    int len = dns_answer_write(message, &q, say, &addr, addrs, DNS_TTL_S, out, room);
    return len > 0 ? (size_t)len : 0;
}

// ---- UDP ----

static void on_datagram(evutil_socket_t fd, short what, void *arg)
{
    struct resolver *r = arg;
    (void)what;
    for (int i = 0; i < DNS_BURST; i++) {
        uint8_t message[DNS_QUERY_MAX + 1], out[DNS_ANSWER_MAX];
        struct sockaddr_in from;
        socklen_t from_n = sizeof from;
        ssize_t n = recvfrom(fd, message, sizeof message, MSG_DONTWAIT, (struct sockaddr *)&from, &from_n);
        if (n < 0)
            return;
        if (from.sin_family != AF_INET || memcmp(&from.sin_addr, r->sandbox->guest.bytes, 4) != 0)
            continue;
        if (!take_one(r)) {
            r->sandbox->broker->metrics.dns[DNS_LIMITED]++;
            continue;
        }
        size_t len = answer(r->sandbox, message, (size_t)n, false, out);
        // A guest whose socket is full asks again.
        if (len > 0)
            (void)sendto(fd, out, len, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&from, from_n);
    }
}

// ---- TCP ----

static void asker_free(struct asker *a)
{
    patience_end(&a->patience);
    if (a->bev != NULL)
        bufferevent_free(a->bev);
    line_remove(a->sandbox, &a->line);
    free(a);
}

static void end_line(struct line *line)
{
    asker_free((struct asker *)line);
}

// One whole question at the front of the buffer.  False: there is none yet, or the asker is gone.
static bool answer_next(struct asker *a)
{
    struct evbuffer *in = bufferevent_get_input(a->bev), *out = bufferevent_get_output(a->bev);
    uint8_t size[2], message[DNS_QUERY_MAX], reply[2 + DNS_ANSWER_MAX];
    if (evbuffer_get_length(out) >= WINDOW || evbuffer_copyout(in, size, 2) < 2)
        return false;
    size_t n = (size_t)size[0] << 8 | size[1];
    if (n > DNS_QUERY_MAX) {
        asker_free(a);
        return false;
    }
    if (evbuffer_get_length(in) < 2 + n)
        return false;
    evbuffer_drain(in, 2);
    evbuffer_remove(in, message, n);
    if (!take_one(a->sandbox->resolver)) {
        a->sandbox->broker->metrics.dns[DNS_LIMITED]++;
        asker_free(a);
        return false;
    }
    size_t len = answer(a->sandbox, message, n, true, reply + 2);
    reply[0] = (uint8_t)(len >> 8);
    reply[1] = (uint8_t)len;
    if (len > 0)
        evbuffer_add(out, reply, 2 + len);
    patience_touch(&a->patience);
    return true;
}

static void on_tcp_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    while (answer_next(arg))
        ;
}

static void on_tcp_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    (void)what;
    asker_free(arg);
}

static void on_patience(void *arg)
{
    asker_free(arg);
}

static void accept_asker(struct sandbox *s, int fd)
{
    struct asker *a = sandbox_has_room(s) ? calloc(1, sizeof *a) : NULL;
    if (a == NULL) {
        close(fd);
        return;
    }
    a->sandbox = s;
    a->line.end = end_line;
    line_add(s, &a->line);
    a->bev = broker_wrap(s->broker, fd);
    if (a->bev == NULL || patience_init(&a->patience, s->broker->base, on_patience, a) < 0) {
        asker_free(a);
        return;
    }
    bufferevent_setcb(a->bev, on_tcp_read, on_tcp_read, on_tcp_event, a);
    patience_start(&a->patience, DNS_TCP_MS);
    bufferevent_enable(a->bev, EV_READ | EV_WRITE);
}

// ---- life ----

int resolver_new(struct sandbox *s, int udp, int tcp, struct resolver **ret)
{
    struct resolver *r = calloc(1, sizeof *r);
    if (r == NULL) {
        close(udp);
        close(tcp);
        return -ENOMEM;
    }
    *r = (struct resolver){.sandbox = s, .udp = udp, .filled_ns = mono_ns(), .tokens_ns = 2 * NS_PER_S};
    if (listener_new(s, tcp, accept_asker, &r->tcp) < 0) {
        resolver_free(r);
        return -ENOMEM;
    }
    r->event = event_new(s->broker->base, udp, EV_READ | EV_PERSIST, on_datagram, r);
    if (r->event == NULL || event_add(r->event, NULL) < 0) {
        resolver_free(r);
        return -ENOMEM;
    }
    *ret = r;
    return 0;
}

struct resolver *resolver_free(struct resolver *r)
{
    if (r == NULL)
        return NULL;
    r->tcp = listener_free(r->tcp);
    if (r->event != NULL)
        event_free(r->event);
    close(r->udp);
    free(r);
    return NULL;
}
