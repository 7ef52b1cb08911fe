// The calls of KVM that a clone of a machine needs, alone: what no monitor can be faster than on this host.
//     kvm-sum [MIB [ROUNDS]]     prints one JSON object; times in microseconds, medians over the rounds
//
// A machine with one vCPU, MIB of memory mapped privately from a sealed memfd, interrupt chips, the state of a vCPU that was
// asked for once, the clock, and eventfds for as many devices as a sandbox's machine has; then it is closed, which is timed
// apart. The guest is never run.  No tests: it asserts nothing about time.
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 5, QUEUES = 2, FIRST_GSI = 5, CPUID_MAX = 256, MSRS_MAX = 512, ROUNDS_MAX = 10000 };
enum { TSS = 0xfffbd000U, DEVICE_AT = 0xd0000000U, DEVICE_BYTES = 0x1000, NOTIFY = 0x50 };

enum part { CREATE, MEMORY, CHIPS, VCPU, STATE, EVENTS, PARTS };
static const char *const names[PARTS] = {"create_vm", "memory", "irqchip", "vcpu_and_cpuid", "state", "eventfds"};

static void need(int r, const char *what)
{
    if (r >= 0)
        return;
    fprintf(stderr, "kvm-sum: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

struct saved {
    struct kvm_mp_state mp;
    struct kvm_regs regs;
    struct kvm_sregs sregs;
    struct kvm_xsave xsave;
    struct kvm_xcrs xcrs;
    struct kvm_debugregs debug;
    struct kvm_lapic_state lapic;
    struct kvm_vcpu_events events;
    struct kvm_clock_data clock;
    struct kvm_irqchip chip[3];
    bool has_xsave, has_xcrs, taken;
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entry[MSRS_MAX];
    } msrs;
};

static int kvm, memfd, run_bytes;
static size_t bytes;
static struct saved saved;
static struct {
    struct kvm_cpuid2 head;
    struct kvm_cpuid_entry2 entry[CPUID_MAX];
} cpuid;

// What this KVM lets be read and set again, one by one.
static void probe_msrs(int vcpu)
{
    struct {
        struct kvm_msr_list head;
        uint32_t index[MSRS_MAX];
    } list = {.head.nmsrs = MSRS_MAX};
    need(ioctl(kvm, KVM_GET_MSR_INDEX_LIST, &list), "KVM_GET_MSR_INDEX_LIST");
    for (uint32_t i = 0; i < list.head.nmsrs; i++) {
        struct {
            struct kvm_msrs head;
            struct kvm_msr_entry entry;
        } one = {.head.nmsrs = 1, .entry.index = list.head.indices[i]};
        if (ioctl(vcpu, KVM_GET_MSRS, &one) == 1 && ioctl(vcpu, KVM_SET_MSRS, &one) == 1)
            saved.msrs.entry[saved.msrs.head.nmsrs++] = one.entry;
    }
}

static void take_state(int vm, int vcpu)
{
    need(ioctl(vcpu, KVM_GET_MP_STATE, &saved.mp), "KVM_GET_MP_STATE");
    need(ioctl(vcpu, KVM_GET_REGS, &saved.regs), "KVM_GET_REGS");
    need(ioctl(vcpu, KVM_GET_SREGS, &saved.sregs), "KVM_GET_SREGS");
    saved.has_xsave = ioctl(vcpu, KVM_GET_XSAVE, &saved.xsave) == 0;
    saved.has_xcrs = ioctl(vcpu, KVM_GET_XCRS, &saved.xcrs) == 0 && saved.xcrs.nr_xcrs > 0;
    need(ioctl(vcpu, KVM_GET_DEBUGREGS, &saved.debug), "KVM_GET_DEBUGREGS");
    need(ioctl(vcpu, KVM_GET_LAPIC, &saved.lapic), "KVM_GET_LAPIC");
    probe_msrs(vcpu);
    need(ioctl(vcpu, KVM_GET_VCPU_EVENTS, &saved.events), "KVM_GET_VCPU_EVENTS");
    need(ioctl(vm, KVM_GET_CLOCK, &saved.clock), "KVM_GET_CLOCK");
    for (uint32_t i = 0; i < 3; i++) {
        saved.chip[i].chip_id = i;
        need(ioctl(vm, KVM_GET_IRQCHIP, &saved.chip[i]), "KVM_GET_IRQCHIP");
    }
    saved.clock.flags = 0;
    saved.taken = true;
}

static void set_state(int vm, int vcpu)
{
    need(ioctl(vcpu, KVM_SET_MP_STATE, &saved.mp), "KVM_SET_MP_STATE");
    need(ioctl(vcpu, KVM_SET_REGS, &saved.regs), "KVM_SET_REGS");
    need(ioctl(vcpu, KVM_SET_SREGS, &saved.sregs), "KVM_SET_SREGS");
    if (saved.has_xsave)
        need(ioctl(vcpu, KVM_SET_XSAVE, &saved.xsave), "KVM_SET_XSAVE");
    if (saved.has_xcrs)
        need(ioctl(vcpu, KVM_SET_XCRS, &saved.xcrs), "KVM_SET_XCRS");
    need(ioctl(vcpu, KVM_SET_DEBUGREGS, &saved.debug), "KVM_SET_DEBUGREGS");
    need(ioctl(vcpu, KVM_SET_LAPIC, &saved.lapic), "KVM_SET_LAPIC");
    need(ioctl(vcpu, KVM_SET_MSRS, &saved.msrs), "KVM_SET_MSRS");
    need(ioctl(vcpu, KVM_SET_VCPU_EVENTS, &saved.events), "KVM_SET_VCPU_EVENTS");
    need(ioctl(vm, KVM_SET_CLOCK, &saved.clock), "KVM_SET_CLOCK");
    for (uint32_t i = 0; i < 3; i++)
        need(ioctl(vm, KVM_SET_IRQCHIP, &saved.chip[i]), "KVM_SET_IRQCHIP");
}

static unsigned set_events(int vm, int *fds)
{
    unsigned n = 0;
    for (unsigned d = 0; d < DEVICES; d++) {
        need(fds[n] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
        const struct kvm_irqfd irq = {.fd = (uint32_t)fds[n++], .gsi = FIRST_GSI + d};
        need(ioctl(vm, KVM_IRQFD, &irq), "KVM_IRQFD");
        for (unsigned q = 0; q < QUEUES; q++) {
            need(fds[n] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
            const struct kvm_ioeventfd notify = {.fd = fds[n++],
                                                 .addr = DEVICE_AT + d * DEVICE_BYTES + NOTIFY,
                                                 .len = 4,
                                                 .datamatch = q,
                                                 .flags = KVM_IOEVENTFD_FLAG_DATAMATCH};
            need(ioctl(vm, KVM_IOEVENTFD, &notify), "KVM_IOEVENTFD");
        }
    }
    return n;
}

// Fills `at` with the time after each part; returns what closing took.
static double round_of(double at[PARTS + 1])
{
    int vm, vcpu, fds[DEVICES * (QUEUES + 1)];
    at[0] = now_us();
    need(vm = ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
    at[1 + CREATE] = now_us();
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, memfd, 0);
    need(memory == MAP_FAILED ? -1 : 0, "mmap");
    const struct kvm_userspace_memory_region region = {.memory_size = bytes, .userspace_addr = (uint64_t)(uintptr_t)memory};
    need(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
    at[1 + MEMORY] = now_us();
    need(ioctl(vm, KVM_SET_TSS_ADDR, (unsigned long)TSS), "KVM_SET_TSS_ADDR");
    need(ioctl(vm, KVM_CREATE_IRQCHIP, 0), "KVM_CREATE_IRQCHIP");
    at[1 + CHIPS] = now_us();
    need(vcpu = ioctl(vm, KVM_CREATE_VCPU, 0), "KVM_CREATE_VCPU");
    void *run = mmap(NULL, (size_t)run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    need(run == MAP_FAILED ? -1 : 0, "mmap of a vCPU");
    need(ioctl(vcpu, KVM_SET_CPUID2, &cpuid), "KVM_SET_CPUID2");
    at[1 + VCPU] = now_us();
    if (!saved.taken)
        take_state(vm, vcpu);
    else
        set_state(vm, vcpu);
    at[1 + STATE] = now_us();
    unsigned n = set_events(vm, fds);
    at[1 + EVENTS] = now_us();
    munmap(run, (size_t)run_bytes);
    while (n > 0)
        close(fds[--n]);
    close(vcpu);
    close(vm);
    munmap(memory, bytes);
    return now_us() - at[PARTS];
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

int main(int argc, char **argv)
{
    static double part[PARTS][ROUNDS_MAX], all[ROUNDS_MAX], closing[ROUNDS_MAX];
    unsigned long mib = argc > 1 ? strtoul(argv[1], NULL, 10) : 256, rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 200;
    if (mib < 1 || mib > 65536 || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: kvm-sum [MIB [ROUNDS]]\n");
        return 2;
    }
    bytes = (size_t)mib << 20;
    need(kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), "/dev/kvm");
    need(memfd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create");
    need(ftruncate(memfd, (off_t)bytes), "ftruncate");
    need(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), "F_ADD_SEALS");
    need(run_bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
    cpuid.head.nent = CPUID_MAX;
    need(ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid), "KVM_GET_SUPPORTED_CPUID");
    double at[PARTS + 1];
    round_of(at);  // takes the state, and is the first on this host
    for (unsigned long i = 0; i < rounds; i++) {
        closing[i] = round_of(at);
        for (int p = 0; p < PARTS; p++)
            part[p][i] = at[p + 1] - at[p];
        all[i] = at[PARTS] - at[0];
    }
    printf("{\"mib\":%lu,\"rounds\":%lu,\"sum_us\":%.1f", mib, rounds, median(all, rounds));
    for (int p = 0; p < PARTS; p++)
        printf(",\"%s_us\":%.1f", names[p], median(part[p], rounds));
    printf(",\"close_us\":%.1f}\n", median(closing, rounds));
    return 0;
}
