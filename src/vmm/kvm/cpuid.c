#include "vmm/kvm/cpuid.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum reg { EAX, EBX, ECX, EDX };

enum {
    LEAF_FEATURES = 1,
    LEAF_CACHES = 4,
    LEAF_TOPOLOGY = 0xb,
    LEAF_XSAVE = 0xd,
    LEAF_KVM_FEATURES = 0x40000001,
};
#define LEAF_AMD_SIZES 0x80000008u
#define LEAF_AMD_CACHES 0x8000001du
#define LEAF_AMD_TOPOLOGY 0x8000001eu

#define BIT(n) (UINT32_C(1) << (n))

enum { ANY = -1 };

// Bits that go away.  Leaves in which nothing may stay are in `dropped`.
static const struct {
    uint32_t function;
    int index;
    enum reg reg;
    uint32_t bits;
} removed[] = {
    // dtes64, monitor, ds-cpl, vmx, smx, est, tm2, sdbg, xtpr, pdcm, dca, osxsave (KVM shows it when CR4 says so)
    {LEAF_FEATURES, ANY, ECX,
     BIT(2) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(7) | BIT(8) | BIT(11) | BIT(14) | BIT(15) | BIT(18) | BIT(27)},
    // psn, ds, acpi, htt (set again for several vCPUs), tm, pbe
    {LEAF_FEATURES, ANY, EDX, BIT(18) | BIT(21) | BIT(22) | BIT(28) | BIT(29) | BIT(31)},
    // thermal and power management: all but ARAT, the timer that runs on in idle
    {6, ANY, EAX, ~BIT(2)},
    {6, ANY, EBX, UINT32_MAX},
    {6, ANY, ECX, UINT32_MAX},
    {6, ANY, EDX, UINT32_MAX},
    // sgx, pqm, mpx, pqe, intel-pt
    {7, 0, EBX, BIT(2) | BIT(12) | BIT(14) | BIT(15) | BIT(25)},
    // waitpkg, enqcmd, sgx-lc, pks
    {7, 0, ECX, BIT(5) | BIT(29) | BIT(30) | BIT(31)},
    // uintr, pconfig, arch-lbr, amx-bf16, amx-tile, amx-int8
    {7, 0, EDX, BIT(5) | BIT(18) | BIT(19) | BIT(22) | BIT(24) | BIT(25)},
    // amx-fp16, and amx-complex
    {7, 1, EAX, BIT(21)},
    {7, 1, EDX, BIT(8)},
    // MPX and AMX state
    {LEAF_XSAVE, 0, EAX, BIT(3) | BIT(4) | BIT(17) | BIT(18)},
    // XFD, which exists for AMX; supervisor states of trace, PASID, UINTR, LBR and HWP
    {LEAF_XSAVE, 1, EAX, BIT(4)},
    {LEAF_XSAVE, 1, ECX, BIT(8) | BIT(10) | BIT(13) | BIT(14) | BIT(15) | BIT(16)},
    // svm, extapic, ibs, skinit, wdt, lwp, perfctr-core, perfctr-nb, perfctr-llc, monitorx
    {0x80000001, ANY, ECX, BIT(2) | BIT(3) | BIT(10) | BIT(12) | BIT(13) | BIT(15) | BIT(23) | BIT(24) | BIT(28) | BIT(29)},
    // power management: all but the invariant TSC
    {0x80000007, ANY, EAX, UINT32_MAX},
    {0x80000007, ANY, EBX, UINT32_MAX},
    {0x80000007, ANY, ECX, UINT32_MAX},
    {0x80000007, ANY, EDX, ~BIT(8)},
    // All of KVM's but: clocksource (old, new, stable), no I/O delay, steal time, end of interrupt, unhalt, TLB flush,
    // haltpoll, IPI, yield.
    {LEAF_KVM_FEATURES, ANY, EAX,
     ~(BIT(0) | BIT(1) | BIT(3) | BIT(5) | BIT(6) | BIT(7) | BIT(9) | BIT(11) | BIT(12) | BIT(13) | BIT(24))},
    {LEAF_KVM_FEATURES, ANY, EDX, UINT32_MAX},
};

