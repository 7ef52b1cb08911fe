// A request's body: nothing of it is read before it is asked for; then it is collected, or handed over as it comes.
#include "http/conn.h"

#include <errno.h>

static void refuse_body(struct http_conn *c, unsigned status, const char *code, const char *sentence)
{
    const struct http_exchange_ops *ops = c->x.ops;
    c->mode = BODY_GIVEN;
    c->x.ops = NULL;
    if (c->begun) {  // too late to say anything
        if (ops != NULL)
            ops->on_gone(c->x.arg);
        conn_finish(c, true);
        return;
    }
    if (ops != NULL)
        ops->on_gone(c->x.arg);
    c->server->handler->on_error(c->server->arg, &c->x, status, code, sentence);
}

static void give_whole(struct http_conn *c)
{
    size_t n = evbuffer_get_length(c->body);
    c->mode = BODY_GIVEN;
    if (evbuffer_add(c->body, "", 1) < 0) {
        conn_end(c);
        return;
    }
    const char *bytes = (const char *)evbuffer_pullup(c->body, -1);
    struct evbuffer *body = c->body;
    c->body = NULL;
    if (bytes == NULL)
        conn_end(c);
    else
        c->whole(c->whole_arg, &c->x, bytes, n);
    evbuffer_free(body);
}

static void give_stream(struct http_conn *c, bool over)
{
    if (evbuffer_get_length(c->body) == 0 && (!over || c->body_told))
        return;
    c->body_told = over;
    if (c->x.ops != NULL && c->x.ops->on_body != NULL)
        c->x.ops->on_body(c->x.arg, c->body, over);
}

void conn_body_step(struct http_conn *c)
{
    if (c->state != CONN_HANDLER || (c->mode != BODY_WHOLE && c->mode != BODY_STREAM))
        return;
    size_t window = c->mode == BODY_STREAM ? HTTP_WINDOW : (size_t)c->body_max + 1;
    int r = http_move(&c->mover, conn_input(c), c->body, window);
    c->x.bytes_in = c->mover.moved;
    if (r == -EMSGSIZE)
        refuse_body(c, 413, "body_too_large", "the request's body is larger than this operation takes");
    else if (r == -EBADMSG)
        refuse_body(c, 400, "malformed", "the request's chunked body is malformed");
    else if (r < 0 || (r == 0 && c->eof && evbuffer_get_length(conn_input(c)) == 0))
        conn_end(c);
    else if (c->mode == BODY_STREAM)
        give_stream(c, r == 1);
    else if (r == 1)
        give_whole(c);
    // It may be over by now.
    if (c->state == CONN_HANDLER)
        conn_pending(c);
}

static bool begin_body(struct http_conn *c, uint64_t max, enum body_mode mode)
{
    const struct http_body *body = &c->request->body;
    c->body_max = max;
    if (body->kind == HTTP_BODY_LENGTH && body->length > max) {
        refuse_body(c, 413, "body_too_large", "the request's body is larger than this operation takes");
        return false;
    }
    c->mover.limit = max;
    c->body = evbuffer_new();
    if (c->body == NULL) {
        conn_end(c);
        return false;
    }
    c->mode = mode;
    if (c->expects_continue && !c->mover.over && evbuffer_get_length(conn_input(c)) == 0)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    c->expects_continue = false;
    return true;
}

void http_read_whole(struct http_exchange *x, size_t max, http_whole_fn *fn, void *arg)
{
    struct http_conn *c = conn_of(x);
    c->whole = fn;
    c->whole_arg = arg;
    if (begin_body(c, max, BODY_WHOLE))
        conn_body_step(c);
}

void http_read_stream(struct http_exchange *x, uint64_t max)
{
    struct http_conn *c = conn_of(x);
    if (begin_body(c, max, BODY_STREAM))
        conn_later(c);
}

void http_body_more(struct http_exchange *x)
{
    conn_later(conn_of(x));
}

bool conn_skip_body(struct http_conn *c)
{
    if (c->mover.over)
        return true;
    if (c->expects_continue || c->request == NULL)
        return false;
    struct evbuffer *scrap = evbuffer_new();
    if (scrap == NULL)
        return false;
    c->mover.limit = UINT64_MAX;
    int r = http_move(&c->mover, conn_input(c), scrap, HTTP_WINDOW);
    evbuffer_free(scrap);
    c->x.bytes_in = c->mover.moved;
    conn_mind_window(c);
    return r == 1;
}
