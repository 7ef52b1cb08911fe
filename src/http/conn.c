#include "http/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void look_for_head(struct http_conn *c);
static void begin_exchange(struct http_conn *c);
static void linger(struct http_conn *c);

size_t conn_unsent(const struct http_conn *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev)) + c->piped.left;
}

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    (void)fd;
    (void)what;
    if (c->state == CONN_HANDLER && c->x.ops != NULL && c->x.ops->on_eof != NULL)
        c->x.ops->on_eof(c->x.arg);
}

// That a client has gone is to be seen behind what it sent ahead, too.  (Where it cannot be watched, at its end.)
static void watch_close(struct http_conn *c)
{
    if (c->closed == NULL && !c->peer.tls)
        c->closed = event_new(c->server->base, bufferevent_getfd(c->bev), EV_CLOSED, on_closed, c);
    if (c->closed != NULL)
        event_add(c->closed, NULL);
}

static void forget_close(struct http_conn *c)
{
    if (c->closed != NULL)
        event_free(c->closed);
    c->closed = NULL;
}

// Nothing is read while as much waits as may.  libevent's own watermark would call on_read again and again meanwhile: who sends
// ahead would keep this thread busy for as long as an answer takes.
void conn_mind_window(struct http_conn *c)
{
    bool full = evbuffer_get_length(conn_input(c)) >= HTTP_WINDOW;
    if (c->state == CONN_DEAD || full == c->full)
        return;
    c->full = full;
    if (full) {
        bufferevent_disable(c->bev, EV_READ);
        watch_close(c);
    } else {
        bufferevent_enable(c->bev, EV_READ);
        forget_close(c);
    }
}

// ---- life ----

static void set_idle(struct http_conn *c, bool idle)
{
    if (c->idle == idle)
        return;
    c->idle = idle;
    if (idle)
        TAILQ_INSERT_TAIL(&c->server->idle, c, idle_link);
    else
        TAILQ_REMOVE(&c->server->idle, c, idle_link);
}

static void exchange_free(struct http_conn *c)
{
    http_head_reset(&c->head, false);
    free(c->request);
    c->request = NULL;
    buf_free(&c->headers);
    if (c->body != NULL)
        evbuffer_free(c->body);
    c->body = NULL;
}

// It takes no place any more.
static void uncount(struct http_conn *c)
{
    if (c->counted)
        c->server->counted--;
    else if (c->told)
        c->server->busy--;
    c->counted = c->told = false;
}

static void conn_free(struct http_conn *c)
{
    struct http_server *s = c->server;
    set_idle(c, false);
    TAILQ_REMOVE(&s->conns, c, link);
    uncount(c);
    exchange_free(c);
    patience_end(&c->patience);
    if (c->later != NULL)
        event_free(c->later);
    bufferevent_free(c->bev);
    free(c);
}

void conn_later(struct http_conn *c)
{
    event_active(c->later, EV_TIMEOUT, 0);
}

// Nothing of it is used any more; it is freed from the loop.
static void die(struct http_conn *c)
{
    set_idle(c, false);
    uncount(c);
    http_piped_end(c);
    forget_close(c);
    c->state = CONN_DEAD;
    bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
    bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    patience_start(&c->patience, 0);
    conn_later(c);
}

