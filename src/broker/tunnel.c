#include "broker/tunnel.h"

#include "broker/dial.h"
#include "broker/splice.h"
#include "http/patience.h"
#include "wire/tls_hello.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// One direction: what has come from `from`, on its way to `to`.
struct way {
    struct tunnel *tunnel;
    struct bufferevent *bev;  // where it comes from
    uint64_t bytes;
    bool eof;   // the last byte has come
    bool shut;  // and has been passed on, with its end
};

struct tunnel {
    struct line line;  // first
    struct sandbox *sandbox;
    struct record record;
    struct dial *dial;
    struct patience patience;
    unsigned flags;
    bool looked;    // at what the guest sends first, or need not be
    bool emptying;  // its buffers, to be spliced
    struct splice *splice;
    struct way up, down;
};

static void tunnel_free(struct tunnel *t, const char *how)
{
    t->dial = dial_cancel(t->dial);
    t->splice = splice_free(t->splice);
    struct metrics *m = &t->sandbox->broker->metrics;
    m->bytes_up += t->up.bytes;
    m->bytes_down += t->down.bytes;
    m->tunnels--;
    if (t->down.bev != NULL)
        record_log_end(&t->record, t->up.bytes, t->down.bytes, how);
    record_end(&t->record);
    patience_end(&t->patience);
    if (t->up.bev != NULL)
        bufferevent_free(t->up.bev);
    if (t->down.bev != NULL)
        bufferevent_free(t->down.bev);
    line_remove(t->sandbox, &t->line);
    free(t);
}

