#include "fake_kvm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void fake_kvm_supported(struct cpuid_table *table)
{
    static const struct kvm_cpuid_entry2 entries[] = {
        {.function = 0, .eax = 0x24},
        {.function = 1, .eax = 0xa0671, .ebx = 0x55020800, .ecx = UINT32_MAX, .edx = UINT32_MAX},
        {.function = 3, .ecx = 7, .edx = 7},
        {.function = 4, .index = 0, .flags = 1, .eax = 0x04000121, .ebx = 0x02c0003f},
        {.function = 4, .index = 2, .flags = 1, .eax = 0x04000143, .ebx = 0x03c0003f},
        {.function = 4, .index = 3, .flags = 1, .eax = 0x04004163, .ebx = 0x03c0003f},
        {.function = 5, .eax = 64},
        {.function = 6, .eax = UINT32_MAX, .ebx = UINT32_MAX, .ecx = UINT32_MAX, .edx = UINT32_MAX},
        {.function = 7, .index = 0, .flags = 1, .eax = 2, .ebx = UINT32_MAX, .ecx = UINT32_MAX, .edx = UINT32_MAX},
        {.function = 7, .index = 1, .flags = 1, .eax = UINT32_MAX, .edx = UINT32_MAX},
        {.function = 0xa, .eax = 0x08300805, .edx = 0x603},
        {.function = 0xb, .index = 0, .flags = 1, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 77},
        {.function = 0xd, .index = 0, .flags = 1, .eax = 0x600ff, .ebx = 11008, .ecx = 11008},
        {.function = 0xd, .index = 1, .flags = 1, .eax = 0x1f, .ebx = 11008, .ecx = UINT32_MAX},
        {.function = 0xd, .index = 2, .flags = 1, .eax = 0x100, .ebx = 0x240},
        {.function = 0xd, .index = 3, .flags = 1, .eax = 0x40, .ebx = 0x3c0},
        {.function = 0xd, .index = 5, .flags = 1, .eax = 0x40, .ebx = 0x440},
        {.function = 0xd, .index = 6, .flags = 1, .eax = 0x200, .ebx = 0x480},
        {.function = 0xd, .index = 7, .flags = 1, .eax = 0x400, .ebx = 0x680},
        {.function = 0xd, .index = 17, .flags = 1, .eax = 0x40, .ebx = 0xac0},
        {.function = 0xd, .index = 18, .flags = 1, .eax = 0x2000, .ebx = 0xb00},
        {.function = 0x12, .index = 0, .flags = 1, .eax = 3},
        {.function = 0x14, .index = 0, .flags = 1, .eax = 1, .ebx = 0xff},
        {.function = 0x1d, .index = 1, .flags = 1, .eax = 0x04002000},
        {.function = 0x1e, .index = 0, .flags = 1, .ebx = 0x4010},
        {.function = 0x1f, .index = 0, .flags = 1, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 77},
        {.function = 0x40000000, .eax = 0x40000010, .ebx = 0x4b4d564b, .ecx = 0x564b4d56, .edx = 0x4d},
        {.function = 0x40000001, .eax = UINT32_MAX, .edx = 1},
        {.function = 0x40000010, .eax = 2600000},
        {.function = 0x80000000, .eax = 0x80000022},
        {.function = 0x80000001, .ecx = UINT32_MAX, .edx = 0x2c100800},
        {.function = 0x80000007, .edx = UINT32_MAX},
        {.function = 0x80000008, .eax = 0x3930, .ecx = 0x603f},
        {.function = 0x8000000a, .eax = 1, .ebx = 8, .edx = UINT32_MAX},
        {.function = 0x8000001d, .index = 3, .flags = 1, .eax = 0x1c163},
        {.function = 0x8000001e, .eax = 9, .ebx = 0x109, .ecx = 0x301},
        {.function = 0x8000001f, .eax = 0xf},
        {.function = 0x80000022, .eax = 7},
    };
    memset(table, 0, sizeof *table);
    table->head.nent = sizeof entries / sizeof entries[0];
    memcpy(table->entry, entries, sizeof entries);
}

static int new_fd(struct fake_kvm *f)
{
    f->open_fds++;
    return f->next_fd++;
}

