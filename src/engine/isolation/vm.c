#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/isolation/vm_fork.h"
#include "engine/isolation/vm_inside.h"
#include "engine/isolation/vm_keep.h"
#include "engine/isolation/vm_template.h"
#include "libsandbox.h"
#include "sys/digest.h"
#include "sys/fdpass.h"
#include "sys/template_store.h"
#include "wire/vmstate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_PREFIX "vm-"

enum { NAME_DIGITS = 16 };

// Whoever wants the numbers of a machine.
struct stats_call {
    TAILQ_ENTRY(stats_call) link;
    struct vm_driver *driver;
    uint32_t handle;
    struct driver_stats stats;  // of its group, as the jailer says
    driver_done_fn *done;
    void *arg;
};

TAILQ_HEAD(stats_calls, stats_call);

struct vm {
    TAILQ_ENTRY(vm) link;
    struct vm_driver *driver;
    uint32_t handle;
    bool live;
    bool restored, waits;
    bool unmade;                                  // no machine came of it: its last word
    char snapshot[SNAPSHOT_KEY_DIGITS + 1];       // what it is a clone of; empty: nothing that is in use
    bool volume, network;                         // it has one
    struct snapshot_key key;                      // what it is, and
    struct memory_base *base;                     // what its memory began as; NULL: zeros
    struct timer settled;                         // until it is killed
    void (*gone)(void *arg, const char *reason);  // of the driver's own
    int control;                                  // to the monitor
    struct watch *watch;
    // Until the start is answered:
    int vsock_out, dial;
    driver_done_fn *start_done;
    void *start_arg;
    // A request that is with the monitor; done NULL: none.
    uint32_t request_id;
    driver_done_fn *done;
    void *arg;
    struct timer patience;
    // Questions for its numbers, which go beside the requests; id 0: none is with the monitor.
    uint32_t stats_id;
    struct stats_calls stats;
    struct timer stats_patience;
    char reason[VMM_DETAIL_MAX + 64];  // of its end, as the monitor says
};

TAILQ_HEAD(vm_list, vm);

struct vm_driver {
    struct vm_config config;
    struct vm_list all;
    struct vm_templates *templates;
    struct vm_forks *forks;
    uint8_t image_digest[JAIL_TEMPLATES_MAX][DIGEST_LEN];
    uint8_t kernel_digest[DIGEST_LEN];
    struct host_identity host;
    bool may_snapshot;  // the kernel and the host are known
    uint32_t last_id;
    // The probe under way; done NULL: none.
    driver_done_fn *probe_done;
    void *probe_arg;
};

static struct vm *find(struct vm_driver *d, uint32_t handle)
{
    struct vm *vm;
    TAILQ_FOREACH(vm, &d->all, link)
    if (vm->live && vm->handle == handle)
        return vm;
    return NULL;
}

// ---- the monitor's channel ----

static void answer_request(struct vm *vm, int error, const char *detail)
{
    driver_done_fn *done = vm->done;
    vm->done = NULL;
    timer_cancel(vm->driver->config.loop, &vm->patience);
    const struct driver_answer answer = {.error = error, .detail = detail, .control = -1, .dial = -1, .network = NETWORK_INIT};
    if (done != NULL)
        done(vm->arg, &answer);
}

// The pages of its memory, if the monitor said; else what is known of its group.
static void answer_stats(struct vm *vm, const struct vmm_stats *pages)
{
    struct stats_call *call;
    vm->stats_id = 0;
    timer_cancel(vm->driver->config.loop, &vm->stats_patience);
    while ((call = TAILQ_FIRST(&vm->stats)) != NULL) {
        TAILQ_REMOVE(&vm->stats, call, link);
        struct driver_answer answer = {.control = -1, .dial = -1, .network = NETWORK_INIT, .stats = call->stats};
        if (pages != NULL && pages->pages_present > 0 && pages->pages_own <= pages->pages_present &&
            pages->pages_present <= (uint64_t)VMM_MEMORY_MIB_MAX << 8) {
            answer.stats.private_bytes = pages->pages_own << 12;
            answer.stats.shared_bytes = (pages->pages_present - pages->pages_own) << 12;
        }
        call->done(call->arg, &answer);
        free(call);
    }
}

static void on_stats_late(void *arg)
{
    answer_stats(arg, NULL);
}

