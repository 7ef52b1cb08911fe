#include "jailer/probe.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json_out.h"
#include "jailer/sandbox.h"
#include "sys/mount_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROBE_MEMORY_MIB = 64, PROBE_PIDS = 32, PROBE_WAIT_MS = 10000 };

struct probe {
    struct loop *loop;
    struct sandbox *sandbox;
    bool timed_out;
    int wait_status;
    int error;  // of the start
    char detail[JAIL_DETAIL_MAX];
};

static void on_started(void *arg, int error, const char *detail)
{
    struct probe *p = arg;
    if (error == 0)
        return;
    p->error = error;
    snprintf(p->detail, sizeof p->detail, "%s", detail);
    loop_stop(p->loop, 0);
}

static void on_gone(void *arg, int wait_status, bool out_of_memory)
{
    (void)out_of_memory;
    struct probe *p = arg;
    p->wait_status = wait_status;
    loop_stop(p->loop, 0);
}

static void on_timeout(void *arg)
{
    struct probe *p = arg;
    p->timed_out = true;
    sandbox_kill(p->sandbox);
}

// What the self-test wrote: its first line is enough for a reason.
static void read_reason(int fd, char *detail)
{
    char text[JAIL_DETAIL_MAX];
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n <= 0) {
        snprintf(detail, JAIL_DETAIL_MAX, "the self-test failed without a word");
        return;
    }
    text[n] = '\0';
    text[strcspn(text, "\n")] = '\0';
    snprintf(detail, JAIL_DETAIL_MAX, "%s", text);
}

// Starts what `plan` says and waits for its end.  0 if that was a good one; else why, in `detail`.
static int run_plan(struct host *host, const struct sandbox_plan *plan, struct probe *p, char *detail)
{
    *p = (struct probe){.loop = host->loop};
    static const struct sandbox_handler handler = {.on_started = on_started, .on_gone = on_gone};
    int r = sandbox_start(host, plan, &handler, p, &p->sandbox, detail);
    if (r < 0)
        return r;
    struct timer timeout;
    timer_init(&timeout, on_timeout, p);
    timer_set(host->loop, &timeout, mono_ns() + PROBE_WAIT_MS * NS_PER_MS);
    loop_run(host->loop);
    timer_cancel(host->loop, &timeout);
    if (p->error < 0) {
        memcpy(detail, p->detail, JAIL_DETAIL_MAX);
        return p->error;
    }
    return WIFEXITED(p->wait_status) && WEXITSTATUS(p->wait_status) == 0 ? 0 : -EPERM;
}

static const struct jail_start probe_start = {.vcpus = 1,
                                              .memory_mib = PROBE_MEMORY_MIB,
                                              .disk_mib = JAIL_DISK_MIB_MIN,
                                              .pids_max = PROBE_PIDS,
                                              .hostname = "sandbox-probe"};

static int run_container(struct host *host, int template_mount, char *detail)
{
    int log[2], control[2];
    if (pipe2(log, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    cleanup_fd int log_read = log[0], log_write = log[1];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) < 0)
        return -errno;
    cleanup_fd int ours = control[0], theirs = control[1];
    struct sandbox_plan plan = {
        .start = &probe_start, .template_mount = template_mount, .control_fd = theirs, .log_fd = log_write, .self_test = true};
    struct probe p;
    int r = run_plan(host, &plan, &p, detail);
    if (r != -EPERM || p.error < 0)
        return r;
    if (p.timed_out)
        snprintf(detail, JAIL_DETAIL_MAX, "the self-test did not end within %d ms", PROBE_WAIT_MS);
    else
        read_reason(log_read, detail);
    return r;
}

