#include "engine/listener.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/client.h"
#include "libsandbox.h"
#include "sys/jail.h"
#include "sys/unixsock.h"

#include <errno.h>

enum {
    RETRY_MS = 100,    // without descriptors or memory, accepting rests this long
    REFUSED_MAX = 64,  // refused connections that linger beside max_connections; beyond, they are closed without a word
};

struct listener {
    struct engine *engine;
    int fd;
    struct watch *watch;
    struct timer retry;
};

static void admit(struct engine *e, int fd, const struct ucred *peer)
{
    cleanup_fd int socket = fd;
    bool allowed = config_uid_allowed(e->config, peer->uid);
    bool full = e->client_count - e->refused_count >= e->config->max_connections;
    e->metrics.connections++;
    e->metrics.refused_uid += !allowed;
    e->metrics.refused_full += allowed && full;
    if ((!allowed || full) && e->refused_count >= REFUSED_MAX)
        return;
    struct client *c;
    int r = client_new(e, take_fd(&socket), peer, &c);
    if (r < 0) {
        log_error("client_failed", log_errno(r));
        return;
    }
    if (!allowed) {
        log_warn("client_refused", log_u64("uid", peer->uid), log_u64("pid", (uint64_t)peer->pid));
        client_refuse(c, SANDBOX_ERR_PERMISSION_DENIED, "this uid may not use this engine (allowed_uids)");
    } else if (full) {
        client_refuse(c, SANDBOX_ERR_POOL_EXHAUSTED, "all connections of this engine are in use (max_connections)");
    } else {
        log_debug("client_accepted", log_u64("uid", peer->uid), log_u64("pid", (uint64_t)peer->pid));
    }
}

static void on_connection(void *arg, uint32_t events)
{
    (void)events;
    struct listener *l = arg;
    int fd;
    struct ucred peer;
    int r = unixsock_accept(l->fd, &fd, &peer);
    if (r == 0) {
        admit(l->engine, fd, &peer);
    } else if (r != -EAGAIN) {
        log_error("accept_failed", log_errno(r));
        watch_set(l->watch, 0);
        timer_set(l->engine->loop, &l->retry, mono_ns() + RETRY_MS * NS_PER_MS);
    }
}

static void on_retry(void *arg)
{
    struct listener *l = arg;
    watch_set(l->watch, EPOLLIN);
}

int listener_new(struct engine *e, struct listener **ret_listener)
{
    struct listener *l = calloc(1, sizeof *l);
    if (l == NULL)
        return -ENOMEM;
    *l = (struct listener){.engine = e, .fd = -1};
    timer_init(&l->retry, on_retry, l);
    int r = unixsock_listen(ENGINE_FD_RUN_DIR, e->config->socket, (mode_t)e->config->socket_mode, &l->fd);
    if (r == 0)
        r = watch_add(e->loop, l->fd, EPOLLIN, on_connection, l, &l->watch);
    if (r < 0) {
        listener_free(l);
        return r;
    }
    *ret_listener = l;
    return 0;
}

struct listener *listener_free(struct listener *l)
{
    if (l == NULL)
        return NULL;
    timer_cancel(l->engine->loop, &l->retry);
    l->watch = watch_remove(l->watch);
    if (l->fd >= 0)
        unixsock_unlink(ENGINE_FD_RUN_DIR, l->engine->config->socket);
    close_fd(&l->fd);
    free(l);
    return NULL;
}
