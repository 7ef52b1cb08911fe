// The files of a machine's snapshot that are not memory: the state of its vCPUs and devices (vmstate.bin) and the list of pages
// a clone will need first (working-set.bin).  Pure: bytes in, sections out.
//
// Trust: such a file was written by a monitor, which a guest may have taken over, and has lain on a disk since.  Nothing in it
// is believed before vmstate_parse has looked at it; what a section means is checked by whoever uses it (vmm/snapshot).
//
//     head:     magic "SBXVMST1", u32 version (1), u32 number of sections, u64 size of the file,
//               u32 CRC-32C of the table, u32 CRC-32C of the 28 bytes before
//     table:    for each section: u32 type, u32 instance, u32 version, u32 CRC-32C of its bytes, u64 offset, u64 length
//     sections: in the table's order, each padded with zeros to a multiple of 8
//
// Integers are little-endian: the file is bound to x86-64 anyway.  There is exactly one encoding of a list of sections (sorted
// by type and instance, unique, no gaps), so that every changed byte is noticed, and named: the CRCs find accidents.  Against
// purpose, files of a snapshot are bound together by the digests in its manifest (wire/manifest.h).
// A reader refuses a type or a version of a section that it does not know.
#ifndef WIRE_VMSTATE_H
#define WIRE_VMSTATE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VMSTATE_VERSION = 1,
    VMSTATE_SECTIONS_MAX = 512,
    VMSTATE_SECTION_MAX = 1024 * 1024,     // bytes of one
    VMSTATE_FILE_MAX = 16 * 1024 * 1024,   // bytes of a file
    VMSTATE_RANGES_MAX = 8192,             // of a working set
    VMSTATE_WORKING_SET_PAGES = 64 * 256,  // and how many pages they hold: 64 MiB
    VMSTATE_PAGE = 4096,
};

// Frozen once snapshots exist.  The instance is a vCPU's id, a chip's, or a device's place; 0 where there is one of it.
enum vmstate_type {
    VMSTATE_HOST = 1,     // which processor and kernel it was made on
    VMSTATE_SHAPE,        // memory, vCPUs, devices
    VMSTATE_CPUID,        // of a vCPU, from here ...
    VMSTATE_MP_STATE,     //
    VMSTATE_REGS,         //
    VMSTATE_SREGS,        //
    VMSTATE_XSAVE,        //
    VMSTATE_XCRS,         // optional
    VMSTATE_DEBUGREGS,    //
    VMSTATE_LAPIC,        //
    VMSTATE_MSRS,         //
    VMSTATE_VCPU_EVENTS,  //
    VMSTATE_TSC_KHZ,      // ... to here
    VMSTATE_IRQCHIP,      // two PICs, I/O APIC
    VMSTATE_CLOCK,        // kvmclock
    VMSTATE_TRANSPORT,    // of a virtio device
    VMSTATE_DISK,         //
    VMSTATE_VSOCK,        //
    VMSTATE_SERIAL,       //
    VMSTATE_WORKING_SET,  // alone in its file
    VMSTATE_TYPE_END_,
};

struct vmstate_section {
    uint32_t type;
    uint32_t instance;
    uint32_t version;
    size_t len;
    const uint8_t *bytes;  // 8-byte aligned if the file's bytes are
};

struct vmstate {
    size_t count;
    struct vmstate_section section[VMSTATE_SECTIONS_MAX];
};

// Pages that a clone needs first: [first, first + pages), numbered from the start of the memory file.
struct vmstate_range {
    uint32_t first;
    uint32_t pages;
    uint32_t written;  // 1: written to; 0: only read
    uint32_t reserved;
};

// "vCPU registers" and so on, for people; never NULL.
const char *vmstate_type_name(uint32_t type);

// Parses a whole file; the sections point into `bytes`.  0, or -EBADMSG with a sentence in *err that names what is wrong.
// *ret_state is untouched then.
int vmstate_parse(const uint8_t *bytes, size_t n, struct vmstate *ret_state, struct err *err);

// The section, or NULL.
const struct vmstate_section *vmstate_find(const struct vmstate *state, enum vmstate_type type, uint32_t instance);
// Copies out a section that must be there and have exactly `n` bytes.  0, or -EBADMSG with its name in *err.
int vmstate_get(const struct vmstate *state, enum vmstate_type type, uint32_t instance, void *out, size_t n, struct err *err);

// Adds a section for vmstate_write; `bytes` stay the caller's and outlive the writing.  0, or -ENOSPC.  Any order.
int vmstate_add(struct vmstate *state, enum vmstate_type type, uint32_t instance, const void *bytes, size_t n);
// Appends the file.  0; -EINVAL for a list that vmstate_parse would refuse; or the buffer's error.
int vmstate_write(const struct vmstate *state, struct buf *out);

// A working set for a memory of `pages` pages: ascending ranges that do not touch what is not there.
// 0 with *ret_ranges pointing into the file's bytes, or -EBADMSG with a sentence.
int vmstate_working_set(const struct vmstate *state, uint64_t pages, const struct vmstate_range **ret_ranges, size_t *ret_count,
                        struct err *err);

#endif
