#include "broker/broker.h"

#include <errno.h>
#include <idn2.h>
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

static int idna(void *arg, const char *utf8, size_t n, char *ascii, size_t size)
{
    (void)arg;
    char text[HOST_TEXT_MAX + 1];
    uint8_t *out = NULL;
    if (n > HOST_TEXT_MAX || memchr(utf8, '\0', n) != NULL)
        return -EINVAL;
    memcpy(text, utf8, n);
    text[n] = '\0';
    int r = idn2_lookup_u8((const uint8_t *)text, &out, IDN2_NFC_INPUT | IDN2_NONTRANSITIONAL);
    if (r == IDN2_OK && strlen((const char *)out) < size)
        memcpy(ascii, out, strlen((const char *)out) + 1);
    else
        r = r == IDN2_OK ? -ENAMETOOLONG : -EINVAL;
    idn2_free(out);
    return r == IDN2_OK ? 0 : r;
}

const struct host_idna broker_idna = {.fn = idna};
