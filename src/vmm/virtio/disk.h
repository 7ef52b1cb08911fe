// A copy-on-write disk: a read-only base file, and over it a sparse file with the blocks that differ.  Between them there may
// be a layer, another such sparse file, which is only read: what a snapshot's disk differed by, shared by all its clones.
//
// A block of DISK_BLOCK bytes that is allocated in the delta is the disk's block; a hole falls through to the base, and where
// the base ends (or has a hole) there are zeros.  Which blocks are allocated is found once with SEEK_DATA and kept in a bitmap.
// "Base" is all that is below the delta.  Because a hole means "as in the base", a discarded block is punched out only where
// the base reads as zeros; elsewhere zeros are written.  A discarded range therefore always reads as zeros.
//
// A plain disk is a writable file alone: what it has is the disk, its holes are zeros, a discarded range becomes one.
//
// The host's disk may fill up at any time: the operation fails, the blocks not yet written stay what they were.
// Nothing here is thread-safe: one thread at a time.  Offsets and lengths are bytes, multiples of DISK_SECTOR.
#ifndef VMM_VIRTIO_DISK_H
#define VMM_VIRTIO_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

enum { DISK_SECTOR = 512, DISK_BLOCK = 4096 };
#define DISK_BYTES_MAX (UINT64_C(1) << 44)  // 16 TiB

struct disk_config {
    int base;        // a regular file, or -1: all zeros
    int layer;       // a regular file as a delta is one; 0: none
    int delta;       // a regular file open for reading and writing, or -1: the disk is read-only
    uint64_t bytes;  // of the disk, a multiple of DISK_BLOCK; 0 for the size of the base, rounded up, or of the plain file
    bool plain;      // no base: `delta` is the disk
};

struct disk;

// Takes over neither descriptor; both outlive the disk.  Makes the delta as long as the disk.  0; -EINVAL for a bad size or
// file, a plain disk that has a base or no file, or a disk shorter than its delta; -EOPNOTSUPP when the delta's file system
// cannot tell holes of DISK_BLOCK bytes apart; or another negative errno.
int disk_open(const struct disk_config *config, struct disk **ret_disk);
// NULL is fine; returns NULL.
struct disk *disk_close(struct disk *disk);

uint64_t disk_bytes(const struct disk *disk);
bool disk_read_only(const struct disk *disk);
// Bytes of the delta in use; of a plain disk, all.
uint64_t disk_delta_bytes(const struct disk *disk);

// Writes everything above the base to the empty file `fd`, which is then a delta, or a layer, over the same base.  0 or a
// negative errno.
int disk_copy_delta(struct disk *disk, int fd);

// Bytes that were ever read from and written to the delta, or the plain file; what is read from the base is not among them.
struct disk_moved {
    uint64_t read, written;
};
struct disk_moved disk_moved(const struct disk *disk);

// Whether [offset, offset + n) is inside the disk and in whole sectors.
bool disk_has(const struct disk *disk, uint64_t offset, uint64_t n);

// Reads n bytes at `offset` into `iov`, whose total is n.  0 or a negative errno; *ret_done is how many bytes were read, from
// the start.  `nowait`: only what needs no waiting for the host's disk, -EAGAIN otherwise.
int disk_read(struct disk *disk, uint64_t offset, const struct iovec *iov, size_t count, bool nowait, uint64_t *ret_done);
int disk_write(struct disk *disk, uint64_t offset, const struct iovec *iov, size_t count);
// Makes [offset, offset + n) read as zeros.  `release`: gives room back to the host where it can; else room is kept for it.
int disk_zero(struct disk *disk, uint64_t offset, uint64_t n, bool release);
// Returns when everything written is on the host's disk.
int disk_flush(struct disk *disk);
// `bytes` is at least the present size.  0, -EINVAL, -EROFS or another negative errno.
int disk_grow(struct disk *disk, uint64_t bytes);

#endif