// Leaves, or single sub-leaves, that a guest reads as zero.
static const struct {
    uint32_t function;
    int index;
} dropped[] = {
    {3, ANY},              // serial number
    {5, ANY},              // monitor
    {0xa, ANY},            // performance counters
    {LEAF_TOPOLOGY, ANY},  // written anew
    {0xf, ANY},            // resource monitoring
    {0x10, ANY},           // resource control
    {0x12, ANY},           // SGX
    {0x14, ANY},           // processor trace
    {0x1b, ANY},           // PCONFIG
    {0x1c, ANY},           // last branch records
    {0x1d, ANY},           // AMX
    {0x1e, ANY},           // AMX
    {0x1f, ANY},           // topology with dies: the older leaf says it all
    {0x23, ANY},           // performance counters
    {LEAF_XSAVE, 3},       // MPX
    {LEAF_XSAVE, 4},       //
    {LEAF_XSAVE, 8},       // trace
    {LEAF_XSAVE, 10},      // PASID
    {LEAF_XSAVE, 13},      // HDC
    {LEAF_XSAVE, 14},      // UINTR
    {LEAF_XSAVE, 15},      // LBR
    {LEAF_XSAVE, 16},      // HWP
    {LEAF_XSAVE, 17},      // AMX
    {LEAF_XSAVE, 18},      //
    {0x8000000a, ANY},     // SVM
    {0x8000001b, ANY},     // IBS
    {0x8000001c, ANY},     // LWP
    {0x8000001f, ANY},     // memory encryption
    {0x80000020, ANY},     // resource control
    {0x80000022, ANY},     // performance counters
    {0x80000023, ANY},     // memory encryption
    {0x80000026, ANY},     // topology with dies
};

static uint32_t *reg_of(struct kvm_cpuid_entry2 *e, enum reg reg)
{
    switch (reg) {
    case EAX:
        return &e->eax;
    case EBX:
        return &e->ebx;
    case ECX:
        return &e->ecx;
    case EDX:
    default:
        return &e->edx;
    }
}

const struct kvm_cpuid_entry2 *cpuid_find(const struct cpuid_table *table, uint32_t function, uint32_t index)
{
    for (uint32_t i = 0; i < table->head.nent; i++) {
        const struct kvm_cpuid_entry2 *e = &table->entry[i];
        if (e->function == function && (e->index == index || (e->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) == 0))
            return e;
    }
    return NULL;
}

static struct kvm_cpuid_entry2 *find(struct cpuid_table *table, uint32_t function, uint32_t index)
{
    return (struct kvm_cpuid_entry2 *)cpuid_find(table, function, index);
}

static bool is_dropped(const struct kvm_cpuid_entry2 *e)
{
    // Hyper-V's leaves, and a second KVM signature behind them.
    if (e->function > LEAF_KVM_FEATURES && e->function < 0x80000000u)
        return true;
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++)
        if (dropped[i].function == e->function && (dropped[i].index == ANY || (uint32_t)dropped[i].index == e->index))
            return true;
    return false;
}

static void copy_kept(const struct cpuid_table *from, struct cpuid_table *to)
{
    uint32_t count = from->head.nent < CPUID_ENTRIES_MAX ? from->head.nent : CPUID_ENTRIES_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (!is_dropped(&from->entry[i]))
            to->entry[to->head.nent++] = from->entry[i];
}

static void remove_bits(struct cpuid_table *table)
{
    for (uint32_t i = 0; i < table->head.nent; i++) {
        struct kvm_cpuid_entry2 *e = &table->entry[i];
        for (size_t k = 0; k < sizeof removed / sizeof removed[0]; k++)
            if (removed[k].function == e->function && (removed[k].index == ANY || (uint32_t)removed[k].index == e->index))
                *reg_of(e, removed[k].reg) &= ~removed[k].bits;
    }
}

// The bits an APIC id needs for `vcpus` processors.
static unsigned id_bits(unsigned vcpus)
{
    unsigned bits = 0;
    while (1u << bits < vcpus)
        bits++;
    return bits;
}

static void write_features(struct cpuid_table *table, unsigned vcpus, unsigned id)
{
    enum { CLFLUSH_MASK = 0xff00, COUNT_SHIFT = 16, ID_SHIFT = 24 };
    struct kvm_cpuid_entry2 *e = find(table, LEAF_FEATURES, 0);
    if (e == NULL)
        return;
    e->ecx |= BIT(21) | BIT(24) | BIT(31);  // x2APIC, TSC deadline, hypervisor
    e->ebx = (e->ebx & (CLFLUSH_MASK | 0xff)) | id << ID_SHIFT | (1u << id_bits(vcpus)) << COUNT_SHIFT;
    if (vcpus > 1)
        e->edx |= BIT(28);
}

