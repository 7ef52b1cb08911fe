#include "jailer/sandbox.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "jailer/cpus.h"
#include "jailer/enter.h"
#include "sys/fdpass.h"
#include "sys/mount_fd.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ENTER_WAIT_S = 10,   // longest a child may take between two words
    REMOVE_STEP_MS = 2,  // cgroups of a dead process stay busy for a moment
    REMOVE_WAIT_MS = 10000,
    SHM_MAX_MIB = 64,
};

struct sandbox {
    struct host *host;
    int uid_slot;
    uid_t first_uid;
    struct cgroup_group *group;
    struct cpus_taken cpus;
    pid_t pid;
    int pidfd;
    struct watch *watch;
    bool frozen;
    int wait_status;
    bool out_of_memory;
    struct timer retry;
    uint64_t give_up_ns;
    sandbox_gone_fn *on_gone;
    void *arg;
};

// ---- starting ----

static int fail(char *detail, int error, const char *what)
{
    snprintf(detail, JAIL_DETAIL_MAX, "%s: %s", what, strerror(-error));
    return error;
}

static pid_t clone_child(struct host *host, int line, int *ret_pidfd)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
    };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        enter_main(line, &host->filter);
    if (pid < 0)
        return -errno;
    *ret_pidfd = pidfd;
    return pid;
}

