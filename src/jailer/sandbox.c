#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "enter/enter.h"
#include "jailer/sandbox_inside.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ENTER_WAIT_S = 30,   // longest a child may take between two words
    COPY_WAIT_S = 600,   // and the copying of its disk
    REMOVE_STEP_MS = 2,  // cgroups of a dead process stay busy for a moment
    REMOVE_WAIT_MS = 10000,
};

// ---- starting ----

int sandbox_fail(struct sandbox *s, int error, const char *what)
{
    if (s->error == 0) {
        s->error = error;
        snprintf(s->detail, sizeof s->detail, "%s: %s", what, strerror(-error));
    }
    return error;
}

// The same with a sentence part that says it all.
static int fail_saying(struct sandbox *s, int error, const char *what)
{
    if (s->error == 0) {
        s->error = error;
        snprintf(s->detail, sizeof s->detail, "%s", what);
    }
    return error;
}

static pid_t clone_child(const struct sandbox *s, int line, const struct cgroup_entry *groups, int *ret_pidfd)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
    };
    if (groups->into >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)groups->into;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0 && s->is_vm)
        vm_enter_main(line, groups);
    if (pid == 0)
        enter_main(line, groups, &s->host->filter);
    if (pid < 0)
        return -errno;
    *ret_pidfd = pidfd;
    return pid;
}

// The kernel adds what a user namespace's processes use of inotify, queued signals, timers, message queues and locked memory
// to what its maker may use.  With root as the maker, one sandbox could use up root's share, on which the host's services
// and all other sandboxes live; so each namespace is made by the first id of its own range.
static pid_t start_child(const struct sandbox *s, int line, const struct cgroup_entry *groups, int *ret_pidfd)
{
    // The system call itself: this thread only, and the capabilities stay (SECBIT_NO_SETUID_FIXUP, until the end of this).
    int bits = prctl(PR_GET_SECUREBITS);
    if (bits < 0 || prctl(PR_SET_SECUREBITS, (unsigned long)bits | SECBIT_NO_SETUID_FIXUP) < 0)
        return -errno;
    pid_t pid = syscall(SYS_setresuid, -1, s->first_uid, -1) < 0 ? -errno : clone_child(s, line, groups, ret_pidfd);
    if (syscall(SYS_setresuid, -1, 0, -1) < 0 || prctl(PR_SET_SECUREBITS, (unsigned long)bits) < 0)
        abort();  // never go on as somebody else
    return pid;
}