static void on_ended(struct vm *vm, const struct vmm_message *m)
{
    vm->unmade = m->reason == VMM_REASON_SETUP_FAILED;
    snprintf(vm->reason, sizeof vm->reason, "its machine ended (%s%s%s)", vmm_reason_name(m->reason),
             m->detail[0] != '\0' ? ": " : "", m->detail);
}

static void stop_listening(struct vm *vm)
{
    vm->watch = watch_remove(vm->watch);
    close_fd(&vm->control);
}

// A monitor that breaks the protocol loses its channel, which is its end.
static void on_message(void *arg, uint32_t events)
{
    (void)events;
    struct vm *vm = arg;
    static struct vmm_message packet, m;  // one loop, one thread
    ssize_t n = recv(vm->control, &packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || vmm_message_check(&packet, (size_t)n, &m) < 0) {
        if (n > 0)
            snprintf(vm->reason, sizeof vm->reason, "its monitor broke the protocol");
        stop_listening(vm);
        answer_stats(vm, NULL);
        answer_request(vm, -EPIPE, "the machine has ended");
        return;
    }
    if (m.op == VMM_OP_STATS && m.id == vm->stats_id)
        answer_stats(vm, m.error == 0 ? &m.stats : NULL);
    else if (m.op == VMM_OP_ENDED)
        on_ended(vm, &m);
    else if (m.op < VMM_OP_STARTED && vm->done != NULL && m.id == vm->request_id)
        answer_request(vm, m.error, m.detail);
}

static int tell_with(struct vm *vm, enum vmm_op op, uint64_t value, const int *fds, size_t count, uint32_t *ret_id)
{
    struct vm_driver *d = vm->driver;
    d->last_id = d->last_id + 1 != 0 ? d->last_id + 1 : 1;
    const struct vmm_request q = {.op = op, .id = d->last_id, .value = value};
    if (fdpass_send(vm->control, &q, sizeof q, fds, count) != (ssize_t)sizeof q)
        return -EPIPE;
    *ret_id = q.id;
    return 0;
}

static int tell(struct vm *vm, enum vmm_op op, const int *fds, size_t count, uint32_t *ret_id)
{
    return tell_with(vm, op, 0, fds, count, ret_id);
}

// One that a guest has taken over may say nothing for ever: nobody waits for it.
static void on_late(void *arg)
{
    struct vm *vm = arg;
    snprintf(vm->reason, sizeof vm->reason, "its monitor did not answer");
    container_driver.stop(vm->driver->config.jailer, vm->handle);
    answer_request(vm, -ETIMEDOUT, "the monitor did not answer");
}

static int ask(struct vm_driver *d, uint32_t handle, enum vmm_op op, uint64_t value, const int *fds, size_t count,
               driver_done_fn *done, void *arg)
{
    struct vm *vm = find(d, handle);
    if (vm == NULL || vm->control < 0)
        return -ENOENT;
    if (vm->done != NULL)
        return -EBUSY;
    // What writes files takes as long as they do, and who asks for it has a deadline of its own.
    bool timed = done != NULL && count == 0;
    int r = timed ? timer_set(d->config.loop, &vm->patience, mono_ns() + d->config.answer_ms * NS_PER_MS) : 0;
    if (r == 0)
        r = tell_with(vm, op, value, fds, count, &vm->request_id);
    if (r < 0) {
        timer_cancel(d->config.loop, &vm->patience);
        return r;
    }
    vm->done = done;
    vm->arg = arg;
    return 0;
}

int vm_ask(struct vm_driver *d, uint32_t handle, enum vmm_op op, const int *fds, size_t count, driver_done_fn *done, void *arg)
{
    return ask(d, handle, op, 0, fds, count, done, arg);
}

int vm_ask_keep(struct vm_driver *d, uint32_t handle, const int fds[3], driver_done_fn *done, void *arg)
{
    return ask(d, handle, VMM_OP_SNAPSHOT, VMM_SNAPSHOT_WRITTEN, fds, 3, done, arg);
}

