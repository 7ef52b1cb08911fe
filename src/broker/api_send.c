#include "broker/api_send.h"

#include "broker/dial.h"
#include "broker/pool.h"
#include "http/body.h"
#include "http/head.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct api_send {
    struct broker *broker;
    const struct profile *profile;
    struct pool_key key;
    struct dial *dial;
    struct bufferevent *up;
    struct event *deadline;
    struct evbuffer *request;  // the head again, for a second connection; empty with a body
    bool repeatable, reused, headed, up_eof, up_cut, keep;
    unsigned interim;
    struct http_head head;
    struct http_mover mover;
    struct api_reply reply;
    api_send_fn *fn;
    void *arg;
};

// ---- the head ----

int api_send_head(struct grant *g, const char *method, struct http_text target, size_t body, struct buf *out)
{
    bool keyed = g->profile->token.kind != TOKEN_NONE;
    const char *bearer = keyed ? grant_bearer(g) : NULL;
    if (keyed && bearer == NULL)
        return -EPERM;
    buf_append_text(out, method);
    buf_append_text(out, " ");
    buf_append(out, target.at, target.n);
    buf_printf(out, " HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nAccept-Encoding: identity\r\n",
               g->profile->host_field);
    if (bearer != NULL)
        buf_printf(out, "Authorization: Bearer %s\r\n", bearer);
    if (body > 0)
        buf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body);
    else if (strcmp(method, "GET") != 0 && strcmp(method, "DELETE") != 0)
        buf_append_text(out, "Content-Length: 0\r\n");
    buf_append_text(out, "\r\n");
    return buf_error(out);
}

bool api_send_head_is(const struct buf *head, struct http_text approved)
{
    struct http_text bytes = {(const char *)head->data, head->len};
    const char *end = bytes.n > 0 ? memchr(bytes.at, '\r', bytes.n) : NULL;
    if (end == NULL)
        return false;
    const char *first = memchr(bytes.at, ' ', (size_t)(end - bytes.at));
    const char *second = first != NULL ? memchr(first + 1, ' ', (size_t)(end - first - 1)) : NULL;
    if (second == NULL || memchr(second + 1, ' ', (size_t)(end - second - 1)) != NULL)
        return false;
    return http_text_equal((struct http_text){first + 1, (size_t)(second - first - 1)}, approved);
}

// ---- the end ----

static void send_free(struct api_send *s)
{
    s->dial = dial_cancel(s->dial);
    if (s->up != NULL)
        bufferevent_free(s->up);
    if (s->deadline != NULL)
        event_free(s->deadline);
    if (s->request != NULL)
        evbuffer_free(s->request);
    if (s->reply.body != NULL)
        evbuffer_free(s->reply.body);
    http_head_reset(&s->head, true);
    free(s);
}

struct api_send *api_send_cancel(struct api_send *s)
{
    if (s != NULL)
        send_free(s);
    return NULL;
}

static void finish(struct api_send *s)
{
    // All of the request must be out, and the connection at rest.
    bool rest = s->keep && s->reply.whole && !s->up_eof && evbuffer_get_length(bufferevent_get_output(s->up)) == 0;
    if (rest) {
        struct bufferevent *up = s->up;
        s->up = NULL;
        bufferevent_setcb(up, NULL, NULL, NULL, NULL);
        pool_put(s->broker->pool, &s->key, up);
    }
    s->fn(s->arg, &s->reply);
    send_free(s);
}

static void fail(struct api_send *s, const char *why)
{
    s->reply.whole = false;
    s->reply.why = why;
    finish(s);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    fail(arg, "slow");
}

// ---- the response ----

static void copy_text(char *out, size_t size, struct http_text text)
{
    if (text.n >= size)
        return;
    memcpy(out, text.at, text.n);
    out[text.n] = '\0';
}

