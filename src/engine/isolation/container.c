#include "engine/isolation/container.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "libsandbox.h"
#include "sys/jail.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct container {
    struct jail_client *jail;
    driver_exited_fn *exited;
    void (*on_lost)(void *arg);
    void *arg;
    struct container_sandbox sandbox[JAIL_SANDBOXES_MAX];  // by slot; without an owner: nothing runs there
    struct jail_network lines;                             // what the jailer was told of them
    struct call *calls;
};

// One call to the jailer that is not answered yet.
struct call {
    struct container *container;
    struct call *next, **at;
    driver_done_fn *done;
    void *arg;
    struct container_sandbox sandbox;  // START only
    int control;                       // START only: the engine's end
};

static void free_call(struct call *call)
{
    *call->at = call->next;
    if (call->next != NULL)
        call->next->at = call->at;
    close_fd(&call->control);
    free(call);
}

static void lost(struct container *c, const char *why)
{
    log_error("jailer_lost", log_str("reason", why));
    c->on_lost(c->arg);
}

// A sandbox begins to exist in its slot.  False if the jailer cannot mean that.
static bool occupy(struct container *c, const struct jail_reply *reply, const struct container_sandbox *sandbox)
{
    if (reply->slot >= JAIL_SANDBOXES_MAX || c->sandbox[reply->slot].owner != NULL)
        return false;
    c->sandbox[reply->slot] = *sandbox;
    return true;
}

// What the jailer says a sandbox's line became.  False if that is not what was asked for.
static bool take_network(const struct container *c, enum network_kind kind, const struct jail_reply *reply, int *fds,
                         struct network *ret)
{
    struct network n = NETWORK_INIT;
    n.kind = kind;
    if (kind != NETWORK_NONE) {
        memcpy(n.host, reply->line.host, sizeof n.host);
        memcpy(n.guest, reply->line.guest, sizeof n.guest);
        n.prefix_bits = reply->line.prefix <= 32 ? (uint8_t)reply->line.prefix : 0;
        n.broker_port = c->lines.port;
    }
    if (kind == NETWORK_TRANSPARENT) {
        memcpy(n.synthetic, c->lines.synthetic, sizeof n.synthetic);
        n.synthetic_bits = c->lines.synthetic_prefix;
    }
    for (unsigned i = 0; i < network_fds(kind); i++)
        n.fd[i] = take_fd(&fds[i]);
    *ret = n;
    return network_valid(&n, kind);
}

// What a START was answered with.  A jailer that cannot mean that is lost, and the start failed.
static void take_start(struct container *c, struct call *call, const struct jail_reply *reply, int *fds,
                       struct driver_answer *answer)
{
    const char *wrong = NULL;
    if (!take_network(c, call->sandbox.network, reply, fds, &answer->network))
        wrong = "it gave a sandbox another network than was asked for";
    else if (!occupy(c, reply, &call->sandbox))
        wrong = "it started a sandbox in a slot that is taken";
    else
        answer->control = take_fd(&call->control);
    if (wrong == NULL)
        return;
    network_close(&answer->network);
    answer->error = -EPROTO;
    answer->detail = wrong;
    lost(c, wrong);
}

static void on_reply(void *arg, const struct jail_reply *reply, int *fds)
{
    struct call *call = arg;
    struct container *c = call->container;
    struct driver_answer answer = {
        .error = reply->error,
        .detail = reply->detail,
        .handle = reply->slot,
        .control = -1,
        .dial = -1,
        .network = NETWORK_INIT,
        .pause_us = reply->taken.pause_us,
        .bytes = reply->taken.bytes,
        .stats = {.memory_bytes = reply->stats.memory_bytes,
                  .private_bytes = reply->stats.private_bytes,
                  .shared_bytes = reply->stats.shared_bytes,
                  .page_faults = reply->stats.page_faults,
                  .oom_kills = reply->stats.oom_kills},
        .volume_count = reply->slot <= JAIL_VOLUMES_LISTED ? reply->slot : 0,
        .volumes = reply->volumes,
    };
    if (answer.error == 0 && call->sandbox.owner != NULL)
        take_start(c, call, reply, fds, &answer);
    driver_done_fn *done = call->done;
    void *done_arg = call->arg;
    free_call(call);
    if (done != NULL)
        done(done_arg, &answer);
    else
        close_fd(&answer.control);
}

static int new_call(struct container *c, driver_done_fn *done, void *arg, struct call **ret_call)
{
    struct call *call = malloc(sizeof *call);
    if (call == NULL)
        return -ENOMEM;
    *call = (struct call){.container = c, .done = done, .arg = arg, .control = -1, .next = c->calls, .at = &c->calls};
    if (c->calls != NULL)
        c->calls->at = &call->next;
    c->calls = call;
    *ret_call = call;
    return 0;
}

int container_ask(struct container *c, struct jail_request *request, const int *fds, size_t count, driver_done_fn *done,
                  void *arg)
{
    struct call *call;
    int r = c->jail != NULL ? new_call(c, done, arg, &call) : -EPIPE;
    if (r < 0)
        return r;
    r = jail_call_fds(c->jail, request, fds, count, on_reply, call);
    if (r < 0)
        free_call(call);
    return r;
}

