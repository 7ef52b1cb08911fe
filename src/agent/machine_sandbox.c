// The parent's half of the way into a sandbox (enter/enter.h), as the jailer does it on the container tier; there it is steps
// on a loop, since a jailer has many to start, and here it is one after the other.
#include "agent/machine.h"
#include "base/cleanup.h"
#include "enter/dev.h"
#include "enter/enter.h"
#include "enter/guest_filter.h"
#include "sys/cgroup.h"
#include "sys/fdpass.h"
#include "sys/mount_fd.h"
#include "sys/rtnetlink.h"
#include "sys/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define CLONE_INTO_CGROUP_ 0x200000000ULL

enum {
    FIRST_ID = 0x10000,  // ids of the sandbox, none of which the machine itself has
    IDS = 65536,
    ENTER_WAIT_S = 30,
    END_WAIT_MS = 5000,
};

struct start {
    const struct machine_options *options;
    int disk, agent;
    int volume;  // -1: none
    struct cgroup_group *group;
    int line;     // to the child
    int control;  // its end of the control line
    pid_t pid;
    const char *step;
};

static int failed(struct start *s, int error, const char *step)
{
    s->step = step;
    return error;
}

static int make_groups(struct start *s)
{
    struct cgroup_tree *tree;
    const char *why = "";
    int r = cgroup_tree_open("machine", NULL, true, &tree, &why);
    return r < 0 ? failed(s, r, why) : cgroup_group_new(tree, "sandbox", false, &s->group);
}

static pid_t clone_child(int line, const struct cgroup_entry *groups, int *ret_pidfd)
{
    int pidfd = -1;
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD |
                 CLONE_INTO_CGROUP_,
        .cgroup = (uint64_t)groups->into,
        .pidfd = (uint64_t)(uintptr_t)&pidfd,
        .exit_signal = SIGCHLD,
    };
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        enter_main(line, groups, &guest_filter);
    if (pid < 0)
        return -errno;
    *ret_pidfd = pidfd;
    return pid;
}

// Clones it into its group, where it makes its control group namespace, and says so.
static int start_child(struct start *s, int line, int *ret_pidfd)
{
    struct cgroup_entry groups = CGROUP_ENTRY_INIT;
    int r = cgroup_entry_open(s->group, &groups);
    if (r == 0 && (s->pid = clone_child(line, &groups, ret_pidfd)) < 0)
        r = s->pid;
    cgroup_entry_close(&groups);
    return r;
}

