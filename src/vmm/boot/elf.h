// A kernel as an ELF file (vmlinux): which parts go where.  The file is hostile until elf_plan has seen it: it may come from an
// operator's folder, and nothing in it is believed.
#ifndef VMM_BOOT_ELF_H
#define VMM_BOOT_ELF_H

#include "vmm/mem/guest_memory.h"

#include <stddef.h>
#include <stdint.h>

enum {
    ELF_HEAD_BYTES = 4096,  // the header and all program headers must lie in the file's first bytes
    ELF_SEGMENTS_MAX = 16,
};

struct elf_segment {
    uint64_t file_offset;
    uint64_t file_bytes;  // the rest up to memory_bytes is zero
    uint64_t memory_bytes;
    gpa_t at;
};

struct elf_plan {
    struct elf_segment segment[ELF_SEGMENTS_MAX];  // ascending, not overlapping
    size_t count;
    gpa_t entry;  // inside the bytes of one segment that come from the file
    gpa_t end;    // behind the last segment
};

// Reads headers.  `head`: the file's first `n` bytes (as many as it has, at most ELF_HEAD_BYTES); `file_bytes`: its size.
// Everything must lie in [1 MiB, ram_end).  Pure.  0 or -ENOEXEC; then *ret_why is a sentence's end for the user.
int elf_plan(const uint8_t *head, size_t n, uint64_t file_bytes, uint64_t ram_end, struct elf_plan *ret_plan,
             const char **ret_why);

// Reads the planned parts from `fd` into memory that is zero.  0 or a negative errno; -EIO if the file ends early.
int elf_load(const struct elf_plan *plan, int fd, const struct guest_memory *memory);

// Reads exactly `n` bytes at `offset`.  0 or a negative errno; -EIO if the file ends early.
int read_exactly(int fd, void *to, size_t n, uint64_t offset);

#endif
