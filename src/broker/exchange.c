#include "broker/exchange.h"

#include "broker/pool.h"
#include "broker/tunnel.h"
#include "http/body.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct exchange {
    struct guest *guest;
    struct broker *broker;
    struct dial *dial;
    struct bufferevent *up;
    struct pool_key key;
    bool reused;         // `up` had been kept; nothing has come over it yet
    bool up_eof;         // the upstream has sent its last byte
    bool up_cut;         // and did not say that it was
    bool up_deaf;        // it takes no more of the request; what it sent before that may be waiting
    bool upgraded;       // it has become a tunnel
    bool answered;       // the response's head is in the guest's buffer
    bool guest_keep;     // another request may follow
    bool upstream_keep;  // another exchange may follow
    unsigned interim;
    struct http_head head;  // the response's
    struct http_mover request, response;
};

static void attach(struct exchange *x, struct bufferevent *up);

static void account(const struct exchange *x)
{
    struct metrics *m = &x->broker->metrics;
    const struct record *r = &x->guest->record;
    m->bytes_up += x->request.moved;
    m->bytes_down += x->response.moved;
    if (r->logged && !x->upgraded)
        record_log_end(r, x->request.moved, x->response.moved, x->response.over ? "whole" : "cut");
}

struct exchange *exchange_free(struct exchange *x)
{
    if (x == NULL)
        return NULL;
    account(x);
    x->dial = dial_cancel(x->dial);
    http_head_reset(&x->head, true);
    if (x->up != NULL)
        bufferevent_free(x->up);
    free(x);
    return NULL;
}

// No answer came from the upstream, or none that could be used.
static void fail(struct exchange *x, unsigned status, const char *reason)
{
    struct guest *g = x->guest;
    bool answered = x->answered;
    g->record.reason = reason;
    if (status == 502)
        x->broker->metrics.upstream_failed++;
    exchange_free(x);
    g->exchange = NULL;
    if (answered)
        guest_abort(g);
    else
        guest_answer(g, status, true);
}

// ---- the request ----

static bool drop_from_request(void *arg, struct http_text name)
{
    const struct credential *c = arg;
    static const struct http_text always[] = {{"host", 4}, {"x-sandbox-token", 15}, {"expect", 6}};
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (http_text_is(name, always[i]))
            return true;
    if (c == NULL)
        return false;
    return http_text_is(name, HTTP_TEXT("authorization")) ||
           http_text_is(name, (struct http_text){c->header, strlen(c->header)});
}

// WebSocket only: with another version of HTTP, what follows would be requests that nobody here reads.
static bool upgrade_ok(const struct http_request *r)
{
    return http_text_is(r->upgrade, HTTP_TEXT("websocket"));
}

static void put_framing(struct http_writer *w, const struct http_request *r)
{
    if (r->body.kind == HTTP_BODY_CHUNKED)
        http_put_field(w, "Transfer-Encoding", HTTP_TEXT("chunked"));
    else if (r->body.kind == HTTP_BODY_LENGTH)
        http_put_number(w, "Content-Length", r->body.length);
    if (r->expects_continue)
        http_put_field(w, "Expect", HTTP_TEXT("100-continue"));
    if (upgrade_ok(r)) {
        http_put_field(w, "Connection", HTTP_TEXT("Upgrade"));
        http_put_field(w, "Upgrade", r->upgrade);
    }
}

static void put_target(struct http_writer *w, const struct http_request *r)
{
    http_put(w, r->method);
    http_put_text(w, " ");
    if (r->form == HTTP_ASTERISK_FORM)
        http_put_text(w, "*");
    else if (r->path.n == 0 || r->path.at[0] == '?')
        http_put_text(w, "/");
    if (r->form != HTTP_ASTERISK_FORM)
        http_put(w, r->path);
    http_put_text(w, " HTTP/1.1\r\n");
}