int vm_keepable(struct vm_driver *d, uint32_t handle, struct memory_base **ret_base, struct snapshot_key *ret_key,
                const char **ret_why)
{
    struct vm *vm = find(d, handle);
    *ret_why = "its machine has ended";
    if (vm == NULL || vm->control < 0)
        return -ENOENT;
    *ret_why = vm->volume    ? "it has a session's volume, which others write to while it is kept"
               : vm->network ? "it has a network, whose addresses are its own"
                             : "";
    if (vm->volume || vm->network)
        return -ENOTSUP;
    *ret_base = memory_base_ref(vm->base);
    *ret_key = vm->key;
    return 0;
}

int vm_key_fits(struct vm_driver *d, const struct snapshot_key *key, const struct jail_start *start, const char **ret_why)
{
    *ret_why = "it was taken on another processor or kernel, which its memory is bound to";
    if (!d->may_snapshot || !host_identity_equal(&key->host, &d->host))
        return -ENOTSUP;
    *ret_why = "it is of another shape than its description says";
    bool same = key->memory_mib == start->memory_mib && key->disk_mib == start->disk_mib && key->vcpus == start->vcpus &&
                key->format == SNAPSHOT_FORMAT && key->vmstate == VMSTATE_VERSION &&
                memcmp(key->image, d->image_digest[start->template_slot], DIGEST_LEN) == 0;
    return same ? 0 : -ENOTSUP;
}

void vm_kill(struct vm_driver *d, uint32_t handle, const char *why)
{
    struct vm *vm = find(d, handle);
    if (vm != NULL)
        snprintf(vm->reason, sizeof vm->reason, "%s", why);
    container_driver.stop(d->config.jailer, handle);
}

struct vm_forks *vm_forks_of(struct vm_driver *d)
{
    return d->forks;
}

// ---- starting and ending ----

static struct vm *vm_free(struct vm *vm)
{
    TAILQ_REMOVE(&vm->driver->all, vm, link);
    timer_cancel(vm->driver->config.loop, &vm->settled);
    timer_cancel(vm->driver->config.loop, &vm->patience);
    timer_cancel(vm->driver->config.loop, &vm->stats_patience);
    stop_listening(vm);
    close_fd(&vm->vsock_out);
    close_fd(&vm->dial);
    memory_base_unref(vm->base);
    free(vm);
    return NULL;
}

static void on_started(void *arg, const struct driver_answer *from_jailer)
{
    struct vm *vm = arg;
    struct driver_answer answer = *from_jailer;
    answer.control = answer.dial = -1;
    driver_done_fn *done = vm->start_done;
    void *done_arg = vm->start_arg;
    if (answer.error == 0) {
        vm->live = true;
        vm->handle = answer.handle;
        answer.control = take_fd(&vm->vsock_out);
        answer.dial = take_fd(&vm->dial);
        answer.restored = vm->restored;
        answer.waits = vm->waits;
    } else {
        vm_free(vm);
    }
    done(done_arg, &answer);
}

// Just before the sandbox is told.
static void on_gone(void *arg, struct driver_exit *how)
{
    static char reason[sizeof((struct vm *)0)->reason];  // valid during the callback that follows
    struct vm *vm = arg;
    if (vm->watch != NULL)
        on_message(vm, EPOLLIN);  // its last word may still be unread
    memcpy(reason, vm->reason, sizeof reason);
    how->reason = reason[0] != '\0' ? reason : "its monitor ended";
    void (*gone)(void *arg, const char *reason) = vm->gone;
    void *arg_of_gone = vm->start_arg;
    stop_listening(vm);  // nobody can ask it anything more, whoever is told now
    answer_stats(vm, NULL);
    answer_request(vm, -EPIPE, "the machine has ended");
    if (vm->unmade && vm->snapshot[0] != '\0' && vm->driver->templates != NULL)
        vm_template_refused(vm->driver->templates, vm->snapshot, reason);
    vm_free(vm);
    if (gone != NULL)
        gone(arg_of_gone, how->reason);
}

// Not by unixsock_listen, which changes the umask: there are threads here.  Only the owner can write to a new socket, and so
// connect: on Linux the mode of an unbound socket becomes, less the umask, that of its name.
static int bind_at(int dir_fd, const char *name, int *ret_listener)
{
    cleanup_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir_fd, name);
    if (fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, SOMAXCONN) < 0)
        return -errno;
    *ret_listener = take_fd(&fd);
    return 0;
}