static int answer_system(struct fake_kvm *f, unsigned long request, void *data)
{
    unsigned long number = (unsigned long)data;
    switch (request) {
    case KVM_GET_API_VERSION:
        return f->api_version;
    case KVM_CHECK_EXTENSION:
        if (number == KVM_CAP_SMALLER_MAXPHYADDR)
            return f->shadows;
        if ((int)number == f->missing)
            return 0;
        return number == KVM_CAP_XSAVE2 ? f->xsave2 : number == KVM_CAP_MAX_VCPUS ? FAKE_VCPUS_MAX : 1;
    case KVM_GET_VCPU_MMAP_SIZE:
        return FAKE_RUN_BYTES;
    case KVM_GET_SUPPORTED_CPUID:
        fake_kvm_supported(data);
        return 0;
    case KVM_CREATE_VM:
    case KVM_CREATE_VCPU:
        return new_fd(f);
    default:
        return -ENOTTY;
    }
}

static int list_msrs(struct fake_kvm *f, struct kvm_msr_list *list)
{
    list->nmsrs = (uint32_t)f->msrs;
    memcpy(list->indices, f->msr, f->msrs * sizeof f->msr[0]);
    return 0;
}

static int get_msrs(struct fake_kvm *f, struct kvm_msrs *msrs)
{
    for (uint32_t i = 0; i < msrs->nmsrs; i++) {
        uint32_t index = msrs->entries[i].index;
        if (index == f->msr_unreadable)
            return (int)i;
        msrs->entries[i].data = index == f->msr_zero ? 0 : 1000 + index;
    }
    return (int)msrs->nmsrs;
}

static int set_msrs(struct fake_kvm *f, const struct kvm_msrs *msrs)
{
    if (f->msrs_taken >= 0)
        return f->msrs_taken;
    for (uint32_t i = 0; i < msrs->nmsrs; i++) {
        if (msrs->entries[i].index == f->msr_refused)
            return (int)i;
        f->set_msr[f->set_msrs++ % 256] = msrs->entries[i];
    }
    return (int)msrs->nmsrs;
}

static int answer(struct fake_kvm *f, unsigned long request, void *data)
{
    switch (request) {
    case KVM_SET_USER_MEMORY_REGION:
        f->slot[f->slots++] = *(struct kvm_userspace_memory_region *)data;
        return 0;
    case KVM_IRQFD:
        f->irqfd[f->irqfds++] = *(struct kvm_irqfd *)data;
        return 0;
    case KVM_IOEVENTFD:
        f->ioeventfd[f->ioeventfds++] = *(struct kvm_ioeventfd *)data;
        return 0;
    case KVM_SET_CPUID2:
        f->cpuid[f->cpuids++] = *(struct cpuid_table *)data;
        return 0;
    case KVM_SET_MSRS:
        return set_msrs(f, data);
    case KVM_GET_MSRS:
        return get_msrs(f, data);
    case KVM_GET_MSR_INDEX_LIST:
        return list_msrs(f, data);
    case KVM_GET_TSC_KHZ:
        return f->tsc_khz;
    case KVM_GET_CPUID2:
        fake_kvm_supported(data);
        return 0;
    case KVM_SET_CLOCK:
        f->set_clock = ((struct kvm_clock_data *)data)->clock;
        f->set_clock_flags = ((struct kvm_clock_data *)data)->flags;
        return 0;
    case KVM_GET_IRQCHIP:
        memset(&((struct kvm_irqchip *)data)->chip, f->fill, sizeof((struct kvm_irqchip *)data)->chip);
        return 0;
    case KVM_GET_XSAVE2:
        memset(data, f->fill, (size_t)f->xsave2);
        return 0;
    case KVM_GET_SREGS:
        memset(data, 0, sizeof(struct kvm_sregs));
        return 0;
    case KVM_SET_SREGS:
        f->sregs = *(struct kvm_sregs *)data;
        return 0;
    case KVM_SET_REGS:
        f->regs = *(struct kvm_regs *)data;
        return 0;
    case KVM_GET_CLOCK:
    case KVM_GET_MP_STATE:
    case KVM_GET_REGS:
    case KVM_GET_XSAVE:
    case KVM_GET_XCRS:
    case KVM_GET_DEBUGREGS:
    case KVM_GET_LAPIC:
    case KVM_GET_VCPU_EVENTS:
        memset(data, f->fill, _IOC_SIZE(request));
        return 0;
    case KVM_SET_MP_STATE:
    case KVM_SET_XSAVE:
    case KVM_SET_XCRS:
    case KVM_SET_DEBUGREGS:
    case KVM_SET_LAPIC:
    case KVM_SET_VCPU_EVENTS:
    case KVM_SET_TSC_KHZ:
    case KVM_SET_IRQCHIP:
    case KVM_KVMCLOCK_CTRL:
    case KVM_SET_FPU:
    case KVM_SET_TSS_ADDR:
    case KVM_SET_IDENTITY_MAP_ADDR:
    case KVM_CREATE_IRQCHIP:
        return 0;
    default:
        return answer_system(f, request, data);
    }
}