// The kernel then sends a reset in place of an orderly end.
static void make_abrupt(struct http_conn *c)
{
    struct linger linger = {.l_onoff = 1};
    setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

void conn_end(struct http_conn *c)
{
    enum conn_state was = c->state;
    if (was == CONN_DEAD)
        return;
    if (was == CONN_TAKEN) {
        c->taken.taker->on_end(c->taken.arg);
        return;
    }
    die(c);
    if (was != CONN_HANDLER)
        return;
    c->x.aborted = true;
    const struct http_exchange_ops *ops = c->x.ops;
    c->x.ops = NULL;
    if (c->begun)
        make_abrupt(c);
    if (ops != NULL)
        ops->on_gone(c->x.arg);
    c->server->handler->on_finish(c->server->arg, &c->x);
}

void conn_close_idle(struct http_conn *c)
{
    die(c);
}

void conn_drain(struct http_conn *c)
{
    if (c->idle) {
        die(c);
    } else if (c->state == CONN_TAKEN && c->taken.taker->on_drain != NULL) {
        c->taken.taker->on_drain(c->taken.arg);
    } else if (c->state == CONN_HEAD && !c->head_begun) {  // its answer is still being taken
        patience_start(&c->patience, c->server->limits.progress_ms);
        linger(c);
    }
}

bool conn_is_over(const struct http_conn *c)
{
    return c->counted && c->state == CONN_LINGER && conn_unsent(c) == 0;
}

// ---- lingering ----

// A close with bytes unread would be a reset, which can overtake the answer; so they are read.
static void linger_step(struct http_conn *c)
{
    size_t n = evbuffer_get_length(conn_input(c));
    c->lingered += n;
    evbuffer_drain(conn_input(c), n);
    if (c->lingered > HTTP_LINGER_BYTES) {
        die(c);
        return;
    }
    if (conn_unsent(c) > 0)
        return;
    if (c->eof || c->peer.tls) {  // of TLS there is no half to keep open
        die(c);
        return;
    }
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    patience_start(&c->patience, HTTP_LINGER_MS);
}

static void linger(struct http_conn *c)
{
    c->state = CONN_LINGER;
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    c->full = false;
    forget_close(c);
    conn_later(c);
}

// ---- the end of an exchange ----

void conn_finish(struct http_conn *c, bool aborted)
{
    c->x.aborted = aborted;
    c->x.ops = NULL;
    c->server->handler->on_finish(c->server->arg, &c->x);
    exchange_free(c);
    c->patient = false;
    if (conn_unsent(c) == 0)
        http_piped_end(c);
    if (aborted) {
        make_abrupt(c);
        die(c);
    } else if (!c->keep || c->server->draining) {
        patience_start(&c->patience, c->server->limits.progress_ms);  // until it is taken; behind that, HTTP_LINGER_MS
        linger(c);
    } else {
        c->state = CONN_HEAD;
        c->head_begun = false;
        set_idle(c, conn_unsent(c) == 0);
        patience_start(&c->patience, c->server->limits.idle_ms);
        conn_later(c);  // what was sent ahead, so that a thousand of them are not a thousand calls deep
    }
}

void conn_taken(struct http_conn *c)
{
    c->x.ops = NULL;
    c->server->handler->on_finish(c->server->arg, &c->x);
    exchange_free(c);
    c->state = CONN_TAKEN;
    patience_start(&c->patience, 0);
    conn_later(c);  // bytes that came early
}

void http_taken_close(struct http_taken *t)
{
    struct http_conn *c = (struct http_conn *)t;
    patience_start(&c->patience, c->server->limits.progress_ms);
    linger(c);
}

// ---- patience ----

// The client owes something: bytes of a body that is asked for, or the taking of what was written.
static bool owes(const struct http_conn *c)
{
    if (conn_unsent(c) > 0)
        return true;
    if (c->mover.over || (c->mode != BODY_WHOLE && c->mode != BODY_STREAM))
        return false;
    return c->mode == BODY_WHOLE || evbuffer_get_length(c->body) < HTTP_WINDOW;
}

void conn_pending(struct http_conn *c)
{
    if (c->state != CONN_HANDLER || c->patient || !owes(c))
        return;
    c->patient = true;
    patience_start(&c->patience, c->server->limits.progress_ms);
}

static void on_patience(void *arg)
{
    struct http_conn *c = arg;
    if (c->state == CONN_HANDLER) {
        c->patient = false;
        if (!owes(c)) {
            patience_start(&c->patience, 0);
        } else if (c->begun || conn_unsent(c) > 0) {
            conn_end(c);
        } else {
            const struct http_exchange_ops *ops = c->x.ops;
            c->x.ops = NULL;
            if (ops != NULL)
                ops->on_gone(c->x.arg);
            c->mode = BODY_GIVEN;
            c->server->handler->on_error(c->server->arg, &c->x, 408, "timeout", "the request's body stopped coming");
        }
    } else if (c->state == CONN_HEAD && c->head_begun) {
        begin_exchange(c);
        c->server->handler->on_error(c->server->arg, &c->x, 408, "timeout", "the request's head did not come in time");
    } else {
        conn_end(c);
    }
}

static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    struct http_conn *c = arg;
    (void)out;
    if (info->n_deleted > 0)
        patience_touch(&c->patience);
    if (info->n_added > 0)
        conn_pending(c);
}

