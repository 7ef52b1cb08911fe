#include "image/kernel_image.h"

#include "image/unpack.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

enum {
    SECTOR = 512,
    SETUP_SECTS = 0x1f1,
    BOOT_FLAG = 0x1fe,
    HEADER = 0x202,
    VERSION = 0x206,
    PAYLOAD_OFFSET = 0x248,
    PAYLOAD_LENGTH = 0x24c,
    HEADER_END = 0x250,
    VERSION_WITH_PAYLOAD = 0x0208,
    SIZE_TRAILER = 4,
};

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static int check_elf(const struct buf *b, size_t at, struct err *err)
{
    const Elf64_Ehdr *e = (const void *)(b->data + at);
    if (b->len - at < sizeof *e || memcmp(e->e_ident, ELFMAG, SELFMAG) != 0 || e->e_ident[EI_CLASS] != ELFCLASS64 ||
        e->e_ident[EI_DATA] != ELFDATA2LSB || le16toh(e->e_machine) != EM_X86_64)
        return err_set(err, -EBADMSG, "the kernel is not one for x86-64");
    return 0;
}

// Every format but gzip, which tells it itself, is followed by the size of what it unpacks to.
static size_t without_trailer(const uint8_t *payload, size_t n)
{
    bool gzip = n > 2 && payload[0] == 0x1f && payload[1] == 0x8b;
    return gzip || n < SIZE_TRAILER ? n : n - SIZE_TRAILER;
}

static int extract(const struct buf *image, struct buf *vmlinux, struct err *err)
{
    const uint8_t *b = image->data;
    if (image->len < HEADER_END || u16_at(b + BOOT_FLAG) != 0xaa55 || memcmp(b + HEADER, "HdrS", 4) != 0 ||
        u16_at(b + VERSION) < VERSION_WITH_PAYLOAD)
        return err_set(err, -EBADMSG, "the kernel is neither a bzImage (boot protocol 2.08 or newer) nor an ELF file");
    size_t sectors = b[SETUP_SECTS] != 0 ? b[SETUP_SECTS] : 4;
    size_t offset = (sectors + 1) * SECTOR + (size_t)u32_at(b + PAYLOAD_OFFSET);
    size_t length = u32_at(b + PAYLOAD_LENGTH);
    if (offset > image->len || length > image->len - offset)
        return err_set(err, -EBADMSG, "the kernel is cut off: its payload ends beyond its %zu bytes", image->len);
    size_t at = vmlinux->len;
    int r = unpack(b + offset, without_trailer(b + offset, length), vmlinux);
    if (r < 0)
        return err_set(err, r, "the kernel's payload cannot be unpacked: %s", strerror(-r));
    return check_elf(vmlinux, at, err);
}

int kernel_image_extract(const struct buf *image, struct buf *vmlinux, struct err *err)
{
    if (image->len < SELFMAG || memcmp(image->data, ELFMAG, SELFMAG) != 0)
        return extract(image, vmlinux, err);
    int r = check_elf(image, 0, err);
    if (r == 0 && buf_append(vmlinux, image->data, image->len) < 0)
        r = err_set(err, buf_error(vmlinux), "the kernel is too long");
    return r;
}