// Whether this call, now recorded, is the one that fails.
static bool record(struct fake_kvm *f, unsigned long request, int fd, unsigned long number)
{
    if (f->calls == FAKE_CALLS_MAX)
        abort();
    f->call[f->calls++] = (struct fake_call){request, fd, number};
    return f->calls == f->fail_at;
}

static int fake_run(struct fake_kvm *f, int fd)
{
    if (f->run == NULL)
        return -EINTR;
    for (size_t i = 0; i < f->pages; i++)
        if (f->page[i].fd == fd)
            return f->run(f, fd, f->page[i].at);
    return -EBADF;
}

static int fake_call(void *arg, int fd, unsigned long request, void *data)
{
    struct fake_kvm *f = arg;
    if (request == KVM_RUN)
        return fake_run(f, fd);
    pthread_mutex_lock(&f->lock);
    int r = record(f, request, fd, (unsigned long)data) ? f->fail_with : answer(f, request, data);
    pthread_mutex_unlock(&f->lock);
    return r;
}

static int fake_map(void *arg, int fd, size_t bytes, void **ret_at)
{
    struct fake_kvm *f = arg;
    if (record(f, 0, fd, bytes))
        return f->fail_with;
    void *at = calloc(1, bytes);
    if (at == NULL)
        return -ENOMEM;
    f->page[f->pages].fd = fd;
    f->page[f->pages++].at = at;
    f->mapped++;
    *ret_at = at;
    return 0;
}

static void fake_unmap(void *arg, void *at, size_t bytes)
{
    struct fake_kvm *f = arg;
    f->mapped--;
    free(at);
}

static void fake_close(void *arg, int fd)
{
    struct fake_kvm *f = arg;
    if (fd < FAKE_FD_FIRST || fd >= f->next_fd)
        abort();
    f->open_fds--;
}

void fake_kvm_init(struct fake_kvm *fake)
{
    *fake = (struct fake_kvm){
        .ops = {.call = fake_call, .map = fake_map, .unmap = fake_unmap, .close = fake_close, .arg = fake},
        .api_version = KVM_API_VERSION,
        .missing = -1,
        .msrs_taken = -1,
        .fill = 0x5a,
        .tsc_khz = 2600000,
        .msr = {0x10, 0x6e0, 0xc0000080, 0x4b564d01, 0x40000000, 0x17b, 0x1a0},
        .msrs = 7,
        .next_fd = FAKE_FD_FIRST,
        .lock = PTHREAD_MUTEX_INITIALIZER,
    };
}

size_t fake_kvm_find(const struct fake_kvm *fake, unsigned long request, size_t from)
{
    for (size_t i = from; i < fake->calls; i++)
        if (fake->call[i].request == request)
            return i;
    return FAKE_CALLS_MAX;
}

size_t fake_kvm_count(const struct fake_kvm *fake, unsigned long request)
{
    size_t n = 0;
    for (size_t i = 0; i < fake->calls; i++)
        n += fake->call[i].request == request;
    return n;
}

unsigned fake_kvm_vcpu(const struct fake_kvm *fake, int fd)
{
    for (size_t i = 0; i < fake->pages; i++)
        if (fake->page[i].fd == fd)
            return (unsigned)i;
    abort();
}
