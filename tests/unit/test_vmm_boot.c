// What a kernel is given at boot: hostile kernel files, the map of memory, ACPI tables read back byte by byte, boot parameters.
#include "base/cleanup.h"
#include "unit.h"
#include "vmm/boot/acpi.h"
#include "vmm/boot/aml.h"
#include "vmm/boot/elf.h"
#include "vmm/boot/load.h"
#include "vmm/boot/params.h"
#include "vmm/boot/start.h"
#include "vmm/layout.h"
#include "wire/vmm.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

// ---- ELF ----

struct kernel {
    Elf64_Ehdr header;
    Elf64_Phdr segment[ELF_SEGMENTS_MAX + 1];
    uint8_t text[256];
};

enum { FILE_BYTES = sizeof(struct kernel), TEXT = offsetof(struct kernel, text) };

static struct kernel good_kernel(void)
{
    struct kernel k = {
        .header = {.e_type = ET_EXEC,
                   .e_machine = EM_X86_64,
                   .e_entry = 0x1000010,
                   .e_phoff = offsetof(struct kernel, segment),
                   .e_phentsize = sizeof(Elf64_Phdr),
                   .e_phnum = 2},
        .segment = {{.p_type = PT_LOAD, .p_offset = TEXT, .p_filesz = 200, .p_memsz = 4096, .p_paddr = 0x1000000},
                    {.p_type = PT_LOAD, .p_offset = TEXT + 200, .p_filesz = 56, .p_memsz = 8192, .p_paddr = 0x2000000}},
    };
    memcpy(k.header.e_ident, ELFMAG, SELFMAG);
    k.header.e_ident[EI_CLASS] = ELFCLASS64;
    k.header.e_ident[EI_DATA] = ELFDATA2LSB;
    memset(k.text, 0xcc, sizeof k.text);
    return k;
}

static int plan_of(const struct kernel *k, struct elf_plan *plan, const char **why)
{
    return elf_plan((const uint8_t *)k, sizeof *k, FILE_BYTES, 256 * MIB, plan, why);
}

static void a_good_kernel_is_planned(void **state)
{
    struct kernel k = good_kernel();
    struct elf_plan plan;
    const char *why;
    assert_int_equal(plan_of(&k, &plan, &why), 0);
    assert_int_equal(plan.count, 2);
    assert_int_equal(plan.entry.value, 0x1000010);
    assert_int_equal(plan.end.value, 0x2002000);
    assert_int_equal(plan.segment[1].at.value, 0x2000000);
    assert_int_equal(plan.segment[1].file_bytes, 56);
    // Parts that are not loaded do not matter.
    k.segment[1].p_type = PT_NOTE;
    k.segment[1].p_offset = UINT64_MAX;
    assert_int_equal(plan_of(&k, &plan, &why), 0);
    assert_int_equal(plan.count, 1);
}