static int proc_of(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

// What protects this process from the out-of-memory killer is taken from a sandbox; by one who may, so that it cannot choose
// a lower value for itself later.
static int be_killable(int proc)
{
    char text[16];
    ssize_t n = file_read_at(proc, "oom_score_adj", text, sizeof text);
    return n < 0 ? (int)n : text[0] == '-' ? file_write_at(proc, "oom_score_adj", "0") : 0;
}

// Maps ids 0 to 65535 of the sandbox to its own range, and opens its user namespace.
static int map_ids(pid_t pid, uid_t first, int *ret_userns)
{
    cleanup_fd int proc = proc_of(pid);
    if (proc < 0)
        return proc;
    char map[48];
    snprintf(map, sizeof map, "0 %u %d", first, UID_RANGE);
    int r = file_write_at(proc, "uid_map", map);
    if (r == 0)
        r = file_write_at(proc, "gid_map", map);
    if (r == 0)
        r = be_killable(proc);
    if (r < 0)
        return r;
    int fd = openat(proc, "ns/user", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    *ret_userns = fd;
    return 0;
}

static int settle(struct sandbox *s)
{
    struct cgroup_limits limits = {
        .memory_bytes = s->what.memory_mib << 20, .vcpus = s->what.vcpus, .pids_max = s->what.pids_max};
    if (s->is_vm)
        limits = vm_limits(&s->what);
    return cgroup_group_settle(s->group, s->pid, &limits, s->first_uid);
}

static void on_copied(void *arg, int error, uint64_t bytes)
{
    (void)bytes;
    struct sandbox *s = arg;
    s->copying = NULL;
    close_fd(&s->copy_from);
    int r = error == 0 ? disk_mount(&s->device, &s->disk) : error;
    close_fd(&s->device.fd);
    if (r < 0)
        sandbox_fail(s, r, "copying the snapshot's disk");
    else if (timer_set(s->host->loop, &s->deadline, mono_ns() + ENTER_WAIT_S * NS_PER_S) < 0)
        sandbox_fail(s, -ENOMEM, "watching the sandbox");
    else
        sandbox_order(s);
    if (s->error != 0)
        sandbox_kill(s);
}

static int start_copy(struct sandbox *s)
{
    static const struct disk_copy_handler handler = {.on_done = on_copied};
    int r = disk_begin(s->host->disks, s->what.disk_mib, &s->disk_file, &s->device);
    if (r == 0)
        r = timer_set(s->host->loop, &s->deadline, mono_ns() + COPY_WAIT_S * NS_PER_S);
    if (r == 0)
        r = disk_copy_start(s->host->loop, &(struct disk_copy_plan){.from = s->copy_from, .to = s->disk_file, .mount = -1},
                            &handler, s, &s->copying);
    if (r < 0)
        return sandbox_fail(s, r, "copying the snapshot's disk");
    s->state = COPYING;
    return 0;
}

// The child is in its cgroup namespace: gives it its ids and limits, and a disk.
static int prepare(struct sandbox *s)
{
    int r = map_ids(s->pid, s->first_uid, &s->userns);
    if (r < 0)
        return sandbox_fail(s, r, "mapping user ids");
    r = settle(s);
    if (r < 0)
        return sandbox_fail(s, r, "setting the limits");
    if (s->is_vm) {
        s->state = BUILDING;
        return sandbox_order_machine(s);
    }
    if (s->copy_from >= 0)
        return start_copy(s);
    r = disk_new(s->host->disks, s->what.disk_mib, &s->disk, &s->disk_file);
    return r < 0 ? sandbox_fail(s, r, "making the writable disk") : sandbox_order(s);
}

static void close_plan(struct vm_plan *vm)
{
    int *const fds[] = {&vm->image, &vm->kernel, &vm->initramfs, &vm->control,     &vm->vsock,  &vm->vsock_out,
                        &vm->state, &vm->memory, &vm->layer,     &vm->working_set, &vm->volume, &vm->log};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        close_fd(fds[i]);
}

static void close_starting(struct sandbox *s)
{
    close_plan(&s->vm);
    s->copying = disk_copy_free(s->copying);
    close_fd(&s->copy_from);
    close_fd(&s->device.fd);
    close_fd(&s->userns);
    timer_cancel(s->host->loop, &s->deadline);
    s->line_watch = watch_remove(s->line_watch);
    close_fd(&s->line);
    close_fd(&s->template_mount);
    close_fd(&s->control_fd);
    close_fd(&s->log_fd);
}

// The first steps of both are the same.
static const char *step_text(const struct sandbox *s, uint32_t step)
{
    return s->is_vm ? vm_step_text(step) : enter_step_text(step);
}

// What follows needs the child in its cgroups, and its line.
static void go_on(struct sandbox *s)
{
    if (s->error == 0 && s->entered && (s->net == NULL || s->net_ready))
        prepare(s);
    if (s->error != 0)
        sandbox_kill(s);
}

static void hear_entered(struct sandbox *s)
{
    struct enter_failure failure;
    ssize_t n = recv(s->line, &failure, sizeof failure, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n == (ssize_t)sizeof failure && failure.error < 0)
        sandbox_fail(s, failure.error, step_text(s, failure.step));
    else if (n != 1 || s->entered)
        sandbox_fail(s, n == 0 ? -EPIPE : -EPROTO, step_text(s, ENTER_CGROUPS));
    else
        s->entered = true;
    go_on(s);
}

static void on_line_ready(void *arg, int error, const char *detail)
{
    struct sandbox *s = arg;
    if (error < 0)
        fail_saying(s, error, detail);
    else
        s->net_ready = true;
    if (s->state == ENTERING)
        go_on(s);
}

// The child's last word: a failure, or the end of the line, which closed on exec.  False if there is none yet.
static bool hear_built(struct sandbox *s)
{
    struct enter_failure failure;
    ssize_t n = recv(s->line, &failure, sizeof failure, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n == (ssize_t)sizeof failure && failure.error < 0)
        sandbox_fail(s, failure.error, step_text(s, failure.step));
    else if (n != 0)
        sandbox_fail(s, -EPROTO, "the sandbox's own report");
    return true;
}

// -1: the end of the first process does the unmounting.
static int mounts_of(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)pid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void on_line(void *arg, uint32_t events)
{
    (void)events;
    struct sandbox *s = arg;
    if (s->state == ENTERING) {
        hear_entered(s);
        return;
    }
    // While its disk is copied it has nothing to say: that is its death, which comes as an event.
    if (s->state == COPYING) {
        s->line_watch = watch_remove(s->line_watch);
        return;
    }
    if (!hear_built(s))
        return;
    if (s->error != 0) {  // its exit comes as an event
        s->line_watch = watch_remove(s->line_watch);
        sandbox_kill(s);
        return;
    }
    // The end of the line comes with exec, and with death: a child that is dead has not become the agent.
    struct pollfd dead = {.fd = s->pidfd, .events = POLLIN};
    if (poll(&dead, 1, 0) == 1) {
        s->line_watch = watch_remove(s->line_watch);
        return;
    }
    close_starting(s);
    s->mounts = mounts_of(s->pid);
    s->state = LIVE;
    s->handler->on_started(s->arg, 0, "");
}

static void on_deadline(void *arg)
{
    struct sandbox *s = arg;
    sandbox_fail(s, -ETIMEDOUT, "waiting for the sandbox to build itself");
    sandbox_kill(s);
}

static struct sandbox *sandbox_free(struct sandbox *s)
{
    close_starting(s);
    timer_cancel(s->host->loop, &s->retry);
    s->exit_watch = watch_remove(s->exit_watch);
    close_fd(&s->pidfd);
    release(s->host->releases, take_fd(&s->mounts));
    release(s->host->releases, take_fd(&s->disk_file));
    release(s->host->releases, take_fd(&s->disk));
    release(s->host->releases, take_fd(&s->tap));
    s->net = line_free(s->net);
    for (uint32_t i = 0; i < s->layer_count; i++)
        s->layer[i] = layer_give(s->layer[i]);
    s->group = cgroup_group_free(s->group);
    cpus_give(s->host, &s->cpus);
    if (!s->group_stays && s->uid_slot >= 0)
        slots_give(s->host->uids, (unsigned)s->uid_slot);
    free(s);
    return NULL;
}

static void on_exit_event(void *arg, uint32_t events);
static void on_retry(void *arg);

// Copies of all descriptors; -1 stays -1.
static int copy_plan(const struct vm_plan *from, struct vm_plan *to)
{
    const int theirs[] = {from->image, from->kernel, from->initramfs, from->control,     from->vsock, from->vsock_out,
                          from->state, from->memory, from->layer,     from->working_set, from->log};
    int *const ours[] = {&to->image, &to->kernel, &to->initramfs, &to->control,     &to->vsock, &to->vsock_out,
                         &to->state, &to->memory, &to->layer,     &to->working_set, &to->log};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        if (theirs[i] >= 0 && (*ours[i] = fcntl(theirs[i], F_DUPFD_CLOEXEC, 3)) < 0)
            return -errno;
    to->probe = from->probe;
    to->clone = from->clone;
    to->waits = from->waits;
    return 0;
}

static int take_descriptors(struct sandbox *s, const struct sandbox_plan *plan)
{
    if (s->is_vm)
        return copy_plan(plan->vm, &s->vm);
    s->template_mount = fcntl(plan->template_mount, F_DUPFD_CLOEXEC, 3);
    s->control_fd = fcntl(plan->control_fd, F_DUPFD_CLOEXEC, 3);
    if (s->template_mount < 0 || s->control_fd < 0)
        return -errno;
    const struct jail_layers *l = plan->layers;
    uint32_t first = l != NULL && l->copy ? 1 : 0;
    if (first > 0 && (s->copy_from = layer_open(s->host->layers, l->id[0], s->what.disk_mib << 20)) < 0)
        return s->copy_from;
    for (uint32_t i = first; l != NULL && i < l->count; i++) {
        int r = layer_take(s->host->layers, l->id[i], &s->layer[s->layer_count]);
        if (r < 0)
            return r;
        s->layer_count++;
    }
    if (plan->log_fd >= 0 && (s->log_fd = fcntl(plan->log_fd, F_DUPFD_CLOEXEC, 3)) < 0)
        return -errno;
    return 0;
}

// The line is made while the child takes its first steps.
static int begin_line(struct sandbox *s, uint32_t kind)
{
    char detail[JAIL_DETAIL_MAX] = "";
    cleanup_fd int proc = s->is_vm ? -1 : proc_of(s->pid);
    cleanup_fd int netns = s->is_vm ? -1 : openat(proc, "ns/net", O_RDONLY | O_CLOEXEC);
    if (netns < 0 && !s->is_vm)
        return sandbox_fail(s, proc < 0 ? proc : -errno, "opening the network namespace");
    int r = line_new(s->host->network, kind, netns, on_line_ready, s, &s->net, detail);
    return r < 0 ? fail_saying(s, r, detail) : 0;
}

// Everything up to the child's first step; from here on events drive it.
static int begin(struct sandbox *s, const struct sandbox_plan *plan)
{
    int r = take_descriptors(s, plan);
    if (r < 0)
        return sandbox_fail(s, r, "keeping descriptors and layers");
    unsigned slot;
    r = slots_take(s->host->uids, &slot);
    if (r < 0)
        return sandbox_fail(s, r, "taking a uid range");
    s->uid_slot = (int)slot;
    s->first_uid = uid_slot_first(slot);
    char name[32];
    snprintf(name, sizeof name, "sb-%d", s->uid_slot);
    bool limits_disk = s->what.disk_mib_s > 0 || s->what.disk_iops > 0;
    r = cgroup_group_new(s->host->cgroups, name, limits_disk, &s->group);
    if (r < 0)
        return sandbox_fail(s, r, "making cgroups");
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return sandbox_fail(s, -errno, "making a socket pair");
    cleanup_fd int theirs = pair[1];
    s->line = pair[0];
    struct cgroup_entry way = CGROUP_ENTRY_INIT;
    r = cgroup_entry_open(s->group, &way);
    if (r < 0)
        return sandbox_fail(s, r, "opening the cgroups");
    s->pid = start_child(s, theirs, &way, &s->pidfd);
    cgroup_entry_close(&way);
    if (s->pid < 0)
        return sandbox_fail(s, s->pid, "starting a process in new namespaces");
    return plan->line != 0 ? begin_line(s, plan->line) : 0;
}

static int watch(struct sandbox *s)
{
    int r = watch_add(s->host->loop, s->pidfd, EPOLLIN, on_exit_event, s, &s->exit_watch);
    if (r == 0)
        r = watch_add(s->host->loop, s->line, EPOLLIN, on_line, s, &s->line_watch);
    if (r == 0)
        r = timer_set(s->host->loop, &s->deadline, mono_ns() + ENTER_WAIT_S * NS_PER_S);
    return r < 0 ? sandbox_fail(s, r, "watching the sandbox") : 0;
}

// For a start that failed before events could drive it: what little there is goes at once.
static void abandon(struct sandbox *s)
{
    if (s->pidfd >= 0) {
        syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (s->group == NULL)
        return;
    uint64_t deadline = mono_ns() + REMOVE_WAIT_MS * NS_PER_MS;
    int r;
    while ((r = cgroup_group_remove(s->group)) == -EBUSY && mono_ns() < deadline)
        usleep(REMOVE_STEP_MS * 1000);
    s->group_stays = r < 0;
    if (r < 0)
        log_error("cgroup_not_removed", log_i64("uid_slot", s->uid_slot), log_errno(r));
}

int sandbox_start(struct host *host, const struct sandbox_plan *plan, const struct sandbox_handler *handler, void *arg,
                  struct sandbox **ret_sandbox, char detail[JAIL_DETAIL_MAX])
{
    struct sandbox *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    *s = (struct sandbox){.host = host,
                          .uid_slot = -1,
                          .pidfd = -1,
                          .line = -1,
                          .disk_file = -1,
                          .disk = -1,
                          .userns = -1,
                          .device.fd = -1,
                          .copy_from = -1,
                          .snapshot.file = -1,
                          .mounts = -1,
                          .tap = -1,
                          .template_mount = -1,
                          .control_fd = -1,
                          .log_fd = -1,
                          .what = *plan->start,
                          .self_test = plan->self_test,
                          .is_vm = plan->vm != NULL,
                          .vm = VM_PLAN_INIT,
                          .handler = handler,
                          .arg = arg};
    if (plan->volume != NULL)
        memcpy(s->volume, plan->volume, sizeof s->volume);
    timer_init(&s->retry, on_retry, s);
    timer_init(&s->deadline, on_deadline, s);
    int r = begin(s, plan);
    if (r == 0)
        r = watch(s);
    if (r < 0) {
        memcpy(detail, s->detail, JAIL_DETAIL_MAX);
        abandon(s);
        sandbox_free(s);
        return r;
    }
    *ret_sandbox = s;
    return 0;
}

// ---- living and ending ----

int sandbox_set_frozen(struct sandbox *s, bool freeze)
{
    int r = cgroup_group_freeze(s->group, freeze);
    if (r == 0)
        s->frozen = freeze;
    return r;
}

void sandbox_kill(struct sandbox *sandbox)
{
    // A process that waits for a frozen filesystem does not die.
    sandbox_snapshot_cancel(sandbox);
    // All at once where the kernel can; in any case the first process, which takes all others of its pid namespace with it.
    cgroup_group_kill(sandbox->group);
    syscall(SYS_pidfd_send_signal, sandbox->pidfd, SIGKILL, NULL, 0);
    // On v1 a frozen process dies only when thawed; on v2 this changes nothing.
    if (sandbox->frozen)
        sandbox_set_frozen(sandbox, false);
}

int sandbox_freeze(struct sandbox *sandbox, bool freeze)
{
    bool still = freeze || sandbox->held;
    int r = still == sandbox->frozen ? 0 : sandbox_set_frozen(sandbox, still);
    if (r == 0)
        sandbox->paused = freeze;
    return r;
}

struct line *sandbox_line(const struct sandbox *sandbox)
{
    return sandbox->net;
}

int sandbox_stats(const struct sandbox *sandbox, struct cgroup_stats *ret_stats)
{
    return cgroup_group_stats(sandbox->group, ret_stats);
}

// Its processes are gone, and the kernel is done with unmounting a moment later.
static int release_volume(struct sandbox *s)
{
    if (!s->volume_in_use)
        return 0;
    int r = volume_released(s->host->volumes, s->volume);
    if (r == 0)
        s->volume_in_use = false;
    return r;
}

// What is in the way may be gone in a moment.
static bool worth_another_try(int error)
{
    return error == -EBUSY || error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}

void sandbox_finish(struct sandbox *s)
{
    int r = cgroup_group_remove(s->group);
    s->group_stays = r < 0;
    if (r == 0)
        r = release_volume(s);
    if (worth_another_try(r) && mono_ns() < s->give_up_ns) {
        timer_set(s->host->loop, &s->retry, mono_ns() + REMOVE_STEP_MS * NS_PER_MS);
        return;
    }
    if (r < 0)
        log_error(s->volume_in_use ? "cgroup_or_volume_not_freed" : "cgroup_not_removed", log_i64("uid_slot", s->uid_slot),
                  log_errno(r));
    if (s->volume_in_use)  // its lock goes on for as long as anything has it
        volume_forget(s->host->volumes, s->volume);
    if (s->error != 0)
        s->handler->on_started(s->arg, s->error, s->detail);
    else
        s->handler->on_gone(s->arg, s->wait_status, s->out_of_memory);
    sandbox_free(s);
}

static void on_retry(void *arg)
{
    sandbox_finish(arg);
}

static void on_exit_event(void *arg, uint32_t events)
{
    (void)events;
    struct sandbox *s = arg;
    s->exit_watch = watch_remove(s->exit_watch);
    if (s->state == BUILDING && s->error == 0)
        hear_built(s);
    struct cgroup_stats stats;
    s->out_of_memory = sandbox_stats(s, &stats) == 0 && stats.agent_oom_kills > 0;
    while (waitpid(s->pid, &s->wait_status, 0) < 0 && errno == EINTR)
        ;
    // A volume comes free only with the mounts.
    release(s->host->releases, take_fd(&s->mounts));
    close_starting(s);
    // An agent can have run and ended (a self-test is short) before this process came to see it run.  A child that ends by
    // itself on its way there has said why before.
    if (s->state == BUILDING && s->error == 0 && WIFEXITED(s->wait_status)) {
        s->state = LIVE;
        s->handler->on_started(s->arg, 0, "");
    }
    if (s->state != LIVE)
        sandbox_fail(s, -ECANCELED, "the sandbox ended before its agent ran");
    release(s->host->releases, take_fd(&s->tap));
    s->net = line_free(s->net);
    s->state = ENDING;
    s->give_up_ns = mono_ns() + REMOVE_WAIT_MS * NS_PER_MS;
    // What the helper is at may take the kernel a while, which nobody else has to wait for.
    s->snapshot.end_waits = sandbox_snapshot_cancel(s) == 0;
    if (!s->snapshot.end_waits)
        sandbox_finish(s);
}