static int put_request(struct exchange *x)
{
    const struct http_request *r = x->guest->request;
    const struct record *record = &x->guest->record;
    const struct credential *c = record->credential;
    struct http_writer w = {.out = bufferevent_get_output(x->up)};
    char host[HOST_FORMAT_MAX + 8];
    host_format(&record->host, host);
    size_t n = strlen(host);
    if (record->port != HOST_DEFAULT_PORT)
        snprintf(host + n, sizeof host - n, ":%u", (unsigned)record->port);
    put_target(&w, r);
    http_put_field(&w, "Host", (struct http_text){host, strlen(host)});
    http_put_forwarded(&w, &r->fields, drop_from_request, (void *)c);
    if (c != NULL)
        http_put_field(&w, c->header, (struct http_text){c->value, strlen(c->value)});
    put_framing(&w, r);
    return http_put_end(&w);
}

static void pump_request(struct exchange *x)
{
    struct guest *g = x->guest;
    if (x->up == NULL || x->request.over || x->up_deaf)
        return;
    struct evbuffer *in = bufferevent_get_input(g->bev);
    int r = http_move(&x->request, in, bufferevent_get_output(x->up), WINDOW);
    patience_touch(&g->patience);
    if (r == 0 && g->eof && evbuffer_get_length(in) == 0)
        r = -EBADMSG;
    if (r == -EMSGSIZE)
        x->broker->metrics.body_too_large++;
    if (r < 0)
        fail(x, r == -EMSGSIZE ? 413 : r == -EBADMSG ? 400 : 502, r == -EMSGSIZE ? "body_too_large" : "bad_body");
}

// ---- the response ----

static void put_response_framing(struct exchange *x, struct http_writer *w, const struct http_response *r)
{
    const struct http_request *request = x->guest->request;
    if (r->body.kind == HTTP_BODY_LENGTH)
        http_put_number(w, "Content-Length", r->body.length);
    else if (r->body.kind == HTTP_BODY_NONE && r->has_length)
        http_put_number(w, "Content-Length", r->length);
    else if (x->response.chunked_out)
        http_put_field(w, "Transfer-Encoding", HTTP_TEXT("chunked"));
    if (!x->guest_keep)
        http_put_field(w, "Connection", HTTP_TEXT("close"));
    else if (request->minor == 0)
        http_put_field(w, "Connection", HTTP_TEXT("keep-alive"));
}

static void put_status(struct http_writer *w, const struct http_response *r)
{
    char line[32];
    snprintf(line, sizeof line, "HTTP/1.1 %u ", r->status);
    http_put_text(w, line);
    http_put(w, r->reason);
    http_put_text(w, "\r\n");
}

static int put_response(struct exchange *x, const struct http_response *r)
{
    struct guest *g = x->guest;
    const struct http_request *request = g->request;
    bool open_ended = r->body.kind == HTTP_BODY_CHUNKED || r->body.kind == HTTP_BODY_UNTIL_CLOSE;
    bool chunked = open_ended && request->minor >= 1;
    x->guest_keep = request->keep_alive && !(open_ended && !chunked) && !g->eof;
    x->upstream_keep = r->keep_alive && r->body.kind != HTTP_BODY_UNTIL_CLOSE;
    http_mover_init(&x->response, &r->body, chunked, UINT64_MAX);
    struct http_writer w = {.out = bufferevent_get_output(g->bev)};
    put_status(&w, r);
    http_put_forwarded(&w, &r->fields, NULL, NULL);
    put_response_framing(x, &w, r);
    return http_put_end(&w);
}

// 100, 103 and the like.
static int pass_interim(struct exchange *x, const struct http_response *r)
{
    if (++x->interim > INTERIM_MAX)
        return -EBADMSG;
    if (x->guest->request->minor == 0)
        return 0;
    struct http_writer w = {.out = bufferevent_get_output(x->guest->bev)};
    put_status(&w, r);
    http_put_forwarded(&w, &r->fields, NULL, NULL);
    return http_put_end(&w);
}

