#include "sys/jail.h"

#include "base/cleanup.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// ---- the jailer's half ----

// What a request of each operation must look like.
static const struct {
    uint8_t fds;
    uint8_t more_fds;  // that may come, too
    bool uses_slot;
    bool uses_start;
    bool takes_volume;  // an id, or none
    bool needs_volume;  // an id
    bool sizes_volume;  // and a size, and a kind
    bool may_wait;
    bool has_line;  // may have one
    bool is_network;
    uint8_t layers;    // how many there are at most
    bool needs_layer;  // and at least one
} shape[JAIL_OP_END_] = {
    [JAIL_OP_HELLO] = {.fds = 0},
    [JAIL_OP_PROBE] = {.fds = 0},
    [JAIL_OP_MOUNT] = {.fds = 1},
    [JAIL_OP_UNMOUNT] = {.uses_slot = true},
    [JAIL_OP_START] = {.fds = 1, .uses_start = true, .takes_volume = true, .has_line = true, .layers = JAIL_LAYERS_MAX},
    [JAIL_OP_STOP] = {.uses_slot = true},
    [JAIL_OP_FREEZE] = {.uses_slot = true},
    [JAIL_OP_THAW] = {.uses_slot = true},
    [JAIL_OP_STATS] = {.uses_slot = true},
    [JAIL_OP_VOLUME_CREATE] = {.takes_volume = true, .needs_volume = true, .sizes_volume = true},
    [JAIL_OP_VOLUME_DELETE] = {.takes_volume = true, .needs_volume = true},
    [JAIL_OP_VOLUME_LIST] = {.takes_volume = true},
    [JAIL_OP_PROBE_VM] = {.fds = 0},
    [JAIL_OP_IMAGE] = {.fds = 1},
    [JAIL_OP_KERNEL] = {.fds = 2},
    [JAIL_OP_START_VM] = {.fds = 3, .uses_start = true, .takes_volume = true, .has_line = true},
    [JAIL_OP_CLONE_VM] =
        {.fds = 6, .more_fds = 1, .uses_start = true, .takes_volume = true, .may_wait = true, .has_line = true},
    [JAIL_OP_NETWORK] = {.is_network = true},
    [JAIL_OP_DIAL] = {.uses_slot = true},
    [JAIL_OP_SNAPSHOT] = {.uses_slot = true, .layers = 1, .needs_layer = true},
    [JAIL_OP_SNAPSHOT_CANCEL] = {.uses_slot = true},
    [JAIL_OP_LAYER_DELETE] = {.layers = 1, .needs_layer = true},
    [JAIL_OP_LAYER_LIST] = {.layers = 1},
};

static bool hostname_ok(const char name[static JAIL_HOSTNAME_MAX + 1])
{
    size_t n = strnlen(name, JAIL_HOSTNAME_MAX + 1);
    if (n == 0 || n > JAIL_HOSTNAME_MAX || name[0] == '-' || name[n - 1] == '-')
        return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == n;
}

static bool in_range(uint64_t value, uint64_t least, uint64_t most)
{
    return value >= least && value <= most;
}

static bool start_ok(const struct jail_start *s)
{
    return s->template_slot < JAIL_TEMPLATES_MAX && in_range(s->vcpus, 1, JAIL_VCPUS_MAX) &&
           in_range(s->memory_mib, JAIL_MEMORY_MIB_MIN, JAIL_MEMORY_MIB_MAX) &&
           in_range(s->disk_mib, JAIL_DISK_MIB_MIN, JAIL_DISK_MIB_MAX) && in_range(s->pids_max, 8, JAIL_PIDS_MAX) &&
           s->disk_mib_s <= JAIL_DISK_MIB_S_MAX && s->disk_iops <= JAIL_DISK_IOPS_MAX && hostname_ok(s->hostname) &&
           s->waits <= 1;
}

bool jail_volume_named(const uint8_t id[static JAIL_VOLUME_ID])
{
    static const uint8_t none[JAIL_VOLUME_ID];
    return memcmp(id, none, sizeof none) != 0;
}

