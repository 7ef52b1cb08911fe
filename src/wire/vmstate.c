#include "wire/vmstate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 32, ENTRY = 32, HEAD_CRC_AT = 28, ALIGN = 8 };

static const uint8_t magic[8] = {'S', 'B', 'X', 'V', 'M', 'S', 'T', '1'};

static const char *const type_names[VMSTATE_TYPE_END_] = {
    [VMSTATE_HOST] = "host",
    [VMSTATE_SHAPE] = "shape",
    [VMSTATE_CPUID] = "vCPU identification",
    [VMSTATE_MP_STATE] = "vCPU run state",
    [VMSTATE_REGS] = "vCPU registers",
    [VMSTATE_SREGS] = "vCPU special registers",
    [VMSTATE_XSAVE] = "vCPU vector registers",
    [VMSTATE_XCRS] = "vCPU extended control registers",
    [VMSTATE_DEBUGREGS] = "vCPU debug registers",
    [VMSTATE_LAPIC] = "local APIC",
    [VMSTATE_MSRS] = "vCPU model-specific registers",
    [VMSTATE_VCPU_EVENTS] = "vCPU events",
    [VMSTATE_TSC_KHZ] = "TSC frequency",
    [VMSTATE_IRQCHIP] = "interrupt chip",
    [VMSTATE_CLOCK] = "clock",
    [VMSTATE_TRANSPORT] = "virtio transport",
    [VMSTATE_DISK] = "disk",
    [VMSTATE_VSOCK] = "vsock",
    [VMSTATE_SERIAL] = "serial port",
    [VMSTATE_WORKING_SET] = "working set",
};

const char *vmstate_type_name(uint32_t type)
{
    return type > 0 && type < VMSTATE_TYPE_END_ ? type_names[type] : "unknown section";
}

// ---- numbers and checksums ----

static uint64_t number(const uint8_t *at, size_t width)
{
    uint64_t value = 0;
    for (size_t i = width; i > 0; i--)
        value = value << 8 | at[i - 1];
    return value;
}

static void put(uint8_t *at, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

struct crc_table {
    uint32_t of[256];
};

static struct crc_table crc_table(void)
{
    static const uint32_t castagnoli = 0x82f63b78;  // reflected
    struct crc_table t;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = c >> 1 ^ ((c & 1) != 0 ? castagnoli : 0);
        t.of[i] = c;
    }
    return t;
}

static uint32_t crc32c(const struct crc_table *t, const uint8_t *bytes, size_t n)
{
    uint32_t c = UINT32_MAX;
    for (size_t i = 0; i < n; i++)
        c = c >> 8 ^ t->of[(c ^ bytes[i]) & 0xff];
    return ~c;
}