int container_start_with(struct container *c, struct jail_request *request, const int *fds, size_t count,
                         const struct container_sandbox *sandbox, driver_done_fn *done, void *arg)
{
    struct call *call;
    int r = c->jail != NULL ? new_call(c, done, arg, &call) : -EPIPE;
    if (r < 0)
        return r;
    call->sandbox = *sandbox;
    r = jail_call_fds(c->jail, request, fds, count, on_reply, call);
    if (r < 0)
        free_call(call);
    return r;
}

static int ask(struct container *c, struct jail_request *request, int fd, driver_done_fn *done, void *arg)
{
    return container_ask(c, request, &fd, fd >= 0 ? 1 : 0, done, arg);
}

static int ask_about(void *self, enum jail_op op, uint32_t slot, driver_done_fn *done, void *arg)
{
    struct jail_request request = {.op = op, .slot = slot};
    return ask(self, &request, -1, done, arg);
}

// ---- the table ----

static int probe(void *self, driver_done_fn *done, void *arg)
{
    return ask_about(self, JAIL_OP_PROBE, 0, done, arg);
}

static int template_attach(void *self, int rootfs, const uint8_t *digest, driver_done_fn *done, void *arg)
{
    (void)digest;
    struct jail_request request = {.op = JAIL_OP_MOUNT};
    return ask(self, &request, rootfs, done, arg);
}

static void template_detach(void *self, uint32_t handle)
{
    int r = ask_about(self, JAIL_OP_UNMOUNT, handle, NULL, NULL);
    if (r < 0)
        log_warn("template_detach_failed", log_u64("slot", handle), log_errno(r));
}

uint32_t container_line(enum network_kind kind)
{
    static const uint32_t lines[] = {
        [NETWORK_NONE] = 0, [NETWORK_PROXY] = JAIL_LINE_PROXY, [NETWORK_TRANSPARENT] = JAIL_LINE_PROXY | JAIL_LINE_TRANSPARENT};
    return lines[kind];
}

int container_describe(const struct driver_start *what, struct jail_start *ret_start)
{
    struct jail_start start = {.template_slot = what->template_handle,
                               .vcpus = what->vcpus,
                               .memory_mib = what->memory_mib,
                               .disk_mib = what->disk_mib,
                               .pids_max = what->pids_max,
                               .disk_mib_s = what->disk_mib_s,
                               .disk_iops = what->disk_iops};
    size_t n = strnlen(what->hostname, sizeof start.hostname);
    if (n == sizeof start.hostname)
        return -EINVAL;
    memcpy(start.hostname, what->hostname, n);
    *ret_start = start;
    return 0;
}

static int start(void *self, const struct driver_start *what, driver_done_fn *done, void *arg)
{
    struct container *c = self;
    struct jail_request request = {.op = JAIL_OP_START};
    int r = container_describe(what, &request.start);
    if (r < 0)
        return r;
    request.network.line = container_line(what->network);
    if (what->volume != NULL)
        memcpy(request.volume.id, what->volume, sizeof request.volume.id);
    if (what->layer_count > JAIL_LAYERS_MAX)
        return -EINVAL;
    request.layers.count = what->layer_count;
    request.layers.copy = what->copy_layer;
    for (uint32_t i = 0; i < what->layer_count; i++)
        memcpy(request.layers.id[i], what->layers[i], sizeof request.layers.id[i]);
    int pair[2];
    if (c->jail == NULL)
        return -EPIPE;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    cleanup_fd int ours = pair[0], theirs = pair[1];
    struct call *call;
    r = new_call(c, done, arg, &call);
    if (r < 0)
        return r;
    call->sandbox = (struct container_sandbox){.owner = what->owner, .network = what->network};
    call->control = take_fd(&ours);
    r = jail_call(c->jail, &request, theirs, on_reply, call);
    if (r < 0)
        free_call(call);
    return r;
}

static int stop(void *self, uint32_t handle)
{
    return ask_about(self, JAIL_OP_STOP, handle, NULL, NULL);
}

static int pause_sandbox(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    return ask_about(self, JAIL_OP_FREEZE, handle, done, arg);
}

static int resume_sandbox(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    return ask_about(self, JAIL_OP_THAW, handle, done, arg);
}

static int snapshot(void *self, uint32_t handle, const struct driver_snapshot *what, driver_done_fn *done, void *arg)
{
    struct jail_request request = {.op = JAIL_OP_SNAPSHOT, .slot = handle, .layers.count = 1};
    memcpy(request.layers.id[0], what->layer, sizeof request.layers.id[0]);
    return ask(self, &request, -1, done, arg);
}

static int stats(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    return ask_about(self, JAIL_OP_STATS, handle, done, arg);
}