// A listening socket that has no name any more; *ret_dial is how to connect to it all the same (/proc/self/fd/N).
static int unnamed_listener(int run_dir, int *ret_listener, int *ret_dial)
{
    char digits[NAME_DIGITS + 1], name[NAME_DIGITS + sizeof NAME_PREFIX];
    int r = random_hex(digits, NAME_DIGITS);
    if (r < 0)
        return r;
    snprintf(name, sizeof name, NAME_PREFIX "%s", digits);
    r = bind_at(run_dir, name, ret_listener);
    if (r < 0)
        return r;
    *ret_dial = openat(run_dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    r = *ret_dial < 0 ? -errno : 0;
    unlinkat(run_dir, name, 0);
    return r;
}

// Our end never makes this loop wait for a monitor that reads nothing.
static int packet_pair(int *ret_ours, int *ret_theirs)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    *ret_ours = pair[0];
    *ret_theirs = pair[1];
    return fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

static void on_settled(void *arg)
{
    struct vm *vm = arg;
    log_warn("volume_not_settled", log_u64("handle", vm->handle));
    container_driver.stop(vm->driver->config.jailer, vm->handle);
}

static struct vm *vm_new(struct vm_driver *d, driver_done_fn *done, void *arg)
{
    struct vm *vm = calloc(1, sizeof *vm);
    if (vm == NULL)
        return NULL;
    *vm = (struct vm){.driver = d, .control = -1, .vsock_out = -1, .dial = -1, .start_done = done, .start_arg = arg};
    timer_init(&vm->settled, on_settled, vm);
    timer_init(&vm->patience, on_late, vm);
    timer_init(&vm->stats_patience, on_stats_late, vm);
    TAILQ_INIT(&vm->stats);
    TAILQ_INSERT_TAIL(&d->all, vm, link);
    return vm;
}

static int ask_for_start(struct vm *vm, struct jail_request *q, const struct vm_launch *launch)
{
    struct vm_driver *d = vm->driver;
    cleanup_fd int control = -1, vsock = -1, vsock_out = -1;
    int r = packet_pair(&vm->control, &control);
    if (r == 0)
        r = packet_pair(&vm->vsock_out, &vsock_out);
    if (r == 0)
        r = unnamed_listener(d->config.run_dir, &vsock, &vm->dial);
    if (r == 0)
        r = watch_add(d->config.loop, vm->control, EPOLLIN, on_message, vm, &vm->watch);
    int fds[JAIL_FDS_MAX] = {control, vsock, vsock_out};
    size_t count = 3;
    if (launch->from != NULL) {
        fds[count++] = launch->from->state;
        fds[count++] = launch->from->memory;
        fds[count++] = launch->from->layer;
        if (launch->from->working_set >= 0)
            fds[count++] = launch->from->working_set;
    }
    const struct container_sandbox sandbox = {.owner = launch->owner != NULL ? launch->owner : vm,
                                              .on_gone = on_gone,
                                              .gone_arg = vm,
                                              .internal = launch->owner == NULL,
                                              .network = launch->network};
    return r == 0 ? container_start_with(d->config.jailer, q, fds, count, &sandbox, on_started, vm) : r;
}

int vm_launch(struct vm_driver *d, const struct vm_launch *launch, driver_done_fn *done, void *arg)
{
    struct jail_request q = {.op = launch->from != NULL ? JAIL_OP_CLONE_VM : JAIL_OP_START_VM, .start = launch->start};
    q.network.line = container_line(launch->network);
    if (launch->volume != NULL)
        memcpy(q.volume.id, launch->volume, sizeof q.volume.id);
    struct vm *vm = vm_new(d, done, arg);
    if (vm == NULL)
        return -ENOMEM;
    vm->restored = launch->from != NULL;
    vm->waits = launch->start.waits != 0;
    vm->gone = launch->gone;
    vm->volume = launch->volume != NULL;
    vm->network = launch->network != NETWORK_NONE;
    vm->base = launch->from != NULL ? memory_base_ref(launch->from->base) : NULL;
    if (launch->key != NULL)
        vm->key = *launch->key;
    if (launch->snapshot != NULL)
        snprintf(vm->snapshot, sizeof vm->snapshot, "%s", launch->snapshot);
    int r = ask_for_start(vm, &q, launch);
    if (r < 0)
        vm_free(vm);
    return r;
}

// ---- what it is started from ----

static struct snapshot_key key_of(const struct vm_driver *d, const struct jail_start *start)
{
    struct snapshot_key key = {.host = d->host,
                               .memory_mib = start->memory_mib,
                               .disk_mib = start->disk_mib,
                               .vcpus = start->vcpus,
                               .pids_max = start->pids_max,
                               .format = SNAPSHOT_FORMAT,
                               .vmstate = VMSTATE_VERSION};
    memcpy(key.image, d->image_digest[start->template_slot], sizeof key.image);
    memcpy(key.kernel, d->kernel_digest, sizeof key.kernel);
    return key;
}

static int start(void *self, const struct driver_start *what, driver_done_fn *done, void *arg)
{
    struct vm_driver *d = self;
    struct vm_launch launch = {.owner = what->owner, .volume = what->volume, .network = what->network};
    int r = container_describe(what, &launch.start);
    if (r < 0)
        return r;
    if (what->snapshot != NULL || what->suspended != NULL)
        return d->forks != NULL ? vm_fork_start(d->forks, what, &launch.start, done, arg) : -ENOTSUP;
    char name[SNAPSHOT_KEY_DIGITS + 1];
    const struct snapshot_key key = key_of(d, &launch.start);
    launch.key = &key;
    if (d->templates != NULL && d->may_snapshot)
        launch.from = vm_template_get(d->templates, &key, &launch.start, name);
    launch.snapshot = launch.from != NULL ? name : NULL;
    launch.start.waits = what->waits && launch.from != NULL;
    return vm_launch(d, &launch, done, arg);
}

// A machine that cannot be claimed is at its end, which is told by itself.
static void claim(void *self, uint32_t handle)
{
    struct vm *vm = find(self, handle);
    if (vm != NULL && vm->waits && vm_ask(self, handle, VMM_OP_CLAIM, NULL, 0, NULL, NULL) == 0)
        vm->waits = false;
}

void vm_stop(struct vm_driver *d, uint32_t handle)
{
    struct vm *vm = find(d, handle);
    if (vm != NULL)
        vm->gone = NULL;
    container_driver.stop(d->config.jailer, handle);
}

const struct vm_config *vm_config_of(const struct vm_driver *d)
{
    return &d->config;
}

static int stop(void *self, uint32_t handle)
{
    struct vm_driver *d = self;
    struct vm *vm = find(d, handle);
    if (vm == NULL || !vm->volume || vm->control < 0)
        return container_driver.stop(d->config.jailer, handle);
    // A guest that stands still could not write; one that runs does not mind.  Nobody waits for the answer.
    uint32_t id;
    int r = tell(vm, VMM_OP_RESUME, NULL, 0, &id);
    if (r == 0)
        r = timer_set(d->config.loop, &vm->settled, mono_ns() + d->config.settle_ms * NS_PER_MS);
    return r == 0 ? 0 : container_driver.stop(d->config.jailer, handle);
}

static int pause_machine(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    return vm_ask(self, handle, VMM_OP_PAUSE, NULL, 0, done, arg);
}

static int resume_machine(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    return vm_ask(self, handle, VMM_OP_RESUME, NULL, 0, done, arg);
}

// The monitor's group: its memory is the machine's, and its faults are those the host served for it.  Which of its pages are
// its own, only the monitor knows.
static void on_group_stats(void *arg, const struct driver_answer *answer)
{
    struct stats_call *call = arg;
    struct vm_driver *d = call->driver;
    struct vm *vm = answer->error == 0 ? find(d, call->handle) : NULL;
    if (vm == NULL || vm->control < 0) {
        call->done(call->arg, answer);
        free(call);
        return;
    }
    call->stats = answer->stats;
    TAILQ_INSERT_TAIL(&vm->stats, call, link);
    if (vm->stats_id != 0)
        return;
    int r = timer_set(d->config.loop, &vm->stats_patience, mono_ns() + d->config.answer_ms * NS_PER_MS);
    if (r == 0)
        r = tell(vm, VMM_OP_STATS, NULL, 0, &vm->stats_id);
    if (r < 0)
        answer_stats(vm, NULL);
}

static int stats(void *self, uint32_t handle, driver_done_fn *done, void *arg)
{
    struct vm_driver *d = self;
    struct stats_call *call = malloc(sizeof *call);
    if (call == NULL)
        return -ENOMEM;
    *call = (struct stats_call){.driver = d, .handle = handle, .done = done, .arg = arg};
    int r = container_driver.stats(d->config.jailer, handle, on_group_stats, call);
    if (r < 0)
        free(call);
    return r;
}

struct attachment {
    struct vm_driver *driver;
    uint8_t digest[DIGEST_LEN];
    driver_done_fn *done;
    void *arg;
};

static void on_attached(void *arg, const struct driver_answer *answer)
{
    struct attachment a = *(struct attachment *)arg;
    free(arg);
    if (answer->error == 0 && answer->handle < JAIL_TEMPLATES_MAX)
        memcpy(a.driver->image_digest[answer->handle], a.digest, sizeof a.digest);
    a.done(a.arg, answer);
}

static int template_attach(void *self, int rootfs, const uint8_t *digest, driver_done_fn *done, void *arg)
{
    struct vm_driver *d = self;
    struct jail_request q = {.op = JAIL_OP_IMAGE};
    struct attachment *a = malloc(sizeof *a);
    if (a == NULL)
        return -ENOMEM;
    *a = (struct attachment){.driver = d, .done = done, .arg = arg};
    memcpy(a->digest, digest, sizeof a->digest);
    int r = container_ask(d->config.jailer, &q, &rootfs, 1, on_attached, a);
    if (r < 0)
        free(a);
    return r;
}

static void template_detach(void *self, uint32_t handle)
{
    struct vm_driver *d = self;
    if (d->templates != NULL)
        vm_templates_forget(d->templates, handle);
    container_driver.template_detach(d->config.jailer, handle);
}

// ---- the probe: KVM, then the kernel ----

static void probed(struct vm_driver *d, int error, const char *detail)
{
    driver_done_fn *done = d->probe_done;
    d->probe_done = NULL;
    const struct driver_answer answer = {.error = error, .detail = detail, .control = -1, .dial = -1, .network = NETWORK_INIT};
    if (done != NULL)
        done(d->probe_arg, &answer);
}

struct kernel_look {
    struct job job;
    struct vm_driver *driver;
    int result;
    struct err err;
    struct manifest manifest;
    int fd[MANIFEST_FILES_MAX];
};

static int file_of(const struct kernel_look *look, const char *name)
{
    for (uint32_t i = 0; i < look->manifest.files; i++)
        if (strcmp(look->manifest.file[i].name, name) == 0)
            return look->fd[i];
    return -1;
}

static void look_run(struct job *job)
{
    struct kernel_look *look = (struct kernel_look *)job;
    const struct vm_config *config = &look->driver->config;
    char real[TEMPLATE_NAME_MAX + 1];
    cleanup_fd int dir = -1, store = openat(config->store, KERNELS_FOLDER, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    look->result = store < 0 ? -errno : template_open(store, config->kernel, real, &look->manifest, &dir, &look->err);
    if (look->result == -ENOENT)
        err_set(&look->err, -ENOENT, "there is no kernel \"%s\" (sandbox-image kernel build makes it)", config->kernel);
    if (look->result == 0)
        look->result = template_verify(dir, &look->manifest, look->fd, &look->err);
    if (look->result == 0 && (file_of(look, KERNEL_VMLINUX_FILE) < 0 || file_of(look, KERNEL_INITRAMFS_FILE) < 0))
        look->result = err_set(&look->err, -EBADMSG, "kernel \"%s\" has no vmlinux or no initramfs", config->kernel);
}

// Without a place for snapshots every sandbox boots.
static void open_templates(struct vm_driver *d)
{
    int r = d->templates == NULL ? vm_templates_new(d, d->config.state_dir, &d->templates) : 0;
    if (r == 0 && d->forks == NULL)
        r = vm_forks_new(d, &d->forks);
    if (r == 0)
        r = host_identity_get(&d->host);
    d->may_snapshot = r == 0;
    if (r < 0)
        log_warn("no_template_snapshots", log_errno(r));
}

static void on_kernel(void *arg, const struct driver_answer *answer)
{
    if (answer->error == 0)
        open_templates(arg);
    probed(arg, answer->error, answer->detail);
}

// Of everything the kernel's manifest lists.
static int digest_kernel(const struct manifest *m, uint8_t ret_digest[DIGEST_LEN])
{
    uint8_t all[MANIFEST_FILES_MAX][DIGEST_LEN] = {0};
    for (uint32_t i = 0; i < m->files; i++)
        memcpy(all[i], m->file[i].digest, DIGEST_LEN);
    return digest_bytes(all, sizeof all, ret_digest);
}

static void look_finish(struct job *job, bool ran)
{
    struct kernel_look *look = (struct kernel_look *)job;
    struct vm_driver *d = look->driver;
    if (ran && look->result == 0) {
        struct jail_request q = {.op = JAIL_OP_KERNEL};
        digest_kernel(&look->manifest, d->kernel_digest);
        const int fds[] = {file_of(look, KERNEL_VMLINUX_FILE), file_of(look, KERNEL_INITRAMFS_FILE)};
        look->result = container_ask(d->config.jailer, &q, fds, 2, on_kernel, d);
        if (look->result < 0)
            err_set(&look->err, look->result, "the jailer could not be asked");
    }
    if (ran && look->result < 0)
        probed(d, look->result, look->err.text);
    for (int i = 0; i < MANIFEST_FILES_MAX; i++)
        close_fd(&look->fd[i]);
    free(look);
}

static void on_kvm(void *arg, const struct driver_answer *answer)
{
    struct vm_driver *d = arg;
    struct kernel_look *look = answer->error == 0 ? calloc(1, sizeof *look) : NULL;
    if (look == NULL) {
        probed(d, answer->error != 0 ? answer->error : -ENOMEM, answer->detail);
        return;
    }
    look->job = (struct job){.run = look_run, .finish = look_finish};
    look->driver = d;
    for (int i = 0; i < MANIFEST_FILES_MAX; i++)
        look->fd[i] = -1;
    workers_submit(d->config.workers, &look->job);
}

static int probe(void *self, driver_done_fn *done, void *arg)
{
    struct vm_driver *d = self;
    if (d->probe_done != NULL)
        return -EBUSY;
    struct jail_request q = {.op = JAIL_OP_PROBE_VM};
    int r = container_ask(d->config.jailer, &q, NULL, 0, on_kvm, d);
    if (r == 0) {
        d->probe_done = done;
        d->probe_arg = arg;
    }
    return r;
}

const struct driver vm_driver = {
    .level = SANDBOX_ISOLATION_VM,
    .volumes = true,
    .network = true,
    .host_api = true,
    .memory = true,
    .probe = probe,
    .template_attach = template_attach,
    .template_detach = template_detach,
    .start = start,
    .claim = claim,
    .stop = stop,
    .pause = pause_machine,
    .resume = resume_machine,
    .snapshot = vm_keep_snapshot,
    .suspend = vm_keep_suspend,
    .forget = vm_fork_forget,
    .unload = vm_fork_unload,
    .stats = stats,
};

// Names of an engine that was killed just as it had given one.
static void remove_strays(int run_dir)
{
    cleanup_fd int fd = openat(run_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL)
        return;
    take_fd(&fd);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (strncmp(e->d_name, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0 &&
            strlen(e->d_name) == sizeof NAME_PREFIX - 1 + NAME_DIGITS)
            unlinkat(run_dir, e->d_name, 0);
    closedir(dir);
}

int vm_driver_new(const struct vm_config *config, struct vm_driver **ret_driver)
{
    struct vm_driver *d = calloc(1, sizeof *d);
    if (d == NULL)
        return -ENOMEM;
    d->config = *config;
    TAILQ_INIT(&d->all);
    remove_strays(config->run_dir);
    *ret_driver = d;
    return 0;
}

void vm_driver_stop(struct vm_driver *d)
{
    if (d != NULL && d->templates != NULL)
        vm_templates_stop(d->templates);
    if (d != NULL && d->forks != NULL)
        vm_forks_stop(d->forks);
}

struct vm_driver *vm_driver_free(struct vm_driver *d)
{
    if (d == NULL)
        return NULL;
    d->templates = vm_templates_free(d->templates);
    d->forks = vm_forks_free(d->forks);
    while (!TAILQ_EMPTY(&d->all))
        vm_free(TAILQ_FIRST(&d->all));
    free(d);
    return NULL;
}