// ---- requests ----

static void keep_text(char *to, size_t size, struct http_text text)
{
    size_t n = text.n < size ? text.n : size - 1;
    memcpy(to, text.at, n);
    to[n] = '\0';
}

static void begin_exchange(struct http_conn *c)
{
    uint64_t begun = c->x.begun_ns, number = c->x.number + 1;
    void *listener = c->x.listener;
    c->x = (struct http_exchange){.listener = listener, .peer = &c->peer, .begun_ns = begun, .number = number};
    c->headers = BUF_INIT(HTTP_ANSWER_HEADERS_MAX);
    c->mode = BODY_UNASKED;
    c->body_told = c->begun = c->chunked = c->no_body = c->keep = c->expects_continue = c->patient = false;
    c->mover = (struct http_mover){.over = true};
    c->length = c->sent = 0;
    patience_start(&c->patience, 0);
    c->state = CONN_HANDLER;
}

static void take_request(struct http_conn *c)
{
    const struct http_server *s = c->server;
    enum http_refusal why;
    begin_exchange(c);
    struct http_request *request = malloc(sizeof *request);
    if (request == NULL) {
        conn_end(c);
        return;
    }
    if (http_request_parse(c->head.bytes, c->head.n, 0, request, &why) < 0) {
        free(request);
        s->handler->on_error(s->arg, &c->x, (unsigned)http_refusal_status(why), "malformed", http_refusal_text(why));
        return;
    }
    c->request = request;
    c->x.request = request;
    c->x.head_only = http_text_equal(request->method, HTTP_TEXT("HEAD"));
    c->expects_continue = request->expects_continue;
    c->keep = request->keep_alive;
    http_mover_init(&c->mover, &request->body, false, UINT64_MAX);
    keep_text(c->x.method, sizeof c->x.method, request->method);
    keep_text(c->x.target, sizeof c->x.target, request->target);
    s->handler->on_request(s->arg, &c->x);
}

static void look_for_head(struct http_conn *c)
{
    // A client that asks and does not read is not asked what more it wants.
    if (conn_unsent(c) >= HTTP_WINDOW || c->piped.left > 0)
        return;
    if (evbuffer_get_length(conn_input(c)) > 0 && !c->head_begun) {
        c->head_begun = true;
        c->x.begun_ns = mono_ns();
        set_idle(c, false);
        patience_start(&c->patience, c->server->limits.head_ms);
    }
    enum http_refusal why;
    int r = http_head_take(&c->head, conn_input(c), &why);
    if (r == 1) {
        take_request(c);
    } else if (r == -EBADMSG) {
        begin_exchange(c);
        c->server->handler->on_error(c->server->arg, &c->x, (unsigned)http_refusal_status(why), "malformed",
                                     http_refusal_text(why));
    } else if (r < 0 || c->eof) {
        die(c);  // between requests, or in the middle of a head: there is nothing to answer
    }
}

// ---- events ----

static void on_later(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    (void)fd;
    (void)what;
    if (c->state == CONN_DEAD) {
        conn_free(c);
        return;
    }
    switch (c->state) {
    case CONN_HEAD:
        look_for_head(c);
        break;
    case CONN_HANDLER:
        conn_body_step(c);
        break;
    case CONN_LINGER:
        linger_step(c);
        break;
    case CONN_TAKEN:
        c->taken.taker->on_read(c->taken.arg);
        break;
    case CONN_DEAD:
        break;
    }
    conn_mind_window(c);
}

