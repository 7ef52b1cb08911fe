#include "broker/control.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "broker/grant_orders.h"
#include "broker/sandbox.h"
#include "sys/fdpass.h"
#include "wire/broker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct control {
    struct broker *broker;
    int listener, line;  // line: -1 without an engine
    struct event *on_listener, *on_line;
    uint32_t version;               // that the engine speaks; 0: it has not greeted
    struct broker_request request;  // too large for a stack
    struct host_policy policy;
    char path[CONFIG_PATH_MAX + 1];
};

// ---- requests ----

static void say(struct broker_reply *reply, int error, const char *detail)
{
    reply->error = error;
    snprintf(reply->detail, sizeof reply->detail, "%s", detail);
}

static void add(struct control *c, int fds[static BROKER_FDS_MAX], struct broker_reply *reply)
{
    const struct broker_request *q = &c->request;
    unsigned bad = 0;
    int r = sandbox_add(c->broker, q->sandbox_id, &q->add, &c->policy, fds, &bad);
    char text[BROKER_DETAIL_MAX] = "";
    if (r == -EINVAL)
        snprintf(text, sizeof text, "descriptor %u is not %s that is bound to one IPv4 address", bad,
                 broker_fd_meaning((enum broker_fd)bad));
    else if (r == -EEXIST)
        snprintf(text, sizeof text, "sandbox %u is served already", q->sandbox_id);
    else if (r == -ENOSPC)
        snprintf(text, sizeof text, "%d sandboxes are served already", (int)BROKER_SANDBOXES_MAX);
    else if (r == -ENOTUNIQ)
        snprintf(text, sizeof text, "its policy leads to the origin of its grant with a credential on file");
    else if (r < 0)
        snprintf(text, sizeof text, "%s", strerror(-r));
    say(reply, r, text);
    if (r == 0)
        log_info("sandbox_added", log_u64("sandbox_id", q->sandbox_id), log_u64("entries", q->add.entries),
                 log_bool("transparent", (q->add.flags & BROKER_TRANSPARENT) != 0));
}

static void greet(struct control *c, struct broker_reply *reply)
{
    uint32_t version = c->request.version;
    bool known = version >= BROKER_PROTOCOL_OLDEST && version <= BROKER_PROTOCOL_VERSION;
    reply->version = known ? version : BROKER_PROTOCOL_VERSION;
    c->version = known ? version : 0;
    if (!known)
        say(reply, -EPROTONOSUPPORT, "the engine speaks another version of this protocol");
}

// *ret_fd is what goes with the reply, or -1.
static void answer(struct control *c, int fds[static BROKER_FDS_MAX], struct broker_reply *reply, int *ret_fd)
{
    const struct broker_request *q = &c->request;
    *reply = (struct broker_reply){.op = q->op, .id = q->id};
    if (q->op == BROKER_OP_HELLO) {
        greet(c, reply);
    } else if (q->op == BROKER_OP_ADD) {
        add(c, fds, reply);
    } else if (q->op == BROKER_OP_REMOVE) {
        int r = sandbox_remove(c->broker, q->sandbox_id);
        say(reply, r, r < 0 ? "it is not served" : "");
        if (r == 0)
            log_info("sandbox_removed", log_u64("sandbox_id", q->sandbox_id));
    } else {
        const char *why = "";
        int r = grant_order(c->broker, q, take_fd(&fds[0]), ret_fd, &why);
        say(reply, r, why);
    }
}

// ---- the line ----

static void hang_up(struct control *c, const char *why)
{
    unsigned n = c->broker->sandboxes->n;
    event_free(c->on_line);
    c->on_line = NULL;
    close_fd(&c->line);
    c->version = 0;
    sandbox_remove_all(c->broker);
    grant_orders_end(c->broker);
    log_info("engine_gone", log_str("why", why), log_u64("sandboxes", n));
}

static void close_all(int fds[static BROKER_FDS_MAX])
{
    for (size_t i = 0; i < BROKER_FDS_MAX; i++)
        close_fd(&fds[i]);
}