static void hostile_kernels_are_refused(void **state)
{
    struct kernel k;
    struct elf_plan plan, untouched;
    memset(&plan, 0x77, sizeof plan);
    untouched = plan;
#define REFUSED(change, sentence)                                                                                              \
    do {                                                                                                                       \
        const char *why = NULL;                                                                                                \
        k = good_kernel();                                                                                                     \
        change;                                                                                                                \
        assert_int_equal(plan_of(&k, &plan, &why), -ENOEXEC);                                                                  \
        assert_non_null(strstr(why, sentence));                                                                                \
        assert_memory_equal(&plan, &untouched, sizeof plan);                                                                   \
    } while (0)
    REFUSED(k.header.e_ident[0] = 0x1f, "not an ELF file");
    REFUSED(k.header.e_ident[EI_CLASS] = ELFCLASS32, "x86-64");
    REFUSED(k.header.e_ident[EI_DATA] = ELFDATA2MSB, "x86-64");
    REFUSED(k.header.e_machine = EM_AARCH64, "x86-64");
    REFUSED(k.header.e_type = ET_DYN, "not an executable");
    REFUSED(k.header.e_phentsize = 32, "no program headers");
    REFUSED(k.header.e_phnum = 0, "no program headers");
    REFUSED(k.header.e_phnum = UINT16_MAX, "beyond");
    REFUSED(k.header.e_phoff = UINT64_MAX, "beyond");
    REFUSED(k.header.e_phoff = sizeof k - sizeof(Elf64_Phdr), "beyond");
    REFUSED(k.segment[0].p_filesz = 4097, "more bytes in the file");
    REFUSED(k.segment[0].p_offset = UINT64_MAX, "beyond its end");
    REFUSED(k.segment[0].p_offset = FILE_BYTES - 199, "beyond its end");
    REFUSED((k.segment[0].p_filesz = UINT64_MAX, k.segment[0].p_memsz = UINT64_MAX), "beyond its end");
    REFUSED(k.segment[0].p_paddr = 0, "below 1 MiB");
    REFUSED(k.segment[0].p_paddr = MIB - 1, "below 1 MiB");
    REFUSED(k.segment[1].p_paddr = 0x1000fff, "overlap");
    REFUSED(k.segment[1].p_paddr = 0x900000, "out of order");
    REFUSED(k.segment[1].p_memsz = 256 * MIB - 0x2000000 + 1, "fit");
    REFUSED(k.segment[1].p_memsz = UINT64_MAX, "fit");
    REFUSED(k.segment[1].p_paddr = UINT64_MAX - 4095, "fit");
    REFUSED(k.header.e_entry = 0, "entry");
    REFUSED(k.header.e_entry = 0x1000000 + 200, "entry");  // in the part that is zero
    REFUSED(k.header.e_entry = UINT64_MAX, "entry");
    REFUSED((k.segment[0].p_type = PT_NOTE, k.segment[1].p_type = PT_NOTE), "entry");
    for (size_t n = 0; n < sizeof k.header; n++) {
        const char *why = NULL;
        k = good_kernel();
        assert_int_equal(elf_plan((const uint8_t *)&k, n, n, 256 * MIB, &plan, &why), -ENOEXEC);
    }
#undef REFUSED
}

static void segments_have_two_sides(void **state)
{
    struct elf_plan plan;
    const char *why;
    for (int extra = 0; extra <= 1; extra++) {
        struct kernel k = good_kernel();
        k.header.e_phnum = (Elf64_Half)(ELF_SEGMENTS_MAX + extra);
        for (int i = 0; i < k.header.e_phnum; i++)
            k.segment[i] = (Elf64_Phdr){.p_type = PT_LOAD,
                                        .p_offset = TEXT,
                                        .p_filesz = 100,
                                        .p_memsz = 4096,
                                        .p_paddr = 0x1000000 + 4096u * (unsigned)i};
        assert_int_equal(plan_of(&k, &plan, &why), extra != 0 ? -ENOEXEC : 0);
    }
    struct kernel k = good_kernel();
    k.segment[1].p_memsz = 256 * MIB - 0x2000000;  // to the last byte
    assert_int_equal(plan_of(&k, &plan, &why), 0);
    k = good_kernel();
    k.segment[0].p_paddr = MIB;
    k.header.e_entry = MIB + 199;
    assert_int_equal(plan_of(&k, &plan, &why), 0);
}

