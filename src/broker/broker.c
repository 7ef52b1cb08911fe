#include "broker/broker.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void broker_tune(struct bufferevent *bev)
{
    bufferevent_setwatermark(bev, EV_READ, 0, WINDOW);
    bufferevent_setwatermark(bev, EV_WRITE, WINDOW / 2, 0);
    bufferevent_set_max_single_read(bev, SINGLE_MAX);
    bufferevent_set_max_single_write(bev, SINGLE_MAX);
}

void broker_watch_peer(const struct broker *b, int fd)
{
    const int seconds = (int)(b->config.peer_ms / 1000), idle = seconds / 2, between = (seconds - idle) / PEER_PROBES;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &(int){PEER_PROBES}, sizeof(int));
}

struct bufferevent *broker_wrap(struct broker *b, int fd)
{
    struct bufferevent *bev = bufferevent_socket_new(b->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (bev == NULL)
        close(fd);
    else
        broker_tune(bev);
    return bev;
}