static void reset(struct bufferevent *bev)
{
    struct linger linger = {.l_onoff = 1};
    if (bev != NULL)
        setsockopt(bufferevent_getfd(bev), SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

// Ends both sides so that neither takes it for an orderly end.
static void tunnel_cut(struct tunnel *t, const char *how)
{
    reset(t->up.bev);
    reset(t->down.bev);
    tunnel_free(t, how);
}

static void end_line(struct line *line)
{
    tunnel_cut((struct tunnel *)line, "removed");
}

// ---- the first bytes ----

static void deny(struct tunnel *t, const char *reason)
{
    t->record.decision = DENIED_POLICY;
    t->record.reason = reason;
    t->record.logged = false;  // a CONNECT was allowed before, by its name
    record_log(&t->record, 0);
    tunnel_cut(t, reason);
}

// NULL: nothing is wrong with the hello's name.
static const char *name_wrong(const struct record *r, const struct tls_hello *hello)
{
    struct host name;
    enum host_problem why;
    if (!hello->has_name)
        return r->host.is_address ? NULL : "sni_missing";
    if (host_parse(hello->name, hello->n, &(struct host_idna){0}, &name, &why) < 0 || !host_equal(&name, &r->host))
        return "sni_mismatch";
    return NULL;
}

// 1: the guest's bytes may be passed on.  0: more are needed.  -EPERM: denied, and the tunnel is gone.
static int look(struct tunnel *t)
{
    struct evbuffer *in = bufferevent_get_input(t->up.bev);
    size_t n = evbuffer_get_length(in);
    bool tls_only = (t->flags & TUNNEL_TLS_ONLY) != 0;
    if (n == 0 && !t->up.eof)
        return 0;
    if (n > TLS_HELLO_BYTES_MAX)
        n = TLS_HELLO_BYTES_MAX;
    const uint8_t *bytes = n > 0 ? evbuffer_pullup(in, (ssize_t)n) : NULL;
    struct tls_hello hello;
    int r = bytes != NULL ? tls_hello_parse(bytes, n, &hello) : -EPROTO;
    if (r == 0 && !t->up.eof)
        return 0;
    const char *reason = NULL;
    if (r == 1) {
        reason = name_wrong(&t->record, &hello);
        t->record.ech = hello.ech;
    } else if (tls_only) {
        reason = "tls_missing";
    } else if (r != -EPROTO) {
        reason = "tls_malformed";  // it begins like a hello, and must not be one that others can read
    }
    if (reason != NULL) {
        deny(t, reason);
        return -EPERM;
    }
    t->looked = true;
    return 1;
}

// ---- moving ----

static struct way *other(struct way *w)
{
    return w == &w->tunnel->up ? &w->tunnel->down : &w->tunnel->up;
}

// The end of a direction, once all before it is out.
static void pass_end(struct way *w)
{
    struct bufferevent *to = other(w)->bev;
    if (!w->eof || w->shut || evbuffer_get_length(bufferevent_get_input(w->bev)) > 0 ||
        evbuffer_get_length(bufferevent_get_output(to)) > 0)
        return;
    w->shut = true;
    SSL *ssl = bufferevent_openssl_get_ssl(to);
    if (ssl != NULL)
        SSL_shutdown(ssl);
    shutdown(bufferevent_getfd(to), SHUT_WR);
}

static void on_spliced(void *arg, unsigned direction, size_t n)
{
    struct tunnel *t = arg;
    (direction == 0 ? &t->up : &t->down)->bytes += n;
    patience_touch(&t->patience);
}

static void on_splice_end(void *arg, int error)
{
    struct tunnel *t = arg;
    if (error < 0)
        tunnel_cut(t, "reset");
    else
        tunnel_free(t, "whole");
}

static bool is_empty(struct way *w)
{
    return evbuffer_get_length(bufferevent_get_input(w->bev)) == 0 &&
           evbuffer_get_length(bufferevent_get_output(w->bev)) == 0 && w->eof == w->shut;
}

// From the first bytes on there is nothing to look at: when both sides are plain sockets, the buffers are emptied and left.
static void leave_buffers(struct tunnel *t)
{
    if (!t->looked || t->splice != NULL || bufferevent_openssl_get_ssl(t->down.bev) != NULL)
        return;
    if (!t->emptying) {
        t->emptying = true;
        bufferevent_disable(t->up.bev, EV_READ);
        bufferevent_disable(t->down.bev, EV_READ);
    }
    if (!is_empty(&t->up) || !is_empty(&t->down))
        return;
    bufferevent_disable(t->up.bev, EV_WRITE);
    bufferevent_disable(t->down.bev, EV_WRITE);
    const int fds[2] = {bufferevent_getfd(t->up.bev), bufferevent_getfd(t->down.bev)};
    const bool ended[2] = {t->up.shut, t->down.shut};
    if (splice_new(t->sandbox->broker->base, fds, ended, on_spliced, on_splice_end, t, &t->splice) < 0)
        tunnel_cut(t, "busy");
}

static void pump(struct way *w)
{
    struct tunnel *t = w->tunnel;
    if (other(w)->bev == NULL || t->splice != NULL)
        return;
    if (w == &t->up && !t->looked && look(t) <= 0)
        return;
    struct evbuffer *in = bufferevent_get_input(w->bev), *out = bufferevent_get_output(other(w)->bev);
    size_t n = evbuffer_get_length(in), held = evbuffer_get_length(out);
    size_t room = held < WINDOW ? WINDOW - held : 0;
    if (n > room)
        n = room;
    if (n > 0) {
        evbuffer_remove_buffer(in, out, n);
        w->bytes += n;
        patience_touch(&t->patience);
    }
    pass_end(w);
    if (t->up.shut && t->down.shut)
        tunnel_free(t, "whole");
    else
        leave_buffers(t);
}

static void on_dialled(void *arg, const struct dial_result *result);

// Before there is an upstream: looks, if the hello is wanted first, and connects.
static void reach(struct tunnel *t)
{
    if (t->dial != NULL || t->down.bev != NULL)
        return;
    if ((t->flags & TUNNEL_TLS_ONLY) != 0 && !t->looked && look(t) <= 0)
        return;
    patience_start(&t->patience, 0);
    t->dial = dial_start(t->sandbox->broker, &t->record.host, t->record.port, false, on_dialled, t);
    if (t->dial == NULL)
        tunnel_cut(t, "busy");
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct way *w = arg;
    (void)bev;
    if (w->tunnel->down.bev == NULL)
        reach(w->tunnel);
    else
        pump(w);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct way *w = arg;
    (void)bev;
    // There is room for what comes the other way.
    if (other(w)->bev != NULL)
        pump(other(w));
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct way *w = arg;
    // Both can be told at once.
    if ((what & BEV_EVENT_ERROR) != 0) {
        tunnel_cut(w->tunnel, "reset");
        return;
    }
    w->eof = true;
    on_read(bev, w);
}

static void on_patience(void *arg)
{
    struct tunnel *t = arg;
    if (t->down.bev == NULL) {
        deny(t, "tls_missing");  // the hello did not come
        return;
    }
    tunnel_cut(t, "idle");
}

// ---- beginning ----

static void join(struct tunnel *t, struct bufferevent *upstream)
{
    t->down.bev = upstream;
    broker_tune(upstream);
    bufferevent_setwatermark(upstream, EV_WRITE, WINDOW / 2, 0);
    bufferevent_setcb(upstream, on_read, on_write, on_event, &t->down);
    patience_start(&t->patience, t->sandbox->broker->config.tunnel_ms);
    bufferevent_enable(t->up.bev, EV_WRITE);
    bufferevent_enable(upstream, EV_READ | EV_WRITE);
    // What had come already, from the loop.
    bufferevent_trigger(upstream, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
    bufferevent_trigger(t->up.bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void on_dialled(void *arg, const struct dial_result *result)
{
    struct tunnel *t = arg;
    t->dial = NULL;
    unsigned status = record_dialled(&t->record, result);
    record_log(&t->record, status == 0 ? 200 : status);
    if (status != 0)
        tunnel_cut(t, "");
    else
        join(t, result->bev);
}

static struct tunnel *tunnel_new(const struct record *record, struct bufferevent *guest, unsigned flags, bool eof)
{
    struct sandbox *s = record->sandbox;
    struct tunnel *t = calloc(1, sizeof *t);
    if (t == NULL || patience_init(&t->patience, s->broker->base, on_patience, t) < 0) {
        free(t);
        return NULL;
    }
    t->line.end = end_line;
    t->sandbox = s;
    t->record = *record;
    t->flags = flags;
    t->looked = (flags & (TUNNEL_LOOK | TUNNEL_TLS_ONLY)) == 0;
    t->up = (struct way){.tunnel = t, .bev = guest, .eof = eof};
    t->down = (struct way){.tunnel = t};
    line_add(s, &t->line);
    s->broker->metrics.tunnels++;
    bufferevent_setwatermark(guest, EV_WRITE, WINDOW / 2, 0);
    bufferevent_setcb(guest, on_read, on_write, on_event, &t->up);
    return t;
}

void tunnel_start(struct record *record, struct bufferevent *guest, struct bufferevent *upstream, unsigned flags,
                  bool guest_eof)
{
    struct tunnel *t = tunnel_new(record, guest, flags, guest_eof);
    if (t == NULL) {
        record_end(record);
        bufferevent_free(guest);
        bufferevent_free(upstream);
        return;
    }
    join(t, upstream);
}

void tunnel_open(struct record *record, struct bufferevent *guest, unsigned flags)
{
    struct tunnel *t = tunnel_new(record, guest, flags | TUNNEL_LOOK, false);
    if (t == NULL) {
        record_end(record);
        bufferevent_free(guest);
        return;
    }
    patience_start(&t->patience, t->sandbox->broker->config.head_ms);
    bufferevent_enable(guest, EV_READ);
    reach(t);
}