static bool volume_ok(const struct jail_request *q)
{
    bool named = jail_volume_named(q->volume.id);
    if (named ? !shape[q->op].takes_volume : shape[q->op].needs_volume)
        return false;
    if (q->volume.machine > (shape[q->op].sizes_volume ? 1 : 0) || q->volume.reserved != 0)
        return false;
    return shape[q->op].sizes_volume ? in_range(q->volume.mib, JAIL_VOLUME_MIB_MIN, JAIL_VOLUME_MIB_MAX) : q->volume.mib == 0;
}

static bool line_ok(uint32_t line)
{
    return line <= JAIL_LINE_ALL_ && ((line & JAIL_LINE_TRANSPARENT) == 0 || (line & JAIL_LINE_PROXY) != 0);
}

// Unicast, and not this host's or this network's own; aligned to its length.
static bool synthetic_ok(const struct jail_network *n)
{
    if (!in_range(n->synthetic_prefix, JAIL_SYNTHETIC_PREFIX_MIN, JAIL_SYNTHETIC_PREFIX_MAX))
        return false;
    uint32_t first = (uint32_t)n->synthetic[0] << 24 | (uint32_t)n->synthetic[1] << 16 | (uint32_t)n->synthetic[2] << 8 |
                     (uint32_t)n->synthetic[3];
    return (first & (UINT32_MAX >> n->synthetic_prefix)) == 0 && n->synthetic[0] >= 1 && n->synthetic[0] != 127 &&
           n->synthetic[0] < 224;
}

static bool network_ok(const struct jail_request *q)
{
    static const struct jail_network none;
    const struct jail_network *n = &q->network;
    struct jail_network rest = *n;
    if (shape[q->op].has_line) {
        rest.line = 0;
        return line_ok(n->line) && memcmp(&rest, &none, sizeof none) == 0;
    }
    if (!shape[q->op].is_network)
        return memcmp(n, &none, sizeof none) == 0;
    if (n->line != 0 || memcmp(n->reserved, none.reserved, sizeof n->reserved) != 0)
        return false;
    bool ranged = n->synthetic_prefix != 0 || memcmp(n->synthetic, none.synthetic, sizeof n->synthetic) != 0;
    return in_range(n->port, JAIL_PORT_MIN, JAIL_PORT_MAX) && (!ranged || synthetic_ok(n));
}

// Each is named, all others are zero.
static bool layers_ok(const struct jail_request *q)
{
    const struct jail_layers *l = &q->layers;
    if (l->count > shape[q->op].layers || (l->count == 0 && (shape[q->op].needs_layer || l->copy != 0)))
        return false;
    if (l->copy > (shape[q->op].uses_start ? 1 : 0))
        return false;
    for (uint32_t i = 0; i < JAIL_LAYERS_MAX; i++)
        if (jail_volume_named(l->id[i]) != (i < l->count))
            return false;
    return true;
}

// What is compared as bytes must not hold padding.
_Static_assert(sizeof(struct jail_network) == sizeof(uint32_t) + sizeof(uint16_t) + 4 + 1 + 5, "padding");
_Static_assert(sizeof(struct jail_start) == 2 * sizeof(uint64_t) + 6 * sizeof(uint32_t) + JAIL_HOSTNAME_MAX + 1, "padding");

int jail_check(const struct jail_request *request, size_t fds)
{
    if (request->op == 0 || request->op >= JAIL_OP_EXITED || request->id == 0 || request->reserved != 0)
        return -EPROTO;
    if (fds < shape[request->op].fds || fds > (size_t)shape[request->op].fds + shape[request->op].more_fds)
        return -EPROTO;
    if (request->start.waits != 0 && !shape[request->op].may_wait)
        return -EPROTO;
    if (!shape[request->op].uses_slot && request->slot != 0)
        return -EPROTO;
    if (request->slot >= JAIL_SANDBOXES_MAX || (request->op == JAIL_OP_UNMOUNT && request->slot >= JAIL_TEMPLATES_MAX))
        return -EPROTO;
    static const struct jail_start none;
    if (shape[request->op].uses_start ? !start_ok(&request->start) : memcmp(&request->start, &none, sizeof none) != 0)
        return -EPROTO;
    return volume_ok(request) && network_ok(request) && layers_ok(request) ? 0 : -EPROTO;
}

