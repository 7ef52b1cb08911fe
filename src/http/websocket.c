#include "http/websocket.h"

#include "base/base64.h"
#include "base/clock.h"
#include "http/patience.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

enum { KEY_BYTES = 16, KEY_TEXT = 24, ACCEPT_TEXT = 28, SHA1_BYTES = 20 };
enum { CODE_GOING_AWAY = 1001, CODE_NONE = 1005, CODE_ABNORMAL = 1006 };

struct websocket {
    struct http_taken *taken;  // NULL: the connection has ended
    wslay_event_context_ptr frames;
    const struct websocket_ops *ops;
    void *arg;
    bool closing, over;
    unsigned in_call;  // depth of calls of ours that use it after a callback
    bool freed;
    struct patience patience;
    uint64_t ping_ms;
    uint64_t heard_ns;
};

// ---- wslay's view of the connection ----

static struct evbuffer *input(const struct websocket *ws)
{
    return bufferevent_get_input(http_taken_bev(ws->taken));
}

static struct evbuffer *output(const struct websocket *ws)
{
    return bufferevent_get_output(http_taken_bev(ws->taken));
}

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t len, int flags, void *arg)
{
    struct websocket *ws = arg;
    (void)flags;
    int n = evbuffer_remove(input(ws), buf, len);
    if (n > 0)
        return n;
    wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
    return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t len, int flags, void *arg)
{
    struct websocket *ws = arg;
    (void)flags;
    if (evbuffer_add(output(ws), data, len) == 0)
        return (ssize_t)len;
    wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m, void *arg)
{
    struct websocket *ws = arg;
    (void)ctx;
    if (ws->freed || wslay_is_ctrl_frame(m->opcode))
        return;
    ws->ops->on_message(ws->arg, m->opcode == WSLAY_TEXT_FRAME, m->msg, m->msg_length);
}

// ---- the end ----

static void destroy(struct websocket *ws)
{
    if (ws->taken != NULL)
        http_taken_close(ws->taken);
    wslay_event_context_free(ws->frames);
    patience_end(&ws->patience);
    free(ws);
}

struct websocket *websocket_free(struct websocket *ws)
{
    if (ws == NULL)
        return NULL;
    ws->freed = true;
    if (ws->in_call == 0)
        destroy(ws);
    return NULL;
}

static void enter(struct websocket *ws)
{
    ws->in_call++;
}

static void leave(struct websocket *ws)
{
    if (--ws->in_call == 0 && ws->freed)
        destroy(ws);
}

static void end(struct websocket *ws, unsigned code)
{
    if (ws->over)
        return;
    ws->over = true;
    patience_start(&ws->patience, 0);
    if (ws->taken != NULL)
        http_taken_close(ws->taken);
    ws->taken = NULL;
    if (!ws->freed)
        ws->ops->on_close(ws->arg, code);
}

// What was queued is written; whether both sides have closed is looked at.
static void flush(struct websocket *ws)
{
    if (ws->over || ws->freed)
        return;
    wslay_event_send(ws->frames);
    bool got = wslay_event_get_close_received(ws->frames), sent = wslay_event_get_close_sent(ws->frames);
    if (got && sent) {
        unsigned code = wslay_event_get_status_code_received(ws->frames);
        end(ws, code != 0 ? code : CODE_NONE);
    } else if (sent && !wslay_event_get_read_enabled(ws->frames)) {
        end(ws, CODE_ABNORMAL);  // its own close would come behind what could not be read
    } else if (sent && !ws->closing) {
        ws->closing = true;
        patience_start(&ws->patience, WEBSOCKET_CLOSE_MS);
    }
}

// ---- the connection's events ----

static void on_read(void *arg)
{
    struct websocket *ws = arg;
    enter(ws);
    ws->heard_ns = mono_ns();
    // One who sends and does not read is not read from: on_write goes on.
    while (!ws->over && !ws->freed && evbuffer_get_length(input(ws)) > 0 && evbuffer_get_length(output(ws)) < HTTP_WINDOW) {
        size_t before = evbuffer_get_length(input(ws));
        bool failed = wslay_event_recv(ws->frames) != 0;
        flush(ws);
        if (failed)
            end(ws, CODE_ABNORMAL);
        if (ws->over || !wslay_event_get_read_enabled(ws->frames) || evbuffer_get_length(input(ws)) == before)
            break;
    }
    leave(ws);
}

static void on_write(void *arg)
{
    struct websocket *ws = arg;
    enter(ws);
    if (!ws->over && ws->ops->on_room != NULL)
        ws->ops->on_room(ws->arg);
    if (!ws->over && !ws->freed && evbuffer_get_length(input(ws)) > 0)
        on_read(ws);
    leave(ws);
}

static void on_end(void *arg)
{
    struct websocket *ws = arg;
    enter(ws);
    end(ws, CODE_ABNORMAL);
    leave(ws);
}

static void on_drain(void *arg)
{
    websocket_close(arg, CODE_GOING_AWAY, "the server is stopping");
}

static void on_patience(void *arg)
{
    struct websocket *ws = arg;
    enter(ws);
    if (ws->closing || mono_ns() - ws->heard_ns >= 3 * ws->ping_ms * NS_PER_MS) {
        end(ws, CODE_ABNORMAL);
    } else {
        struct wslay_event_msg ping = {.opcode = WSLAY_PING};
        wslay_event_queue_msg(ws->frames, &ping);
        flush(ws);
        patience_start(&ws->patience, ws->ping_ms);
    }
    leave(ws);
}

