#include "vmm/probe.h"

#include "base/cleanup.h"
#include "sys/jail.h"
#include "vmm/boot/start.h"
#include "vmm/exit.h"
#include "vmm/kvm/cpuid.h"
#include "vmm/kvm/vcpu.h"
#include "vmm/probe_layout.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert((int)PROBE_DETAIL_MAX <= (int)JAIL_DETAIL_MAX, "the jailer passes what did not work on whole");

extern const uint8_t probe_guest[];
extern const uint64_t probe_guest_bytes;

// What the guest was about to do when it had reported a step.
static const char *const next_of[] = {
    [0] = "start in 64-bit mode and write to a port",
    [PROBE_STEP_PORT] = "read and write device registers in memory",
    [PROBE_STEP_MMIO] = "notify a device through an eventfd",
    [PROBE_STEP_NOTIFY] = "set control and model-specific registers",
    [PROBE_STEP_REGISTERS] = "run vector and bit instructions in kernel mode",
    [PROBE_STEP_INSTRUCTIONS] = "take an exception",
    [PROBE_STEP_EXCEPTION] = "take an interrupt of its local APIC out of HLT",
};

struct probe {
    const struct kvm_ops *ops;
    struct guest_memory *memory;
    struct vm *vm;
    struct vcpu *vcpu;
    int notify_fd;
    unsigned step;
    uint32_t written;  // to the device register
    struct probe_result *result;
};

static struct kvm_run *volatile alarmed_run;

static void on_alarm(int number)
{
    struct kvm_run *run = alarmed_run;
    if (run != NULL)
        run->immediate_exit = 1;
}

static int explain(struct probe *p, int r, const struct kvm_failure *failure)
{
    if (failure->missing != NULL)
        snprintf(p->result->detail, sizeof p->result->detail, "it lacks %s", failure->missing);
    else
        snprintf(p->result->detail, sizeof p->result->detail, "%s failed: %s",
                 failure->call != 0 ? kvm_call_name(failure->call) : "setting up", strerror(-r));
    return r;
}

static int load(struct probe *p)
{
    enum { BYTES = 128 * 1024 * 1024 };
    int r = guest_memory_new(BYTES, &p->memory);
    if (r < 0)
        return r;
    void *to = guest_memory_at(p->memory, gpa(PROBE_CODE), probe_guest_bytes);
    if (to == NULL)
        return -EFAULT;
    memcpy(to, probe_guest, probe_guest_bytes);
    return start_tables_write(p->memory);
}

static int build(struct probe *p, int kvm)
{
    struct kvm_failure failure = {0};
    cleanup_free struct cpuid_table *cpuid = calloc(2, sizeof *cpuid);
    int r = cpuid == NULL ? -ENOMEM : load(p);
    p->notify_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r == 0 && p->notify_fd < 0)
        r = -errno;
    if (r == 0)
        r = vm_new(p->ops, kvm, p->memory, 1, &failure, &p->vm);
    if (r == 0)
        r = vm_supported_cpuid(p->vm, &cpuid[0], &failure);
    if (r == 0)
        r = vcpu_new(p->vm, 0, &failure, &p->vcpu);
    if (r == 0) {
        cpuid_filter(&cpuid[0], 1, 0, &cpuid[1]);
        r = vcpu_prepare(p->vcpu, &cpuid[1], &failure);
    }
    if (r == 0)
        r = vcpu_enter_at(p->vcpu, gpa(PROBE_CODE), &failure);
    if (r == 0)
        r = vm_ioeventfd(p->vm, p->notify_fd, PROBE_MMIO + PROBE_NOTIFY, 0, &failure);
    return r < 0 ? explain(p, r, &failure) : 0;
}

static void on_report(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    ((struct probe *)arg)->step = *(const uint8_t *)data;
}

static void on_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    const uint32_t magic = PROBE_MAGIC;
    memset(data, 0, len);
    if (offset == 0 && len == sizeof magic)
        memcpy(data, &magic, sizeof magic);
}

static void on_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct probe *p = arg;
    if (offset == sizeof p->written && len == sizeof p->written)
        memcpy(&p->written, data, sizeof p->written);
}

// Runs the guest until it is done, gives up, or has had its time.
static int run(struct probe *p)
{
    struct bus ports = {0}, memory = {0};
    const struct bus_range port = {PROBE_PORT, 1, on_read, on_report, p},
                           registers = {PROBE_MMIO, 0x1000, on_read, on_write, p};
    bus_add(&ports, &port);
    bus_add(&memory, &registers);
    struct exit_counters counters = {0};
    struct exit_end end = {.reason = VMM_REASON_NONE};
    for (unsigned i = 0; i < PROBE_EXITS_MAX && p->step < PROBE_STEP_DONE; i++) {
        int r = vcpu_run(p->vcpu);
        if (r == -EAGAIN)
            continue;
        if (r == -EINTR)
            break;
        if (r < 0)
            exit_run_failed(r, &end);
        else
            exit_handle(vcpu_exit(p->vcpu), &ports, &memory, &counters, &end);
        if (end.reason != VMM_REASON_NONE)
            break;
    }
    uint64_t count = 0;
    bool notified = read(p->notify_fd, &count, sizeof count) == sizeof count && count == 1;
    if (p->step == PROBE_STEP_DONE && notified && p->written == PROBE_MAGIC)
        return 0;
    if (p->step < PROBE_STEP_DONE)
        snprintf(p->result->detail, sizeof p->result->detail, "a guest could not %s (%s)", next_of[p->step],
                 end.reason != VMM_REASON_NONE ? end.detail : "it did not get there in its time");
    else
        snprintf(p->result->detail, sizeof p->result->detail, "a guest ran, but its results were wrong");
    return -EIO;
}

void probe_run(const struct kvm_ops *ops, int kvm, struct probe_result *ret_result)
{
    *ret_result = (struct probe_result){0};
    struct probe p = {.ops = ops, .notify_fd = -1, .result = ret_result};
    if (build(&p, kvm) == 0) {
        // KVM lets a guest have fewer physical address bits than the host only where it shadows the guest's page tables.
        ret_result->nested_paging = kvm_call_number(ops, kvm, KVM_CHECK_EXTENSION, KVM_CAP_SMALLER_MAXPHYADDR) <= 0;
        struct sigaction action = {.sa_handler = on_alarm}, before;
        alarmed_run = vcpu_exit(p.vcpu);
        sigaction(SIGALRM, &action, &before);
        alarm(PROBE_SECONDS_MAX);
        ret_result->works = run(&p) == 0;
        alarm(0);
        alarmed_run = NULL;
        sigaction(SIGALRM, &before, NULL);
    }
    vcpu_free(p.vcpu);
    vm_free(p.vm);
    guest_memory_free(p.memory);
    close_fd(&p.notify_fd);
}