static bool plain(struct http_text text)
{
    for (size_t i = 0; i < text.n; i++)
        if (text.at[i] < 0x20 || text.at[i] > 0x7E)
            return false;
    return text.n > 0 && text.n <= API_TYPE_MAX;
}

static void take_fields(struct api_send *s, const struct http_response *r)
{
    const struct http_field *type = http_field_find(&r->fields, 0, HTTP_TEXT("content-type"));
    const struct http_field *after = http_field_find(&r->fields, 0, HTTP_TEXT("retry-after"));
    strcpy(s->reply.type, API_TYPE_FALLBACK);
    if (type != NULL && plain(type->value))
        copy_text(s->reply.type, sizeof s->reply.type, type->value);
    if (after != NULL)
        copy_text(s->reply.retry_after, sizeof s->reply.retry_after, after->value);
}

// NULL, or why the body will not be read.
static const char *refuse_body(const struct http_response *r)
{
    const struct http_field *coding = http_field_find(&r->fields, 0, HTTP_TEXT("content-encoding"));
    if (coding != NULL && !http_text_is(coding->value, HTTP_TEXT("identity")))
        return "coded";
    return r->body.kind == HTTP_BODY_LENGTH && r->body.length > GRANT_RESPONSE_MAX ? "too_large" : NULL;
}

// 1: the head is there.  0: not yet.  -ECANCELED: it is over.
static int take_head(struct api_send *s, struct evbuffer *in)
{
    for (;;) {
        enum http_refusal why;
        struct http_response response;
        int r = http_head_take(&s->head, in, &why);
        if (r == 0)
            return 0;
        if (r == 1 && http_response_parse(s->head.bytes, s->head.n, HTTP_TEXT("GET"), &response, &why) < 0)
            r = -EBADMSG;
        bool bad = r < 0 || response.status == 101 || (response.status < 200 && ++s->interim > API_INTERIM_MAX);
        if (bad) {
            fail(s, "bad_response");
            return -ECANCELED;
        }
        if (response.status >= 200) {
            s->headed = true;
            s->reply.status = response.status;
            s->keep = response.keep_alive && response.body.kind != HTTP_BODY_UNTIL_CLOSE;
            take_fields(s, &response);
            http_mover_init(&s->mover, &response.body, false, GRANT_RESPONSE_MAX);
            const char *refused = refuse_body(&response);
            http_head_reset(&s->head, true);
            if (refused == NULL)
                return 1;
            fail(s, refused);
            return -ECANCELED;
        }
        http_head_reset(&s->head, true);
    }
}

static void pump(struct api_send *s)
{
    struct evbuffer *in = bufferevent_get_input(s->up);
    int head = s->headed ? 1 : take_head(s, in);
    if (head == 0 && s->up_eof)
        fail(s, "closed");
    if (head <= 0)
        return;
    // Room for one byte beyond the ceiling, which shows that it is passed.
    int r = http_move(&s->mover, in, s->reply.body, (size_t)GRANT_RESPONSE_MAX + 1);
    if (r == 0 && s->up_eof && evbuffer_get_length(in) == 0)
        r = !s->up_cut && http_mover_close(&s->mover, s->reply.body) == 0 ? 1 : -EBADMSG;
    if (r < 0) {
        fail(s, r == -EMSGSIZE ? "too_large" : "cut");
    } else if (r == 1) {
        s->reply.whole = true;
        finish(s);
    }
}

// ---- the connection ----

static void dial(struct api_send *s);

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    pump(arg);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct api_send *s = arg;
    bool nothing = !s->headed && s->interim == 0 && evbuffer_get_length(bufferevent_get_input(bev)) == 0;
    if (nothing && s->reused && s->repeatable && evbuffer_get_length(s->request) > 0) {
        bufferevent_free(s->up);
        s->up = NULL;
        s->reused = false;
        dial(s);
        return;
    }
    s->up_eof = true;
    s->up_cut = (what & BEV_EVENT_ERROR) != 0;
    pump(s);
}

