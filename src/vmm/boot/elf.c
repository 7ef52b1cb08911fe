#include "vmm/boot/elf.h"

#include "vmm/layout.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static int bad(const char **ret_why, const char *why)
{
    *ret_why = why;
    return -ENOEXEC;
}

static int check_header(const uint8_t *head, size_t n, Elf64_Ehdr *ret_header, const char **ret_why)
{
    Elf64_Ehdr h;
    if (n < sizeof h)
        return bad(ret_why, "is shorter than an ELF header");
    memcpy(&h, head, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
        return bad(ret_why, "is not an ELF file (a vmlinux is needed, not a bzImage)");
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_machine != EM_X86_64)
        return bad(ret_why, "is not for x86-64");
    if (h.e_type != ET_EXEC)
        return bad(ret_why, "is not an executable ELF file");
    if (h.e_phentsize != sizeof(Elf64_Phdr) || h.e_phnum == 0)
        return bad(ret_why, "has no program headers");
    if (h.e_phoff > n || h.e_phnum > (n - h.e_phoff) / sizeof(Elf64_Phdr))
        return bad(ret_why, "has program headers beyond its first 4096 bytes");
    *ret_header = h;
    return 0;
}

// Segments come in ascending order in every linker's output; anything else would make overlaps hard to see.
static int check_segment(const Elf64_Phdr *p, uint64_t file_bytes, uint64_t least, uint64_t ram_end, const char **ret_why)
{
    if (p->p_filesz > p->p_memsz)
        return bad(ret_why, "has a segment with more bytes in the file than in memory");
    if (p->p_offset > file_bytes || p->p_filesz > file_bytes - p->p_offset)
        return bad(ret_why, "has a segment beyond its end");
    if (p->p_paddr < least)
        return bad(ret_why, "has segments that overlap, are out of order, or lie below 1 MiB");
    if (p->p_paddr > ram_end || p->p_memsz > ram_end - p->p_paddr)
        return bad(ret_why, "does not fit the guest's memory");
    return 0;
}

static bool holds_entry(const struct elf_segment *s, uint64_t entry)
{
    return entry >= s->at.value && entry - s->at.value < s->file_bytes;
}

int elf_plan(const uint8_t *head, size_t n, uint64_t file_bytes, uint64_t ram_end, struct elf_plan *ret_plan,
             const char **ret_why)
{
    Elf64_Ehdr h;
    int r = check_header(head, n, &h, ret_why);
    if (r < 0)
        return r;
    struct elf_plan plan = {.entry = {h.e_entry}, .end = {LAYOUT_KERNEL_MIN}};
    bool entered = false;
    for (unsigned i = 0; i < h.e_phnum; i++) {
        Elf64_Phdr p;
        memcpy(&p, head + h.e_phoff + i * sizeof p, sizeof p);
        if (p.p_type != PT_LOAD || p.p_memsz == 0)
            continue;
        if (plan.count == ELF_SEGMENTS_MAX)
            return bad(ret_why, "has too many segments (at most 16)");
        r = check_segment(&p, file_bytes, plan.end.value, ram_end, ret_why);
        if (r < 0)
            return r;
        struct elf_segment *s = &plan.segment[plan.count++];
        *s = (struct elf_segment){p.p_offset, p.p_filesz, p.p_memsz, {p.p_paddr}};
        plan.end.value = p.p_paddr + p.p_memsz;
        entered = entered || holds_entry(s, h.e_entry);
    }
    if (!entered)
        return bad(ret_why, "has an entry point outside its segments");
    *ret_plan = plan;
    return 0;
}

int read_exactly(int fd, void *to, size_t n, uint64_t offset)
{
    char *at = to;
    while (n > 0) {
        ssize_t got = pread(fd, at, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -EIO;
        at += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int elf_load(const struct elf_plan *plan, int fd, const struct guest_memory *memory)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct elf_segment *s = &plan->segment[i];
        void *to = guest_memory_at(memory, s->at, s->memory_bytes);
        if (to == NULL)
            return -EFAULT;
        int r = read_exactly(fd, to, s->file_bytes, s->file_offset);
        if (r < 0)
            return r;
    }
    return 0;
}
