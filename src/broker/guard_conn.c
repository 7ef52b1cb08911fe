#include "broker/guard_conn.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void read_body(struct guard_conn *c);

static const struct config *config_of(const struct guard_conn *c)
{
    return &c->guard->broker->config;
}

// ---- places ----

static struct guard_conn *longest_waiting(const struct guard *g, const struct grant *grant)
{
    struct guard_conn *c, *first = NULL;
    LIST_FOREACH(c, &g->conns, all)
    if (c->state == GUARD_WAIT && c->grant == grant && (first == NULL || c->turn < first->turn))
        first = c;
    return first;
}

static void take_place(struct guard_conn *c)
{
    c->reading = true;
    c->grant->guard_decoding++;
    c->guard->reading++;
    c->state = GUARD_BODY;
    patience_start(&c->patience, config_of(c)->guard_wait_ms);
}

// The place goes to who waits longest for one of this grant's.
static void give_place_back(struct guard_conn *c)
{
    if (!c->reading)
        return;
    struct grant *grant = c->grant;
    c->reading = false;
    c->guard->reading--;
    grant->guard_decoding--;
    struct guard_conn *next = longest_waiting(c->guard, grant);
    if (next == NULL)
        return;
    take_place(next);
    // From the loop: what it does may end connections.
    bufferevent_trigger(next->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

static void leave_grant(struct guard_conn *c)
{
    give_place_back(c);
    if (c->grant != NULL)
        c->grant->guard_requests--;
    c->grant = NULL;
}

// ---- life ----

static void request_end(struct guard_conn *c)
{
    c->call = api_call_free(c->call);
    leave_grant(c);
    guard_envelope_end(&c->envelope);
    http_head_reset(&c->head, false);
    evbuffer_drain(c->body, evbuffer_get_length(c->body));
    evbuffer_drain(c->payload, evbuffer_get_length(c->payload));
    c->begun = false;
}

void guard_conn_free(struct guard_conn *c)
{
    if (c->body != NULL && c->payload != NULL)
        request_end(c);
    guard_conn_unlisted(c->guard, c);
    patience_end(&c->patience);
    if (c->body != NULL)
        evbuffer_free(c->body);
    if (c->payload != NULL)
        evbuffer_free(c->payload);
    if (c->bev != NULL)
        bufferevent_free(c->bev);
    free(c);
}

static void linger_step(struct guard_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->lingered += evbuffer_get_length(in);
    evbuffer_drain(in, evbuffer_get_length(in));
    if (c->lingered > GUARD_BODY_MAX || (c->eof && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)) {
        guard_conn_free(c);
        return;
    }
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) > 0 || c->shut)
        return;
    request_end(c);
    c->shut = true;
    SSL_shutdown(bufferevent_openssl_get_ssl(c->bev));
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    patience_start(&c->patience, GUARD_LINGER_MS);
}

static void put_answer(struct guard_conn *c, const struct api_answer *a)
{
    if (api_answer_put(bufferevent_get_output(c->bev), a, !c->keep, false) < 0)
        c->keep = false;
    c->state = c->keep ? GUARD_WRITE : GUARD_LINGER;
    patience_start(&c->patience, config_of(c)->api_write_ms);
}

static void refuse(struct guard_conn *c, enum api_refusal why)
{
    put_answer(
        c, &(struct api_answer){.status = api_refusal_status(why), .type = API_REFUSAL_TYPE, .text = api_refusal_text(why)});
}

// Before the body was read.
static void refuse_early(struct guard_conn *c, unsigned status, const char *text)
{
    c->keep = false;
    put_answer(c, &(struct api_answer){.status = status,
                                       .type = "application/json",
                                       .text = text,
                                       .more = status == 503   ? "Retry-After: 1\r\n"
                                               : status == 401 ? "WWW-Authenticate: X-Sandbox-Guard\r\n"
                                                               : NULL});
}

