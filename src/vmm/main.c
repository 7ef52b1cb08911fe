// sandbox-vmm: one microVM, one process.  Builds the machine from descriptors it was handed, gives up every system call it does
// not need, runs the guest, and ends with it.
#include "base/cleanup.h"
#include "base/err.h"
#include "base/json_out.h"
#include "base/log.h"
#include "sys/host_identity.h"
#include "vmm/boot/load.h"
#include "vmm/control.h"
#include "vmm/devices.h"
#include "vmm/filter.h"
#include "vmm/machine.h"
#include "vmm/options.h"
#include "vmm/probe.h"
#include "vmm/snapshot/pages.h"
#include "vmm/snapshot/restore.h"
#include "vmm/snapshot/save.h"
#include "vmm/snapshot/working_set.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { EXIT_ENDED = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };
#define MIB (UINT64_C(1) << 20)

// Nothing of it is freed: the end of the process is quicker, and the guest may still be running then.
struct program {
    struct options options;
    struct loop *loop;
    struct guest_memory *memory;
    struct devices *devices;
    struct machine *machine;
    struct control *control;
    struct sock_fprog devices_filter;
    struct sock_fprog vcpu_filter;
    struct host_identity host;
    struct snapshot snapshot;  // that it begins with, if it does
    int pagemap;               // or -1
};

// ---- what the control line asks for ----

static int resize_disk(void *arg, uint64_t bytes)
{
    struct program *p = arg;
    return devices_resize_disk(p->devices, bytes);
}

static int write_snapshot(void *arg, enum vmm_snapshot what, const int *fds, size_t count, struct err *err)
{
    struct program *p = arg;
    if (p->pagemap < 0)
        return err_set(err, -ENOTSUP, "this monitor was given no --proc, without which it writes no snapshot");
    if (p->options.volume >= 0)
        return err_set(err, -ENOTSUP,
                       "a machine with a volume is not saved: others will have written to it before a clone does");
    if (p->options.net >= 0)
        return err_set(err, -ENOTSUP, "a machine with a line is not saved: its clones would have its addresses");
    if ((count == VMM_REQUEST_FDS_MAX) != (p->options.delta >= 0))
        return err_set(err, -EINVAL, "a snapshot of this machine needs %s file for its disk",
                       p->options.delta >= 0 ? "a third" : "no third");
    const struct save_source source = {
        .machine = p->machine,
        .devices = p->devices,
        .memory = p->memory,
        .vcpus = p->options.vcpus,
        .pagemap = p->pagemap,
        .host = &p->host,
    };
    const struct save_files files = {.state = fds[0],
                                     .memory = fds[1],
                                     .delta = p->options.delta >= 0 ? fds[2] : -1,
                                     .written = what == VMM_SNAPSHOT_WRITTEN};
    return save_machine(&source, &files, err);
}

static int record_working_set(void *arg, int fd)
{
    struct program *p = arg;
    return p->pagemap < 0 ? -ENOTSUP : working_set_record(p->memory, p->pagemap, fd);
}

static int count_pages(void *arg, struct vmm_stats *stats)
{
    struct program *p = arg;
    struct page_counts counts = {0};
    int r = p->pagemap < 0 ? 0 : pages_count(p->memory, p->pagemap, &counts);
    stats->pages_present = counts.present;
    stats->pages_own = counts.own;
    return r;
}

static const struct control_handler control_handler = {
    .resize = resize_disk, .snapshot = write_snapshot, .record_working_set = record_working_set, .count_pages = count_pages};

// ---- building ----

static bool is_restored(const struct program *p)
{
    return p->options.state >= 0;
}

// The only path this program ever opens; the folder is closed at once.
static int open_pagemap(struct program *p)
{
    p->pagemap = -1;
    if (p->options.proc < 0)
        return 0;
    p->pagemap = openat(p->options.proc, "self/pagemap", O_RDONLY | O_CLOEXEC);
    int r = p->pagemap < 0 ? -errno : 0;
    close_fd(&p->options.proc);
    return r;
}

static int make_parts(struct program *p, struct err *err)
{
    int r = loop_new(&p->loop);
    if (r == 0)
        r = open_pagemap(p);
    if (r == 0)
        r = host_identity_get(&p->host);
    if (r == 0)
        r = filter_compile(FILTER_DEVICES, &p->devices_filter);
    if (r == 0)
        r = filter_compile(FILTER_VCPU, &p->vcpu_filter);
    return r < 0 ? err_set(err, r, "cannot start: %s", strerror(-r)) : 0;
}

static int check_shape(const struct program *p, struct err *err)
{
    const struct snapshot_shape *s = &p->snapshot.shape;
    if (s->memory_bytes != p->options.memory_mib * MIB || s->vcpus != p->options.vcpus)
        return err_set(err, -EBADMSG, "the snapshot is of a machine with %llu MiB and %u vCPUs, not %llu and %u",
                       (unsigned long long)(s->memory_bytes / MIB), s->vcpus, (unsigned long long)p->options.memory_mib,
                       p->options.vcpus);
    return 0;
}