// libevent reads 4 KiB at a time: what else has come of a body is read here at once.  Errors, and the end, come as its events.
static void read_more(struct http_conn *c)
{
    struct evbuffer *in = conn_input(c);
    struct evbuffer_iovec room;
    size_t have = evbuffer_get_length(in);
    if (c->mode != BODY_STREAM || c->peer.tls || have >= HTTP_READ_PIECE)
        return;
    evbuffer_unfreeze(in, 0);
    if (evbuffer_reserve_space(in, (ev_ssize_t)(HTTP_READ_PIECE - have), &room, 1) == 1) {
        ssize_t n = recv(bufferevent_getfd(c->bev), room.iov_base, room.iov_len, MSG_DONTWAIT);
        room.iov_len = n > 0 ? (size_t)n : 0;
        evbuffer_commit_space(in, &room, 1);
    }
    evbuffer_freeze(in, 0);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;
    (void)bev;
    if (c->state == CONN_HANDLER) {
        patience_touch(&c->patience);
        read_more(c);
    }
    on_later(-1, 0, c);
}

void conn_written(struct http_conn *c)
{
    if (conn_unsent(c) == 0 && c->state != CONN_HANDLER)
        http_piped_end(c);
    if (conn_unsent(c) == 0 && c->state == CONN_HEAD && !c->head_begun)
        set_idle(c, true);
    if (c->state == CONN_HANDLER && c->x.ops != NULL && c->x.ops->on_room != NULL)
        c->x.ops->on_room(c->x.arg);
    else if (c->state == CONN_TAKEN)
        c->taken.taker->on_write(c->taken.arg), conn_mind_window(c);
    else if (c->state == CONN_HEAD || c->state == CONN_LINGER)
        on_later(-1, 0, c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;
    (void)bev;
    if (http_piped_flush(c))
        conn_written(c);
    else
        conn_end(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_conn *c = arg;
    (void)bev;
    if (what & BEV_EVENT_CONNECTED)  // TLS; the head's time began with the connection
        return;
    if (!(what & BEV_EVENT_EOF) || c->peer.tls || c->state == CONN_TAKEN) {
        conn_end(c);
        return;
    }
    c->eof = true;
    if (c->state != CONN_HANDLER) {
        on_later(-1, 0, c);
        return;
    }
    conn_body_step(c);
    if (c->state == CONN_HANDLER && c->x.ops != NULL && c->x.ops->on_eof != NULL)
        c->x.ops->on_eof(c->x.arg);
}

// ---- the beginning ----

struct http_conn *conn_new(struct http_server *s, struct bufferevent *bev, const struct http_peer *peer, void *listener)
{
    struct http_conn *c = calloc(1, sizeof *c);
    if (c != NULL)
        c->later = evtimer_new(s->base, on_later, c);
    if (c == NULL || c->later == NULL || patience_init(&c->patience, s->base, on_patience, c) < 0) {
        if (c != NULL && c->later != NULL)
            event_free(c->later);
        free(c);
        bufferevent_free(bev);
        return NULL;
    }
    c->server = s;
    c->bev = bev;
    c->peer = *peer;
    c->x.listener = listener;
    c->piped = HTTP_PIPED_INIT;
    c->mover.over = true;
    c->counted = true;
    s->counted++;
    TAILQ_INSERT_TAIL(&s->conns, c, link);
    set_idle(c, true);
    patience_start(&c->patience, peer->tls ? s->limits.head_ms : s->limits.idle_ms);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, c);
    bufferevent_setcb(bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, HTTP_WINDOW);
    bufferevent_setwatermark(bev, EV_WRITE, HTTP_WINDOW / 2, 0);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    return c;
}

void conn_refuse(struct http_conn *c)
{
    struct http_server *s = c->server;
    uncount(c);
    c->told = true;
    s->busy++;
    set_idle(c, false);
    c->x.begun_ns = mono_ns();
    begin_exchange(c);
    s->handler->on_error(s->arg, &c->x, 503, "busy", "the server has all the connections it takes; try again");
}
