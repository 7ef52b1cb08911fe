#include "broker/broker.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void broker_tune(struct bufferevent *bev)
{
    bufferevent_setwatermark(bev, EV_READ, 0, WINDOW);
    bufferevent_setwatermark(bev, EV_WRITE, WINDOW / 2, 0);
    bufferevent_set_max_single_read(bev, SINGLE_MAX);
    bufferevent_set_max_single_write(bev, SINGLE_MAX);
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