static void become_tunnel(struct exchange *x, const struct http_response *r)
{
    struct guest *g = x->guest;
    if (!upgrade_ok(g->request) || !http_text_is(r->upgrade, g->request->upgrade) || !x->request.over) {
        fail(x, 502, "bad_response");
        return;
    }
    struct http_writer w = {.out = bufferevent_get_output(g->bev)};
    put_status(&w, r);
    http_put_forwarded(&w, &r->fields, NULL, NULL);
    http_put_field(&w, "Connection", HTTP_TEXT("Upgrade"));
    http_put_field(&w, "Upgrade", r->upgrade);
    if (http_put_end(&w) < 0) {
        guest_abort(g);
        return;
    }
    record_log(&g->record, 101);
    x->upgraded = true;
    struct record record = g->record;
    struct bufferevent *up = x->up;
    bool eof = g->eof;
    x->up = NULL;
    bufferevent_setcb(up, NULL, NULL, NULL, NULL);
    tunnel_start(&record, guest_release(g), up, 0, eof);
}

static void finish(struct exchange *x)
{
    struct guest *g = x->guest;
    bool keep = x->guest_keep && x->request.over;
    // All of the request must be out, too: an early answer may leave some of it waiting.
    bool sent = x->request.over && evbuffer_get_length(bufferevent_get_output(x->up)) == 0;
    if (x->upstream_keep && sent && !x->up_eof && !x->up_deaf) {
        struct bufferevent *up = x->up;
        x->up = NULL;
        pool_put(x->broker->pool, &x->key, up);
    }
    exchange_free(x);
    guest_next(g, keep);
}

// 1: the response's head has been passed on.  0: not yet.  -ECANCELED: the exchange is over.
static int take_response_head(struct exchange *x)
{
    struct guest *g = x->guest;
    struct evbuffer *in = bufferevent_get_input(x->up);
    for (;;) {
        enum http_refusal why;
        struct http_response response;
        int r = http_head_take(&x->head, in, &why);
        if (r == 0)
            return 0;
        x->reused = false;
        if (r == 1 && http_response_parse(x->head.bytes, x->head.n, g->request->method, &response, &why) < 0)
            r = -EBADMSG;
        if (r == 1 && response.status == 101) {
            become_tunnel(x, &response);
            return -ECANCELED;
        }
        if (r == 1)
            r = response.status < 200 ? pass_interim(x, &response) : put_response(x, &response);
        bool final = r == 0 && response.status >= 200;
        if (r < 0) {
            if (r == -EBADMSG)
                g->record.detail = http_refusal_text(why);
            fail(x, 502, "bad_response");
            return -ECANCELED;
        }
        unsigned status = response.status;
        http_head_reset(&x->head, true);
        if (final) {
            x->answered = true;
            record_log(&g->record, status);
            return 1;
        }
    }
}

static void pump_response(struct exchange *x)
{
    struct guest *g = x->guest;
    if (x->up == NULL)
        return;
    patience_touch(&g->patience);
    int head = x->answered ? 1 : take_response_head(x);
    if (head == 0 && x->up_eof)
        fail(x, 502, "upstream_closed");
    if (head <= 0)
        return;
    struct evbuffer *in = bufferevent_get_input(x->up), *out = bufferevent_get_output(g->bev);
    int r = http_move(&x->response, in, out, WINDOW);
    if (r == 0 && x->up_eof && evbuffer_get_length(in) == 0)
        r = !x->up_cut && http_mover_close(&x->response, out) == 0 ? 1 : -EBADMSG;
    if (r < 0)
        fail(x, 502, "bad_response");
    else if (r == 1)
        finish(x);
}

// ---- the upstream ----

// Whether sending it twice is the same as once (RFC 9110, 9.2.2), and nothing of it has to be had twice.
static bool repeatable(const struct http_request *r)
{
    static const struct http_text methods[] = {{"GET", 3}, {"HEAD", 4}, {"OPTIONS", 7}, {"PUT", 3}, {"DELETE", 6}};
    if (r->body.kind == HTTP_BODY_CHUNKED || r->body.length > 0 || r->upgrade.n > 0)
        return false;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (http_text_equal(r->method, methods[i]))
            return true;
    return false;
}

static void on_dialled(void *arg, const struct dial_result *result)
{
    struct exchange *x = arg;
    struct guest *g = x->guest;
    x->dial = NULL;
    unsigned status = record_dialled(&g->record, result);
    if (status == 0) {
        attach(x, result->bev);
        return;
    }
    exchange_free(x);
    guest_answer(g, status, false);
}