// ---- the handshake ----

bool websocket_wanted(const struct http_request *r)
{
    return http_text_is(r->upgrade, HTTP_TEXT("websocket"));
}

static int refuse(unsigned status, const char *why, unsigned *ret_status, const char **ret_why)
{
    *ret_status = status;
    *ret_why = why;
    return -EPROTO;
}

static bool make_accept(struct http_text key, char accept[ACCEPT_TEXT + 1])
{
    static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    char text[KEY_TEXT + sizeof guid];
    uint8_t digest[SHA1_BYTES];
    memcpy(text, key.at, KEY_TEXT);
    memcpy(text + KEY_TEXT, guid, sizeof guid);
    if (EVP_Digest(text, KEY_TEXT + sizeof guid - 1, digest, NULL, EVP_sha1(), NULL) != 1)
        return false;
    base64_encode(digest, sizeof digest, accept);
    accept[ACCEPT_TEXT] = '\0';
    return true;
}

static int check_handshake(const struct http_request *r, struct http_text *ret_key, unsigned *ret_status, const char **ret_why)
{
    const struct http_field *version = http_field_find(&r->fields, 0, HTTP_TEXT("sec-websocket-version"));
    const struct http_field *key = http_field_find(&r->fields, 0, HTTP_TEXT("sec-websocket-key"));
    uint8_t bytes[KEY_TEXT];
    size_t n;
    if (!http_text_equal(r->method, HTTP_TEXT("GET")) || r->minor < 1 || !websocket_wanted(r) || r->body.kind != HTTP_BODY_NONE)
        return refuse(400, "this is no request for a WebSocket", ret_status, ret_why);
    if (version == NULL || !http_text_equal(version->value, HTTP_TEXT("13")))
        return refuse(426, "the version of WebSocket must be 13", ret_status, ret_why);
    bool good =
        key != NULL && key->value.n == KEY_TEXT && base64_decode(key->value.at, KEY_TEXT, bytes, &n) == 0 && n == KEY_BYTES;
    if (good)
        good = http_field_find(&r->fields, (unsigned)(key - r->fields.field) + 1, HTTP_TEXT("sec-websocket-key")) == NULL;
    if (!good)
        return refuse(400, "Sec-WebSocket-Key must be given once, with 16 bytes in base64", ret_status, ret_why);
    *ret_key = key->value;
    return 0;
}

static struct websocket *new_socket(struct event_base *base, size_t message_max, const struct websocket_ops *ops, void *arg)
{
    static const struct wslay_event_callbacks callbacks = {
        .recv_callback = on_recv, .send_callback = on_send, .on_msg_recv_callback = on_message};
    struct websocket *ws = calloc(1, sizeof *ws);
    if (ws == NULL)
        return NULL;
    ws->ops = ops;
    ws->arg = arg;
    ws->heard_ns = mono_ns();
    if (patience_init(&ws->patience, base, on_patience, ws) < 0 ||
        wslay_event_context_server_init(&ws->frames, &callbacks, ws) != 0) {
        patience_end(&ws->patience);
        free(ws);
        return NULL;
    }
    wslay_event_config_set_max_recv_msg_length(ws->frames, message_max);
    return ws;
}

int websocket_accept(struct http_exchange *x, struct event_base *base, size_t message_max, const char *protocol,
                     uint64_t ping_ms, const struct websocket_ops *ops, void *arg, struct websocket **ret, unsigned *ret_status,
                     const char **ret_why)
{
    static const struct http_taker taker = {.on_read = on_read, .on_write = on_write, .on_end = on_end, .on_drain = on_drain};
    struct http_text key;
    char accept[ACCEPT_TEXT + 1];
    int r = check_handshake(x->request, &key, ret_status, ret_why);
    if (r < 0)
        return r;
    struct websocket *ws = make_accept(key, accept) ? new_socket(base, message_max, ops, arg) : NULL;
    if (ws == NULL)
        return -ENOMEM;
    http_add_header(x, "Upgrade", "websocket");
    http_add_header(x, "Sec-WebSocket-Accept", "%s", accept);
    if (protocol != NULL)
        http_add_header(x, "Sec-WebSocket-Protocol", "%s", protocol);
    ws->ping_ms = ping_ms;
    patience_start(&ws->patience, ping_ms);
    ws->taken = http_take_over(x, 101, &taker, ws);
    *ret = ws;
    return 0;
}

// ---- sending ----

int websocket_send(struct websocket *ws, bool text, const void *data, size_t n)
{
    const struct wslay_event_msg m = {.opcode = text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME, .msg = data, .msg_length = n};
    if (ws->over || ws->closing || ws->taken == NULL)
        return -EPIPE;
    int r = wslay_event_queue_msg(ws->frames, &m);
    if (r != 0)
        return r == WSLAY_ERR_NOMEM ? -ENOMEM : -EPIPE;
    enter(ws);
    flush(ws);
    leave(ws);
    return 0;
}

void websocket_close(struct websocket *ws, unsigned code, const char *reason)
{
    if (ws->over || ws->closing)
        return;
    enter(ws);
    wslay_event_queue_close(ws->frames, (uint16_t)code, (const uint8_t *)reason, strlen(reason));
    flush(ws);
    leave(ws);
}

size_t websocket_unsent(const struct websocket *ws)
{
    return ws->taken != NULL ? evbuffer_get_length(output(ws)) : 0;
}