static int make_memory(struct program *p, struct err *err)
{
    uint64_t bytes = p->options.memory_mib * MIB;
    if (!is_restored(p)) {
        int r = guest_memory_new(bytes, &p->memory);
        return r < 0 ? err_set(err, r, "cannot make the guest's memory: %s", strerror(-r)) : 0;
    }
    int r = restore_read(p->options.state, &p->host, &p->snapshot, err);
    if (r == 0)
        r = check_shape(p, err);
    if (r == 0 && (r = guest_memory_map(bytes, p->options.memory, &p->memory)) < 0)
        err_set(err, r, "the snapshot's memory cannot be used: %s",
                r == -EBADMSG ? "it does not have the machine's size, or is not sealed" : strerror(-r));
    if (r == 0 && p->options.working_set >= 0) {
        struct err why;
        r = working_set_prefetch(p->memory, p->options.working_set, &why);
        if (r < 0)
            err_set(err, r, "the snapshot's working set cannot be used: %s", why.text);
    }
    return r;
}

static int load(struct program *p, struct machine_config *config, struct err *err)
{
    if (is_restored(p)) {
        config->state = &p->snapshot.machine;
        return 0;
    }
    const struct boot_image image = {
        .kernel = p->options.kernel,
        .initramfs = p->options.initramfs,
        .cmdline = p->options.cmdline,
        .vcpus = p->options.vcpus,
        .virtio = (unsigned)config->device_count,
    };
    return boot_load(&image, p->memory, &config->entry, err);
}

static int make_machine(struct program *p, struct err *err)
{
    struct machine_config config = {
        .ops = &kvm_ops_kernel,
        .kvm = p->options.kvm,
        .memory = p->memory,
        .vcpus = p->options.vcpus,
        .vcpu_filter = &p->vcpu_filter,
    };
    int r = devices_new(p->loop, p->memory, &p->options, &p->devices, err);
    if (r < 0)
        return r;
    config.devices = devices_list(p->devices, &config.device_count);
    r = load(p, &config, err);
    if (r == 0)
        r = machine_new(&config, &p->machine, err);
    // Only now: they interrupt the guest, which needs its interrupt chips for that.
    return r == 0 && is_restored(p) ? devices_restore(p->devices, &p->snapshot.devices, err) : r;
}

// What the machine was made from is in its memory now; nobody who takes over this process needs the files.
static void drop_sources(struct program *p)
{
    int *const fds[] = {&p->options.kernel, &p->options.initramfs, &p->options.state, &p->options.memory,
                        &p->options.working_set};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        close_fd(fds[i]);
}

static int start(struct program *p, struct err *err)
{
    drop_sources(p);
    const struct control_config config = {.loop = p->loop,
                                          .channel = p->options.control,
                                          .machine = p->machine,
                                          .waits = p->options.waits,
                                          .handler = &control_handler,
                                          .arg = p};
    int r = control_new(&config, &p->control);
    if (r == 0)
        r = filter_install(&p->devices_filter, FILTER_ALL_THREADS);
    if (r < 0)
        return err_set(err, r, "cannot start the guest: %s", strerror(-r));
    return control_start(p->control, err);
}

static int run(struct program *p)
{
    struct err err = {0};
    signal(SIGPIPE, SIG_IGN);
    int r = make_parts(p, &err);
    prctl(PR_SET_DUMPABLE, 0);  // the guest's memory is nobody else's business; what is in /proc is root's from here on
    if (r == 0)
        r = make_memory(p, &err);
    if (r == 0)
        r = make_machine(p, &err);
    if (r == 0)
        r = start(p, &err);
    if (r < 0) {
        fprintf(stderr, "sandbox-vmm: %s\n", err.text);
        control_say_failed(p->options.control, err.text);
        return EXIT_FAILED;
    }
    return loop_run(p->loop) < 0 ? EXIT_FAILED : EXIT_ENDED;
}

static int probe(int kvm)
{
    enum { LINE_MAX_BYTES = 4096 };
    struct probe_result result;
    probe_run(&kvm_ops_kernel, kvm, &result);
    cleanup_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
    struct json_out j = JSON_OUT_INIT(&line);
    json_open(&j, NULL, '{');
    json_bool(&j, "works", result.works);
    json_bool(&j, "nested_paging", result.nested_paging);
    json_str(&j, "reason", result.works ? NULL : result.detail);
    json_close(&j, '}');
    puts(buf_text(&line));
    return result.works ? EXIT_ENDED : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    static struct program program;
    log_init("sandbox-vmm", LOG_LEVEL_INFO);
    switch (options_parse(argc, argv, &program.options)) {
    case OPTIONS_DONE:
        return 0;
    case OPTIONS_BAD:
        return EXIT_USAGE;
    case OPTIONS_RUN:
    default:
        break;
    }
    int code = program.options.probe ? probe(program.options.kvm) : run(&program);
    fflush(NULL);
    _exit(code);
}