void guard_conn_grant_ended(struct guard_conn *c)
{
    bool early = c->state == GUARD_WAIT || c->state == GUARD_BODY;
    if (c->reading) {
        c->reading = false;
        c->guard->reading--;
    }
    c->grant = NULL;
    if (!early)
        return;  // the call hears of it by itself
    c->keep = false;
    refuse(c, API_ENDED);
}

// ---- a request ----

static void on_answer(void *arg, const struct api_answer *a)
{
    put_answer(arg, a);
}

static void call(struct guard_conn *c)
{
    enum api_refusal why = api_call_begin(c->grant, &c->call);
    if (why != API_FINE) {
        refuse(c, why);
        return;
    }
    if (c->envelope.body.n > GRANT_REQUEST_MAX) {
        api_call_no_body(c->call);
        refuse(c, API_BODY);
        return;
    }
    if (evbuffer_add(c->payload, c->envelope.body.at, c->envelope.body.n) < 0) {
        refuse(c, API_CAPACITY);
        return;
    }
    c->envelope.body = (struct http_text){"", 0};
    evbuffer_drain(c->body, evbuffer_get_length(c->body));
    c->state = GUARD_CALL;
    patience_start(&c->patience, 0);
    api_call_go(c->call, c->envelope.method, c->envelope.path, c->payload, on_answer, c);
}

static void decode(struct guard_conn *c)
{
    size_t n = evbuffer_get_length(c->body);
    const char *bytes = n > 0 ? (const char *)evbuffer_pullup(c->body, -1) : "";
    int r = bytes != NULL ? guard_envelope_read(bytes, n, &c->envelope) : -ENOMEM;
    give_place_back(c);
    if (r == 0)
        call(c);
    else
        put_answer(
            c, &(struct api_answer){.status = 400, .type = "application/json", .text = "{\"error\": \"malformed call\"}\n"});
}

static void no_body(struct guard_conn *c)
{
    give_place_back(c);
    refuse_early(c, 413, "{\"error\": \"the body is too large, or did not come\"}\n");
}

static void read_body(struct guard_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    int r = http_move(&c->mover, in, c->body, (size_t)GUARD_BODY_MAX + 1);
    if (r == 1)
        decode(c);
    else if (r < 0 || (c->eof && evbuffer_get_length(in) == 0))
        no_body(c);
}

static struct grant *find_grant(const struct guard_conn *c, const struct http_fields *fields)
{
    const struct http_field *token = http_field_find(fields, 0, HTTP_TEXT(GUARD_HEADER));
    if (token == NULL || http_field_find(fields, (unsigned)(token - fields->field) + 1, HTTP_TEXT(GUARD_HEADER)) != NULL)
        return NULL;
    uint8_t hash[GRANT_TOKEN_HASH];
    SHA256((const uint8_t *)token->value.at, token->value.n, hash);
    return grant_find_token(c->guard->broker, hash);
}

// Steps 4 to 6.
static void find_place(struct guard_conn *c, struct grant *grant)
{
    static uint64_t turns = 0;
    if (grant->guard_requests >= GUARD_REQUESTS_MAX) {
        refuse_early(c, 429, "{\"error\": \"too many requests of this run\"}\n");
        return;
    }
    if (grant->guard_decoding < GUARD_READING_GRANT_MAX && c->guard->reading >= GUARD_READING_MAX) {
        refuse_early(c, 503, "{\"error\": \"busy\"}\n");
        return;
    }
    c->grant = grant;
    grant->guard_requests++;
    if (grant->guard_decoding < GUARD_READING_GRANT_MAX) {
        take_place(c);
        read_body(c);
        return;
    }
    c->state = GUARD_WAIT;
    c->turn = ++turns;
    patience_start(&c->patience, config_of(c)->guard_wait_ms);
}

