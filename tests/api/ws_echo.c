// A server for tests of what a connection can become: /echo is a WebSocket that sends back what it gets, /raw (200) and
// /upgrade (101) are plain bytes both ways, /flood is a WebSocket that is sent 64 MiB as fast as it is read.
//     ws-echo SOCKET
#include "base/log.h"
#include "http/websocket.h"
#include "sys/unixsock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_MAX = 100000, PING_MS = 200, FLOOD_PIECE = 65536, FLOOD_PIECES = 1024 };

struct echo {
    struct websocket *ws;
    unsigned left;  // of a flood
};

static struct event_base *base;
static struct http_server *server;
static struct event *drained;

static void on_message(void *arg, bool text, const uint8_t *data, size_t n)
{
    struct echo *e = arg;
    if (text && n == 5 && memcmp(data, "close", 5) == 0)
        websocket_close(e->ws, 1001, "as asked");
    else
        websocket_send(e->ws, text, data, n);
}

static void on_close(void *arg, unsigned code)
{
    struct echo *e = arg;
    log_info("closed", log_u64("code", code));
    websocket_free(e->ws);
    free(e);
}

static void flood(void *arg)
{
    static const uint8_t piece[FLOOD_PIECE];
    struct echo *e = arg;
    while (e->left > 0 && websocket_unsent(e->ws) < HTTP_WINDOW) {
        e->left--;
        websocket_send(e->ws, false, piece, sizeof piece);
    }
    if (e->left == 0)
        websocket_close(e->ws, 1000, "");
}

static const struct websocket_ops echo_ops = {.on_message = on_message, .on_close = on_close};
static const struct websocket_ops flood_ops = {.on_message = on_message, .on_room = flood, .on_close = on_close};

static void accept_socket(struct http_exchange *x, bool flooding)
{
    struct echo *e = calloc(1, sizeof *e);
    unsigned status;
    const char *why;
    int r = websocket_accept(x, base, MESSAGE_MAX, NULL, PING_MS, flooding ? &flood_ops : &echo_ops, e, &e->ws, &status, &why);
    if (r == 0 && flooding) {
        e->left = FLOOD_PIECES;
        flood(e);
    }
    if (r == 0)
        return;
    free(e);
    if (status == 426)
        http_add_header(x, "Sec-WebSocket-Version", "13");
    http_reply(x, r == -EPROTO ? status : 500, "text/plain", why, strlen(why));
}

// ---- plain bytes ----

struct raw {
    struct http_taken *taken;
};

static void raw_read(void *arg)
{
    struct bufferevent *bev = http_taken_bev(((struct raw *)arg)->taken);
    evbuffer_add_buffer(bufferevent_get_output(bev), bufferevent_get_input(bev));
}

static void raw_write(void *arg)
{
    (void)arg;
}

static void raw_end(void *arg)
{
    struct raw *r = arg;
    http_taken_close(r->taken);
    free(r);
}

static const struct http_taker raw_taker = {.on_read = raw_read, .on_write = raw_write, .on_end = raw_end};

static void on_request(void *arg, struct http_exchange *x)
{
    struct http_text path = x->request->target;
    (void)arg;
    bool upgrade = http_text_equal(path, HTTP_TEXT("/upgrade"));
    if (http_text_equal(path, HTTP_TEXT("/echo")) || http_text_equal(path, HTTP_TEXT("/flood"))) {
        accept_socket(x, path.at[1] == 'f');
    } else if (upgrade || http_text_equal(path, HTTP_TEXT("/raw"))) {
        struct raw *r = calloc(1, sizeof *r);
        if (upgrade)
            http_add_header(x, "Upgrade", "raw");
        r->taken = http_take_over(x, upgrade ? 101 : 200, &raw_taker, r);
    } else {
        http_reply(x, 200, "text/plain", "plain", 5);
    }
}

static void on_error(void *arg, struct http_exchange *x, unsigned status, const char *code, const char *sentence)
{
    (void)arg;
    (void)code;
    http_reply(x, status, "text/plain", sentence, strlen(sentence));
}

static void on_finish(void *arg, const struct http_exchange *x)
{
    (void)arg;
    (void)x;
}

static void on_term(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    http_server_drain(server);
    if (drained == NULL || event_pending(drained, EV_TIMEOUT, NULL))  // a second signal
        event_base_loopbreak(base);
    else
        event_add(drained, &(struct timeval){.tv_usec = 5000});
}

static void on_look(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    if (http_server_connections(server) == 0)
        event_base_loopbreak(base);
}

int main(int argc, char **argv)
{
    static const struct http_server_handler handler = {.on_request = on_request, .on_error = on_error, .on_finish = on_finish};
    static const struct http_server_limits limits = {
        .head_ms = 5000, .idle_ms = 5000, .progress_ms = 5000, .max_connections = 100};
    int fd;
    if (argc != 2)
        return 2;
    log_init("ws-echo", LOG_LEVEL_INFO);
    signal(SIGPIPE, SIG_IGN);
    base = event_base_new();
    if (base == NULL || http_server_new(base, &limits, &handler, NULL, &server) < 0)
        return 1;
    struct event *term = evsignal_new(base, SIGTERM, on_term, NULL);
    evsignal_add(term, NULL);
    drained = event_new(base, -1, EV_PERSIST, on_look, NULL);
    if (unixsock_listen(AT_FDCWD, argv[1], 0600, &fd) < 0 || http_server_listen(server, fd, NULL, NULL) < 0)
        return 1;
    event_base_dispatch(base);
    http_server_free(server);
    event_free(term);
    event_free(drained);
    event_base_free(base);
    libevent_global_shutdown();
    return 0;
}
