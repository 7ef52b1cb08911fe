#include "broker/api_conn.h"

#include "broker/api_line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void look_for_head(struct api_conn *c);

// ---- life ----

void api_conn_free(struct api_conn *c)
{
    c->call = api_call_free(c->call);
    api_line_closed(c->line, c);
    patience_end(&c->patience);
    http_head_reset(&c->head, false);
    if (c->body != NULL)
        evbuffer_free(c->body);
    if (c->bev != NULL)
        bufferevent_free(c->bev);
    free(c);
}

static const struct config *config_of(const struct api_conn *c)
{
    return &api_line_broker(c->line)->config;
}

// ---- the last answer ----

static void linger_step(struct api_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->lingered > API_LINGER_BYTES) {
        api_conn_free(c);
        return;
    }
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
        return;
    c->call = api_call_free(c->call);
    if (c->eof) {
        api_conn_free(c);
    } else if (!c->shut) {
        c->shut = true;
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        patience_start(&c->patience, API_LINGER_MS);
    }
}

static void request_end(struct api_conn *c)
{
    c->call = api_call_free(c->call);
    http_head_reset(&c->head, false);
    evbuffer_drain(c->body, evbuffer_get_length(c->body));
    c->begun = false;
}

// The answer is in the buffer: when it is out, the next request, or the end.
static void written(struct api_conn *c)
{
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0)
        return;
    request_end(c);
    c->state = CONN_HEAD;
    patience_start(&c->patience, config_of(c)->api_idle_ms);
    // What was sent ahead is looked at from the loop.
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void put_answer(struct api_conn *c, const struct api_answer *a)
{
    if (api_answer_put(bufferevent_get_output(c->bev), a, !c->keep, c->head_only) < 0)
        c->keep = false;  // cut, and seen to be
    c->state = c->keep ? CONN_WRITE : CONN_LINGER;
    patience_start(&c->patience, config_of(c)->api_write_ms);
    // The buffer goes out from the loop, and on_write hears of it.
}

static void refuse(struct api_conn *c, enum api_refusal why)
{
    put_answer(
        c, &(struct api_answer){.status = api_refusal_status(why), .type = API_REFUSAL_TYPE, .text = api_refusal_text(why)});
}

static void malformed(struct api_conn *c, enum http_refusal why)
{
    char text[128];
    snprintf(text, sizeof text, "%.100s\n", http_refusal_text(why));
    c->keep = false;
    put_answer(c, &(struct api_answer){.status = (unsigned)http_refusal_status(why), .type = API_REFUSAL_TYPE, .text = text});
}

// ---- a request ----

static void on_answer(void *arg, const struct api_answer *a)
{
    struct api_conn *c = arg;
    put_answer(c, a);
}

static void no_body(struct api_conn *c)
{
    api_call_no_body(c->call);
    c->keep = false;
    refuse(c, API_BODY);
}

static void read_body(struct api_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    int r = http_move(&c->mover, in, c->body, (size_t)GRANT_REQUEST_MAX + 1);
    if (r == 1) {
        c->state = CONN_CALL;
        patience_start(&c->patience, 0);  // the call has its own
        api_call_go(c->call, c->method, c->target, c->body, on_answer, c);
        return;
    }
    if (r < 0 || (c->eof && evbuffer_get_length(in) == 0))
        no_body(c);
}

static void take_request(struct api_conn *c, const struct http_request *r)
{
    struct grant *g = api_line_grant(c->line);
    bool has_body = r->body.kind == HTTP_BODY_CHUNKED || (r->body.kind == HTTP_BODY_LENGTH && r->body.length > 0);
    enum api_refusal why = g != NULL ? api_call_begin(g, &c->call) : API_UNAVAILABLE;
    c->method = r->method;
    c->target = r->target;
    c->keep = r->keep_alive;
    c->head_only = http_text_equal(r->method, HTTP_TEXT("HEAD"));
    if (why != API_FINE) {
        c->keep = c->keep && !has_body;
        refuse(c, why);
        return;
    }
    if (r->body.kind == HTTP_BODY_LENGTH && r->body.length > GRANT_REQUEST_MAX) {
        no_body(c);
        return;
    }
    http_mover_init(&c->mover, &r->body, false, GRANT_REQUEST_MAX);
    if (r->expects_continue && has_body)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    c->state = CONN_BODY;
    patience_start(&c->patience, config_of(c)->api_request_ms);
    read_body(c);
}

static void look_for_head(struct api_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    if (evbuffer_get_length(in) > 0 && !c->begun) {
        c->begun = true;
        c->head_only = false;
        patience_start(&c->patience, config_of(c)->api_head_ms);
    }
    enum http_refusal why;
    struct http_request request;
    int r = http_head_take(&c->head, in, &why);
    if (r == 1 && http_request_parse(c->head.bytes, c->head.n, HTTP_RAW_TARGET, &request, &why) < 0)
        r = -EBADMSG;
    if (r == 1)
        take_request(c, &request);
    else if (r == -EBADMSG)
        malformed(c, why);
    else if (r < 0 || c->eof)
        api_conn_free(c);
}

// ---- events ----

static void step(struct api_conn *c)
{
    switch (c->state) {
    case CONN_HEAD:
        look_for_head(c);
        break;
    case CONN_BODY:
        read_body(c);
        break;
    case CONN_LINGER:
        linger_step(c);
        break;
    case CONN_CALL:
    case CONN_WRITE:
        break;  // what was sent ahead waits
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    step(arg);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct api_conn *c = arg;
    (void)bev;
    if (c->state == CONN_WRITE)
        written(c);
    else if (c->state == CONN_LINGER)
        linger_step(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct api_conn *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_ERROR) != 0) {
        api_conn_free(c);
        return;
    }
    c->eof = true;
    step(c);
}

static void on_patience(void *arg)
{
    struct api_conn *c = arg;
    if (c->state == CONN_BODY)
        no_body(c);
    else
        api_conn_free(c);
}

void api_conn_new(struct api_line *l, int fd)
{
    struct api_conn *c = calloc(1, sizeof *c);
    if (c == NULL) {
        close(fd);
        return;
    }
    struct broker *b = api_line_broker(l);
    c->line = l;
    api_line_opened(l, c);
    c->bev = broker_wrap(b, fd);
    c->body = evbuffer_new();
    if (c->bev == NULL || c->body == NULL || patience_init(&c->patience, b->base, on_patience, c) < 0) {
        api_conn_free(c);
        return;
    }
    bufferevent_setwatermark(c->bev, EV_WRITE, 0, 0);
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    patience_start(&c->patience, b->config.api_idle_ms);
}