const struct driver container_driver = {
    .level = SANDBOX_ISOLATION_CONTAINER,
    .volumes = true,
    .network = true,
    .host_api = true,
    .no_suspend = "the processes of this tier live in the host's kernel and cannot be put on disk; the vm tier's can",
    .probe = probe,
    .template_attach = template_attach,
    .template_detach = template_detach,
    .start = start,
    .stop = stop,
    .pause = pause_sandbox,
    .resume = resume_sandbox,
    .snapshot = snapshot,
    .stats = stats,
};

// ---- the channel ----

// What was in a slot is gone.
static void leave(struct container *c, uint32_t slot, struct driver_exit *how)
{
    const struct container_sandbox gone = c->sandbox[slot];
    c->sandbox[slot] = (struct container_sandbox){0};
    if (gone.on_gone != NULL)
        gone.on_gone(gone.gone_arg, how);
    if (!gone.internal)
        c->exited(gone.owner, how);
}

static void on_exited(void *arg, const struct jail_reply *reply, int *fds)
{
    (void)fds;
    struct container *c = arg;
    if (reply->slot >= JAIL_SANDBOXES_MAX || c->sandbox[reply->slot].owner == NULL) {
        log_warn("jailer_unknown_exit", log_u64("slot", reply->slot));
        return;
    }
    struct driver_exit how = {.by_signal = WIFSIGNALED(reply->exit_status), .oom = reply->oom != 0};
    how.status = how.by_signal ? WTERMSIG(reply->exit_status) : WEXITSTATUS(reply->exit_status);
    leave(c, reply->slot, &how);
}

static void on_channel_lost(void *arg)
{
    lost(arg, "its channel closed");
}

int container_new(struct loop *loop, int channel, driver_exited_fn *exited, void (*on_lost_fn)(void *arg), void *arg,
                  struct container **ret_container)
{
    struct container *c = calloc(1, sizeof *c);
    if (c == NULL)
        return -ENOMEM;
    *c = (struct container){.exited = exited, .on_lost = on_lost_fn, .arg = arg};
    int r = jail_client_new(loop, channel, on_exited, on_channel_lost, c, &c->jail);
    if (r < 0) {
        free(c);
        return r;
    }
    *ret_container = c;
    return 0;
}

struct container *container_free(struct container *c)
{
    if (c == NULL)
        return NULL;
    c->jail = jail_client_free(c->jail);  // no call succeeds any more
    static const struct jail_reply canceled = {.error = -ECANCELED, .detail = "the engine ends"};
    int none[JAIL_REPLY_FDS_MAX] = {-1, -1, -1, -1};
    while (c->calls != NULL)
        on_reply(c->calls, &canceled, none);
    for (uint32_t i = 0; i < JAIL_SANDBOXES_MAX; i++)
        if (c->sandbox[i].owner != NULL)
            leave(c, i, &(struct driver_exit){.by_signal = true, .status = SIGKILL});
    free(c);
    return NULL;
}

int container_hello(struct container *c, driver_done_fn *done, void *arg)
{
    return ask_about(c, JAIL_OP_HELLO, 0, done, arg);
}

int container_network(struct container *c, uint16_t port, const uint8_t synthetic[4], uint8_t bits, driver_done_fn *done,
                      void *arg)
{
    struct jail_request request = {.op = JAIL_OP_NETWORK, .network = {.port = port, .synthetic_prefix = bits}};
    if (bits > 0)
        memcpy(request.network.synthetic, synthetic, sizeof request.network.synthetic);
    c->lines = request.network;
    return ask(c, &request, -1, done, arg);
}

static int ask_volume(struct container *c, struct jail_request request, const uint8_t id[static JAIL_VOLUME_ID],
                      driver_done_fn *done, void *arg)
{
    memcpy(request.volume.id, id, sizeof request.volume.id);
    return ask(c, &request, -1, done, arg);
}

int container_volume_create(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], uint64_t mib, bool machine,
                            driver_done_fn *done, void *arg)
{
    const struct jail_request request = {.op = JAIL_OP_VOLUME_CREATE, .volume = {.mib = mib, .machine = machine}};
    return ask_volume(c, request, id, done, arg);
}

int container_volume_delete(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg)
{
    return ask_volume(c, (struct jail_request){.op = JAIL_OP_VOLUME_DELETE}, id, done, arg);
}

int container_volume_list(struct container *c, const uint8_t after[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg)
{
    return ask_volume(c, (struct jail_request){.op = JAIL_OP_VOLUME_LIST}, after, done, arg);
}

static int ask_layer(struct container *c, enum jail_op op, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done,
                     void *arg)
{
    struct jail_request request = {.op = op, .layers.count = jail_volume_named(id) ? 1 : 0};
    memcpy(request.layers.id[0], id, sizeof request.layers.id[0]);
    return ask(c, &request, -1, done, arg);
}

int container_layer_delete(struct container *c, const uint8_t id[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg)
{
    return ask_layer(c, JAIL_OP_LAYER_DELETE, id, done, arg);
}

int container_layer_list(struct container *c, const uint8_t after[static JAIL_VOLUME_ID], driver_done_fn *done, void *arg)
{
    return ask_layer(c, JAIL_OP_LAYER_LIST, after, done, arg);
}