// The kernel adds what a user namespace's processes use of inotify, queued signals, timers, message queues and locked memory
// to what its maker may use.  With root as the maker, one sandbox could use up root's share, on which the host's services
// and all other sandboxes live; so each namespace is made by the first id of its own range.
static pid_t start_child(struct host *host, uid_t maker, int line, int *ret_pidfd)
{
    // The system call itself: this thread only, and the capabilities stay (SECBIT_NO_SETUID_FIXUP, until the end of this).
    int bits = prctl(PR_GET_SECUREBITS);
    if (bits < 0 || prctl(PR_SET_SECUREBITS, (unsigned long)bits | SECBIT_NO_SETUID_FIXUP) < 0)
        return -errno;
    pid_t pid = syscall(SYS_setresuid, -1, maker, -1) < 0 ? -errno : clone_child(host, line, ret_pidfd);
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

static int say(int line, const char *byte)
{
    return send(line, byte, 1, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

static int hear(int line, char *byte)
{
    ssize_t n = recv(line, byte, 1, 0);
    return n == 1 ? 0 : n == 0 ? -EPIPE : errno == EAGAIN ? -ETIMEDOUT : -errno;
}

static int into_cgroups(struct sandbox *s, int line)
{
    int r = cgroup_group_enter(s->group, s->pid);
    if (r == 0)
        r = say(line, "g");
    char byte;
    return r == 0 ? hear(line, &byte) : r;
}

static int settle(struct sandbox *s, const struct jail_start *start)
{
    struct cgroup_limits limits = {.memory_bytes = start->memory_mib << 20, .vcpus = start->vcpus, .pids_max = start->pids_max};
    return cgroup_group_settle(s->group, s->pid, &limits, s->first_uid);
}

static int mapped_template(int template_mount, int userns)
{
    cleanup_fd int copy = mount_clone(template_mount, "");
    if (copy < 0)
        return copy;
    int r = mount_restrict(copy, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (r == 0)
        r = mount_idmap(copy, userns);
    return r < 0 ? r : take_fd(&copy);
}

static int mapped_disk(struct host *host, uint64_t mib, int userns)
{
    cleanup_fd int disk = -1;
    int r = disk_new(host->disks, mib, &disk);
    if (r == 0)
        r = mount_idmap(disk, userns);
    return r < 0 ? r : take_fd(&disk);
}

static void close_fds(int (*fds)[FDPASS_MAX])
{
    for (int i = 0; i < FDPASS_MAX; i++)
        close_fd(&(*fds)[i]);
}

// Adds a descriptor of each guest cgroup to the order.  A directory of the host's own mount would lead a taken-over agent
// upwards, by "..", to the host's root: each is the root of a mount of its own, above which there is nothing.
static int add_groups(const struct sandbox *s, struct enter_order *order, int *fds)
{
    for (int role = 0; role < CGROUP_ROLES; role++) {
        cleanup_fd int dir = cgroup_group_guest_fd(s->group, (enum cgroup_role)role);
        if (dir == -ENOENT)
            continue;
        int fd = dir < 0 ? dir : mount_clone(dir, "");
        if (fd < 0)
            return fd;
        fds[order->groups] = fd;
        snprintf(order->group_kind[order->groups], sizeof order->group_kind[0], "%s", cgroup_role_kind((enum cgroup_role)role));
        order->groups++;
    }
    return 0;
}

static int send_order(struct sandbox *s, const struct sandbox_plan *plan, int line, int template, int disk)
{
    uint64_t shm_mib = plan->start->memory_mib / 2 < SHM_MAX_MIB ? plan->start->memory_mib / 2 : SHM_MAX_MIB;
    struct enter_order order = {.shm_bytes = shm_mib << 20, .self_test = plan->self_test};
    cpus_take(s->host, plan->start->vcpus, &s->cpus, &order.cpus);
    memcpy(order.hostname, plan->start->hostname, sizeof order.hostname);
    // Copies of descriptors that stay ours are passed too: all of `fds` is closed here alike.
    __attribute__((cleanup(close_fds))) int fds[FDPASS_MAX];
    for (int i = 0; i < FDPASS_MAX; i++)
        fds[i] = -1;
    fds[ENTER_FD_TEMPLATE] = fcntl(template, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_DISK] = fcntl(disk, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_AGENT] = fcntl(s->host->agent_fd, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_CONTROL] = fcntl(plan->control_fd, F_DUPFD_CLOEXEC, 3);
    fds[ENTER_FD_LOG] = plan->log_fd >= 0 ? fcntl(plan->log_fd, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < ENTER_FDS; i++)
        if (fds[i] < 0)
            return -errno;
    int r = add_groups(s, &order, fds + ENTER_FDS);
    if (r < 0)
        return r;
    ssize_t n = fdpass_send(line, &order, sizeof order, fds, ENTER_FDS + order.groups);
    return n < 0 ? (int)n : 0;
}

// The end of the line is success: it closed on exec.
static int await_exec(int line, char *detail)
{
    struct enter_failure failure;
    ssize_t n = recv(line, &failure, sizeof failure, 0);
    if (n == 0)
        return 0;
    if (n < 0)
        return fail(detail, errno == EAGAIN ? -ETIMEDOUT : -errno, "waiting for the sandbox to build itself");
    if (n != sizeof failure || failure.error >= 0)
        return fail(detail, -EPROTO, "the sandbox's own report");
    return fail(detail, failure.error, enter_step_text(failure.step));
}

static int build(struct sandbox *s, const struct sandbox_plan *plan, int line, char *detail)
{
    int r = into_cgroups(s, line);
    if (r < 0)
        return fail(detail, r, "entering the cgroups");
    cleanup_fd int userns = -1;
    r = map_ids(s->pid, s->first_uid, &userns);
    if (r < 0)
        return fail(detail, r, "mapping user ids");
    r = settle(s, plan->start);
    if (r < 0)
        return fail(detail, r, "setting the limits");
    cleanup_fd int template = mapped_template(plan->template_mount, userns);
    if (template <0)
        return fail(detail, template, "id-mapping the template");
    cleanup_fd int disk = mapped_disk(s->host, plan->start->disk_mib, userns);
    if (disk < 0)
        return fail(detail, disk, "making the writable disk");
    r = send_order(s, plan, line, template, disk);
    return r < 0 ? fail(detail, r, "passing descriptors") : await_exec(line, detail);
}

static void abandon(struct sandbox *s)
{
    if (s->pidfd >= 0) {
        syscall(SYS_pidfd_send_signal, s->pidfd, SIGKILL, NULL, 0);
        while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    if (s->group != NULL) {
        uint64_t deadline = mono_ns() + REMOVE_WAIT_MS * NS_PER_MS;
        while (cgroup_group_remove(s->group) == -EBUSY && mono_ns() < deadline)
            usleep(REMOVE_STEP_MS * 1000);
    }
}

static struct sandbox *sandbox_free(struct sandbox *s)
{
    timer_cancel(s->host->loop, &s->retry);
    s->watch = watch_remove(s->watch);
    close_fd(&s->pidfd);
    s->group = cgroup_group_free(s->group);
    cpus_give(s->host, &s->cpus);
    uid_slots_give(s->host->uids, s->uid_slot);
    free(s);
    return NULL;
}

static void on_exit_event(void *arg, uint32_t events);
static void on_retry(void *arg);

static int set_up(struct sandbox *s, const struct sandbox_plan *plan, char *detail)
{
    int r = uid_slots_take(s->host->uids, &s->uid_slot, &s->first_uid);
    if (r < 0)
        return fail(detail, r, "taking a uid range");
    char name[32];
    snprintf(name, sizeof name, "sb-%d", s->uid_slot);
    r = cgroup_group_new(s->host->cgroups, name, &s->group);
    if (r < 0)
        return fail(detail, r, "making cgroups");
    int line[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) < 0)
        return fail(detail, -errno, "making a socket pair");
    cleanup_fd int ours = line[0], theirs = line[1];
    struct timeval wait = {.tv_sec = ENTER_WAIT_S};
    setsockopt(ours, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    s->pid = start_child(s->host, s->first_uid, theirs, &s->pidfd);
    if (s->pid < 0)
        return fail(detail, s->pid, "starting a process in new namespaces");
    close_fd(&theirs);
    r = build(s, plan, ours, detail);
    if (r < 0)
        return r;
    r = watch_add(s->host->loop, s->pidfd, EPOLLIN, on_exit_event, s, &s->watch);
    return r < 0 ? fail(detail, r, "watching the first process") : 0;
}

int sandbox_start(struct host *host, const struct sandbox_plan *plan, sandbox_gone_fn *on_gone, void *arg,
                  struct sandbox **ret_sandbox, char detail[JAIL_DETAIL_MAX])
{
    struct sandbox *s = calloc(1, sizeof *s);
    if (s == NULL)
        return fail(detail, -ENOMEM, "memory");
    *s = (struct sandbox){.host = host, .uid_slot = -1, .pidfd = -1, .on_gone = on_gone, .arg = arg};
    timer_init(&s->retry, on_retry, s);
    int r = set_up(s, plan, detail);
    if (r < 0) {
        abandon(s);
        sandbox_free(s);
        return r;
    }
    *ret_sandbox = s;
    return 0;
}

// ---- living and ending ----

void sandbox_kill(struct sandbox *sandbox)
{
    // The first process takes all others of its pid namespace with it.
    syscall(SYS_pidfd_send_signal, sandbox->pidfd, SIGKILL, NULL, 0);
    // On v1 a frozen process dies only when thawed; on v2 this changes nothing.
    if (sandbox->frozen)
        sandbox_freeze(sandbox, false);
}

int sandbox_freeze(struct sandbox *sandbox, bool freeze)
{
    int r = cgroup_group_freeze(sandbox->group, freeze);
    if (r == 0)
        sandbox->frozen = freeze;
    return r;
}

int sandbox_stats(const struct sandbox *sandbox, struct cgroup_stats *ret_stats)
{
    return cgroup_group_stats(sandbox->group, ret_stats);
}

static void finish(struct sandbox *s)
{
    int r = cgroup_group_remove(s->group);
    if (r == -EBUSY && mono_ns() < s->give_up_ns) {
        timer_set(s->host->loop, &s->retry, mono_ns() + REMOVE_STEP_MS * NS_PER_MS);
        return;
    }
    if (r < 0)
        log_error("cgroup_not_removed", log_i64("uid_slot", s->uid_slot), log_errno(r));
    s->on_gone(s->arg, s->wait_status, s->out_of_memory);
    sandbox_free(s);
}

static void on_retry(void *arg)
{
    finish(arg);
}

static void on_exit_event(void *arg, uint32_t events)
{
    (void)events;
    struct sandbox *s = arg;
    s->watch = watch_remove(s->watch);
    struct cgroup_stats stats;
    s->out_of_memory = sandbox_stats(s, &stats) == 0 && stats.agent_oom_kills > 0;
    while (waitpid(s->pid, &s->wait_status, 0) < 0 && errno == EINTR)
        ;
    s->give_up_ns = mono_ns() + REMOVE_WAIT_MS * NS_PER_MS;
    finish(s);
}
