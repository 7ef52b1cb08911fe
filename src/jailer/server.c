#include "jailer/server.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "jailer/probe.h"
#include "jailer/sandbox.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct cell {
    struct server *server;
    uint32_t slot;
    struct sandbox *sandbox;  // NULL: free
    bool started;
    uint32_t start_id;     // of the request that is not answered yet
    uint32_t snapshot_id;  // likewise
};

// An operation that is answered when the network helper has answered.
struct later {
    LIST_ENTRY(later) link;
    struct server *server;
    uint32_t op, id;
};

struct server {
    struct host *host;
    int channel;
    struct watch *watch;
    bool ending;
    void (*on_end)(void *arg);
    void *arg;
    int templates[JAIL_TEMPLATES_MAX];  // attached mounts, or -1
    int images[JAIL_TEMPLATES_MAX];     // of templates for machines, or -1; a slot has one of the two
    int kernel, initramfs;              // what machines boot, or -1
    struct cell cells[JAIL_SANDBOXES_MAX];
    uint32_t next_cell;
    uint32_t live;
    LIST_HEAD(later_list, later) later;
};

enum { ANSWERED_LATER = 1 };

// A sandbox the engine can name: one whose start has been answered.
static struct sandbox *find(const struct server *s, uint32_t slot)
{
    return s->cells[slot].started ? s->cells[slot].sandbox : NULL;
}

// ---- the operations ----
//
// Each takes a request that jail_check has passed, and an engine that may be hostile.  For each, why that is safe:

// Says which protocol this is.
static int do_hello(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)s, (void)q, (void)fds;
    a->slot = JAIL_PROTOCOL_VERSION;
    return 0;
}

// Takes nothing from the engine at all.  It blocks the others of this engine, so it is refused once sandboxes live.
static int do_probe(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)q, (void)fds;
    return s->live > 0 ? -EBUSY : probe_container(s->host, a->detail);
}

// Takes nothing either.
static int do_probe_vm(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)q, (void)fds;
    return s->live > 0 ? -EBUSY : probe_vm(s->host, a->detail);
}

// The kernel's ext4 code will read this file: it must be one that only root could have written, so that a taken-over engine
// cannot feed the kernel an image of its own.
static int check_image(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size <= 0)
        return -EINVAL;
    return st.st_uid == 0 && (st.st_mode & 022) == 0 ? 0 : -EPERM;
}

static int take_image(const int *fds, struct jail_reply *a)
{
    int r = check_image(fds[0]);
    if (r < 0)
        snprintf(a->detail, sizeof a->detail,
                 "the template's image must be a regular file that root owns and only root can write");
    return r;
}

// A slot for a template, or JAIL_TEMPLATES_MAX.
static uint32_t free_template(const struct server *s)
{
    uint32_t slot = 0;
    while (slot < JAIL_TEMPLATES_MAX && (s->templates[slot] >= 0 || s->images[slot] >= 0))
        slot++;
    return slot;
}

static int do_mount(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)q;
    int r = take_image(fds, a);
    if (r < 0)
        return r;
    uint32_t slot = free_template(s);
    if (slot == JAIL_TEMPLATES_MAX)
        return -EMFILE;
    char name[16];
    snprintf(name, sizeof name, "t%u", slot);
    if (mkdirat(s->host->mounts_fd, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    cleanup_fd int mount = -1;
    r = disk_mount_image(fds[0], &mount);
    if (r == 0)
        r = mount_attach_at(mount, s->host->mounts_fd, name);
    if (r < 0)
        return r;
    s->templates[slot] = take_fd(&mount);
    a->slot = slot;
    return 0;
}

// The monitor reads it, as bytes: this process never looks into it.
static int do_image(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)q;
    int r = take_image(fds, a);
    if (r < 0)
        return r;
    uint32_t slot = free_template(s);
    if (slot == JAIL_TEMPLATES_MAX)
        return -EMFILE;
    s->images[slot] = take_fd(&fds[0]);
    a->slot = slot;
    return 0;
}

// Likewise; machines that run keep what they booted.
static int do_kernel(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)q;
    if (check_image(fds[0]) < 0 || check_image(fds[1]) < 0) {
        snprintf(a->detail, sizeof a->detail, "a kernel's files must be regular files that root owns and only root can write");
        return -EPERM;
    }
    close_fd(&s->kernel);
    close_fd(&s->initramfs);
    s->kernel = take_fd(&fds[0]);
    s->initramfs = take_fd(&fds[1]);
    return 0;
}

