#include "enter/enter.h"

#include "base/cleanup.h"
#include "enter/privileges.h"
#include "enter/root.h"
#include "enter/steps.h"
#include "sys/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    OPEN_FILES_SOFT = 1024,
    OPEN_FILES_HARD = 65536,
    SHM_MAX_MIB = 64,
};

_Static_assert(ENTER_FDS + ENTER_GROUPS_MAX + JAIL_LAYERS_MAX <= FDPASS_MAX, "an order fits one packet");

static const char *const step_texts[ENTER_STEPS] = {
    [ENTER_CGROUPS] = "joining the sandbox's cgroups",
    [ENTER_LINE] = "leaving the jailer's descriptors",
    [ENTER_ORDER] = "receiving the jailer's order",
    [ENTER_IDS] = "taking on the sandbox's ids",
    [ENTER_STAGE] = "mounting a scratch filesystem on /tmp",
    [ENTER_TEMPLATE] = "attaching the template and what lies on it",
    [ENTER_DISK] = "preparing the writable disk",
    [ENTER_OVERLAY] = "mounting the overlay in the user namespace",
    [ENTER_MOUNT_POINTS] = "finding the template's mount points (real directories, not links)",
    [ENTER_VOLUME] = "attaching the volume to /workspace",
    [ENTER_DEV] = "making /dev",
    [ENTER_PROC] = "mounting /proc",
    [ENTER_SYS] = "mounting /sys",
    [ENTER_PIVOT] = "moving into the new root",
    [ENTER_NAMESPACES] = "forbidding further namespaces",
    [ENTER_NETWORK] = "bringing the network devices up",
    [ENTER_NAME] = "setting the host name",
    [ENTER_LIMITS] = "setting resource limits",
    [ENTER_DESCRIPTORS] = "arranging descriptors",
    [ENTER_PRIVILEGES] = "dropping capabilities",
    [ENTER_SECCOMP] = "installing the system call filter",
    [ENTER_EXEC] = "starting the agent",
};

const char *enter_step_text(enum enter_step step)
{
    return step < ENTER_STEPS ? step_texts[step] : "an unknown step";
}

uint64_t enter_shm_bytes(uint64_t memory_mib)
{
    uint64_t half = memory_mib / 2;
    return (half < SHM_MAX_MIB ? half : SHM_MAX_MIB) << 20;
}

struct entry {
    int line;
    struct enter_order order;
    int fds[FDPASS_MAX];
    size_t fd_count;
    const struct cgroup_entry *groups;
    const struct filter *filter;
};

static int join_cgroups(struct entry *e)
{
    return enter_join_cgroups(e->groups);
}

static int keep_line(struct entry *e)
{
    return enter_keep_line(&e->line);
}

static int receive_order(struct entry *e)
{
    e->fd_count = FDPASS_MAX;
    ssize_t n = fdpass_recv(e->line, &e->order, sizeof e->order, e->fds, &e->fd_count);
    if (n < 0)
        return (int)n;
    if (n != (ssize_t)sizeof e->order || e->order.groups > ENTER_GROUPS_MAX || e->order.layers > JAIL_LAYERS_MAX ||
        e->fd_count != ENTER_FDS + e->order.groups + e->order.layers)
        return -EPROTO;
    return 0;
}

static int take_ids(struct entry *e)
{
    (void)e;
    return enter_take_ids();
}

