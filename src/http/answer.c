// What is written to a client.
#include "http/conn.h"
#include "http/status.h"

#include <string.h>
#include <time.h>

static struct evbuffer *output(const struct http_conn *c)
{
    return bufferevent_get_output(c->bev);
}

void http_add_header(struct http_exchange *x, const char *name, const char *format, ...)
{
    struct buf *headers = &conn_of(x)->headers;
    size_t before = headers->len;
    va_list args;
    va_start(args, format);
    int r = buf_printf(headers, "%s: ", name);
    if (r == 0)
        r = buf_vprintf(headers, format, args);
    va_end(args);
    if (r == 0)
        r = buf_append_text(headers, "\r\n");
    if (r < 0) {
        headers->len = before;
        headers->error = 0;
    }
}

static const char *date(struct http_server *s)
{
    time_t now = time(NULL);
    if (now != s->date_of) {
        struct tm t;
        gmtime_r(&now, &t);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &t);
        s->date_of = now;
    }
    return s->date;
}

static void put_framing(struct http_conn *c, struct http_writer *w, unsigned status, uint64_t length)
{
    if (status == 204 || status == 304 || status == 101) {
        c->no_body = true;
    } else if (length != HTTP_UNKNOWN_LENGTH) {
        http_put_number(w, "Content-Length", length);
    } else if (c->request != NULL && c->request->minor >= 1) {
        c->chunked = true;
        http_put_text(w, "Transfer-Encoding: chunked\r\n");
    } else {
        c->keep = false;
    }
}

static void put_head(struct http_conn *c, unsigned status, const char *type, uint64_t length)
{
    struct http_writer w = {.out = output(c)};
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %u ", status);
    http_put_text(&w, line);
    http_put_text(&w, http_status_phrase(status));
    http_put_text(&w, "\r\nDate: ");
    http_put_text(&w, date(c->server));
    http_put_text(&w, "\r\n");
    if (type != NULL) {
        http_put_text(&w, "Content-Type: ");
        http_put_text(&w, type);
        http_put_text(&w, "\r\n");
    }
    http_put(&w, (struct http_text){(const char *)c->headers.data, c->headers.len});
    put_framing(c, &w, status, length);
    if (status == 101)
        http_put_text(&w, "Connection: Upgrade\r\n");
    else if (!c->keep)
        http_put_text(&w, "Connection: close\r\n");
    http_put_end(&w);
}

void http_begin(struct http_exchange *x, unsigned status, const char *type, uint64_t length)
{
    struct http_conn *c = conn_of(x);
    c->keep = c->keep && conn_skip_body(c) && !c->server->draining;
    if (c->mode != BODY_STREAM)
        c->mode = BODY_GIVEN;
    x->status = status;
    c->begun = true;
    c->length = length;
    c->no_body = x->head_only;
    put_head(c, status, type, length);
    // A stream may last for days: what was asked is not kept for it.
    buf_free(&c->headers);
    if (c->mode != BODY_STREAM) {
        x->request = NULL;
        free(c->request);
        c->request = NULL;
        http_head_reset(&c->head, false);
    }
    conn_pending(c);
}

// Whether these bytes of the body are to be written; counts them.
static bool counts(struct http_conn *c, size_t n)
{
    if (n == 0 || c->no_body || c->state != CONN_HANDLER)
        return false;
    c->sent += n;
    c->x.bytes_out += n;
    return true;
}

static void put_chunk_head(struct http_conn *c, size_t n)
{
    char head[CHUNK_HEAD_MAX];
    if (c->chunked)
        evbuffer_add(output(c), head, chunk_put_head(head, n));
}

static void put_chunk_end(struct http_conn *c)
{
    if (c->chunked)
        evbuffer_add(output(c), CHUNK_DATA_END, sizeof CHUNK_DATA_END - 1);
}

void http_send(struct http_exchange *x, const void *bytes, size_t n)
{
    struct http_conn *c = conn_of(x);
    if (!counts(c, n))
        return;
    put_chunk_head(c, n);
    evbuffer_add(output(c), bytes, n);
    put_chunk_end(c);
}

void http_send_buffer(struct http_exchange *x, struct evbuffer *from)
{
    struct http_conn *c = conn_of(x);
    size_t n = evbuffer_get_length(from);
    if (!counts(c, n)) {
        evbuffer_drain(from, n);
        return;
    }
    put_chunk_head(c, n);
    evbuffer_add_buffer(output(c), from);
    put_chunk_end(c);
}

void http_end(struct http_exchange *x)
{
    struct http_conn *c = conn_of(x);
    bool whole = c->no_body || c->length == HTTP_UNKNOWN_LENGTH || c->sent == c->length;
    if (!whole) {
        http_abort(x);
        return;
    }
    if (c->chunked && !c->no_body)
        evbuffer_add(output(c), CHUNK_BODY_END, sizeof CHUNK_BODY_END - 1);
    c->keep = c->keep && c->mover.over;
    conn_finish(c, false);
}

void http_abort(struct http_exchange *x)
{
    conn_finish(conn_of(x), true);
}

void http_reply(struct http_exchange *x, unsigned status, const char *type, const void *body, size_t n)
{
    http_begin(x, status, type, n);
    http_send(x, body, n);
    http_end(x);
}

size_t http_unsent(const struct http_exchange *x)
{
    return conn_unsent(conn_of((struct http_exchange *)x));
}

// ---- taking over ----

struct http_taken *http_take_over(struct http_exchange *x, unsigned status, const struct http_taker *taker, void *arg)
{
    struct http_conn *c = conn_of(x);
    c->keep = false;
    c->begun = true;
    x->status = status;
    c->chunked = false;
    if (status == 101) {
        put_head(c, status, NULL, 0);
    } else {
        struct http_request *request = c->request;
        c->request = NULL;  // no framing: the end is the connection's
        put_head(c, status, NULL, HTTP_UNKNOWN_LENGTH);
        c->request = request;
    }
    c->taken = (struct http_taken){.taker = taker, .arg = arg};
    conn_taken(c);
    return &c->taken;
}

struct bufferevent *http_taken_bev(struct http_taken *t)
{
    return ((struct http_conn *)t)->bev;
}
