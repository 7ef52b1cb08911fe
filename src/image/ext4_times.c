#include "image/ext4_times.h"

#include <errno.h>
#include <stdbool.h>

// Where fields lie in the superblock, a group descriptor and an inode: fs/ext4/ext4.h.
enum {
    SUPER_AT = 1024,
    SUPER_SIZE = 1024,
    SB_INODES = 0x00,
    SB_BLOCKS = 0x04,
    SB_FIRST_BLOCK = 0x14,
    SB_LOG_BLOCK = 0x18,
    SB_GROUP_BLOCKS = 0x20,
    SB_GROUP_INODES = 0x28,
    SB_MAGIC = 0x38,
    SB_INODE_SIZE = 0x58,
    SB_INCOMPAT = 0x60,
    SB_RO_COMPAT = 0x64,
    MAGIC = 0xEF53,
    INCOMPAT_JOURNAL_DEVICE = 0x8,
    INCOMPAT_64BIT = 0x80,
    RO_COMPAT_GDT_CSUM = 0x10,
    RO_COMPAT_METADATA_CSUM = 0x400,
    GROUP_SIZE = 32,
    GROUP_INODE_BITMAP = 0x04,
    GROUP_INODE_TABLE = 0x08,
    INODE_ATIME = 0x08,
    INODE_CTIME = 0x0C,
    INODE_MTIME = 0x10,
    INODE_CTIME_EXTRA = 0x84,
    INODE_MTIME_EXTRA = 0x88,
    INODE_ATIME_EXTRA = 0x8C,
    INODE_CRTIME = 0x90,
    INODE_CRTIME_EXTRA = 0x94,
    INODE_TIMES_END = 0x98,
};

struct ext4 {
    uint8_t *image;
    size_t size;
    uint32_t inodes, blocks, group_blocks, group_inodes, first_block;
    size_t block, inode_size;
};

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static bool open_super(struct ext4 *fs)
{
    if (fs->size < SUPER_AT + SUPER_SIZE)
        return false;
    const uint8_t *sb = fs->image + SUPER_AT;
    uint32_t log_block = get32(sb + SB_LOG_BLOCK);
    if ((get32(sb + SB_MAGIC) & 0xFFFF) != MAGIC || log_block > 6 ||
        (get32(sb + SB_INCOMPAT) & (INCOMPAT_64BIT | INCOMPAT_JOURNAL_DEVICE)) != 0 ||
        (get32(sb + SB_RO_COMPAT) & (RO_COMPAT_GDT_CSUM | RO_COMPAT_METADATA_CSUM)) != 0)
        return false;
    fs->block = (size_t)1024 << log_block;
    fs->inodes = get32(sb + SB_INODES);
    fs->blocks = get32(sb + SB_BLOCKS);
    fs->group_blocks = get32(sb + SB_GROUP_BLOCKS);
    fs->group_inodes = get32(sb + SB_GROUP_INODES);
    fs->first_block = get32(sb + SB_FIRST_BLOCK);
    fs->inode_size = get32(sb + SB_INODE_SIZE) & 0xFFFF;
    return fs->inode_size >= INODE_TIMES_END && fs->inode_size <= fs->block && fs->group_blocks > 0 && fs->group_inodes > 0 &&
           fs->group_inodes <= fs->block * 8 && fs->blocks > fs->first_block && fs->blocks <= fs->size / fs->block;
}

// `n` bytes at the start of a block, or NULL when they are not inside the image.
static uint8_t *at_block(const struct ext4 *fs, uint64_t block, uint64_t n)
{
    uint64_t at = block * fs->block;
    return at <= fs->size && n <= fs->size - at ? fs->image + at : NULL;
}

static void settle_inode(uint8_t *inode)
{
    uint32_t mtime = get32(inode + INODE_MTIME);
    put32(inode + INODE_ATIME, mtime);
    put32(inode + INODE_CTIME, mtime);
    put32(inode + INODE_CRTIME, mtime);
    put32(inode + INODE_CTIME_EXTRA, 0);
    put32(inode + INODE_MTIME_EXTRA, 0);
    put32(inode + INODE_ATIME_EXTRA, 0);
    put32(inode + INODE_CRTIME_EXTRA, 0);
}

static int settle_group(const struct ext4 *fs, const uint8_t *group)
{
    const uint8_t *bitmap = at_block(fs, get32(group + GROUP_INODE_BITMAP), fs->block);
    uint8_t *table = at_block(fs, get32(group + GROUP_INODE_TABLE), (uint64_t)fs->group_inodes * fs->inode_size);
    if (bitmap == NULL || table == NULL)
        return -EBADMSG;
    for (uint32_t i = 0; i < fs->group_inodes; i++) {
        uint8_t *inode = table + (size_t)i * fs->inode_size;
        // A reserved inode that was never written has no times; writing zeros there would only fill holes.
        if ((bitmap[i / 8] >> (i % 8) & 1) != 0 && (get32(inode + INODE_CTIME) | get32(inode + INODE_MTIME)) != 0)
            settle_inode(inode);
    }
    return 0;
}

int ext4_settle_times(uint8_t *image, size_t size)
{
    struct ext4 fs = {.image = image, .size = size};
    if (!open_super(&fs))
        return -EBADMSG;
    uint32_t groups = (fs.blocks - fs.first_block - 1) / fs.group_blocks + 1;
    // Not inside the superblock's own block, and every group must have inodes of its own.
    if ((uint64_t)groups * fs.group_inodes != fs.inodes)
        return -EBADMSG;
    const uint8_t *table = at_block(&fs, (uint64_t)fs.first_block + 1, (uint64_t)groups * GROUP_SIZE);
    if (table == NULL)
        return -EBADMSG;
    for (uint32_t i = 0; i < groups; i++) {
        int r = settle_group(&fs, table + (size_t)i * GROUP_SIZE);
        if (r < 0)
            return r;
    }
    return 0;
}
