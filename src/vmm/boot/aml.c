#include "vmm/boot/aml.h"

#include <string.h>

enum {
    OP_NAME = 0x08,
    OP_BYTE = 0x0a,
    OP_WORD = 0x0b,
    OP_DWORD = 0x0c,
    OP_STRING = 0x0d,
    OP_SCOPE = 0x10,
    OP_BUFFER = 0x11,
    OP_PACKAGE = 0x12,
    OP_EXT = 0x5b,
    OP_EXT_DEVICE = 0x82,
    // Resource descriptors: the tags of ACPI 6.3, chapter 6.4.
    TAG_IO = 0x47,
    TAG_END = 0x79,
    TAG_MEMORY32 = 0x86,
    TAG_INTERRUPT = 0x89,
    INTERRUPT_CONSUMER = 1,
    INTERRUPT_EDGE = 2,
    IO_DECODE16 = 1,
    MEMORY_WRITABLE = 1,
};

static void put8(struct buf *out, unsigned value)
{
    uint8_t byte = (uint8_t)value;
    buf_append(out, &byte, 1);
}

// Little-endian, like everything in AML and like this machine.
static void put16(struct buf *out, uint16_t value)
{
    buf_append(out, &value, sizeof value);
}

static void put32(struct buf *out, uint32_t value)
{
    buf_append(out, &value, sizeof value);
}

// PkgLength counts itself.  One byte for up to 63, else the first byte says how many follow and holds the low four bits.
static void put_length(struct buf *out, size_t body)
{
    enum { ONE_BYTE_MAX = 0x3f, LOW_BITS = 4, LOW_MASK = 0xf, COUNT_SHIFT = 6 };
    if (body + 1 <= ONE_BYTE_MAX) {
        put8(out, (unsigned)body + 1);
        return;
    }
    unsigned more = 1;
    while ((body + 1 + more) >> (LOW_BITS + 8 * more) != 0)
        more++;
    size_t length = body + 1 + more;
    put8(out, (more << COUNT_SHIFT) | (unsigned)(length & LOW_MASK));
    length >>= LOW_BITS;
    for (; more > 0; more--, length >>= 8)
        put8(out, (unsigned)(length & 0xff));
}

static void put_body(struct buf *out, struct buf *body)
{
    if (buf_error(body) != 0)
        out->error = buf_error(body);
    else
        buf_append(out, body->data, body->len);
}

static void put_name(struct buf *out, const char name[static 4])
{
    put8(out, OP_NAME);
    buf_append(out, name, 4);
}

static void put_number(struct buf *out, uint32_t number)
{
    if (number <= UINT8_MAX) {
        put8(out, OP_BYTE);
        put8(out, number);
    } else if (number <= UINT16_MAX) {
        put8(out, OP_WORD);
        put16(out, (uint16_t)number);
    } else {
        put8(out, OP_DWORD);
        put32(out, number);
    }
}

void aml_device(struct buf *out, const char name[static 4], struct buf *body)
{
    put8(out, OP_EXT);
    put8(out, OP_EXT_DEVICE);
    put_length(out, 4 + body->len);
    buf_append(out, name, 4);
    put_body(out, body);
}

void aml_scope_sb(struct buf *out, struct buf *body)
{
    put8(out, OP_SCOPE);
    put_length(out, 5 + body->len);
    buf_append_text(out, "\\_SB_");
    put_body(out, body);
}

void aml_name_text(struct buf *out, const char name[static 4], const char *text)
{
    put_name(out, name);
    put8(out, OP_STRING);
    buf_append(out, text, strlen(text) + 1);
}

void aml_name_number(struct buf *out, const char name[static 4], uint32_t number)
{
    put_name(out, name);
    put_number(out, number);
}

static unsigned hex_digit(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'A' + 10);
}

// Three letters of five bits each and four hexadecimal digits, the high byte first.
void aml_name_eisa(struct buf *out, const char name[static 4], const char id[static 7])
{
    enum { LETTER_BASE = 0x40 };
    unsigned letters =
        (unsigned)(id[0] - LETTER_BASE) << 10 | (unsigned)(id[1] - LETTER_BASE) << 5 | (unsigned)(id[2] - LETTER_BASE);
    put_name(out, name);
    put8(out, OP_DWORD);
    put8(out, letters >> 8);
    put8(out, letters & 0xff);
    put8(out, hex_digit(id[3]) << 4 | hex_digit(id[4]));
    put8(out, hex_digit(id[5]) << 4 | hex_digit(id[6]));
}

void aml_name_resources(struct buf *out, const char name[static 4], struct buf *resources)
{
    put8(resources, TAG_END);
    put8(resources, 0);  // no checksum
    put_name(out, name);
    put8(out, OP_BUFFER);
    size_t size = resources->len <= UINT8_MAX ? 2 : 3;  // how the number below is encoded
    put_length(out, size + resources->len);
    put_number(out, (uint32_t)resources->len);
    put_body(out, resources);
}

void aml_name_package(struct buf *out, const char name[static 4], uint8_t first, uint8_t second)
{
    enum { ELEMENTS = 4, BODY = 1 + ELEMENTS * 2 };
    put_name(out, name);
    put8(out, OP_PACKAGE);
    put_length(out, BODY);
    put8(out, ELEMENTS);
    const uint8_t element[ELEMENTS] = {first, second};
    for (size_t i = 0; i < ELEMENTS; i++) {
        put8(out, OP_BYTE);
        put8(out, element[i]);
    }
}

void aml_memory32(struct buf *out, uint32_t base, uint32_t bytes)
{
    put8(out, TAG_MEMORY32);
    put16(out, 9);
    put8(out, MEMORY_WRITABLE);
    put32(out, base);
    put32(out, bytes);
}

void aml_io(struct buf *out, uint16_t port, uint8_t ports)
{
    put8(out, TAG_IO);
    put8(out, IO_DECODE16);
    put16(out, port);  // lowest and highest base
    put16(out, port);
    put8(out, 1);  // alignment
    put8(out, ports);
}

void aml_interrupt(struct buf *out, uint32_t gsi)
{
    put8(out, TAG_INTERRUPT);
    put16(out, 6);
    put8(out, INTERRUPT_CONSUMER | INTERRUPT_EDGE);
    put8(out, 1);  // one interrupt
    put32(out, gsi);
}