// Only forgets; a sandbox over it holds its own copy.
static int do_unmount(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    int *mount = &s->templates[q->slot];
    if (s->images[q->slot] >= 0) {
        close_fd(&s->images[q->slot]);
        return 0;
    }
    if (*mount < 0)
        return -ENOENT;
    int r = mount_detach(*mount);
    close_fd(mount);
    return r;
}

static const struct sandbox_handler cell_handler;

static struct cell *free_cell(struct server *s)
{
    for (uint32_t i = 0; i < JAIL_SANDBOXES_MAX; i++) {
        struct cell *c = &s->cells[(s->next_cell + i) % JAIL_SANDBOXES_MAX];
        if (c->sandbox == NULL) {
            s->next_cell = c->slot + 1;
            return c;
        }
    }
    return NULL;
}

static bool is_socket(int fd, int wanted)
{
    int type;
    socklen_t n = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == wanted;
}

static int start_in(struct server *s, struct cell *cell, const struct sandbox_plan *plan, const struct jail_request *q,
                    struct jail_reply *a)
{
    int r = sandbox_start(s->host, plan, &cell_handler, cell, &cell->sandbox, a->detail);
    if (r < 0)
        return r;
    s->live++;
    cell->started = false;
    cell->start_id = q->id;
    return ANSWERED_LATER;
}

// All that is the engine's choice is which template, layers and volume, three sizes in checked ranges, a name in a checked
// alphabet, and a socket for the agent.  A volume that is mounted already is refused by its lock, and a layer is one this
// program has written.  Ids, cgroups, paths, mounts and the
// program come from this process.
static int do_start(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    if (!is_socket(fds[0], SOCK_SEQPACKET))
        return -ENOTSOCK;
    int template = s->templates[q->start.template_slot];
    struct cell *cell = free_cell(s);
    if (template <0)
        return -ENOENT;
    if (cell == NULL)
        return -EMFILE;
    struct sandbox_plan plan = {.start = &q->start,
                                .line = q->network.line,
                                .layers = &q->layers,
                                .template_mount = template,
                                .control_fd = fds[0],
                                .log_fd = -1};
    if (jail_volume_named(q->volume.id))
        plan.volume = q->volume.id;
    return start_in(s, cell, &plan, q, a);
}

// Likewise, and with an image that was registered.  What the monitor's sockets are for is between it and the engine.  Its
// volume is one of its own kind, which nothing of the host ever mounts.
static int start_machine(struct server *s, const struct jail_request *q, const int *fds, struct vm_plan *vm,
                         struct jail_reply *a)
{
    if (!is_socket(fds[0], SOCK_SEQPACKET) || !is_socket(fds[1], SOCK_STREAM) || !is_socket(fds[2], SOCK_SEQPACKET))
        return -ENOTSOCK;
    struct cell *cell = free_cell(s);
    vm->image = s->images[q->start.template_slot];
    if (vm->image < 0 || s->host->vmm_fd < 0)
        return -ENOENT;
    if (cell == NULL)
        return -EMFILE;
    vm->control = fds[0];
    vm->vsock = fds[1];
    vm->vsock_out = fds[2];
    struct sandbox_plan plan = {
        .start = &q->start, .line = q->network.line, .template_mount = -1, .control_fd = -1, .log_fd = -1, .vm = vm};
    if (jail_volume_named(q->volume.id))
        plan.volume = q->volume.id;
    return start_in(s, cell, &plan, q, a);
}

static int do_start_vm(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    struct vm_plan vm = VM_PLAN_INIT;
    if (s->kernel < 0)
        return -ENOENT;
    vm.kernel = s->kernel;
    vm.initramfs = s->initramfs;
    return start_machine(s, q, fds, &vm, a);
}

static bool is_readable_file(int fd)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) != O_WRONLY && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

// A snapshot is the engine's, unlike a kernel: what it holds becomes a guest, and a guest is hostile anyway.  This process
// passes the files on and never looks into them.
static int do_clone_vm(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    enum { SOCKETS = 3, STATE = SOCKETS, MEMORY, LAYER, WORKING_SET };
    for (int i = STATE; i <= WORKING_SET; i++)
        if (!is_readable_file(fds[i]) && (i != WORKING_SET || fds[i] >= 0))
            return -EINVAL;
    struct vm_plan vm = VM_PLAN_INIT;
    vm.clone = true;
    vm.waits = q->start.waits != 0;
    vm.state = fds[STATE];
    vm.memory = fds[MEMORY];
    vm.layer = fds[LAYER];
    vm.working_set = fds[WORKING_SET];
    return start_machine(s, q, fds, &vm, a);
}

