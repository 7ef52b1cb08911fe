// vmm/boot/elf: whatever a kernel file says, a plan that is accepted lies inside the file and inside memory, in order, and its
// entry is in what the file holds.  The input's first 8 bytes are the memory's end.
#include "vmm/boot/elf.h"
#include "vmm/layout.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plan(const struct elf_plan *plan, uint64_t file_bytes, uint64_t ram_end)
{
    uint64_t least = LAYOUT_KERNEL_MIN;
    int entries = 0;
    if (plan->count == 0 || plan->count > ELF_SEGMENTS_MAX)
        abort();
    for (size_t i = 0; i < plan->count; i++) {
        const struct elf_segment *s = &plan->segment[i];
        if (s->at.value < least || s->memory_bytes == 0 || s->memory_bytes > ram_end || s->at.value > ram_end - s->memory_bytes)
            abort();
        if (s->file_bytes > s->memory_bytes || s->file_bytes > file_bytes || s->file_offset > file_bytes - s->file_bytes)
            abort();
        least = s->at.value + s->memory_bytes;
        entries += plan->entry.value >= s->at.value && plan->entry.value < s->at.value + s->file_bytes;
    }
    if (entries != 1 || plan->end.value != least)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t ram_end;
    if (size < sizeof ram_end)
        return 0;
    memcpy(&ram_end, data, sizeof ram_end);
    data += sizeof ram_end;
    size -= sizeof ram_end;
    struct elf_plan plan;
    const char *why = NULL;
    size_t head = size < ELF_HEAD_BYTES ? size : ELF_HEAD_BYTES;
    int r = elf_plan(data, head, size, ram_end, &plan, &why);
    if ((r < 0) != (why != NULL))
        abort();
    if (r == 0)
        check_plan(&plan, size, ram_end);
    return 0;
}
