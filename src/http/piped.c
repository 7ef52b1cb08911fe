#include "http/piped.h"

#include "base/pages.h"
#include "http/conn.h"

#include <errno.h>

static struct evbuffer *output(const struct http_conn *c)
{
    return bufferevent_get_output(c->bev);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    (void)fd;
    (void)what;
    if (http_piped_flush(c))
        conn_written(c);
    else
        conn_end(c);
}

bool http_piped_flush(struct http_conn *c)
{
    struct http_piped *p = &c->piped;
    while (p->left > 0 && evbuffer_get_length(output(c)) == 0) {
        ssize_t n = pages_move(p->pipe[0], bufferevent_getfd(c->bev), p->left);
        if (n == -EAGAIN)
            return event_add(p->writable, NULL) == 0;
        if (n <= 0)
            return false;
        p->left -= (size_t)n;
        patience_touch(&c->patience);
    }
    return true;
}

void http_piped_end(struct http_conn *c)
{
    struct http_piped *p = &c->piped;
    if (p->pipe[0] < 0)
        return;
    c->server->pipes--;
    if (p->left == 0)
        pages_give_pipe(p->pipe);
    else
        pages_close_pipe(p->pipe);
    event_free(p->writable);
    *p = HTTP_PIPED_INIT;
}

static bool open_pipe(struct http_conn *c)
{
    struct http_piped *p = &c->piped;
    if (c->server->pipes >= HTTP_PIPES_MAX)
        return false;
    p->writable = event_new(c->server->base, bufferevent_getfd(c->bev), EV_WRITE, on_writable, c);
    if (p->writable == NULL)
        return false;
    if (pages_take_pipe(p->pipe) < 0) {
        event_free(p->writable);
        *p = HTTP_PIPED_INIT;
        return false;
    }
    c->server->pipes++;
    return true;
}

int http_pipe(struct http_exchange *x)
{
    struct http_conn *c = conn_of(x);
    bool fits = c->state == CONN_HANDLER && c->begun && !c->chunked && !c->no_body && !c->peer.tls && c->piped.left == 0;
    if (!fits || (c->piped.pipe[0] < 0 && !open_pipe(c)))
        return -1;
    return c->piped.pipe[1];
}

void http_send_piped(struct http_exchange *x, size_t n)
{
    struct http_conn *c = conn_of(x);
    c->piped.left += n;
    c->sent += n;
    c->x.bytes_out += n;
    // A connection that fails says so by its next event.
    (void)http_piped_flush(c);
    conn_pending(c);
}

bool http_piping(const struct http_exchange *x)
{
    return conn_of((struct http_exchange *)x)->piped.left > 0;
}