// The rest name a sandbox this jailer started; the worst a hostile engine can do with them it may do anyway.
static int do_stop(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    struct sandbox *sandbox = find(s, q->slot);
    if (sandbox == NULL)
        return -ENOENT;
    sandbox_kill(sandbox);
    return 0;
}

static int freeze(struct server *s, uint32_t slot, bool on)
{
    struct sandbox *sandbox = find(s, slot);
    return sandbox == NULL ? -ENOENT : sandbox_freeze(sandbox, on);
}

static int do_freeze(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    return freeze(s, q->slot, true);
}

static int do_thaw(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    return freeze(s, q->slot, false);
}

static int do_stats(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    struct sandbox *sandbox = find(s, q->slot);
    if (sandbox == NULL)
        return -ENOENT;
    struct cgroup_stats st;
    int r = sandbox_stats(sandbox, &st);
    if (r == 0)
        a->stats = (struct jail_stats){.memory_bytes = st.memory_bytes,
                                       .private_bytes = st.private_bytes,
                                       .shared_bytes = st.shared_bytes,
                                       .page_faults = st.page_faults,
                                       .oom_kills = st.oom_kills,
                                       .cpu_us = st.cpu_us,
                                       .pids = st.pids};
    return r;
}

// Volumes: their files are named by this process, whatever bytes an id has.  A hostile engine can fill the disk up to what is
// free, and delete what it could also have given to its clients.
static int do_volume_create(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    int r = volume_create(s->host->volumes, q->volume.id, q->volume.mib, q->volume.machine != 0);
    if (r == -ENOSPC)
        snprintf(a->detail, sizeof a->detail, "the disk has no room for another volume of %llu MiB",
                 (unsigned long long)q->volume.mib);
    return r;
}

static int do_volume_delete(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    return volume_delete(s->host->volumes, q->volume.id);
}

static int do_volume_list(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    int count = volume_list(s->host->volumes, q->volume.id, a->volumes);
    if (count < 0)
        return count;
    a->slot = (uint32_t)count;
    return 0;
}

// An answer that the network helper's brings.
static void on_network(void *arg, int error, const char *detail, int fd)
{
    struct later *l = arg;
    struct server *s = l->server;
    cleanup_fd int owned = fd;
    struct jail_reply a = {.op = l->op, .id = l->id, .error = error};
    snprintf(a.detail, sizeof a.detail, "%s", detail);
    LIST_REMOVE(l, link);
    free(l);
    if (!s->ending && jail_answer_fds(s->channel, &a, &owned, owned >= 0 ? 1 : 0) < 0)
        server_stop(s);
}

static struct later *new_later(struct server *s, const struct jail_request *q)
{
    struct later *l = malloc(sizeof *l);
    if (l != NULL) {
        *l = (struct later){.server = s, .op = q->op, .id = q->id};
        LIST_INSERT_HEAD(&s->later, l, link);
    }
    return l;
}

static int answer_later(struct later *l, int r)
{
    if (r == 0)
        return ANSWERED_LATER;
    LIST_REMOVE(l, link);
    free(l);
    return r;
}

// All that is the engine's choice is a port and a range of addresses, which are looked at in a network namespace that has
// nothing but the ends of its own sandboxes' lines.
static int do_network(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    struct later *l = new_later(s, q);
    return l == NULL ? -ENOMEM : answer_later(l, network_set_up(s->host->network, &q->network, on_network, l, a->detail));
}

// The socket reaches that sandbox and nothing else.
static int do_dial(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    struct sandbox *sandbox = find(s, q->slot);
    if (sandbox == NULL)
        return -ENOENT;
    struct later *l = new_later(s, q);
    return l == NULL ? -ENOMEM
                     : answer_later(l, network_dial(s->host->network, sandbox_line(sandbox), on_network, l, a->detail));
}

static void on_snapshot(void *arg, int error, const struct jail_taken *taken);

// Layers: likewise named by this process.  What is kept is what this sandbox may read anyway, in a file nobody else can open; a
// hostile engine can fill the disk.  That all stands still is bounded by the helper's life.
static int do_snapshot(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    struct sandbox *sandbox = find(s, q->slot);
    if (sandbox == NULL)
        return -ENOENT;
    int r = sandbox_snapshot(sandbox, q->layers.id[0], on_snapshot, &s->cells[q->slot]);
    if (r < 0)
        return r;
    s->cells[q->slot].snapshot_id = q->id;
    return ANSWERED_LATER;
}