static int file_of(const void *bytes, size_t n)
{
    int fd = memfd_create("file", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    return fd;
}

// ---- everything together ----

static void everything_is_loaded(void **state)
{
    struct kernel k = good_kernel();
    static const char initramfs_bytes[] = "070701 and so on";
    cleanup_fd int kernel = file_of(&k, sizeof k), initramfs = file_of(initramfs_bytes, sizeof initramfs_bytes);
    struct guest_memory *memory;
    assert_int_equal(guest_memory_new(128 * MIB, &memory), 0);
    struct boot_image image = {.kernel = kernel, .initramfs = initramfs, .cmdline = "console=ttyS0", .vcpus = 2, .virtio = 3};
    gpa_t entry = {0};
    struct err err;
    assert_int_equal(boot_load(&image, memory, &entry, &err), 0);
    assert_int_equal(entry.value, 0x1000010);
    assert_memory_equal(guest_memory_at(memory, gpa(0x1000000), 200), k.text, 200);
    const struct boot_params *p = guest_memory_at(memory, gpa(0x7000), sizeof *p);
    assert_int_equal(p->hdr.header, 0x53726448);
    assert_int_equal(p->hdr.boot_flag, 0xaa55);
    assert_string_equal(guest_memory_at(memory, gpa(p->hdr.cmd_line_ptr), 100), "console=ttyS0");
    assert_int_equal(p->hdr.ramdisk_size, sizeof initramfs_bytes);
    assert_int_equal(p->hdr.ramdisk_image % 4096, 0);
    assert_true(p->hdr.ramdisk_image + p->hdr.ramdisk_size <= 128 * MIB);
    assert_string_equal(guest_memory_at(memory, gpa(p->hdr.ramdisk_image), sizeof initramfs_bytes), initramfs_bytes);
    assert_memory_equal(guest_memory_at(memory, gpa(p->acpi_rsdp_addr), 8), "RSD PTR ", 8);
    const struct setup_data *seed = guest_memory_at(memory, gpa(p->hdr.setup_data), sizeof *seed + BOOT_SEED_BYTES);
    assert_int_equal(seed->type, SETUP_RNG_SEED);
    assert_int_equal(seed->len, BOOT_SEED_BYTES);
    static const uint8_t none[BOOT_SEED_BYTES];
    assert_memory_not_equal((const uint8_t *)seed + sizeof *seed, none, sizeof none);
    // The tables: an identity map, and the way a kernel resets through its firmware.
    const uint64_t *pml4 = guest_memory_at(memory, gpa(0x9000), 8), *pdpt = guest_memory_at(memory, gpa(0xa000), 32);
    assert_int_equal(pml4[0], 0xa003);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(pdpt[i], 0xb003 + i * 0x1000);
    const uint64_t *pd = guest_memory_at(memory, gpa(0xb000), 4 * 4096);
    for (uint64_t i = 0; i < 2048; i++)
        assert_int_equal(pd[i], i << 21 | 0x83);
    static const uint8_t reset[] = {0xba, 0x02, 0x06, 0xb0, 0xfe, 0xee};
    assert_memory_equal(guest_memory_at(memory, gpa(0xffff0), sizeof reset), reset, sizeof reset);
    guest_memory_free(memory);
}

static void what_does_not_fit_is_said(void **state)
{
    struct kernel k = good_kernel();
    cleanup_fd int kernel = file_of(&k, sizeof k), initramfs = file_of("x", 1), empty = file_of("", 0);
    struct guest_memory *memory;
    struct err err;
    gpa_t entry = {99};
    struct boot_image image = {.kernel = kernel, .initramfs = initramfs, .cmdline = "", .vcpus = 1};
    // The initramfs fits when it ends where memory does and begins where the kernel ends, and not with one byte more.
    const uint64_t room = 128 * MIB - 0x2002000;
    assert_int_equal(ftruncate(initramfs, (off_t)room + 1), 0);
    assert_int_equal(guest_memory_new(128 * MIB, &memory), 0);
    assert_int_equal(boot_load(&image, memory, &entry, &err), -E2BIG);
    assert_non_null(strstr(err.text, "initramfs"));
    assert_int_equal(entry.value, 99);
    assert_int_equal(ftruncate(initramfs, (off_t)room), 0);
    assert_int_equal(boot_load(&image, memory, &entry, &err), 0);
    image.initramfs = empty;
    assert_int_equal(boot_load(&image, memory, &entry, &err), -EINVAL);
    image.initramfs = -1;
    image.kernel = empty;
    assert_int_equal(boot_load(&image, memory, &entry, &err), -ENOEXEC);
    // A kernel that ends early, although its headers were right when they were looked at.
    struct elf_plan plan;
    const char *why;
    assert_int_equal(plan_of(&k, &plan, &why), 0);
    assert_int_equal(elf_load(&plan, empty, memory), -EIO);
    // The command line.
    char line[VMM_CMDLINE_MAX + 2];
    memset(line, 'a', sizeof line);
    line[VMM_CMDLINE_MAX + 1] = '\0';
    struct boot_facts facts = {.cmdline = line};
    assert_int_equal(boot_params_write(memory, &facts), -E2BIG);
    line[VMM_CMDLINE_MAX] = '\0';
    assert_int_equal(boot_params_write(memory, &facts), 0);
    assert_true(LAYOUT_CMDLINE + VMM_CMDLINE_MAX + 1 <= LAYOUT_SETUP_DATA);
    guest_memory_free(memory);
}

// ---- the map of memory ----

static void memory_map_of_each_size(void **state)
{
    static const struct {
        uint64_t bytes, low_end, high_end;
    } sizes[] = {{128 * MIB, 128 * MIB, 0}, {3 * GIB, 3 * GIB, 0}, {5 * GIB, 3 * GIB, 6 * GIB}, {64 * GIB, 3 * GIB, 65 * GIB}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct guest_memory *memory;
        assert_int_equal(guest_memory_new(sizes[i].bytes, &memory), 0);
        size_t count;
        const struct guest_region *regions = guest_memory_regions(memory, &count);
        struct boot_e820_entry map[BOOT_E820_MAX];
        size_t n = boot_e820(regions, count, map);
        assert_int_equal(n, sizes[i].high_end != 0 ? 4 : 3);
        assert_int_equal(map[0].addr, 0);
        assert_int_equal(map[0].size, 0x9fc00);
        assert_int_equal(map[0].type, 1);
        assert_int_equal(map[1].addr, 0x9fc00);
        assert_int_equal(map[1].type, 2);
        assert_int_equal(map[1].addr + map[1].size, MIB);
        assert_int_equal(map[2].addr, MIB);
        assert_int_equal(map[2].addr + map[2].size, sizes[i].low_end);
        if (n == 4) {
            assert_int_equal(map[3].addr, 4 * GIB);
            assert_int_equal(map[3].addr + map[3].size, sizes[i].high_end);
        }
        guest_memory_free(memory);
    }
}

// ---- ACPI ----

struct tables {
    struct buf bytes;
    const uint8_t *fadt, *madt, *dsdt;
};

static uint64_t number(const uint8_t *at, size_t n)
{
    uint64_t value = 0;
    memcpy(&value, at, n);
    return value;
}

static void assert_sums_to_zero(const uint8_t *at, size_t n)
{
    uint8_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + at[i]);
    assert_int_equal(sum, 0);
}