// What the monitor says is one line of JSON, of which the sentence is wanted; nothing in it is believed but as text.
static void read_verdict(int fd, char *detail)
{
    static const char key[] = "\"reason\":\"";
    char text[512];
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    char *reason = strstr(text, key);
    if (reason == NULL) {
        snprintf(detail, JAIL_DETAIL_MAX, "the monitor ended without a word");
        return;
    }
    reason += sizeof key - 1;
    reason[strcspn(reason, "\"\n")] = '\0';
    for (char *c = reason; *c != '\0'; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    snprintf(detail, JAIL_DETAIL_MAX, "%.*s", JAIL_DETAIL_MAX - 1, reason);
}

static int run_vm(struct host *host, int unused, char *detail)
{
    (void)unused;
    int log[2];
    if (pipe2(log, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    cleanup_fd int log_read = log[0], log_write = log[1];
    struct vm_plan vm = VM_PLAN_INIT;
    vm.probe = true;
    vm.log = log_write;
    const struct sandbox_plan plan = {.start = &probe_start, .template_mount = -1, .control_fd = -1, .log_fd = -1, .vm = &vm};
    struct probe p;
    int r = run_plan(host, &plan, &p, detail);
    if (r != -EPERM || p.error < 0)
        return r;
    if (p.timed_out)
        snprintf(detail, JAIL_DETAIL_MAX, "the trial of KVM did not end within %d ms", PROBE_WAIT_MS);
    else
        read_verdict(log_read, detail);
    return r;
}

// The throwaway sandbox lives and ends on a loop of its own: this may be called from a callback of the host's.
static int run_apart(struct host *host, int (*run)(struct host *host, int template_mount, char *detail), int template_mount,
                     char *detail)
{
    struct loop *outer = host->loop;
    int r = loop_new(&host->loop);
    if (r == 0) {
        r = run(host, template_mount, detail);
        loop_free(host->loop);
    }
    host->loop = outer;
    return r;
}

int probe_container(struct host *host, char detail[JAIL_DETAIL_MAX])
{
    detail[0] = '\0';
    cleanup_fd int blank = -1;
    int r = disk_blank(host->disks, DISK_SCRATCH, JAIL_DISK_MIB_MIN, &blank);
    if (r < 0) {
        snprintf(detail, JAIL_DETAIL_MAX, "formatting a disk with mkfs.ext4: %s", strerror(-r));
        return r;
    }
    cleanup_fd int mount = -1;
    r = disk_mount_image(blank, &mount);
    if (r == 0 && mkdirat(host->mounts_fd, "probe", 0700) < 0 && errno != EEXIST)
        r = -errno;
    if (r == 0)
        r = mount_attach_at(mount, host->mounts_fd, "probe");
    if (r < 0) {
        snprintf(detail, JAIL_DETAIL_MAX, "mounting an ext4 image on a loop device: %s", strerror(-r));
        return r;
    }
    r = run_apart(host, run_container, mount, detail);
    if (r < 0 && detail[0] == '\0')
        snprintf(detail, JAIL_DETAIL_MAX, "%s", strerror(-r));
    mount_detach(mount);
    return r;
}

int probe_vm(struct host *host, char detail[JAIL_DETAIL_MAX])
{
    detail[0] = '\0';
    if (host->vmm_fd < 0) {
        snprintf(detail, JAIL_DETAIL_MAX, "there is no microVM monitor: install sandbox-vmm, or name it with --vmm");
        return -ENOENT;
    }
    cleanup_fd int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0) {
        int r = -errno;
        snprintf(detail, JAIL_DETAIL_MAX, r == -ENOENT ? "this host has no /dev/kvm" : "/dev/kvm cannot be opened: %s",
                 strerror(-r));
        return r;
    }
    int r = run_apart(host, run_vm, -1, detail);
    if (r < 0 && detail[0] == '\0')
        snprintf(detail, JAIL_DETAIL_MAX, "%s", strerror(-r));
    return r;
}

static void put_tier(struct json_out *j, const char *name, const char *reason, const char *fix)
{
    json_open(j, NULL, '{');
    json_str(j, "name", name);
    json_bool(j, "available", reason == NULL);
    json_str(j, "reason", reason);
    json_str(j, "fix", reason == NULL ? NULL : fix);
    json_close(j, '}');
}

// As the engine says it.
#define NOT_BUILT "this version of sandbox-engine has no driver for it"

#define VM_FIX                                                                                                                 \
    "needs a processor with hardware virtualization (VT-x or AMD-V) and its KVM module, or a machine of a provider that "      \
    "passes "                                                                                                                  \
    "it on (nested virtualization), and /dev/kvm"

static int print_report(const char *container_reason, const char *vm_reason)
{
    cleanup_buf struct buf out = BUF_INIT(8192);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_open(&j, "tiers", '[');
    put_tier(&j, "vm", vm_reason, VM_FIX);
    put_tier(&j, "kernel", NOT_BUILT, "use the container tier");
    put_tier(&j, "container", container_reason,
             "needs Linux 6.1 or newer with user namespaces, overlayfs, loop devices, seccomp, and the memory, pids and cpu "
             "cgroup controllers");
    put_tier(&j, "process", NOT_BUILT, "use the container tier");
    json_close(&j, ']');
    json_close(&j, '}');
    puts(buf_text(&out));
    return container_reason == NULL ? 0 : 1;
}

int probe_report(const struct host_options *options)
{
    struct loop *loop = NULL;
    struct host *host = NULL;
    const char *why = "memory";
    char container[JAIL_DETAIL_MAX + 128], vm[JAIL_DETAIL_MAX] = "";
    int r = loop_new(&loop), vm_result = -EIO;
    if (r == 0)
        r = host_open(loop, options, &host, &why);
    if (r < 0) {
        snprintf(container, sizeof container, "%s: %s", why, strerror(-r));
        snprintf(vm, sizeof vm, "%.*s", JAIL_DETAIL_MAX - 1, container);
    } else {
        char detail[JAIL_DETAIL_MAX];
        r = probe_container(host, detail);
        snprintf(container, sizeof container, "%s", detail);
        vm_result = probe_vm(host, vm);
    }
    host_close(host);
    loop_free(loop);
    return print_report(r < 0 ? container : NULL, vm_result < 0 ? vm : NULL);
}
