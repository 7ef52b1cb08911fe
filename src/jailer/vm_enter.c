#include "jailer/vm_enter.h"

#include "base/cleanup.h"
#include "enter/privileges.h"
#include "enter/steps.h"
#include "sys/fdpass.h"
#include "sys/mount_fd.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// <sys/mount.h> and <linux/mount.h> cannot be included together; these are the calls and flags needed of the former.
extern int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
extern int umount2(const char *target, int flags);

enum { MS_REC_ = 16384, MS_PRIVATE_ = 1 << 18, MNT_DETACH_ = 2, OPEN_FILES = 1024, ARG_ROOM = 24, ARGS_MAX = 56 };

static const char *const step_texts[VM_STEPS] = {
    [VM_CGROUPS] = "entering the cgroups",       [VM_LINE] = "letting go of the jailer's descriptors",
    [VM_ORDER] = "receiving the jailer's order", [VM_IDS] = "taking on the sandbox's ids",
    [VM_LIMITS] = "setting resource limits",     [VM_DESCRIPTORS] = "arranging descriptors",
    [VM_ROOT] = "moving into an empty root",     [VM_PRIVILEGES] = "dropping capabilities",
    [VM_EXEC] = "starting the monitor",
};

const char *vm_step_text(uint32_t step)
{
    return step < VM_STEPS ? step_texts[step] : "an unknown step";
}

struct entry {
    int line;
    const struct cgroup_entry *groups;
    struct vm_order order;
    int fds[FDPASS_MAX];
    int proc;  // this host's /proc, in which the monitor finds its own page map when it starts; it opens nothing afterwards
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
    size_t count = FDPASS_MAX;
    ssize_t n = fdpass_recv(e->line, &e->order, sizeof e->order, e->fds, &count);
    if (n < 0)
        return (int)n;
    return n == (ssize_t)sizeof e->order && count == vm_order_fds(&e->order) ? 0 : -EPROTO;
}

static int take_ids(struct entry *e)
{
    (void)e;
    return enter_take_ids();
}

static int set_limits(struct entry *e)
{
    // Its disk and its volume; and, for a snapshot, its memory.
    uint64_t largest = e->order.disk_mib > e->order.volume_mib ? e->order.disk_mib : e->order.volume_mib;
    // With its list of pages: wire/page_delta.h.
    uint64_t memory = e->order.ram_mib + e->order.ram_mib / 32768 + 1;
    largest = largest > memory ? largest : memory;
    const rlim_t file = largest << 20;
    const struct {
        int what;
        rlim_t value;
    } limits[] = {
        {RLIMIT_CORE, 1},  // as in enter/enter.c
        {RLIMIT_NOFILE, OPEN_FILES},
        {RLIMIT_FSIZE, file},
        {RLIMIT_MEMLOCK, 0},
        {RLIMIT_MSGQUEUE, 0},
        {RLIMIT_NICE, 0},
        {RLIMIT_RTPRIO, 0},
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit now, want = {limits[i].value, limits[i].value};
        if (getrlimit(limits[i].what, &now) < 0)
            return -errno;
        if (want.rlim_max > now.rlim_max)
            want.rlim_max = want.rlim_cur = now.rlim_max;
        if (setrlimit(limits[i].what, &want) < 0)
            return -errno;
    }
    return 0;
}

static int open_proc(struct entry *e)
{
    e->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return e->proc < 0 ? -errno : 0;
}

// From ENTER_FIRST_KEPT on: KVM; then, but for a probe, the rest in the order's own order, and the folder of /proc.
static int arrange(struct entry *e)
{
    int r = e->order.probe ? 0 : open_proc(e);
    if (r < 0)
        return r;
    int places[2 + VM_FDS] = {e->fds[VM_FD_KVM]};
    unsigned count = 1;
    for (unsigned i = VM_FD_BEGIN; i < vm_order_fds(&e->order); i++)
        places[count++] = e->fds[i];
    if (!e->order.probe)
        places[count++] = e->proc;
    int *const kept[] = {&e->line, &e->fds[VM_FD_PROGRAM]};
    return enter_arrange(places, count, e->order.probe ? e->fds[VM_FD_LOG] : -1, -1, kept);
}