static const uint8_t *table_at(const struct buf *b, uint64_t address, const char *signature)
{
    assert_true(address >= LAYOUT_ACPI && address - LAYOUT_ACPI + 36 <= b->len);
    const uint8_t *t = b->data + (address - LAYOUT_ACPI);
    assert_memory_equal(t, signature, 4);
    uint64_t length = number(t + 4, 4);
    assert_true(address - LAYOUT_ACPI + length <= b->len);
    assert_sums_to_zero(t, length);
    return t;
}

static struct tables tables_of(unsigned vcpus, unsigned virtio)
{
    struct tables t = {.bytes = BUF_INIT(LAYOUT_ACPI_BYTES)};
    const struct acpi_shape shape = {.vcpus = vcpus, .virtio = virtio};
    acpi_tables(&shape, LAYOUT_ACPI, &t.bytes);
    assert_int_equal(buf_error(&t.bytes), 0);
    const uint8_t *rsdp = t.bytes.data;
    assert_memory_equal(rsdp, "RSD PTR ", 8);
    assert_sums_to_zero(rsdp, 20);
    assert_sums_to_zero(rsdp, 36);
    assert_int_equal(rsdp[15], 2);
    const uint8_t *xsdt = table_at(&t.bytes, number(rsdp + 24, 8), "XSDT");
    assert_int_equal(number(xsdt + 4, 4), 36 + 2 * 8);
    t.fadt = table_at(&t.bytes, number(xsdt + 36, 8), "FACP");
    t.madt = table_at(&t.bytes, number(xsdt + 44, 8), "APIC");
    t.dsdt = table_at(&t.bytes, number(t.fadt + 140, 8), "DSDT");
    return t;
}

