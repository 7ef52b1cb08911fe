// vmm/virtio/block: any requests; the base stays what it was, and the disk can be read to its end afterwards.
#include "base/cleanup.h"
#include "virtio_rig.h"
#include "vmm/virtio/block.h"

#include <linux/virtio_blk.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DISK_SIZE = 64 * 1024 };

static struct block *the_block;

// A request of the usual form, with the fields from the script.
static void guest(struct rig *rig)
{
    uint32_t at = (uint32_t)rig_take(rig, 1) * 64;
    struct virtio_blk_outhdr h = {.type = (uint32_t)rig_take(rig, 1) % 16, .sector = rig_take(rig, 2) % 160};
    memcpy(rig_data(rig, at, sizeof h), &h, sizeof h);
    struct virtio_blk_discard_write_zeroes s = {.sector = rig_take(rig, 1), .num_sectors = (uint32_t)rig_take(rig, 1)};
    memcpy(rig_data(rig, at + (uint32_t)sizeof h, sizeof s), &s, sizeof s);
}

static void host(struct rig *rig)
{
    block_grow(the_block, DISK_SIZE + rig_take(rig, 1) * 2048);
}

static void read_it_all(struct disk *disk)
{
    static uint8_t bytes[2 * DISK_SIZE];
    uint64_t n = disk_bytes(disk) < sizeof bytes ? disk_bytes(disk) : sizeof bytes, done;
    struct iovec iov = {bytes, n};
    if (disk_read(disk, 0, &iov, 1, false, &done) < 0 || done != n)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t pattern[DISK_SIZE], now[DISK_SIZE];
    struct rig rig;
    struct disk *disk;
    cleanup_fd int base = memfd_create("base", MFD_CLOEXEC);
    cleanup_fd int delta = memfd_create("delta", MFD_CLOEXEC);
    memset(pattern, 0x5a, sizeof pattern);
    rig_begin(&rig, data, size);
    struct disk_config config = {.base = base, .delta = size > 0 && data[0] == 1 ? -1 : delta};
    if (pwrite(base, pattern, sizeof pattern, 0) != DISK_SIZE || disk_open(&config, &disk) < 0)
        abort();
    if (block_new(rig.loop, rig.memory, &(struct block_config){.disk = disk, .id = "fuzz"}, &the_block) < 0)
        abort();
    rig.mmio = block_mmio(the_block);
    rig.guest = guest;
    rig.host = host;
    rig_play(&rig);
    block_free(the_block);
    read_it_all(disk);
    disk_close(disk);
    if (pread(base, now, sizeof now, 0) != DISK_SIZE || memcmp(now, pattern, sizeof now) != 0)
        abort();
    return 0;
}
