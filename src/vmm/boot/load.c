#include "vmm/boot/load.h"

#include "base/id.h"
#include "vmm/boot/acpi.h"
#include "vmm/boot/elf.h"
#include "vmm/boot/params.h"
#include "vmm/boot/start.h"
#include "vmm/layout.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static int file_bytes(int fd, uint64_t *ret_bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

// Where RAM ends below the hole.
static uint64_t low_end(const struct guest_memory *memory)
{
    size_t count;
    const struct guest_region *first = guest_memory_regions(memory, &count);
    return first->start.value + first->bytes;
}

static int load_kernel(int fd, const struct guest_memory *memory, struct elf_plan *ret_plan, struct err *err)
{
    uint8_t head[ELF_HEAD_BYTES];
    uint64_t bytes = 0;
    int r = file_bytes(fd, &bytes);
    size_t n = r == 0 && bytes < sizeof head ? (size_t)bytes : sizeof head;
    if (r == 0)
        r = read_exactly(fd, head, n, 0);
    if (r < 0)
        return err_set(err, r, "cannot read the kernel: %s", strerror(-r));
    const char *why;
    r = elf_plan(head, n, bytes, low_end(memory), ret_plan, &why);
    if (r < 0)
        return err_set(err, r, "the kernel file %s", why);
    r = elf_load(ret_plan, fd, memory);
    return r < 0 ? err_set(err, r, "cannot read the kernel: %s", strerror(-r)) : 0;
}

// At the top of low memory, where the kernel expects it, and above the kernel.
static int load_initramfs(int fd, const struct guest_memory *memory, gpa_t kernel_end, struct boot_facts *facts,
                          struct err *err)
{
    enum { PAGE = 4096 };
    uint64_t bytes = 0, top = low_end(memory);
    int r = file_bytes(fd, &bytes);
    if (r < 0)
        return err_set(err, r, "cannot read the initramfs: %s", strerror(-r));
    if (bytes == 0)
        return err_set(err, -EINVAL, "the initramfs is empty");
    if (top > LAYOUT_INITRAMFS_END)
        top = LAYOUT_INITRAMFS_END + 1;
    if (bytes > top || ((top - bytes) & ~(uint64_t)(PAGE - 1)) < kernel_end.value)
        return err_set(err, -E2BIG, "the initramfs of %llu bytes does not fit the guest's memory; give it more memory",
                       (unsigned long long)bytes);
    facts->initramfs = gpa((top - bytes) & ~(uint64_t)(PAGE - 1));
    facts->initramfs_bytes = bytes;
    void *to = guest_memory_at(memory, facts->initramfs, bytes);
    r = to != NULL ? read_exactly(fd, to, bytes, 0) : -EFAULT;
    return r < 0 ? err_set(err, r, "cannot read the initramfs: %s", strerror(-r)) : 0;
}

static int write_acpi(const struct boot_image *image, const struct guest_memory *memory)
{
    cleanup_buf struct buf tables = BUF_INIT(LAYOUT_ACPI_BYTES);
    const struct acpi_shape shape = {.vcpus = image->vcpus, .virtio = image->virtio};
    acpi_tables(&shape, LAYOUT_ACPI, &tables);
    if (buf_error(&tables) != 0)
        return buf_error(&tables);
    void *to = guest_memory_at(memory, gpa(LAYOUT_ACPI), tables.len);
    if (to == NULL)
        return -EFAULT;
    memcpy(to, tables.data, tables.len);
    return 0;
}

int boot_load(const struct boot_image *image, const struct guest_memory *memory, gpa_t *ret_entry, struct err *err)
{
    struct elf_plan plan;
    struct boot_facts facts = {.cmdline = image->cmdline};
    int r = load_kernel(image->kernel, memory, &plan, err);
    if (r < 0)
        return r;
    if (image->initramfs >= 0) {
        r = load_initramfs(image->initramfs, memory, plan.end, &facts, err);
        if (r < 0)
            return r;
    }
    r = random_bytes(facts.seed, sizeof facts.seed);
    if (r == 0)
        r = boot_params_write(memory, &facts);
    if (r == 0)
        r = start_tables_write(memory);
    if (r == 0)
        r = write_acpi(image, memory);
    if (r < 0)
        return err_set(err, r, "cannot write the guest's boot tables: %s", strerror(-r));
    *ret_entry = plan.entry;
    return 0;
}