static void madt_lists_every_processor(void **state)
{
    static const unsigned counts[] = {1, 4, LAYOUT_VCPUS_MAX};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        struct tables t = tables_of(counts[c], 4);
        const uint8_t *at = t.madt + 44, *end = t.madt + number(t.madt + 4, 4);
        assert_int_equal(number(t.madt + 36, 4), 0xfee00000);
        unsigned processors = 0, ioapics = 0;
        for (; at < end; at += at[1]) {
            assert_true(at[1] >= 2 && at + at[1] <= end);
            if (at[0] == 0) {
                assert_int_equal(at[1], 8);
                assert_int_equal(at[2], processors);
                assert_int_equal(at[3], processors);
                assert_int_equal(number(at + 4, 4), 1);
                processors++;
            } else {
                assert_int_equal(at[0], 1);
                assert_int_equal(at[1], 12);
                assert_int_equal(number(at + 4, 4), 0xfec00000);
                assert_int_equal(number(at + 8, 4), 0);
                ioapics++;
            }
        }
        assert_int_equal(processors, counts[c]);
        assert_int_equal(ioapics, 1);
        buf_free(&t.bytes);
    }
}

static void fadt_says_what_is_not_there(void **state)
{
    struct tables t = tables_of(1, 0);
    assert_int_equal(number(t.fadt + 4, 4), 276);
    assert_int_equal(t.fadt[8], 6);
    assert_int_equal(number(t.fadt + 109, 2), 1 << 2 | 1 << 5);    // no VGA, no CMOS clock, no keyboard controller
    assert_int_equal(number(t.fadt + 112, 4) & 1 << 20, 1 << 20);  // hardware-reduced
    assert_int_equal(number(t.fadt + 112, 4) & 1 << 10, 1 << 10);  // has a reset register
    static const struct {
        unsigned offset, port;
    } registers[] = {{116, 0x602}, {244, 0x600}, {256, 0x601}};
    for (size_t i = 0; i < sizeof registers / sizeof registers[0]; i++) {
        assert_int_equal(t.fadt[registers[i].offset], 1);  // an I/O port of 8 bits
        assert_int_equal(t.fadt[registers[i].offset + 1], 8);
        assert_int_equal(number(t.fadt + registers[i].offset + 4, 8), registers[i].port);
    }
    assert_int_equal(t.fadt[128], 0xfe);
    buf_free(&t.bytes);
}

static const uint8_t *find(const uint8_t *table, const void *what, size_t n)
{
    return memmem(table, number(table + 4, 4), what, n);
}