int jail_receive(int channel, struct jail_request *ret_request, int ret_fds[static JAIL_FDS_MAX])
{
    struct jail_request request;
    int fds[JAIL_FDS_MAX];
    size_t count = JAIL_FDS_MAX;
    ssize_t n = fdpass_recv(channel, &request, sizeof request, fds, &count);
    if (n <= 0)
        return (int)n;
    bool whole = (size_t)n == sizeof request;
    if (whole && count == FDPASS_LOST && request.op < JAIL_OP_END_ && jail_check(&request, shape[request.op].fds) == 0) {
        *ret_request = request;
        return -EMFILE;
    }
    if (!whole || jail_check(&request, count) < 0) {
        for (size_t i = 0; i < JAIL_FDS_MAX && count != FDPASS_LOST && i < count; i++)
            close_fd(&fds[i]);
        return -EPROTO;
    }
    *ret_request = request;
    for (size_t i = 0; i < JAIL_FDS_MAX; i++)
        ret_fds[i] = i < count ? fds[i] : -1;
    return 1;
}

int jail_answer_fds(int channel, const struct jail_reply *reply, const int *fds, size_t count)
{
    ssize_t n = fdpass_send(channel, reply, sizeof *reply, fds, count);
    return n < 0 ? (int)n : 0;
}

int jail_answer(int channel, const struct jail_reply *reply)
{
    return jail_answer_fds(channel, reply, NULL, 0);
}

// ---- the engine's half ----

enum { UNSENT_MAX = 4 * JAIL_SANDBOXES_MAX };  // requests that wait for room in the channel

struct jail_pending {
    uint32_t id;
    jail_done_fn *done;
    void *arg;
    struct jail_pending *next;
    // Until it has been sent:
    struct jail_request request;
    int fds[JAIL_FDS_MAX];
    size_t fd_count;
};

struct jail_client {
    struct loop *loop;
    int channel;
    struct watch *watch;
    jail_done_fn *on_exited;
    void (*on_lost)(void *arg);
    void *arg;
    uint32_t last_id;
    struct jail_pending *pending;  // sent, not answered
    struct jail_pending *unsent;   // oldest first: a burst can be more than the socket holds
    struct jail_pending **unsent_end;
    size_t unsent_count;
};

static void free_pending(struct jail_pending *p)
{
    for (size_t i = 0; i < JAIL_FDS_MAX; i++)
        close_fd(&p->fds[i]);
    free(p);
}

static void lose(struct jail_client *c)
{
    c->watch = watch_remove(c->watch);
    c->on_lost(c->arg);
}

static void dispatch(struct jail_client *c, struct jail_reply *reply, int *fds)
{
    reply->detail[JAIL_DETAIL_MAX - 1] = '\0';
    if (reply->op == JAIL_OP_EXITED) {
        c->on_exited(c->arg, reply, fds);
        return;
    }
    for (struct jail_pending **at = &c->pending; *at != NULL; at = &(*at)->next) {
        if ((*at)->id != reply->id)
            continue;
        struct jail_pending *p = *at;
        *at = p->next;
        p->done(p->arg, reply, fds);
        free_pending(p);
        return;
    }
}

static int send_request(struct jail_client *c, struct jail_pending *p, const int *fds)
{
    ssize_t n = fdpass_send(c->channel, &p->request, sizeof p->request, fds, p->fd_count);
    if (n < 0)
        return (int)n;
    p->next = c->pending;
    c->pending = p;
    return 0;
}

// Sends what waits, as far as the channel takes it.  0 or a negative errno.
static int send_unsent(struct jail_client *c)
{
    while (c->unsent != NULL) {
        struct jail_pending *p = c->unsent;
        struct jail_pending *next = p->next;
        int r = send_request(c, p, p->fds);
        if (r < 0)
            return r == -EAGAIN ? 0 : r;
        for (size_t i = 0; i < JAIL_FDS_MAX; i++)
            close_fd(&p->fds[i]);
        c->unsent_count--;
        c->unsent = next;
        if (next == NULL)
            c->unsent_end = &c->unsent;
    }
    return watch_set(c->watch, EPOLLIN);
}