static void take_request(struct guard_conn *c, const struct http_request *r)
{
    struct http_text path = {c->guard->url.path, strlen(c->guard->url.path)};
    c->keep = r->keep_alive;
    if (!http_text_equal(r->method, HTTP_TEXT("POST")) || !http_text_equal(r->target, path)) {
        refuse_early(c, 404, "{\"error\": \"not found\"}\n");
        return;
    }
    struct grant *grant = find_grant(c, &r->fields);
    if (grant == NULL) {
        refuse_early(c, 401, "{\"error\": \"unknown token\"}\n");
        return;
    }
    if (r->body.kind == HTTP_BODY_LENGTH && r->body.length > GUARD_BODY_MAX) {
        refuse_early(c, 413, "{\"error\": \"the body is too large, or did not come\"}\n");
        return;
    }
    http_mover_init(&c->mover, &r->body, false, GUARD_BODY_MAX);
    if (r->expects_continue)
        evbuffer_add_printf(bufferevent_get_output(c->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    find_place(c, grant);
}

static void look_for_head(struct guard_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    if (evbuffer_get_length(in) > 0 && !c->begun) {
        c->begun = true;
        patience_start(&c->patience, config_of(c)->api_head_ms);
    }
    enum http_refusal why;
    struct http_request request;
    int r = http_head_take(&c->head, in, &why);
    if (r == 1 && http_request_parse(c->head.bytes, c->head.n, 0, &request, &why) < 0)
        r = -EBADMSG;
    if (r == 1)
        take_request(c, &request);
    else if (r == -EBADMSG)
        refuse_early(c, (unsigned)http_refusal_status(why), "{\"error\": \"malformed request\"}\n");
    else if (r < 0 || c->eof)
        guard_conn_free(c);
}

// ---- events ----

static void step(struct guard_conn *c)
{
    if (c->state == GUARD_HEAD)
        look_for_head(c);
    else if (c->state == GUARD_BODY)
        read_body(c);
    else if (c->state == GUARD_LINGER)
        linger_step(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    step(arg);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct guard_conn *c = arg;
    if (c->state == GUARD_LINGER) {
        linger_step(c);
    } else if (c->state == GUARD_WRITE && evbuffer_get_length(bufferevent_get_output(bev)) == 0) {
        request_end(c);
        c->state = GUARD_HEAD;
        patience_start(&c->patience, config_of(c)->api_idle_ms);
        bufferevent_trigger(bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct guard_conn *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_CONNECTED) != 0)
        return;
    if ((what & BEV_EVENT_ERROR) != 0) {
        guard_conn_free(c);
        return;
    }
    c->eof = true;
    step(c);
}

static void on_patience(void *arg)
{
    struct guard_conn *c = arg;
    if (c->state == GUARD_BODY)
        no_body(c);
    else if (c->state == GUARD_WAIT)
        refuse_early(c, 503, "{\"error\": \"busy\"}\n");
    else
        guard_conn_free(c);
}

static struct bufferevent *wrap(struct guard *g, int fd)
{
    SSL *ssl = SSL_new(g->tls);
    struct bufferevent *bev = ssl != NULL ? bufferevent_openssl_socket_new(g->broker->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                                           BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS)
                                          : NULL;
    if (bev == NULL) {
        SSL_free(ssl);
        close(fd);
        return NULL;
    }
    broker_tune(bev);
    bufferevent_setwatermark(bev, EV_WRITE, 0, 0);
    return bev;
}

void guard_conn_new(struct guard *g, int fd)
{
    struct guard_conn *c = calloc(1, sizeof *c);
    if (c == NULL) {
        close(fd);
        return;
    }
    c->guard = g;
    guard_conn_listed(g, c);
    c->bev = wrap(g, fd);
    c->body = evbuffer_new();
    c->payload = evbuffer_new();
    if (c->bev == NULL || c->body == NULL || c->payload == NULL ||
        patience_init(&c->patience, g->broker->base, on_patience, c) < 0) {
        guard_conn_free(c);
        return;
    }
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    // The handshake is part of the wait for a head.
    patience_start(&c->patience, g->broker->config.api_head_ms);
}