// HELLO first; an engine of the first version knows of no grants.
static bool may_ask(uint32_t version, uint32_t op)
{
    return op == BROKER_OP_HELLO || version > 1 || (version == 1 && op <= BROKER_OP_REMOVE);
}

static void on_request(evutil_socket_t fd, short what, void *arg)
{
    struct control *c = arg;
    (void)what;
    int fds[BROKER_FDS_MAX];
    memset(fds, -1, sizeof fds);
    size_t n_fds = BROKER_FDS_MAX;
    ssize_t n = fdpass_recv(fd, &c->request, sizeof c->request, fds, &n_fds);
    if (n == -EAGAIN)
        return;
    if (n <= 0) {
        hang_up(c, n == 0 ? "closed" : strerror((int)-n));
        return;
    }
    for (size_t i = n_fds; i < BROKER_FDS_MAX; i++)
        fds[i] = -1;
    bool good = n == (ssize_t)sizeof c->request && broker_check(&c->request, n_fds, &c->policy) == 0 &&
                may_ask(c->version, c->request.op);
    if (!good) {
        close_all(fds);
        hang_up(c, "a malformed request");
        return;
    }
    struct broker_reply reply;
    cleanup_fd int with = -1;
    answer(c, fds, &reply, &with);
    close_all(fds);
    explicit_bzero(&c->request, sizeof c->request);
    ssize_t sent = fdpass_send(fd, &reply, sizeof reply, &with, with >= 0 ? 1 : 0);
    if (sent != (ssize_t)sizeof reply)
        hang_up(c, "the engine does not read its answers");
}

static void on_engine(evutil_socket_t listening, short what, void *arg)
{
    struct control *c = arg;
    (void)what;
    cleanup_fd int fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    struct ucred peer;
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || peer.uid != c->broker->config.engine_uid) {
        log_warn("engine_refused", log_str("why", "another user"), log_u64("uid", peer.uid));
        return;
    }
    if (c->line >= 0) {
        log_warn("engine_refused", log_str("why", "there is one already"));
        return;
    }
    c->on_line = event_new(c->broker->base, fd, EV_READ | EV_PERSIST, on_request, c);
    if (c->on_line == NULL || event_add(c->on_line, NULL) < 0)
        return;
    c->line = take_fd(&fd);
    log_info("engine_connected");
}

// ---- life ----

static int bind_socket(const char *path, int *ret_fd)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a.sun_path)
        return -ENAMETOOLONG;
    strcpy(a.sun_path, path);
    cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    // A file that nobody listens on any more is in the way; one that somebody does is not ours to take.
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return -EADDRINUSE;
    if (errno == ECONNREFUSED && unlink(path) < 0)
        return -errno;
    mode_t before = umask(0117);
    int r = bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ? -errno : 0;
    umask(before);
    if (r == 0 && listen(fd, 4) < 0)
        r = -errno;
    if (r == 0)
        *ret_fd = take_fd(&fd);
    return r;
}

int control_new(struct broker *b, struct control **ret, struct err *err)
{
    struct control *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_set(err, -ENOMEM, "no memory");
    c->broker = b;
    c->listener = c->line = -1;
    strcpy(c->path, b->config.control_socket);
    int r = bind_socket(c->path, &c->listener);
    if (r < 0) {
        err_set(err, r, "control_socket \"%.200s\" cannot be listened on: %s", c->path, strerror(-r));
        free(c);
        return r;
    }
    c->on_listener = event_new(b->base, c->listener, EV_READ | EV_PERSIST, on_engine, c);
    if (c->on_listener == NULL || event_add(c->on_listener, NULL) < 0) {
        control_free(c);
        return err_set(err, -ENOMEM, "no memory");
    }
    *ret = c;
    return 0;
}

struct control *control_free(struct control *c)
{
    if (c == NULL)
        return NULL;
    if (c->line >= 0)
        hang_up(c, "the broker stops");
    if (c->on_listener != NULL)
        event_free(c->on_listener);
    close_fd(&c->listener);
    free(c);
    return NULL;
}
