// sandbox-vmm: one microVM, one process.  Builds the machine from descriptors it was handed, gives up every system call it does
// not need, runs the guest, and ends with it.
#include "base/err.h"
#include "base/json_out.h"
#include "base/log.h"
#include "vmm/boot/load.h"
#include "vmm/control.h"
#include "vmm/devices.h"
#include "vmm/filter.h"
#include "vmm/machine.h"
#include "vmm/options.h"
#include "vmm/probe.h"

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
};

static int resize_disk(void *arg, uint64_t bytes)
{
    struct program *p = arg;
    return devices_resize_disk(p->devices, bytes);
}

static int make_parts(struct program *p, struct err *err)
{
    int r = loop_new(&p->loop);
    if (r == 0)
        r = guest_memory_new(p->options.memory_mib * MIB, &p->memory);
    if (r == 0)
        r = filter_compile(FILTER_DEVICES, &p->devices_filter);
    if (r == 0)
        r = filter_compile(FILTER_VCPU, &p->vcpu_filter);
    return r < 0 ? err_set(err, r, "cannot start: %s", strerror(-r)) : 0;
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
    const struct boot_image image = {
        .kernel = p->options.kernel,
        .initramfs = p->options.initramfs,
        .cmdline = p->options.cmdline,
        .vcpus = p->options.vcpus,
        .virtio = (unsigned)config.device_count,
    };
    r = boot_load(&image, p->memory, &config.entry, err);
    return r < 0 ? r : machine_new(&config, &p->machine, err);
}

static int start(struct program *p, struct err *err)
{
    const struct control_config config = {
        .loop = p->loop, .channel = p->options.control, .machine = p->machine, .resize = resize_disk, .arg = p};
    int r = control_new(&config, &p->control);
    if (r == 0)
        r = filter_install(&p->devices_filter, FILTER_ALL_THREADS);
    if (r == 0)
        r = control_start(p->control);
    return r < 0 ? err_set(err, r, "cannot start the guest: %s", strerror(-r)) : 0;
}

static int run(struct program *p)
{
    struct err err = {0};
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0);  // the guest's memory is nobody else's business
    int r = make_parts(p, &err);
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