// Takes over `up` and sends.
static int attach(struct api_send *s, struct bufferevent *up, struct evbuffer *body)
{
    s->up = up;
    bufferevent_setcb(up, on_read, NULL, on_event, s);
    struct evbuffer *out = bufferevent_get_output(up);
    struct evbuffer_iovec head;
    if (evbuffer_peek(s->request, -1, NULL, &head, 1) != 1 || evbuffer_add(out, head.iov_base, head.iov_len) < 0)
        return -ENOMEM;
    if (body != NULL && evbuffer_add_buffer(out, body) < 0)
        return -ENOMEM;
    return bufferevent_enable(up, EV_READ | EV_WRITE) < 0 ? -ENOMEM : 0;
}

static const char *dial_word(enum dial_end end)
{
    static const char *const words[] = {
        [DIAL_DONE] = "",
        [DIAL_DENIED] = "denied_address",
        [DIAL_NO_NAME] = "no_name",
        [DIAL_UNRESOLVED] = "unresolved",
        [DIAL_UNREACHABLE] = "unreachable",
        [DIAL_UNTRUSTED] = "untrusted",
        [DIAL_SLOW] = "slow",
        [DIAL_BUSY] = "busy",
    };
    return words[end];
}

static void on_dialled(void *arg, const struct dial_result *result)
{
    struct api_send *s = arg;
    s->dial = NULL;
    if (result->end != DIAL_DONE)
        fail(s, dial_word(result->end));
    else if (attach(s, result->bev, s->reply.body) < 0)
        fail(s, "busy");
}

static void dial(struct api_send *s)
{
    s->dial = dial_origin(s->broker, &s->profile->host, s->profile->port, s->profile->tls, on_dialled, s);
    if (s->dial == NULL)
        event_active(s->deadline, EV_TIMEOUT, 0);
}

static struct api_send *send_new(struct grant *g, uint64_t limit_ms, api_send_fn *fn, void *arg)
{
    struct api_send *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    *s = (struct api_send){.broker = g->broker, .profile = g->profile, .fn = fn, .arg = arg};
    s->reply.why = "";
    http_head_reset(&s->head, true);
    s->key =
        (struct pool_key){.sandbox_id = g->sandbox_id, .port = g->profile->port, .serial = g->serial, .host = g->profile->host};
    s->request = evbuffer_new();
    s->reply.body = evbuffer_new();
    s->deadline = evtimer_new(g->broker->base, on_deadline, s);
    struct timeval t = {.tv_sec = (time_t)(limit_ms / 1000), .tv_usec = (suseconds_t)(limit_ms % 1000 * 1000)};
    if (s->request == NULL || s->reply.body == NULL || s->deadline == NULL || event_add(s->deadline, &t) < 0) {
        send_free(s);
        return NULL;
    }
    return s;
}

struct api_send *api_send_start(struct grant *g, const struct buf *head, struct evbuffer *body, bool repeatable,
                                uint64_t limit_ms, api_send_fn *fn, void *arg)
{
    struct api_send *s = send_new(g, limit_ms, fn, arg);
    if (s == NULL || evbuffer_add(s->request, head->data, head->len) < 0)
        return api_send_cancel(s);
    bool empty = body == NULL || evbuffer_get_length(body) == 0;
    s->repeatable = repeatable && empty;
    uint64_t pool_ms = g->broker->config.pool_ms;
    struct bufferevent *up =
        pool_take(g->broker->pool, &s->key, s->repeatable || pool_ms < POOL_FRESH_MS ? pool_ms : POOL_FRESH_MS);
    s->reused = up != NULL;
    if (up != NULL)
        return attach(s, up, body) < 0 ? api_send_cancel(s) : s;
    // Until there is a connection, the body waits where the answer's will be.
    if (body != NULL && evbuffer_add_buffer(s->reply.body, body) < 0)
        return api_send_cancel(s);
    dial(s);
    return s;
}