static size_t padded(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

// ---- reading ----

static int parse_head(const struct crc_table *t, const uint8_t *bytes, size_t n, size_t *ret_count, struct err *err)
{
    if (n < HEAD || memcmp(bytes, magic, sizeof magic) != 0)
        return err_set(err, -EBADMSG, "it is not a machine's state: the head is missing or of something else");
    if (crc32c(t, bytes, HEAD_CRC_AT) != number(bytes + HEAD_CRC_AT, 4))
        return err_set(err, -EBADMSG, "its head is damaged");
    uint64_t version = number(bytes + 8, 4), count = number(bytes + 12, 4), size = number(bytes + 16, 8);
    if (version != VMSTATE_VERSION)
        return err_set(err, -EBADMSG, "it has version %llu; this program reads version %d", (unsigned long long)version,
                       VMSTATE_VERSION);
    if (size != n)
        return err_set(err, -EBADMSG, "it has %zu bytes; its head says %llu", n, (unsigned long long)size);
    if (count == 0 || count > VMSTATE_SECTIONS_MAX || count * ENTRY > n - HEAD)
        return err_set(err, -EBADMSG, "it claims %llu sections", (unsigned long long)count);
    if (crc32c(t, bytes + HEAD, (size_t)count * ENTRY) != number(bytes + 24, 4))
        return err_set(err, -EBADMSG, "its table of sections is damaged");
    *ret_count = (size_t)count;
    return 0;
}

static bool comes_after(const struct vmstate_section *s, const struct vmstate_section *before)
{
    return s->type > before->type || (s->type == before->type && s->instance > before->instance);
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

// The section that entry `i` of the table describes, whose bytes must begin at *at.
static int parse_section(const struct crc_table *t, const uint8_t *bytes, size_t n, size_t i, size_t *at, struct vmstate *state,
                         struct err *err)
{
    const uint8_t *entry = bytes + HEAD + i * ENTRY;
    struct vmstate_section *s = &state->section[i];
    *s = (struct vmstate_section){.type = (uint32_t)number(entry, 4),
                                  .instance = (uint32_t)number(entry + 4, 4),
                                  .version = (uint32_t)number(entry + 8, 4)};
    uint64_t offset = number(entry + 16, 8), len = number(entry + 24, 8);
    const char *name = vmstate_type_name(s->type);
    if (s->type == 0 || s->type >= VMSTATE_TYPE_END_ || s->version != VMSTATE_VERSION)
        return err_set(err, -EBADMSG, "section %zu (type %u, version %u) is not one that this program knows", i, s->type,
                       s->version);
    if (i > 0 && !comes_after(s, &state->section[i - 1]))
        return err_set(err, -EBADMSG, "section \"%s\" %u is out of order", name, s->instance);
    if (len == 0 || len > VMSTATE_SECTION_MAX || offset != *at || padded((size_t)len) > n - *at)
        return err_set(err, -EBADMSG, "section \"%s\" %u does not lie where it should", name, s->instance);
    s->bytes = bytes + offset;
    s->len = (size_t)len;
    if (crc32c(t, s->bytes, s->len) != number(entry + 12, 4) || !all_zero(s->bytes + s->len, padded(s->len) - s->len))
        return err_set(err, -EBADMSG, "section \"%s\" %u is damaged", name, s->instance);
    *at += padded(s->len);
    return 0;
}

int vmstate_parse(const uint8_t *bytes, size_t n, struct vmstate *ret_state, struct err *err)
{
    if (n > VMSTATE_FILE_MAX)
        return err_set(err, -EBADMSG, "it has %zu bytes; at most %d are possible", n, VMSTATE_FILE_MAX);
    const struct crc_table table = crc_table();
    struct vmstate *state = calloc(1, sizeof *state);
    if (state == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    int r = parse_head(&table, bytes, n, &state->count, err);
    size_t at = HEAD + state->count * ENTRY;
    for (size_t i = 0; r == 0 && i < state->count; i++)
        r = parse_section(&table, bytes, n, i, &at, state, err);
    if (r == 0 && at != n)
        r = err_set(err, -EBADMSG, "it has %zu bytes behind its last section", n - at);
    if (r == 0)
        *ret_state = *state;
    free(state);
    return r;
}

const struct vmstate_section *vmstate_find(const struct vmstate *state, enum vmstate_type type, uint32_t instance)
{
    for (size_t i = 0; i < state->count; i++)
        if (state->section[i].type == type && state->section[i].instance == instance)
            return &state->section[i];
    return NULL;
}

int vmstate_get(const struct vmstate *state, enum vmstate_type type, uint32_t instance, void *out, size_t n, struct err *err)
{
    const struct vmstate_section *s = vmstate_find(state, type, instance);
    if (s == NULL)
        return err_set(err, -EBADMSG, "section \"%s\" %u is missing", vmstate_type_name(type), instance);
    if (s->len != n)
        return err_set(err, -EBADMSG, "section \"%s\" %u has %zu bytes, not %zu", vmstate_type_name(type), instance, s->len, n);
    memcpy(out, s->bytes, n);
    return 0;
}

// ---- writing ----

int vmstate_add(struct vmstate *state, enum vmstate_type type, uint32_t instance, const void *bytes, size_t n)
{
    if (state->count == VMSTATE_SECTIONS_MAX)
        return -ENOSPC;
    struct vmstate_section s = {.type = type, .instance = instance, .version = VMSTATE_VERSION, .len = n, .bytes = bytes};
    size_t at = state->count++;
    for (; at > 0 && comes_after(&state->section[at - 1], &s); at--)
        state->section[at] = state->section[at - 1];
    state->section[at] = s;
    return 0;
}

static int check_list(const struct vmstate *state, size_t *ret_size)
{
    size_t size = HEAD + state->count * ENTRY;
    for (size_t i = 0; i < state->count; i++) {
        const struct vmstate_section *s = &state->section[i];
        if (s->type == 0 || s->type >= VMSTATE_TYPE_END_ || s->version != VMSTATE_VERSION || s->len == 0 ||
            s->len > VMSTATE_SECTION_MAX || (i > 0 && !comes_after(s, s - 1)))
            return -EINVAL;
        size += padded(s->len);
    }
    *ret_size = size;
    return state->count == 0 || size > VMSTATE_FILE_MAX ? -EINVAL : 0;
}

static void fill_table(const struct vmstate *state, const struct crc_table *t, uint8_t *file)
{
    size_t at = HEAD + state->count * ENTRY;
    for (size_t i = 0; i < state->count; i++) {
        const struct vmstate_section *s = &state->section[i];
        uint8_t *entry = file + HEAD + i * ENTRY;
        put(entry, s->type, 4);
        put(entry + 4, s->instance, 4);
        put(entry + 8, s->version, 4);
        put(entry + 12, crc32c(t, s->bytes, s->len), 4);
        put(entry + 16, at, 8);
        put(entry + 24, s->len, 8);
        memcpy(file + at, s->bytes, s->len);
        memset(file + at + s->len, 0, padded(s->len) - s->len);
        at += padded(s->len);
    }
}

int vmstate_write(const struct vmstate *state, struct buf *out)
{
    size_t size;
    uint8_t *file;
    int r = check_list(state, &size);
    if (r == 0)
        r = buf_reserve(out, size, &file);
    if (r < 0)
        return r;
    const struct crc_table table = crc_table();
    fill_table(state, &table, file);
    memcpy(file, magic, sizeof magic);
    put(file + 8, VMSTATE_VERSION, 4);
    put(file + 12, state->count, 4);
    put(file + 16, size, 8);
    put(file + 24, crc32c(&table, file + HEAD, state->count * ENTRY), 4);
    put(file + HEAD_CRC_AT, crc32c(&table, file, HEAD_CRC_AT), 4);
    buf_commit(out, size);
    return 0;
}

// ---- the working set ----

int vmstate_working_set(const struct vmstate *state, uint64_t pages, const struct vmstate_range **ret_ranges, size_t *ret_count,
                        struct err *err)
{
    const struct vmstate_section *s = vmstate_find(state, VMSTATE_WORKING_SET, 0);
    if (s == NULL || state->count != 1 || s->len % sizeof(struct vmstate_range) != 0 ||
        s->len / sizeof(struct vmstate_range) > VMSTATE_RANGES_MAX || (uintptr_t)s->bytes % _Alignof(struct vmstate_range) != 0)
        return err_set(err, -EBADMSG, "it is not a working set");
    const struct vmstate_range *ranges = (const struct vmstate_range *)(const void *)s->bytes;
    size_t count = s->len / sizeof *ranges;
    uint64_t end = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        const struct vmstate_range *range = &ranges[i];
        uint64_t range_end = (uint64_t)range->first + range->pages;
        if (range->pages == 0 || range->first < end || range_end > pages || range->written > 1 || range->reserved != 0)
            return err_set(err, -EBADMSG, "range %zu of the working set does not fit", i);
        end = range_end;
        all += range->pages;
    }
    if (all > VMSTATE_WORKING_SET_PAGES)
        return err_set(err, -EBADMSG, "the working set has %llu pages; at most %d are possible", (unsigned long long)all,
                       VMSTATE_WORKING_SET_PAGES);
    *ret_ranges = ranges;
    *ret_count = count;
    return 0;
}