static int queue_request(struct jail_client *c, struct jail_pending *p, const int *fds)
{
    if (c->unsent_count >= UNSENT_MAX)
        return -EAGAIN;
    for (size_t i = 0; i < p->fd_count; i++)
        if ((p->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) < 0)
            return -errno;
    int r = watch_set(c->watch, EPOLLIN | EPOLLOUT);
    if (r < 0)
        return r;
    *c->unsent_end = p;
    c->unsent_end = &p->next;
    c->unsent_count++;
    return 0;
}

static void on_channel(void *arg, uint32_t events)
{
    struct jail_client *c = arg;
    if ((events & EPOLLOUT) != 0 && send_unsent(c) < 0) {
        lose(c);
        return;
    }
    struct jail_reply reply;
    int fds[JAIL_REPLY_FDS_MAX];
    size_t count = JAIL_REPLY_FDS_MAX;
    ssize_t n = fdpass_recv(c->channel, &reply, sizeof reply, fds, &count);
    if (n == -EAGAIN)
        return;
    if (count == FDPASS_LOST)  // it is up to the one who asked, who finds none
        count = 0;
    for (size_t i = n > 0 ? count : 0; i < JAIL_REPLY_FDS_MAX; i++)
        fds[i] = -1;
    if (n != (ssize_t)sizeof reply)
        lose(c);
    else
        dispatch(c, &reply, fds);
    for (size_t i = 0; i < JAIL_REPLY_FDS_MAX; i++)
        close_fd(&fds[i]);
}

int jail_client_new(struct loop *loop, int channel, jail_done_fn *on_exited, void (*on_lost)(void *arg), void *arg,
                    struct jail_client **ret_client)
{
    struct jail_client *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    *c = (struct jail_client){.loop = loop, .channel = channel, .on_exited = on_exited, .on_lost = on_lost, .arg = arg};
    c->unsent_end = &c->unsent;
    int flags = fcntl(channel, F_GETFL);
    int r = flags < 0 || fcntl(channel, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
    if (r == 0)
        r = watch_add(loop, channel, EPOLLIN, on_channel, c, &c->watch);
    if (r < 0) {
        free(c);
        return r;
    }
    *ret_client = c;
    return 0;
}

static void free_list(struct jail_pending *p)
{
    while (p != NULL) {
        struct jail_pending *next = p->next;
        free_pending(p);
        p = next;
    }
}

struct jail_client *jail_client_free(struct jail_client *client)
{
    if (client == NULL)
        return NULL;
    client->watch = watch_remove(client->watch);
    close_fd(&client->channel);
    free_list(client->pending);
    free_list(client->unsent);
    free(client);
    return NULL;
}

int jail_call_fds(struct jail_client *client, struct jail_request *request, const int *fds, size_t count, jail_done_fn *done,
                  void *arg)
{
    if (client->watch == NULL)
        return -EPIPE;
    if (count > JAIL_FDS_MAX)
        return -EINVAL;
    struct jail_pending *p = calloc(1, sizeof *p);
    if (p == NULL)
        return -ENOMEM;
    if (++client->last_id == 0)
        client->last_id = 1;
    request->id = client->last_id;
    *p = (struct jail_pending){.id = request->id, .done = done, .arg = arg, .request = *request, .fd_count = count};
    for (size_t i = 0; i < JAIL_FDS_MAX; i++)
        p->fds[i] = -1;
    // Requests keep their order: none passes one that waits.
    int r = client->unsent == NULL ? send_request(client, p, fds) : -EAGAIN;
    if (r == -EAGAIN)
        r = queue_request(client, p, fds);
    if (r < 0)
        free_pending(p);
    return r;
}

int jail_call(struct jail_client *client, struct jail_request *request, int fd, jail_done_fn *done, void *arg)
{
    return jail_call_fds(client, request, &fd, fd >= 0 ? 1 : 0, done, arg);
}
