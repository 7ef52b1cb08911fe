// The block device (virtio 1.2, section 5.2) over a copy-on-write disk (virtio/disk.h).
//
// One queue.  Requests are taken on the loop's thread, copied and checked there, and carried out one after the other on a
// thread of their own (so a flush covers everything before it), straight into and out of guest memory.  A reset waits for the
// request that is being carried out; the others are dropped.  A failed request is VIRTIO_BLK_S_IOERR for the guest, never more.
// A disk with a limit of its speed waits on that thread, too, for as long as a pause or a reset does not need it.  What is read
// of a base file, which many machines share, is not counted.
//
// A device without a disk is a place for one: it has no size, and every request for data fails.  To a driver it is one whose
// disk can be written, so that a machine that was saved with it can go on with a disk there (block_announce).
#ifndef VMM_VIRTIO_BLOCK_H
#define VMM_VIRTIO_BLOCK_H

#include "sys/loop.h"
#include "vmm/mem/guest_memory.h"
#include "vmm/virtio/disk.h"
#include "vmm/virtio/mmio.h"

enum {
    BLOCK_QUEUE_SIZE = 256,
    BLOCK_SEGMENTS_MAX = BLOCK_QUEUE_SIZE - 2,  // of data, besides header and status
    BLOCK_SEGMENT_BYTES = 128 * 1024,
    BLOCK_REQUEST_MAX = BLOCK_SEGMENTS_MAX * BLOCK_SEGMENT_BYTES,  // bytes of data
    BLOCK_ZERO_SECTORS_MAX = 64 * 1024,  // of one discard or write-zeroes request: 32 MiB, in one segment
    BLOCK_ID_BYTES = 20,
};

struct block_config {
    struct disk *disk;            // outlives the device, and is used by nobody else meanwhile; NULL: none
    char id[BLOCK_ID_BYTES + 1];  // what the guest sees as its serial number
    // How fast the disk may be read, and how fast written, at most; 0: no limit.
    uint64_t bytes_per_s, ops_per_s;
};

struct block_counters {
    uint64_t reads, writes, flushes, zeroes;  // requests carried out
    uint64_t read_bytes, written_bytes;
    uint64_t errors;   // of the host's disk
    uint64_t refused;  // requests that were malformed, outside the disk, or of an unknown kind
    int last_error;    // a negative errno, 0 if there was none
};

struct block;

// 0 or a negative errno.
int block_new(struct loop *loop, const struct guest_memory *memory, const struct block_config *config,
              struct block **ret_block);
// On the loop's thread, when no vCPU runs any more.  NULL is fine; returns NULL.
struct block *block_free(struct block *block);
struct virtio_mmio *block_mmio(struct block *block);

// Makes the disk larger while the guest runs, and tells it.  As disk_grow, or -ENODEV without one; waits for the request that
// is being carried out. On the loop's thread, as block_counters.
int block_grow(struct block *block, uint64_t bytes);
// The disk is another one than the driver knows, of another size: it is told to look.  For a machine that was saved without.
void block_announce(struct block *block);
void block_counters(struct block *block, struct block_counters *ret_counters);

#endif
