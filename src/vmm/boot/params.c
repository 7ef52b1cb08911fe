#include "vmm/boot/params.h"

#include "vmm/layout.h"
#include "wire/vmm.h"

#include <errno.h>
#include <string.h>

enum {
    BOOT_FLAG = 0xaa55,
    BOOT_MAGIC = 0x53726448,  // "HdrS"
    BOOT_PROTOCOL = 0x020f,   // 2.15
    LOADER_UNDEFINED = 0xff,
    KERNEL_ALIGNMENT = 0x1000000,
    E820_RAM = 1,
    E820_RESERVED = 2,
};

size_t boot_e820(const struct guest_region *regions, size_t count, struct boot_e820_entry map[static BOOT_E820_MAX])
{
    size_t n = 0;
    map[n++] = (struct boot_e820_entry){0, LAYOUT_LOW_RAM_END, E820_RAM};
    map[n++] = (struct boot_e820_entry){LAYOUT_LOW_RAM_END, LAYOUT_KERNEL_MIN - LAYOUT_LOW_RAM_END, E820_RESERVED};
    for (size_t i = 0; i < count; i++) {
        uint64_t start = regions[i].start.value < LAYOUT_KERNEL_MIN ? LAYOUT_KERNEL_MIN : regions[i].start.value;
        map[n++] = (struct boot_e820_entry){start, regions[i].start.value + regions[i].bytes - start, E820_RAM};
    }
    return n;
}

static void fill_zero_page(struct boot_params *p, const struct guest_memory *memory, const struct boot_facts *facts)
{
    p->hdr.boot_flag = BOOT_FLAG;
    p->hdr.header = BOOT_MAGIC;
    p->hdr.version = BOOT_PROTOCOL;
    p->hdr.type_of_loader = LOADER_UNDEFINED;
    p->hdr.loadflags = LOADED_HIGH;
    p->hdr.kernel_alignment = KERNEL_ALIGNMENT;
    p->hdr.cmd_line_ptr = LAYOUT_CMDLINE;
    p->hdr.cmdline_size = (uint32_t)strlen(facts->cmdline);
    p->hdr.ramdisk_image = (uint32_t)facts->initramfs.value;
    p->hdr.ramdisk_size = (uint32_t)facts->initramfs_bytes;
    p->hdr.setup_data = LAYOUT_SETUP_DATA;
    p->acpi_rsdp_addr = LAYOUT_ACPI;
    size_t count;
    const struct guest_region *regions = guest_memory_regions(memory, &count);
    struct boot_e820_entry map[BOOT_E820_MAX];
    p->e820_entries = (uint8_t)boot_e820(regions, count, map);
    memcpy(p->e820_table, map, p->e820_entries * sizeof map[0]);
}

int boot_params_write(const struct guest_memory *memory, const struct boot_facts *facts)
{
    size_t n = strlen(facts->cmdline);
    if (n > VMM_CMDLINE_MAX)
        return -E2BIG;
    struct setup_data seed = {.type = SETUP_RNG_SEED, .len = BOOT_SEED_BYTES};
    struct boot_params *page = guest_memory_at(memory, (gpa_t){LAYOUT_BOOT_PARAMS}, sizeof *page);
    char *cmdline = guest_memory_at(memory, (gpa_t){LAYOUT_CMDLINE}, n + 1);
    char *data = guest_memory_at(memory, (gpa_t){LAYOUT_SETUP_DATA}, sizeof seed + BOOT_SEED_BYTES);
    if (page == NULL || cmdline == NULL || data == NULL)
        return -EFAULT;
    fill_zero_page(page, memory, facts);
    memcpy(cmdline, facts->cmdline, n + 1);
    memcpy(data, &seed, sizeof seed);
    memcpy(data + sizeof seed, facts->seed, BOOT_SEED_BYTES);
    return 0;
}