static int hear_entered(const struct start *s)
{
    struct timeval patience = {.tv_sec = ENTER_WAIT_S};
    setsockopt(s->line, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char byte;
    return recv(s->line, &byte, 1, 0) == 1 ? 0 : -EPIPE;
}

static int map_ids(pid_t pid, int *ret_userns)
{
    char path[32], map[48];
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    cleanup_fd int proc = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return -errno;
    snprintf(map, sizeof map, "0 %d %d", FIRST_ID, IDS);
    int r = file_write_at(proc, "uid_map", map);
    if (r == 0)
        r = file_write_at(proc, "gid_map", map);
    if (r == 0 && (*ret_userns = openat(proc, "ns/user", O_RDONLY | O_CLOEXEC)) < 0)
        r = -errno;
    return r;
}

// The machine's network device is the sandbox's: nothing else in the machine has one.
int machine_move_line(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    unsigned index = if_nametoindex(GUEST_LINE_DEVICE);
    if (index == 0)
        return -errno;
    cleanup_fd int netns = open(path, O_RDONLY | O_CLOEXEC);
    if (netns < 0)
        return -errno;
    cleanup_fd int requests = rtnetlink_open();
    return requests < 0 ? requests : rtnetlink_move(requests, (int)index, netns);
}

static int set_limits(struct start *s)
{
    const struct machine_options *o = s->options;
    struct cgroup_limits limits = {
        .memory_bytes = o->memory_mib << 20, .vcpus = (uint32_t)o->vcpus, .pids_max = (uint32_t)o->pids_max};
    return cgroup_group_settle(s->group, s->pid, &limits, FIRST_ID);
}

// A copy: an id map can only be put on a mount through which nothing is open for writing.
int machine_map_mount(int mount, const char *part, int userns)
{
    cleanup_fd int copy = mount_clone(mount, part);
    if (copy < 0)
        return copy;
    int r = mount_idmap(copy, userns);
    return r < 0 ? r : take_fd(&copy);
}

static int send_order(struct start *s, int root, int volume)
{
    struct enter_order order = {
        .shm_bytes = enter_shm_bytes(s->options->memory_mib), .whole_root = 1, .far = 1, .volume = volume >= 0};
    memcpy(order.hostname, s->options->hostname, sizeof order.hostname);
    order.line = s->options->line;
    cleanup_fd int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    cleanup_fd int dir = cgroup_group_guest_fd(s->group, CGROUP_UNIFIED);
    cleanup_fd int guest = dir < 0 ? dir : mount_clone(dir, "");
    if (nothing < 0 || guest < 0)
        return nothing < 0 ? -errno : guest;
    cleanup_fd int dev = -1;
    int r = dev_new(FIRST_ID, &dev);
    if (r < 0)
        return r;
    int fds[ENTER_FDS + 1] = {
        [ENTER_FD_TEMPLATE] = root, [ENTER_FD_DISK] = nothing,   [ENTER_FD_VOLUME] = volume >= 0 ? volume : nothing,
        [ENTER_FD_DEV] = dev,       [ENTER_FD_AGENT] = s->agent, [ENTER_FD_CONTROL] = s->control,
        [ENTER_FD_LOG] = nothing,   [ENTER_FDS] = guest,
    };
    snprintf(order.group_kind[0], sizeof order.group_kind[0], "%s", cgroup_role_kind(CGROUP_UNIFIED));
    order.groups = 1;
    ssize_t n = fdpass_send(s->line, &order, sizeof order, fds, ENTER_FDS + 1);
    return n < 0 ? (int)n : 0;
}

// The child's last word: a failure, or the end of the line, which closed on exec.
static int await(struct start *s)
{
    struct enter_failure failure;
    ssize_t n = recv(s->line, &failure, sizeof failure, 0);
    if (n == 0)
        return 0;
    if (n != (ssize_t)sizeof failure || failure.error >= 0)
        return failed(s, n < 0 ? -errno : -EPROTO, "waiting for the sandbox to build itself");
    return failed(s, failure.error, enter_step_text(failure.step));
}

static int build(struct start *s)
{
    int r = hear_entered(s);
    if (r < 0)
        return failed(s, r, enter_step_text(ENTER_CGROUPS));
    cleanup_fd int userns = -1;
    r = map_ids(s->pid, &userns);
    if (r < 0)
        return failed(s, r, "mapping user ids");
    r = set_limits(s);
    if (r < 0)
        return failed(s, r, "setting the limits");
    if (s->options->line.kind != 0 && (r = machine_move_line(s->pid)) < 0)
        return failed(s, r, "moving the network device into the sandbox");
    cleanup_fd int root = machine_map_mount(s->disk, "", userns), volume = -1;
    if (root < 0)
        return failed(s, root, "id-mapping the disk");
    if (s->volume >= 0 && (volume = machine_map_mount(s->volume, MACHINE_VOLUME_DIR, userns)) < 0)
        return failed(s, volume, "id-mapping the volume");
    r = send_order(s, root, volume);
    return r < 0 ? failed(s, r, "passing descriptors") : await(s);
}

int machine_start_sandbox(const struct machine_options *options, int disk, int volume, int agent,
                          struct machine_sandbox *ret_sandbox, const char **ret_step)
{
    struct start s = {.options = options, .disk = disk, .volume = volume, .agent = agent, .step = "making cgroups"};
    int control[2], line[2];
    int r = make_groups(&s);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
        r = -errno;
    if (r < 0) {
        *ret_step = s.step;
        return r;
    }
    cleanup_fd int ours = control[0], theirs = control[1], pidfd = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) < 0)
        return -errno;
    cleanup_fd int near = line[0], far = line[1];
    s.line = near;
    s.control = theirs;
    r = start_child(&s, far, &pidfd);
    close_fd(&far);
    r = r < 0 ? failed(&s, r, "starting a process in new namespaces") : build(&s);
    *ret_step = s.step;
    if (r < 0)
        return r;
    *ret_sandbox = (struct machine_sandbox){
        .control = take_fd(&ours), .pidfd = take_fd(&pidfd), .pid = s.pid, .volume = volume, .group = s.group};
    return 0;
}

// The first process of its pid namespace takes all others with it, and has ended only when they have.
void machine_end_sandbox(int pidfd)
{
    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    poll(&ended, 1, END_WAIT_MS);
}
