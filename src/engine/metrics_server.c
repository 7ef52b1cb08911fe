#include "engine/metrics_server.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "sys/jail.h"
#include "sys/unixsock.h"

#include <errno.h>
#include <string.h>

enum {
    CONNECTIONS_MAX = 16,
    REQUEST_MAX = 4096,
    REQUEST_MS = 2000,  // to send the head, and again to read the answer
};

#define WANTED "GET /metrics "

TAILQ_HEAD(scrape_list, scrape);

struct metrics_server {
    struct engine *engine;
    int fd;
    struct watch *watch;
    struct scrape_list scrapes;
    unsigned count;
};

struct scrape {
    TAILQ_ENTRY(scrape) link;
    struct metrics_server *server;
    int fd;
    struct watch *watch;
    struct timer deadline;
    char head[REQUEST_MAX];
    size_t n;
    bool answering;
    struct buf out;
};

static void end_scrape(struct scrape *s)
{
    struct metrics_server *server = s->server;
    timer_cancel(server->engine->loop, &s->deadline);
    s->watch = watch_remove(s->watch);
    close_fd(&s->fd);
    buf_free(&s->out);
    TAILQ_REMOVE(&server->scrapes, s, link);
    server->count--;
    if (server->watch != NULL)
        watch_set(server->watch, EPOLLIN);
    free(s);
}

// Sends what the socket takes; at the end of it the connection is over.
static void flush(struct scrape *s)
{
    ssize_t n = send(s->fd, s->out.data, s->out.len, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0 || (size_t)n == s->out.len)
        end_scrape(s);
    else
        buf_consume(&s->out, (size_t)n);
}

static void write_answer(struct scrape *s)
{
    cleanup_buf struct buf body = BUF_INIT(METRIC_TEXT_MAX);
    bool found = s->n >= strlen(WANTED) && memcmp(s->head, WANTED, strlen(WANTED)) == 0;
    if (found)
        metrics_write(s->server->engine, &body);
    else
        buf_append_text(&body, "only GET /metrics is answered here\n");
    buf_printf(&s->out,
               "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %zu\r\n"
               "Connection: close\r\n\r\n",
               found ? "200 OK" : "404 Not Found", body.len);
    buf_append(&s->out, body.data, body.len);
}

static void answer(struct scrape *s)
{
    s->answering = true;
    write_answer(s);
    timer_set(s->server->engine->loop, &s->deadline, mono_ns() + REQUEST_MS * NS_PER_MS);
    watch_set(s->watch, EPOLLOUT);
    flush(s);
}

static bool head_complete(const struct scrape *s)
{
    return s->n == sizeof s->head || memmem(s->head, s->n, "\r\n\r\n", 4) != NULL || memmem(s->head, s->n, "\n\n", 2) != NULL;
}

static void on_socket(void *arg, uint32_t events)
{
    (void)events;
    struct scrape *s = arg;
    if (s->answering) {
        flush(s);
        return;
    }
    ssize_t n = recv(s->fd, s->head + s->n, sizeof s->head - s->n, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end_scrape(s);
        return;
    }
    s->n += (size_t)n;
    if (head_complete(s))
        answer(s);
}

static void on_deadline(void *arg)
{
    struct scrape *s = arg;
    if (s->answering)
        end_scrape(s);
    else
        answer(s);
}

static void begin_scrape(struct metrics_server *server, int fd)
{
    cleanup_fd int socket = fd;
    struct scrape *s = calloc(1, sizeof *s);
    if (s == NULL)
        return;
    *s = (struct scrape){.server = server, .fd = take_fd(&socket), .out = BUF_INIT(METRIC_TEXT_MAX + 1024)};
    TAILQ_INSERT_TAIL(&server->scrapes, s, link);
    server->count++;
    timer_init(&s->deadline, on_deadline, s);
    if (watch_add(server->engine->loop, s->fd, EPOLLIN, on_socket, s, &s->watch) < 0 ||
        timer_set(server->engine->loop, &s->deadline, mono_ns() + REQUEST_MS * NS_PER_MS) < 0) {
        end_scrape(s);
        return;
    }
    if (server->count >= CONNECTIONS_MAX)
        watch_set(server->watch, 0);
}

static void on_connection(void *arg, uint32_t events)
{
    (void)events;
    struct metrics_server *server = arg;
    int fd;
    struct ucred peer;
    if (unixsock_accept(server->fd, &fd, &peer) == 0)
        begin_scrape(server, fd);
}

int metrics_server_new(struct engine *e, struct metrics_server **ret_server)
{
    struct metrics_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return -ENOMEM;
    *server = (struct metrics_server){.engine = e, .fd = -1};
    TAILQ_INIT(&server->scrapes);
    int r = unixsock_listen(ENGINE_FD_RUN_DIR, e->config->metrics_socket, (mode_t)e->config->socket_mode, &server->fd);
    if (r == 0)
        r = watch_add(e->loop, server->fd, EPOLLIN, on_connection, server, &server->watch);
    if (r < 0) {
        metrics_server_free(server);
        return r;
    }
    *ret_server = server;
    return 0;
}

struct metrics_server *metrics_server_free(struct metrics_server *server)
{
    if (server == NULL)
        return NULL;
    server->watch = watch_remove(server->watch);
    while (!TAILQ_EMPTY(&server->scrapes))
        end_scrape(TAILQ_FIRST(&server->scrapes));
    if (server->fd >= 0)
        unixsock_unlink(ENGINE_FD_RUN_DIR, server->engine->config->metrics_socket);
    close_fd(&server->fd);
    free(server);
    return NULL;
}