static int do_snapshot_cancel(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    struct sandbox *sandbox = find(s, q->slot);
    return sandbox == NULL ? -ENOENT : sandbox_snapshot_cancel(sandbox);
}

static int do_layer_delete(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds, (void)a;
    return layer_delete(s->host->layers, q->layers.id[0]);
}

static int do_layer_list(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a)
{
    (void)fds;
    int count = layer_list(s->host->layers, q->layers.id[0], a->volumes);
    if (count < 0)
        return count;
    a->slot = (uint32_t)count;
    return 0;
}

typedef int operation_fn(struct server *s, const struct jail_request *q, int *fds, struct jail_reply *a);

static operation_fn *const operations[JAIL_OP_END_] = {
    [JAIL_OP_HELLO] = do_hello,
    [JAIL_OP_PROBE] = do_probe,
    [JAIL_OP_MOUNT] = do_mount,
    [JAIL_OP_UNMOUNT] = do_unmount,
    [JAIL_OP_START] = do_start,
    [JAIL_OP_STOP] = do_stop,
    [JAIL_OP_FREEZE] = do_freeze,
    [JAIL_OP_THAW] = do_thaw,
    [JAIL_OP_STATS] = do_stats,
    [JAIL_OP_VOLUME_CREATE] = do_volume_create,
    [JAIL_OP_VOLUME_DELETE] = do_volume_delete,
    [JAIL_OP_VOLUME_LIST] = do_volume_list,
    [JAIL_OP_PROBE_VM] = do_probe_vm,
    [JAIL_OP_IMAGE] = do_image,
    [JAIL_OP_KERNEL] = do_kernel,
    [JAIL_OP_START_VM] = do_start_vm,
    [JAIL_OP_CLONE_VM] = do_clone_vm,
    [JAIL_OP_NETWORK] = do_network,
    [JAIL_OP_DIAL] = do_dial,
    [JAIL_OP_SNAPSHOT] = do_snapshot,
    [JAIL_OP_SNAPSHOT_CANCEL] = do_snapshot_cancel,
    [JAIL_OP_LAYER_DELETE] = do_layer_delete,
    [JAIL_OP_LAYER_LIST] = do_layer_list,
};

// ---- the channel ----

static void end_when_empty(struct server *s)
{
    if (s->ending && s->live == 0) {
        for (int i = 0; i < JAIL_TEMPLATES_MAX; i++) {
            if (s->templates[i] >= 0)
                mount_detach(s->templates[i]);
            close_fd(&s->templates[i]);
            close_fd(&s->images[i]);
        }
        close_fd(&s->kernel);
        close_fd(&s->initramfs);
        s->on_end(s->arg);
    }
}

void server_stop(struct server *server)
{
    if (server->ending)
        return;
    server->ending = true;
    server->watch = watch_remove(server->watch);
    close_fd(&server->channel);
    for (uint32_t i = 0; i < JAIL_SANDBOXES_MAX; i++)
        if (server->cells[i].sandbox != NULL)
            sandbox_kill(server->cells[i].sandbox);
    end_when_empty(server);
}

static void tell_fds(struct server *s, const struct jail_reply *reply, const int *fds, size_t count)
{
    if (s->ending)
        end_when_empty(s);
    else if (jail_answer_fds(s->channel, reply, fds, count) < 0)
        server_stop(s);
}

static void tell(struct server *s, const struct jail_reply *reply)
{
    tell_fds(s, reply, NULL, 0);
}

static void vacate(struct cell *c)
{
    c->sandbox = NULL;
    c->started = false;
    c->server->live--;
}

static void on_started(void *arg, int error, const char *detail)
{
    struct cell *c = arg;
    struct line *line = error < 0 ? NULL : sandbox_line(c->sandbox);
    if (error < 0)
        vacate(c);
    else
        c->started = true;
    struct jail_reply a = {.op = JAIL_OP_START, .id = c->start_id, .error = error, .slot = error < 0 ? 0 : c->slot};
    snprintf(a.detail, sizeof a.detail, "%s", detail);
    if (line == NULL) {
        tell(c->server, &a);
        return;
    }
    size_t count;
    const int *listeners = line_listeners(line, &count);
    a.line = *line_address(line);
    tell_fds(c->server, &a, listeners, count);
    line_close_listeners(line);
}