static void dsdt_has_a_node_for_each_device(void **state)
{
    for (unsigned virtio = 0; virtio <= LAYOUT_VIRTIO_MAX; virtio++) {
        struct tables t = tables_of(1, virtio);
        for (unsigned i = 0; i < LAYOUT_VIRTIO_MAX; i++) {
            char name[5];
            snprintf(name, sizeof name, "VR0%u", i);
            const uint8_t *node = find(t.dsdt, name, 4);
            assert_true((node != NULL) == (i < virtio));
            if (node == NULL)
                continue;
            assert_memory_equal(node + 4, "\x08_HID\x0dLNRO0005", 15);
            const uint8_t memory[] = {0x86, 9, 0, 1, 0, (uint8_t)(i << 4), 0, 0xd0, 0, 0x10, 0, 0};
            assert_non_null(memmem(node, 90, memory, sizeof memory));
            const uint8_t interrupt[] = {0x89, 6, 0, 3, 1, (uint8_t)(5 + i), 0, 0, 0, 0x79, 0};
            assert_non_null(memmem(node, 90, interrupt, sizeof interrupt));
        }
        const uint8_t serial[] = {'C', 'O', 'M', '1', 8, '_', 'H', 'I', 'D', 0x0c, 0x41, 0xd0, 0x05, 0x01};
        assert_non_null(find(t.dsdt, serial, sizeof serial));
        const uint8_t ports[] = {0x47, 1, 0xf8, 3, 0xf8, 3, 1, 8, 0x89, 6, 0, 3, 1, 4, 0, 0, 0};
        assert_non_null(find(t.dsdt, ports, sizeof ports));
        const uint8_t s5[] = {8, '_', 'S', '5', '_', 0x12, 10, 4, 0x0a, 5, 0x0a, 5, 0x0a, 0, 0x0a, 0};
        const uint8_t *last = find(t.dsdt, s5, sizeof s5);
        // The scope's length leads exactly to what comes behind it.
        const uint8_t *scope = t.dsdt + 36;
        assert_int_equal(scope[0], 0x10);
        unsigned more = scope[1] >> 6;
        size_t length = more == 0 ? scope[1] : scope[1] & 0xf;
        for (unsigned i = 0; i < more; i++)
            length |= (size_t)scope[2 + i] << (4 + 8 * i);
        assert_ptr_equal(scope + 1 + length, last);
        assert_ptr_equal(last + sizeof s5, t.dsdt + number(t.dsdt + 4, 4));
        buf_free(&t.bytes);
    }
}

// A package's length counts its own bytes: around each number of them.
static void aml_lengths(void **state)
{
    static const size_t sizes[] = {0, 1, 57, 58, 59, 4080, 4085, 4089, 4090, 4091, 5000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cleanup_buf struct buf body = BUF_INIT(8192), out = BUF_INIT(16384);
        uint8_t *space;
        assert_int_equal(buf_reserve(&body, sizes[i] + 1, &space), 0);
        memset(space, 0, sizes[i]);
        buf_commit(&body, sizes[i]);
        aml_device(&out, "TEST", &body);
        unsigned more = out.data[2] >> 6;
        size_t length = more == 0 ? out.data[2] : out.data[2] & 0xf;
        for (unsigned k = 0; k < more; k++)
            length |= (size_t)out.data[3 + k] << (4 + 8 * k);
        assert_int_equal(length, out.len - 2);
        assert_memory_equal(out.data + 3 + more, "TEST", 4);
        assert_true(more != 0 || length <= 0x3f);
    }
}

static void an_area_too_small_is_an_error(void **state)
{
    const struct acpi_shape shape = {.vcpus = LAYOUT_VCPUS_MAX, .virtio = LAYOUT_VIRTIO_MAX};
    cleanup_buf struct buf whole = BUF_INIT(LAYOUT_ACPI_BYTES);
    acpi_tables(&shape, LAYOUT_ACPI, &whole);
    assert_true(LAYOUT_ACPI + whole.len <= LAYOUT_RESET_VECTOR);
    for (size_t n = 0; n < whole.len; n++) {
        cleanup_buf struct buf out = BUF_INIT(n);
        acpi_tables(&shape, LAYOUT_ACPI, &out);
        assert_int_equal(buf_error(&out), -ENOSPC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_kernel_is_planned),        cmocka_unit_test(hostile_kernels_are_refused),
        cmocka_unit_test(segments_have_two_sides),         cmocka_unit_test(everything_is_loaded),
        cmocka_unit_test(what_does_not_fit_is_said),       cmocka_unit_test(memory_map_of_each_size),
        cmocka_unit_test(madt_lists_every_processor),      cmocka_unit_test(fadt_says_what_is_not_there),
        cmocka_unit_test(dsdt_has_a_node_for_each_device), cmocka_unit_test(aml_lengths),
        cmocka_unit_test(an_area_too_small_is_an_error),
    };
    return cmocka_run_group_tests_name("vmm_boot", tests, NULL, NULL);
}