static int loopback_up(void)
{
    cleanup_fd int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return -errno;
    struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
    strcpy(request.ifr_name, "lo");
    return ioctl(s, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;
}

static int network_up(struct entry *e)
{
    int r = loopback_up();
    if (r < 0 || e->order.line.kind == 0)
        return r;
    r = root_forbid_ipv6(GUEST_LINE_DEVICE);
    return r < 0 ? r : guest_line_up(&e->order.line);
}

static int set_name(struct entry *e)
{
    if (sethostname(e->order.hostname, strnlen(e->order.hostname, JAIL_HOSTNAME_MAX)) < 0 || setdomainname("", 0) < 0)
        return -errno;
    return 0;
}

static int set_limits(struct entry *e)
{
    if (CPU_COUNT(&e->order.cpus) > 0 && sched_setaffinity(0, sizeof e->order.cpus, &e->order.cpus) < 0)
        return -errno;
    static const struct {
        int what;
        struct rlimit limit;
    } limits[] = {
        // Where core_pattern names a program, the host's kernel runs it as the host's root for every crash, with 0 too; 1 is
        // what prevents that (core(5)).  The system call filter keeps it at 1.
        {RLIMIT_CORE, {1, 1}},
        {RLIMIT_NOFILE, {OPEN_FILES_SOFT, OPEN_FILES_HARD}},
        {RLIMIT_NPROC, {RLIM_INFINITY, RLIM_INFINITY}},  // the pids cgroup counts
        {RLIMIT_MEMLOCK, {64 << 10, 64 << 10}},
        {RLIMIT_STACK, {8 << 20, RLIM_INFINITY}},
        {RLIMIT_SIGPENDING, {4096, 4096}},
        {RLIMIT_MSGQUEUE, {800 << 10, 800 << 10}},
        {RLIMIT_NICE, {0, 0}},
        {RLIMIT_RTPRIO, {0, 0}},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit want = limits[i].limit, now;
        if (getrlimit(limits[i].what, &now) < 0)
            return -errno;
        // Raising a hard limit needs a right this child no longer has.
        if (want.rlim_max > now.rlim_max)
            want.rlim_max = now.rlim_max;
        if (want.rlim_cur > want.rlim_max)
            want.rlim_cur = want.rlim_max;
        if (setrlimit(limits[i].what, &want) < 0)
            return -errno;
    }
    return 0;
}

// Final places: 0, 1, 2 = /dev/null (2 = the log for a self-test), 3 = control line, 4... = cgroups.
static int arrange(struct entry *e)
{
    int places[1 + ENTER_GROUPS_MAX] = {e->fds[ENTER_FD_CONTROL]};
    memcpy(places + 1, e->fds + ENTER_FDS, e->order.groups * sizeof places[0]);
    int *const kept[] = {&e->line, &e->fds[ENTER_FD_AGENT]};
    return enter_arrange(places, 1 + e->order.groups, -1, e->order.self_test ? e->fds[ENTER_FD_LOG] : -1, kept);
}

static int drop(struct entry *e)
{
    int r = privileges_drop_inside();
    return r < 0 ? r : enter_bind_to_parent(e->line);
}

static int filter(struct entry *e)
{
    return filter_apply(e->filter);
}

static int exec_agent(struct entry *e)
{
    char group[ENTER_GROUPS_MAX][24];
    char *argv[5 + 2 * ENTER_GROUPS_MAX + 2];
    size_t n = 0;
    argv[n++] = (char *)"sandbox-agent";
    if (e->order.self_test) {
        argv[n++] = (char *)"--self-test";
    } else {
        argv[n++] = (char *)"--control";
        argv[n++] = (char *)"3";
        if (e->order.far)
            argv[n++] = (char *)"--far";
    }
    for (uint32_t i = 0; i < e->order.groups && !e->order.self_test; i++) {
        snprintf(group[i], sizeof group[i], "%.11s=%u", e->order.group_kind[i], ENTER_FIRST_KEPT + 1 + i);
        argv[n++] = (char *)"--group";
        argv[n++] = group[i];
    }
    argv[n] = NULL;
    char *env[] = {NULL};
    syscall(SYS_execveat, e->fds[ENTER_FD_AGENT], "", argv, env, AT_EMPTY_PATH);
    return -errno;
}

static int stage(struct entry *e)
{
    (void)e;
    return root_stage();
}

static int attach_template(struct entry *e)
{
    int mount = e->fds[ENTER_FD_TEMPLATE];
    if (e->order.whole_root)
        return root_attach_whole(mount);
    int r = root_attach_template(mount);
    return r < 0 ? r : root_attach_layers(e->fds + ENTER_FDS + e->order.groups, e->order.layers);
}

static int attach_disk(struct entry *e)
{
    return e->order.whole_root ? 0 : root_attach_disk(e->fds[ENTER_FD_DISK]);
}

static int overlay(struct entry *e)
{
    return e->order.whole_root ? 0 : root_overlay();
}

static int mount_points(struct entry *e)
{
    (void)e;
    return root_mount_points();
}

static int attach_volume(struct entry *e)
{
    return e->order.volume ? root_attach_volume(e->fds[ENTER_FD_VOLUME]) : 0;
}

static int make_dev(struct entry *e)
{
    return root_dev(e->fds[ENTER_FD_DEV], e->order.shm_bytes);
}

static int mount_proc(struct entry *e)
{
    (void)e;
    return root_proc();
}

static int mount_sys(struct entry *e)
{
    (void)e;
    return root_sys();
}

static int pivot(struct entry *e)
{
    (void)e;
    return root_pivot();
}

static int forbid_namespaces(struct entry *e)
{
    (void)e;
    return root_forbid_namespaces();
}

// In this order; each step may rely on those before it and on nothing else.
static int (*const steps[ENTER_STEPS])(struct entry *e) = {
    [ENTER_CGROUPS] = join_cgroups, [ENTER_LINE] = keep_line,  [ENTER_ORDER] = receive_order,
    [ENTER_IDS] = take_ids,         [ENTER_STAGE] = stage,     [ENTER_TEMPLATE] = attach_template,
    [ENTER_DISK] = attach_disk,     [ENTER_OVERLAY] = overlay, [ENTER_MOUNT_POINTS] = mount_points,
    [ENTER_VOLUME] = attach_volume, [ENTER_DEV] = make_dev,    [ENTER_PROC] = mount_proc,
    [ENTER_SYS] = mount_sys,        [ENTER_PIVOT] = pivot,     [ENTER_NAMESPACES] = forbid_namespaces,
    [ENTER_NETWORK] = network_up,   [ENTER_NAME] = set_name,   [ENTER_LIMITS] = set_limits,
    [ENTER_DESCRIPTORS] = arrange,  [ENTER_PRIVILEGES] = drop, [ENTER_SECCOMP] = filter,
    [ENTER_EXEC] = exec_agent,
};

void enter_main(int line, const struct cgroup_entry *groups, const struct filter *filter_program)
{
    struct entry e = {.line = line, .groups = groups, .filter = filter_program};
    // The jailer's handlers and mask are not the agent's.
    sigset_t no_signals;
    sigemptyset(&no_signals);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    for (uint32_t step = 0; step < ENTER_STEPS; step++) {
        int r = steps[step](&e);
        if (r < 0) {
            struct enter_failure failure = {.step = step, .error = r};
            send(e.line, &failure, sizeof failure, MSG_NOSIGNAL);
            _exit(1);
        }
    }
    _exit(1);
}
