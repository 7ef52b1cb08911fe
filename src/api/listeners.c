#include "api/listeners.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "http/tls.h"
#include "sys/unixsock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BACKLOG = 512 };

struct listeners {
    const struct api *api;
    SSL_CTX *tls[LISTENERS_MAX];
    bool made[LISTENERS_MAX];  // the file of a Unix socket
};

static int open_tcp(const struct listener *l, int *ret_fd, struct err *err)
{
    char host[OPTION_TEXT_MAX + 1];
    const char *colon = strrchr(l->address, ':');
    size_t n = (size_t)(colon - l->address);
    bool brackets = l->address[0] == '[';
    memcpy(host, l->address + brackets, n - 2 * brackets);
    host[n - 2 * brackets] = '\0';
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    if (strcmp(host, "localhost") == 0)
        strcpy(host, "127.0.0.1");
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return err_set(err, -EINVAL, "listener %s: \"%.100s\" is no address", l->name, l->address);
    cleanup_fd int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
                bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    int saved = errno;
    freeaddrinfo(found);
    if (!good)
        return err_set(err, -saved, "listener %s: %.100s cannot be served: %s", l->name, l->address, strerror(saved));
    *ret_fd = take_fd(&fd);
    return 0;
}

static int open_one(struct listeners *all, unsigned i, struct err *err)
{
    struct listener *l = (struct listener *)&all->api->options.listeners[i];
    int fd = -1, r;
    if (l->local) {
        r = unixsock_listen(AT_FDCWD, l->address + 5, (mode_t)l->mode, &fd);
        if (r < 0)
            return err_set(err, r, "listener %s: %.150s cannot be served: %s", l->name, l->address + 5,
                           r == -EADDRINUSE ? "it is in use" : strerror(-r));
        all->made[i] = true;
    } else {
        r = open_tcp(l, &fd, err);
        if (r == 0 && l->tls_cert[0] != '\0')
            r = tls_server_context(l->tls_cert, l->tls_key, &all->tls[i], err);
        if (r < 0) {
            close_fd(&fd);
            return r;
        }
    }
    if (http_server_listen(all->api->server, fd, all->tls[i], l) < 0)
        return err_set(err, -ENOMEM, "no memory");
    log_info("listening", log_str("listener", l->name), log_str("address", l->address), log_bool("tls", all->tls[i] != NULL));
    return 0;
}

int listeners_open(struct api *api, struct listeners **ret, struct err *err)
{
    struct listeners *all = calloc(1, sizeof *all);
    if (all == NULL)
        return err_set(err, -ENOMEM, "no memory");
    all->api = api;
    for (unsigned i = 0; i < api->options.n_listeners; i++) {
        int r = open_one(all, i, err);
        if (r < 0) {
            listeners_free(all);
            return r;
        }
    }
    *ret = all;
    return 0;
}

struct listeners *listeners_free(struct listeners *all)
{
    if (all == NULL)
        return NULL;
    for (unsigned i = 0; i < LISTENERS_MAX; i++) {
        if (all->made[i])
            unixsock_unlink(AT_FDCWD, all->api->options.listeners[i].address + 5);
        SSL_CTX_free(all->tls[i]);
    }
    free(all);
    return NULL;
}