// Cache levels 1 and 2 belong to one core, higher ones to the package.
static void write_cache_sharing(struct cpuid_table *table, uint32_t function, unsigned vcpus)
{
    enum { LEVEL_SHIFT = 5, LEVEL_MASK = 7, SHARING_SHIFT = 14, CORES_SHIFT = 26, SHARED_LEVEL = 3 };
    for (uint32_t i = 0; i < table->head.nent; i++) {
        struct kvm_cpuid_entry2 *e = &table->entry[i];
        if (e->function != function || (e->eax & 0x1f) == 0)
            continue;
        uint32_t in_package = (1u << id_bits(vcpus)) - 1;
        uint32_t sharing = ((e->eax >> LEVEL_SHIFT) & LEVEL_MASK) >= SHARED_LEVEL ? in_package : 0;
        e->eax = (e->eax & ((1u << SHARING_SHIFT) - 1)) | sharing << SHARING_SHIFT;
        if (function == LEAF_CACHES)
            e->eax |= in_package << CORES_SHIFT;
    }
}

static void add(struct cpuid_table *table, struct kvm_cpuid_entry2 entry)
{
    if (table->head.nent < CPUID_ENTRIES_MAX)
        table->entry[table->head.nent++] = entry;
}

// Level 0: threads of a core, one.  Level 1: cores of the package.
static void write_topology(struct cpuid_table *table, unsigned vcpus, unsigned id)
{
    enum { TYPE_THREAD = 1 << 8, TYPE_CORE = 2 << 8 };
    const struct kvm_cpuid_entry2 *first = cpuid_find(table, 0, 0);
    if (first == NULL || first->eax < LEAF_TOPOLOGY)
        return;
    const uint32_t flags = KVM_CPUID_FLAG_SIGNIFCANT_INDEX;
    add(table, (struct kvm_cpuid_entry2){.function = LEAF_TOPOLOGY, .flags = flags, .ebx = 1, .ecx = TYPE_THREAD, .edx = id});
    add(table, (struct kvm_cpuid_entry2){.function = LEAF_TOPOLOGY,
                                         .index = 1,
                                         .flags = flags,
                                         .eax = id_bits(vcpus),
                                         .ebx = vcpus,
                                         .ecx = TYPE_CORE | 1,
                                         .edx = id});
}

static void write_amd_topology(struct cpuid_table *table, unsigned vcpus, unsigned id)
{
    enum { ID_SIZE_SHIFT = 12 };
    struct kvm_cpuid_entry2 *sizes = find(table, LEAF_AMD_SIZES, 0);
    if (sizes != NULL)
        sizes->ecx = (vcpus - 1) | id_bits(vcpus) << ID_SIZE_SHIFT;
    struct kvm_cpuid_entry2 *own = find(table, LEAF_AMD_TOPOLOGY, 0);
    if (own != NULL) {
        own->eax = id;
        own->ebx = id;  // core id; one thread each
        own->ecx = 0;   // node 0 of one
        own->edx = 0;
    }
}

// How large the XSAVE area is with all states that are left.  (What CR0 enables now, EBX, KVM reports itself.)
static void write_xsave_size(struct cpuid_table *table)
{
    enum { LEGACY = 576, FIRST_EXTENDED = 2, STATES = 63 };
    struct kvm_cpuid_entry2 *whole = find(table, LEAF_XSAVE, 0);
    if (whole == NULL || (whole->flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX) == 0 || whole->eax == 0)
        return;
    uint32_t size = LEGACY;
    for (uint32_t i = FIRST_EXTENDED; i < STATES; i++) {
        const struct kvm_cpuid_entry2 *e = cpuid_find(table, LEAF_XSAVE, i);
        bool user = i < 32 ? (whole->eax & BIT(i)) != 0 : (whole->edx & BIT(i - 32)) != 0;
        if (e != NULL && user && e->ebx + e->eax > size)
            size = e->ebx + e->eax;
    }
    whole->ebx = whole->ecx = size;
}

void cpuid_filter(const struct cpuid_table *supported, unsigned vcpus, unsigned id, struct cpuid_table *ret_table)
{
    memset(ret_table, 0, sizeof *ret_table);
    copy_kept(supported, ret_table);
    remove_bits(ret_table);
    write_features(ret_table, vcpus, id);
    write_cache_sharing(ret_table, LEAF_CACHES, vcpus);
    write_cache_sharing(ret_table, LEAF_AMD_CACHES, vcpus);
    write_topology(ret_table, vcpus, id);
    write_amd_topology(ret_table, vcpus, id);
    write_xsave_size(ret_table);
    struct kvm_cpuid_entry2 *kvm = find(ret_table, 0x40000000, 0);
    if (kvm != NULL)
        kvm->eax = LEAF_KVM_FEATURES;
}