static int enter_root(struct entry *e)
{
    (void)e;
    if (mount(NULL, "/", NULL, MS_REC_ | MS_PRIVATE_, NULL) < 0)
        return -errno;
    static const struct mount_option options[] = {{"size", "4k"}, {"mode", "0555"}, {0}};
    cleanup_fd int fs =
        mount_new("tmpfs", options, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (fs < 0)
        return fs;
    int r = mount_attach_at(fs, AT_FDCWD, "/tmp");
    if (r < 0)
        return r;
    if (chdir("/tmp") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH_) < 0 || chdir("/") < 0)
        return -errno;
    return 0;
}

static int drop(struct entry *e)
{
    int r = privileges_drop_all();
    return r < 0 ? r : enter_bind_to_parent(e->line);
}

// The next argument, as a number.
static void put(char *argv[], char numbers[][ARG_ROOM], size_t *n, const char *option, uint64_t value)
{
    snprintf(numbers[*n], ARG_ROOM, "%llu", (unsigned long long)value);
    argv[*n] = (char *)option;
    argv[*n + 1] = numbers[*n];
    *n += 2;
}

static int exec_monitor(struct entry *e)
{
    // In the order of the descriptors; NULL: what is there is not for this machine.
    const char *const options[VM_FDS - VM_FD_BEGIN] = {
        e->order.clone ? "--state" : "--kernel",
        e->order.clone ? "--memory" : "--initramfs",
        e->order.clone ? "--layer" : NULL,
        e->order.working_set ? "--working-set" : NULL,
        "--disk",
        "--delta",
        "--control",
        "--vsock",
        "--vsock-out",
        e->order.net ? "--net" : NULL,
        "--volume",
    };
    char *argv[ARGS_MAX + 2] = {(char *)"sandbox-vmm"};
    char numbers[ARGS_MAX][ARG_ROOM];
    size_t n = 1;
    put(argv, numbers, &n, "--kvm", ENTER_FIRST_KEPT);
    if (e->order.probe) {
        argv[n++] = (char *)"--probe";
    } else {
        unsigned given = (unsigned)vm_order_fds(&e->order) - VM_FD_BEGIN;
        for (unsigned i = 0; i < given; i++)
            if (options[i] != NULL)
                put(argv, numbers, &n, options[i], ENTER_FIRST_KEPT + 1 + i);
            else
                close((int)(ENTER_FIRST_KEPT + 1 + i));
        put(argv, numbers, &n, "--proc", ENTER_FIRST_KEPT + 1 + given);
        put(argv, numbers, &n, "--vsock-port", AGENT_VSOCK_PORT);
        put(argv, numbers, &n, "--vsock-port", HOST_API_VSOCK_PORT);
        put(argv, numbers, &n, "--memory-mib", e->order.ram_mib);
        put(argv, numbers, &n, "--vcpus", e->order.vcpus);
        put(argv, numbers, &n, "--disk-mib", e->order.disk_mib);
        if (e->order.disk_mib_s > 0)
            put(argv, numbers, &n, "--disk-mib-s", e->order.disk_mib_s);
        if (e->order.disk_iops > 0)
            put(argv, numbers, &n, "--disk-iops", e->order.disk_iops);
        argv[n++] = (char *)"--spare";
        if (e->order.waits)
            argv[n++] = (char *)"--wait";
        if (!e->order.clone) {
            argv[n++] = (char *)"--cmdline";
            argv[n++] = e->order.cmdline;
        }
    }
    argv[n] = NULL;
    char *env[] = {NULL};
    syscall(SYS_execveat, e->fds[VM_FD_PROGRAM], "", argv, env, AT_EMPTY_PATH);
    return -errno;
}

static int (*const steps[VM_STEPS])(struct entry *e) = {
    [VM_CGROUPS] = join_cgroups, [VM_LINE] = keep_line,    [VM_ORDER] = receive_order,
    [VM_IDS] = take_ids,         [VM_LIMITS] = set_limits, [VM_DESCRIPTORS] = arrange,
    [VM_ROOT] = enter_root,      [VM_PRIVILEGES] = drop,   [VM_EXEC] = exec_monitor,
};

void vm_enter_main(int line, const struct cgroup_entry *groups)
{
    struct entry e = {.line = line, .groups = groups};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (uint32_t step = 0; step < VM_STEPS; step++) {
        int r = steps[step](&e);
        if (r < 0) {
            struct enter_failure failure = {.step = step, .error = r};
            send(e.line, &failure, sizeof failure, MSG_NOSIGNAL);
            break;
        }
    }
    _exit(1);
}