static void on_snapshot(void *arg, int error, const struct jail_taken *taken)
{
    struct cell *c = arg;
    struct jail_reply a = {.op = JAIL_OP_SNAPSHOT, .id = c->snapshot_id, .error = error, .taken = *taken};
    if (error < 0)
        snprintf(a.detail, sizeof a.detail, "keeping the sandbox's disk: %s", strerror(-error));
    tell(c->server, &a);
}

static void on_gone(void *arg, int wait_status, bool out_of_memory)
{
    struct cell *c = arg;
    vacate(c);
    struct jail_reply event = {.op = JAIL_OP_EXITED, .slot = c->slot, .exit_status = wait_status, .oom = out_of_memory};
    tell(c->server, &event);
}

static const struct sandbox_handler cell_handler = {.on_started = on_started, .on_gone = on_gone};

// What keeps descriptors of this process is refused while there are still some for what must not fail: the ends of sandboxes.
static const bool takes_descriptors[JAIL_OP_END_] = {
    [JAIL_OP_PROBE] = true,         [JAIL_OP_PROBE_VM] = true, [JAIL_OP_MOUNT] = true,    [JAIL_OP_IMAGE] = true,
    [JAIL_OP_START] = true,         [JAIL_OP_START_VM] = true, [JAIL_OP_CLONE_VM] = true, [JAIL_OP_KERNEL] = true,
    [JAIL_OP_VOLUME_CREATE] = true, [JAIL_OP_DIAL] = true,     [JAIL_OP_SNAPSHOT] = true,
};

static bool room_for_descriptors(const struct server *s)
{
    int fds[JAILER_SPARE_FDS];
    int n = 0;
    while (n < JAILER_SPARE_FDS && (fds[n] = fcntl(s->channel, F_DUPFD_CLOEXEC, 3)) >= 0)
        n++;
    bool room = n == JAILER_SPARE_FDS;
    while (n > 0)
        close(fds[--n]);
    return room;
}

static void answer_no_room(struct server *s, const struct jail_request *q)
{
    struct jail_reply a = {.op = q->op, .id = q->id, .error = -EMFILE};
    snprintf(a.detail, sizeof a.detail, "sandbox-jailer has too few descriptors left (RLIMIT_NOFILE)");
    tell(s, &a);
}

static void on_request(void *arg, uint32_t events)
{
    (void)events;
    struct server *s = arg;
    struct jail_request q;
    int fds[JAIL_FDS_MAX];
    int r = jail_receive(s->channel, &q, fds);
    if (r == -EMFILE) {
        answer_no_room(s, &q);
        return;
    }
    if (r <= 0) {
        if (r < 0)
            log_error("engine_broke_the_protocol", log_errno(r));
        server_stop(s);
        return;
    }
    if (takes_descriptors[q.op] && !room_for_descriptors(s)) {
        for (int i = 0; i < JAIL_FDS_MAX; i++)
            close_fd(&fds[i]);
        answer_no_room(s, &q);
        return;
    }
    struct jail_reply a = {.op = q.op, .id = q.id};
    a.error = operations[q.op](s, &q, fds, &a);
    for (int i = 0; i < JAIL_FDS_MAX; i++)
        close_fd(&fds[i]);
    if (a.error != ANSWERED_LATER && jail_answer(s->channel, &a) < 0)
        server_stop(s);
}

int server_new(struct host *host, int channel, void (*on_end)(void *arg), void *arg, struct server **ret_server)
{
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->host = host;
    s->on_end = on_end;
    s->arg = arg;
    for (int i = 0; i < JAIL_TEMPLATES_MAX; i++)
        s->templates[i] = s->images[i] = -1;
    s->kernel = s->initramfs = -1;
    LIST_INIT(&s->later);
    for (uint32_t i = 0; i < JAIL_SANDBOXES_MAX; i++)
        s->cells[i] = (struct cell){.server = s, .slot = i};
    int r = watch_add(host->loop, channel, EPOLLIN, on_request, s, &s->watch);
    if (r < 0) {
        free(s);
        return r;
    }
    s->channel = channel;
    *ret_server = s;
    return 0;
}

struct server *server_free(struct server *server)
{
    if (server != NULL) {
        server->watch = watch_remove(server->watch);
        close_fd(&server->channel);
        struct later *l;
        while ((l = LIST_FIRST(&server->later)) != NULL) {
            LIST_REMOVE(l, link);
            free(l);
        }
        free(server);
    }
    return NULL;
}
