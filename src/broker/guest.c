#include "broker/guest.h"

#include "base/cleanup.h"
#include "base/json_out.h"
#include "broker/exchange.h"
#include "broker/token.h"
#include "broker/tunnel.h"
#include "http/status.h"
#include "sys/idna.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void look_for_head(struct guest *g);

// ---- life ----

static void request_end(struct guest *g)
{
    record_end(&g->record);
    http_head_reset(&g->head, false);
    free(g->request);
    g->request = NULL;
}

static void guest_free(struct guest *g)
{
    g->exchange = exchange_free(g->exchange);
    g->dial = dial_cancel(g->dial);
    patience_end(&g->patience);
    request_end(g);
    if (g->bev != NULL)
        bufferevent_free(g->bev);
    line_remove(g->sandbox, &g->line);
    free(g);
}

static void end_line(struct line *line)
{
    guest_abort((struct guest *)line);
}

// The kernel then sends a reset instead of an orderly end.
static void make_abrupt(struct bufferevent *bev)
{
    struct linger linger = {.l_onoff = 1};
    setsockopt(bufferevent_getfd(bev), SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

void guest_abort(struct guest *g)
{
    make_abrupt(g->bev);
    guest_free(g);
}

struct bufferevent *guest_release(struct guest *g)
{
    struct bufferevent *bev = g->bev;
    g->bev = NULL;
    bufferevent_setcb(bev, NULL, NULL, NULL, NULL);
    g->record.credentials = NULL;  // the record goes to the tunnel
    guest_free(g);
    return bev;
}

// ---- lingering ----

static void linger_step(struct guest *g)
{
    struct evbuffer *in = bufferevent_get_input(g->bev);
    g->lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (g->lingered > LINGER_BYTES) {
        guest_free(g);
        return;
    }
    if (evbuffer_get_length(bufferevent_get_output(g->bev)) > 0)
        return;
    if (g->eof)
        guest_free(g);
    else
        shutdown(bufferevent_getfd(g->bev), SHUT_WR);
}

// No more requests: what is written goes out, then the connection ends.  A close with bytes unread would be a reset, which can
// overtake the answer; so they are read.
static void linger(struct guest *g)
{
    request_end(g);
    g->state = GUEST_LINGER;
    patience_start(&g->patience, LINGER_MS);
    bufferevent_enable(g->bev, EV_READ | EV_WRITE);
    linger_step(g);
}

void guest_next(struct guest *g, bool keep)
{
    g->exchange = NULL;
    if (!keep) {
        linger(g);
        return;
    }
    request_end(g);
    g->state = GUEST_HEAD;
    g->head_begun = false;
    patience_start(&g->patience, g->sandbox->broker->config.idle_ms);
    // What was sent ahead is looked at from the loop, so that a thousand of them are not a thousand calls deep.
    bufferevent_trigger(g->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

// ---- answers of our own ----

static void put_answer(struct guest *g, unsigned status, const char *sentence, bool close, bool head_only)
{
    cleanup_buf struct buf body = BUF_INIT(2048);
    struct json_out j = JSON_OUT_INIT(&body);
    json_open(&j, NULL, '{');
    json_open(&j, "error", '{');
    json_str(&j, "code", g->record.reason);
    json_str(&j, "message", sentence);
    json_close(&j, '}');
    json_close(&j, '}');
    buf_append_text(&body, "\n");
    struct http_writer w = {.out = bufferevent_get_output(g->bev)};
    char line[64];
    snprintf(line, sizeof line, "HTTP/1.1 %u ", status);
    http_put_text(&w, line);
    http_put_text(&w, http_status_phrase(status));
    http_put_text(&w, "\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nX-Sandbox-Reason: ");
    http_put_text(&w, g->record.reason);
    http_put_text(&w, "\r\n");
    if (status == 407)
        http_put_text(&w, "Proxy-Authenticate: Basic realm=\"sandbox\", charset=\"UTF-8\"\r\n");
    if (status == 401)
        http_put_text(&w, "WWW-Authenticate: X-Sandbox-Token\r\n");
    if (status == 503)
        http_put_text(&w, "Retry-After: 1\r\n");
    if (close)
        http_put_text(&w, "Connection: close\r\n");
    http_put_number(&w, "Content-Length", body.len);
    http_put_end(&w);
    if (!head_only)
        http_put(&w, (struct http_text){(const char *)body.data, body.len});
}

static void answer_saying(struct guest *g, unsigned status, const char *sentence, bool close)
{
    const struct http_request *r = g->request;
    bool rest = r == NULL || !r->keep_alive || r->body.kind == HTTP_BODY_CHUNKED || r->body.length > 0;
    bool head_only = r != NULL && http_text_equal(r->method, HTTP_TEXT("HEAD"));
    close = close || rest;
    put_answer(g, status, sentence, close, head_only);
    record_log(&g->record, status);
    guest_next(g, !close);
}

void guest_answer(struct guest *g, unsigned status, bool close)
{
    g->exchange = NULL;
    answer_saying(g, status, reason_sentence(g->record.reason), close);
}

static void refuse(struct guest *g, enum decision d, const char *reason, unsigned status)
{
    g->record.decision = d;
    g->record.reason = reason;
    guest_answer(g, status, false);
}

// ---- a request ----

static void on_dialled(void *arg, const struct dial_result *result)
{
    struct guest *g = arg;
    g->dial = NULL;
    unsigned status = record_dialled(&g->record, result);
    if (status != 0) {
        guest_answer(g, status, false);
        return;
    }
    evbuffer_add_printf(bufferevent_get_output(g->bev), "HTTP/1.1 200 Connection established\r\n\r\n");
    record_log(&g->record, 200);
    struct record record = g->record;
    bool eof = g->eof;
    struct bufferevent *bev = guest_release(g);
    tunnel_start(&record, bev, result->bev, TUNNEL_LOOK, eof);
}

static void begin_tunnel(struct guest *g)
{
    struct broker *b = g->sandbox->broker;
    if (!decide_tunnel(&g->record)) {
        guest_answer(g, 403, false);
        return;
    }
    g->state = GUEST_DIAL;
    patience_start(&g->patience, 0);  // the dial has its own
    g->dial = dial_start(b, &g->record.host, g->record.port, false, on_dialled, g);
    if (g->dial == NULL)
        guest_abort(g);
}

// TRACE and its like have the upstream show the request, and with it what was put in.
static bool method_shows(struct http_text method)
{
    return http_text_is(method, HTTP_TEXT("TRACE")) || http_text_is(method, HTTP_TEXT("TRACK"));
}

static void begin_relay(struct guest *g)
{
    const struct http_request *r = g->request;
    if (method_shows(r->method)) {
        refuse(g, DENIED_POLICY, "method", 403);
        return;
    }
    if (!decide_relay(&g->record)) {
        guest_answer(g, 403, false);
        return;
    }
    if (r->body.kind == HTTP_BODY_LENGTH && r->body.length > g->sandbox->broker->config.max_body) {
        g->sandbox->broker->metrics.body_too_large++;
        // Nothing of it has gone anywhere.
        g->record.decision = DENIED_MALFORMED;
        g->record.reason = "body_too_large";
        guest_answer(g, 413, true);
        return;
    }
    g->state = GUEST_RELAY;
    patience_start(&g->patience, g->sandbox->broker->config.progress_ms);
    exchange_start(g);
}

// Reads the host that a request is for.
static bool take_host(struct guest *g, struct http_text text, uint16_t without)
{
    struct record *r = &g->record;
    enum host_problem why;
    uint16_t port;
    if (host_port_parse(text.at, text.n, &sys_idna, &r->host, &port, &why) < 0) {
        r->detail = host_problem_text(why);
        return false;
    }
    r->port = port != 0 ? port : without;
    r->named = true;
    return true;
}

static void take_redirected(struct guest *g)
{
    struct record *r = &g->record;
    r->shape = SHAPE_TRANSPARENT_HTTP;
    if (g->request->form != HTTP_ORIGIN_FORM && g->request->form != HTTP_ASTERISK_FORM) {
        refuse(g, DENIED_MALFORMED, "bad_target", 400);
        return;
    }
    if (!take_host(g, g->request->host, 80)) {
        refuse(g, DENIED_MALFORMED, "bad_host", 400);
        return;
    }
    if (!host_equal(&r->host, &g->name) || r->port != 80) {
        refuse(g, DENIED_POLICY, "host_mismatch", 403);
        return;
    }
    r->port = HOST_DEFAULT_PORT;  // it goes out as https
    begin_relay(g);
}

static void take_origin(struct guest *g)
{
    const struct http_request *r = g->request;
    g->record.shape = SHAPE_ORIGIN;
    bool named = take_host(g, r->host, HOST_DEFAULT_PORT);
    enum token_state token = token_of_header(g->sandbox, &r->fields);
    if (token != TOKEN_GOOD)
        refuse(g, DENIED_TOKEN, "denied_token", token == TOKEN_MALFORMED ? 400 : 401);
    else if (!named)
        refuse(g, DENIED_MALFORMED, "bad_host", 400);
    else
        begin_relay(g);
}

static void take_proxy(struct guest *g)
{
    const struct http_request *r = g->request;
    bool connect = r->form == HTTP_AUTHORITY_FORM;
    g->record.shape = connect ? SHAPE_CONNECT : SHAPE_ABSOLUTE;
    bool named = take_host(g, r->authority, HOST_DEFAULT_PORT);
    // http://host:80/ is http://host/, and that goes out as https.
    if (named && !connect && !r->https && g->record.port == 80)
        g->record.port = HOST_DEFAULT_PORT;
    if (token_of_proxy(g->sandbox, &r->fields) != TOKEN_GOOD)
        refuse(g, DENIED_TOKEN, "denied_token", 407);
    else if (!named)
        refuse(g, DENIED_MALFORMED, "bad_host", 400);
    else if (connect)
        begin_tunnel(g);
    else
        begin_relay(g);
}

static void take_request(struct guest *g)
{
    enum http_refusal why;
    g->request = malloc(sizeof *g->request);
    if (g->request == NULL) {
        guest_abort(g);
        return;
    }
    if (http_request_parse(g->head.bytes, g->head.n, HTTP_CHUNKED_WINS, g->request, &why) < 0) {
        free(g->request);
        g->request = NULL;
        g->record.decision = DENIED_MALFORMED;
        g->record.reason = "malformed";
        answer_saying(g, (unsigned)http_refusal_status(why), http_refusal_text(why), true);
        return;
    }
    if (g->redirected)
        take_redirected(g);
    else if (g->request->form == HTTP_ORIGIN_FORM || g->request->form == HTTP_ASTERISK_FORM)
        take_origin(g);
    else
        take_proxy(g);
}

static void look_for_head(struct guest *g)
{
    struct evbuffer *in = bufferevent_get_input(g->bev);
    // A guest that asks and does not read is not asked what more it wants.
    if (evbuffer_get_length(bufferevent_get_output(g->bev)) >= WINDOW)
        return;
    if (evbuffer_get_length(in) > 0 && !g->head_begun) {
        g->head_begun = true;
        patience_start(&g->patience, g->sandbox->broker->config.head_ms);
        record_begin(&g->record, g->sandbox);
    }
    enum http_refusal why;
    int r = http_head_take(&g->head, in, &why);
    if (r == 1) {
        take_request(g);
    } else if (r == -EBADMSG) {
        g->record.decision = DENIED_MALFORMED;
        g->record.reason = "malformed";
        answer_saying(g, (unsigned)http_refusal_status(why), http_refusal_text(why), true);
    } else if (r < 0) {
        guest_abort(g);
    } else if (g->eof) {
        // Between requests, or in the middle of a head: nothing to answer, but the last answer may still be going out.
        linger(g);
    }
}

// ---- events ----

static void on_read(struct bufferevent *bev, void *arg)
{
    struct guest *g = arg;
    (void)bev;
    switch (g->state) {
    case GUEST_HEAD:
        look_for_head(g);
        break;
    case GUEST_RELAY:
        exchange_guest_read(g->exchange);
        break;
    case GUEST_DIAL:
        break;  // the tunnel's first bytes wait
    case GUEST_LINGER:
        linger_step(g);
        break;
    }
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct guest *g = arg;
    (void)bev;
    if (g->state == GUEST_RELAY)
        exchange_guest_written(g->exchange);
    else if (g->state == GUEST_LINGER)
        linger_step(g);
    else if (g->state == GUEST_HEAD)
        look_for_head(g);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct guest *g = arg;
    // Both can be told at once.
    if ((what & BEV_EVENT_ERROR) != 0) {
        guest_free(g);
        return;
    }
    g->eof = true;
    on_read(bev, g);
}

static void on_patience(void *arg)
{
    struct guest *g = arg;
    if (g->state == GUEST_RELAY) {
        exchange_timeout(g->exchange);
    } else if (g->state == GUEST_HEAD && g->head_begun) {
        g->record.decision = DENIED_MALFORMED;
        g->record.reason = "head_timeout";
        answer_saying(g, 408, reason_sentence("head_timeout"), true);
    } else {
        guest_free(g);
    }
}

static struct guest *guest_new(struct sandbox *s, int fd)
{
    struct guest *g = calloc(1, sizeof *g);
    if (g == NULL) {
        close(fd);
        return NULL;
    }
    g->sandbox = s;
    g->line.end = end_line;
    line_add(s, &g->line);
    g->bev = broker_wrap(s->broker, fd);
    if (g->bev == NULL || patience_init(&g->patience, s->broker->base, on_patience, g) < 0) {
        guest_free(g);
        return NULL;
    }
    bufferevent_setcb(g->bev, on_read, on_write, on_event, g);
    bufferevent_enable(g->bev, EV_READ | EV_WRITE);
    patience_start(&g->patience, s->broker->config.idle_ms);
    return g;
}

static void accept_one(struct sandbox *s, int fd, const struct host *name)
{
    bool room = sandbox_has_room(s);
    // Those that are only told so are bounded, too.
    const struct config *c = &s->broker->config;
    if (!room && (s->connections >= c->sandbox_max_conns + BUSY_MAX || s->broker->connections >= c->max_conns + BUSY_MAX)) {
        close(fd);
        return;
    }
    struct guest *g = guest_new(s, fd);
    if (g == NULL)
        return;
    if (name != NULL) {
        g->redirected = true;
        g->name = *name;
    }
    if (room)
        return;
    record_begin(&g->record, s);
    g->record.decision = DENIED_BUSY;
    g->record.reason = "denied_busy";
    answer_saying(g, 503, reason_sentence("denied_busy"), true);
}

void guest_accept(struct sandbox *s, int fd)
{
    accept_one(s, fd, NULL);
}

void guest_accept_redirected(struct sandbox *s, int fd, const struct host *name)
{
    accept_one(s, fd, name);
}
