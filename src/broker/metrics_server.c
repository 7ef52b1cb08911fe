#include "broker/metrics_server.h"

#include "broker/grant_metrics.h"
#include "http/head.h"
#include "http/patience.h"
#include "http/status.h"
#include "sys/unixsock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

struct reader {
    LIST_ENTRY(reader) all;
    struct metrics_server *server;
    struct bufferevent *bev;
    struct http_head head;
    struct patience patience;
    bool answered;
};

struct metrics_server {
    struct broker *broker;
    int fd;
    struct event *event;
    LIST_HEAD(readers, reader) readers;
    unsigned n;
};

static void reader_free(struct reader *r)
{
    LIST_REMOVE(r, all);
    // Those that waited for a place in the backlog.
    if (r->server->n-- == METRICS_CONNECTIONS_MAX)
        event_add(r->server->event, NULL);
    http_head_reset(&r->head, false);
    patience_end(&r->patience);
    if (r->bev != NULL)
        bufferevent_free(r->bev);
    free(r);
}

static void answer(struct reader *r, unsigned status)
{
    bool good = status == 200;
    cleanup_buf struct buf text = BUF_INIT((size_t)METRICS_TEXT_MAX + GRANT_METRICS_TEXT_MAX);
    if (good) {
        metrics_write(&r->server->broker->metrics, &text);
        grant_metrics_write(r->server->broker->grant_metrics, &text);
    }
    struct http_writer w = {.out = bufferevent_get_output(r->bev)};
    char line[16];
    snprintf(line, sizeof line, "HTTP/1.1 %u ", status);
    http_put_text(&w, line);
    http_put_text(&w, http_status_phrase(status));
    http_put_text(&w, good ? "\r\nContent-Type: text/plain; version=0.0.4" : "");
    http_put_text(&w, "\r\nConnection: close\r\n");
    http_put_number(&w, "Content-Length", text.len);
    http_put_end(&w);
    http_put(&w, (struct http_text){(const char *)text.data, text.len});
    r->answered = true;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct reader *r = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    enum http_refusal why;
    struct http_request request;
    if (r->answered) {
        evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    int found = http_head_take(&r->head, in, &why);
    if (found == 0)
        return;
    if (found == 1 && http_request_parse(r->head.bytes, r->head.n, 0, &request, &why) < 0)
        found = -EBADMSG;
    if (found == 1 && http_text_equal(request.method, HTTP_TEXT("GET")) &&
        http_text_equal(request.target, HTTP_TEXT("/metrics")))
        answer(r, 200);
    else if (found == 1)
        answer(r, 404);
    else if (found == -EBADMSG)
        answer(r, (unsigned)http_refusal_status(why));
    else
        reader_free(r);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct reader *r = arg;
    if (r->answered && evbuffer_get_length(bufferevent_get_output(bev)) == 0)
        reader_free(r);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct reader *r = arg;
    (void)bev;
    // One that has only said that it will not ask again still gets its answer.
    if ((what & BEV_EVENT_ERROR) != 0 || !r->answered)
        reader_free(r);
}

static void on_patience(void *arg)
{
    reader_free(arg);
}

static void on_connection(evutil_socket_t listening, short what, void *arg)
{
    struct metrics_server *s = arg;
    struct ucred peer;
    int fd;
    (void)what;
    if (unixsock_accept(listening, &fd, &peer) < 0)
        return;
    struct reader *r = calloc(1, sizeof *r);
    if (r == NULL) {
        close(fd);
        return;
    }
    r->server = s;
    LIST_INSERT_HEAD(&s->readers, r, all);
    if (++s->n == METRICS_CONNECTIONS_MAX)
        event_del(s->event);
    r->bev = broker_wrap(s->broker, fd);
    if (r->bev == NULL || patience_init(&r->patience, s->broker->base, on_patience, r) < 0) {
        reader_free(r);
        return;
    }
    bufferevent_setcb(r->bev, on_read, on_write, on_event, r);
    patience_start(&r->patience, METRICS_MS);
    bufferevent_enable(r->bev, EV_READ | EV_WRITE);
}

int metrics_server_new(struct broker *b, struct metrics_server **ret, struct err *err)
{
    struct metrics_server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(err, -ENOMEM, "no memory");
    s->broker = b;
    s->fd = -1;
    int r = unixsock_listen(AT_FDCWD, b->config.metrics_socket, 0660, &s->fd);
    if (r == 0) {
        s->event = event_new(b->base, s->fd, EV_READ | EV_PERSIST, on_connection, s);
        r = s->event != NULL && event_add(s->event, NULL) == 0 ? 0 : -ENOMEM;
    }
    if (r < 0) {
        metrics_server_free(s);
        return err_set(err, r, "metrics_socket \"%.200s\" cannot be listened on: %s", b->config.metrics_socket, strerror(-r));
    }
    *ret = s;
    return 0;
}

struct metrics_server *metrics_server_free(struct metrics_server *s)
{
    if (s == NULL)
        return NULL;
    while (!LIST_EMPTY(&s->readers))
        reader_free(LIST_FIRST(&s->readers));
    if (s->event != NULL)
        event_free(s->event);
    if (s->fd >= 0)
        close(s->fd);
    free(s);
    return NULL;
}