static void dial(struct exchange *x)
{
    x->dial = dial_start(x->broker, &x->key.host, x->key.port, true, on_dialled, x);
    if (x->dial == NULL)
        fail(x, 502, "busy");
}

static void on_up_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    pump_response(arg);
}

static void on_up_write(struct bufferevent *bev, void *arg)
{
    (void)bev;
    pump_request(arg);
}

// Nothing more can be written.  An upstream that answers early and closes with some of the request unread resets the
// connection, and its answer is then still to be read: true, while that goes on.
static bool hear_out(struct exchange *x, short what)
{
    if ((what & BEV_EVENT_WRITING) == 0 || (what & BEV_EVENT_READING) != 0 || x->up_deaf)
        return false;
    x->up_deaf = true;
    bufferevent_disable(x->up, EV_WRITE);
    return bufferevent_enable(x->up, EV_READ) == 0;
}

// The end of the upstream's bytes.  An error is an end that was not announced (TLS without a close_notify).
static void on_up_event(struct bufferevent *bev, short what, void *arg)
{
    struct exchange *x = arg;
    if (hear_out(x, what))
        return;
    bool nothing = !x->answered && evbuffer_get_length(bufferevent_get_input(bev)) == 0;
    if (nothing && x->reused && repeatable(x->guest->request)) {
        bufferevent_free(x->up);
        x->up = NULL;
        x->reused = x->up_deaf = false;
        dial(x);
        return;
    }
    x->up_eof = true;
    x->up_cut = (what & BEV_EVENT_ERROR) != 0;
    pump_response(x);
}

static void attach(struct exchange *x, struct bufferevent *up)
{
    x->up = up;
    bufferevent_setcb(up, on_up_read, on_up_write, on_up_event, x);
    bufferevent_setwatermark(up, EV_WRITE, WINDOW / 2, 0);
    if (put_request(x) < 0) {
        fail(x, 502, "busy");
        return;
    }
    patience_touch(&x->guest->patience);
    bufferevent_enable(up, EV_READ | EV_WRITE);
    pump_request(x);
}

void exchange_start(struct guest *g)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        guest_abort(g);
        return;
    }
    const struct http_request *r = g->request;
    const struct config *config = &g->sandbox->broker->config;
    x->guest = g;
    x->broker = g->sandbox->broker;
    g->exchange = x;
    http_head_reset(&x->head, true);
    http_mover_init(&x->request, &r->body, r->body.kind == HTTP_BODY_CHUNKED, config->max_body);
    const struct credential *c = g->record.credential;
    x->key = (struct pool_key){
        .sandbox_id = g->sandbox->id, .port = g->record.port, .serial = c != NULL ? c->serial : 0, .host = g->record.host};
    uint64_t idle_ms = repeatable(r) || config->pool_ms < POOL_FRESH_MS ? config->pool_ms : POOL_FRESH_MS;
    struct bufferevent *up = pool_take(x->broker->pool, &x->key, idle_ms);
    if (up == NULL) {
        dial(x);
        return;
    }
    x->reused = true;
    attach(x, up);
}

void exchange_guest_read(struct exchange *x)
{
    pump_request(x);
}

void exchange_guest_written(struct exchange *x)
{
    pump_response(x);
}

// Whether it is the guest's turn: all it sent of its body is on its way, and there should be more.  One that waits for a
// 100 Continue has nothing to send yet.
static bool guest_stopped(const struct exchange *x)
{
    if (x->up == NULL || x->request.over || x->up_deaf || evbuffer_get_length(bufferevent_get_output(x->up)) > 0)
        return false;
    return !x->guest->request->expects_continue || x->interim > 0 || x->request.moved > 0;
}

void exchange_timeout(struct exchange *x)
{
    if (guest_stopped(x)) {
        x->guest->record.detail = "the body stopped";
        fail(x, 400, "bad_body");
    } else {
        fail(x, 502, "slow");
    }
}
