#include "vmm/virtio/disk.h"

#include "base/cleanup.h"
#include "vmm/virtio/queue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WORD_BLOCKS = 64, ZERO_BYTES = 64 * 1024, ZERO_VECTORS = 64 };

struct disk {
    int base;
    int layer;
    int delta;
    uint64_t base_bytes;
    uint64_t bytes;
    uint64_t layer_blocks;  // 0: no layer
    uint64_t *in_layer;     // a bit for each of them
    uint64_t *present;      // a bit for each block of the delta; NULL: a plain disk, all of which is there
    uint64_t present_blocks;
    struct disk_moved moved;
    bool waits_always;  // the files cannot be read with RWF_NOWAIT
    // The delta can no longer be trusted to hold what was written: every flush fails with this.
    int lost;
};

// ---- which blocks are in the delta ----

static size_t words_of(uint64_t bytes)
{
    return (bytes / DISK_BLOCK + WORD_BLOCKS - 1) / WORD_BLOCKS;
}

static bool is_present(const struct disk *d, uint64_t block)
{
    return d->present == NULL || (d->present[block / WORD_BLOCKS] >> (block % WORD_BLOCKS) & 1) != 0;
}

static bool is_in_layer(const struct disk *d, uint64_t block)
{
    return block < d->layer_blocks && (d->in_layer[block / WORD_BLOCKS] >> (block % WORD_BLOCKS) & 1) != 0;
}

// Where a block is read from.
enum source { FROM_BASE, FROM_LAYER, FROM_DELTA };

static enum source source_of(const struct disk *d, uint64_t block)
{
    return is_present(d, block) ? FROM_DELTA : is_in_layer(d, block) ? FROM_LAYER : FROM_BASE;
}

static void set_present(struct disk *d, uint64_t block, uint64_t end, bool on)
{
    for (; d->present != NULL && block < end; block++) {
        if (is_present(d, block) == on)
            continue;
        d->present[block / WORD_BLOCKS] ^= UINT64_C(1) << (block % WORD_BLOCKS);
        d->present_blocks += on ? 1 : -UINT64_C(1);
    }
}

// The end of the run of blocks from `block` on that are all in the same place, at most `end`.
static uint64_t run_end(const struct disk *d, uint64_t block, uint64_t end)
{
    if (d->present == NULL)
        return end;
    enum source first = source_of(d, block);
    for (block++; block < end && source_of(d, block) == first; block++)
        ;
    return block;
}

// SEEK_DATA or SEEK_HOLE from `at`: 0 with *ret_at, which is `end` when there is none; or a negative errno.
static int seek(int fd, uint64_t at, uint64_t end, int whence, uint64_t *ret_at)
{
    off_t found = lseek(fd, (off_t)at, whence);
    if (found < 0 && errno != ENXIO)
        return -errno;
    *ret_at = found < 0 || (uint64_t)found > end ? end : (uint64_t)found;
    return 0;
}

// Calls `found` with each run of blocks that the file has.
static int find_blocks(int fd, uint64_t bytes, void (*found)(struct disk *d, uint64_t block, uint64_t end), struct disk *d)
{
    for (uint64_t data = 0, hole = 0;; data = hole) {
        int r = seek(fd, data, bytes, SEEK_DATA, &data);
        if (r < 0 || data >= bytes)
            return r;
        r = seek(fd, data, bytes, SEEK_HOLE, &hole);
        if (r < 0)
            return r;
        if (data % DISK_BLOCK != 0 || hole % DISK_BLOCK != 0 || hole <= data)
            return -EOPNOTSUPP;
        found(d, data / DISK_BLOCK, hole / DISK_BLOCK);
    }
}

static void found_present(struct disk *d, uint64_t block, uint64_t end)
{
    set_present(d, block, end, true);
}

static void found_in_layer(struct disk *d, uint64_t block, uint64_t end)
{
    for (; block < end; block++)
        d->in_layer[block / WORD_BLOCKS] |= UINT64_C(1) << (block % WORD_BLOCKS);
}

static int punch(int delta, uint64_t offset, uint64_t n)
{
    int r;
    do
        r = fallocate(delta, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)n);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

// One block of zeros alone in the empty file `delta` of `end` bytes: is it, and only it, apart from the holes around, and can
// it become a hole again?
static int try_holes(int delta, uint64_t end)
{
    static const uint8_t zeros[DISK_BLOCK];
    const uint64_t at = DISK_BLOCK;
    uint64_t data = 0, hole = 0, left = 0;
    ssize_t n = pwrite(delta, zeros, sizeof zeros, (off_t)at);
    if (n != DISK_BLOCK)
        return n < 0 ? -errno : -EIO;
    int r = seek(delta, 0, end, SEEK_DATA, &data);
    if (r == 0)
        r = seek(delta, data, end, SEEK_HOLE, &hole);
    if (r == 0)
        r = punch(delta, at, DISK_BLOCK);
    if (r == 0)
        r = seek(delta, 0, end, SEEK_DATA, &left);
    return r < 0 ? r : data == at && hole == at + DISK_BLOCK && left == end ? 0 : -EOPNOTSUPP;
}

static int probe_holes(int delta)
{
    const uint64_t end = (uint64_t)16 * DISK_BLOCK;
    if (ftruncate(delta, (off_t)end) < 0)
        return -errno;
    int r = try_holes(delta, end);
    if (ftruncate(delta, 0) < 0 && r == 0)
        r = -errno;
    return r;
}

// ---- open and close ----

static int regular_size(int fd, uint64_t *ret_bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > DISK_BYTES_MAX)
        return -EINVAL;
    *ret_bytes = (uint64_t)st.st_size;
    return 0;
}

static bool size_fits(uint64_t bytes)
{
    return bytes > 0 && bytes <= DISK_BYTES_MAX && bytes % DISK_BLOCK == 0;
}

static int open_delta(struct disk *d)
{
    uint64_t have = 0;
    int flags = fcntl(d->delta, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR)
        return flags < 0 ? -errno : -EINVAL;
    int r = regular_size(d->delta, &have);
    if (r < 0)
        return r;
    if (have > d->bytes)
        return -EINVAL;
    if (have == 0)
        r = probe_holes(d->delta);
    if (r < 0)
        return r;
    if (have < d->bytes && ftruncate(d->delta, (off_t)d->bytes) < 0)
        return -errno;
    return find_blocks(d->delta, d->bytes, found_present, d);
}

static int open_layer(struct disk *d)
{
    uint64_t have = 0;
    int r = regular_size(d->layer, &have);
    if (r < 0)
        return r;
    if (have > d->bytes || have % DISK_BLOCK != 0)
        return -EINVAL;
    d->in_layer = calloc(words_of(have) + 1, sizeof *d->in_layer);
    if (d->in_layer == NULL)
        return -ENOMEM;
    d->layer_blocks = have / DISK_BLOCK;
    return find_blocks(d->layer, have, found_in_layer, d);
}

static int open_plain(struct disk *d)
{
    uint64_t have = 0;
    int flags = fcntl(d->delta, F_GETFL);
    if (flags < 0 || d->base >= 0 || (flags & O_ACCMODE) != O_RDWR)
        return flags < 0 ? -errno : -EINVAL;
    int r = regular_size(d->delta, &have);
    if (r < 0)
        return r;
    if (d->bytes == 0)
        d->bytes = have;
    if (!size_fits(d->bytes) || have > d->bytes)
        return -EINVAL;
    return have < d->bytes && ftruncate(d->delta, (off_t)d->bytes) < 0 ? -errno : 0;
}

static int open_layers(struct disk *d)
{
    int r = d->base >= 0 ? regular_size(d->base, &d->base_bytes) : 0;
    if (r == 0 && d->bytes == 0)
        d->bytes = (d->base_bytes + DISK_BLOCK - 1) / DISK_BLOCK * DISK_BLOCK;
    if (r == 0 && (!size_fits(d->bytes) || d->bytes < d->base_bytes))
        r = -EINVAL;
    if (r == 0 && (d->present = calloc(words_of(d->bytes), sizeof *d->present)) == NULL)
        r = -ENOMEM;
    if (r == 0 && d->layer > 0)
        r = open_layer(d);
    return r == 0 && d->delta >= 0 ? open_delta(d) : r;
}

int disk_open(const struct disk_config *config, struct disk **ret_disk)
{
    struct disk *d = calloc(1, sizeof *d);
    if (d == NULL)
        return -ENOMEM;
    *d = (struct disk){.base = config->base, .layer = config->layer, .delta = config->delta, .bytes = config->bytes};
    int r = config->plain ? open_plain(d) : open_layers(d);
    if (r < 0) {
        disk_close(d);
        return r;
    }
    *ret_disk = d;
    return 0;
}

struct disk *disk_close(struct disk *disk)
{
    if (disk != NULL) {
        free(disk->present);
        free(disk->in_layer);
        free(disk);
    }
    return NULL;
}

uint64_t disk_bytes(const struct disk *disk)
{
    return disk->bytes;
}

bool disk_read_only(const struct disk *disk)
{
    return disk->delta < 0;
}

uint64_t disk_delta_bytes(const struct disk *disk)
{
    return disk->present == NULL ? disk->bytes : disk->present_blocks * DISK_BLOCK;
}

struct disk_moved disk_moved(const struct disk *disk)
{
    return disk->moved;
}

bool disk_has(const struct disk *disk, uint64_t offset, uint64_t n)
{
    return offset % DISK_SECTOR == 0 && n % DISK_SECTOR == 0 && offset <= disk->bytes && n <= disk->bytes - offset;
}

static int grow_bitmap(struct disk *d, uint64_t bytes)
{
    size_t had = words_of(d->bytes), want = words_of(bytes);
    uint64_t *grown = realloc(d->present, want * sizeof *grown);
    if (grown == NULL)
        return -ENOMEM;
    memset(grown + had, 0, (want - had) * sizeof *grown);
    d->present = grown;
    return 0;
}

int disk_grow(struct disk *disk, uint64_t bytes)
{
    if (disk->delta < 0)
        return -EROFS;
    if (!size_fits(bytes) || bytes < disk->bytes)
        return -EINVAL;
    int r = disk->present != NULL ? grow_bitmap(disk, bytes) : 0;
    if (r < 0)
        return r;
    if (ftruncate(disk->delta, (off_t)bytes) < 0)
        return -errno;
    disk->bytes = bytes;
    return 0;
}

// ---- reading ----

static void drop_front(struct iovec **iov, size_t *count, size_t n)
{
    while (*count > 0 && n >= (*iov)->iov_len) {
        n -= (*iov)->iov_len;
        (*iov)++;
        (*count)--;
    }
    if (n > 0) {
        (*iov)->iov_base = (char *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
}

static void zero_fill(const struct iovec *iov, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memset(iov[i].iov_base, 0, iov[i].iov_len);
}

// All of `iov` from `fd`; *done grows by what was read.  `iov` is used up.
static int read_fully(struct disk *d, int fd, uint64_t offset, struct iovec *iov, size_t count, bool nowait, uint64_t *done)
{
    while (count > 0) {
        ssize_t n = preadv2(fd, iov, (int)count, (off_t)offset, nowait ? RWF_NOWAIT : 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && nowait && errno == EOPNOTSUPP) {
            d->waits_always = true;
            return -EAGAIN;
        }
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        offset += (uint64_t)n;
        *done += (uint64_t)n;
        d->moved.read += fd == d->delta ? (uint64_t)n : 0;
        drop_front(&iov, &count, (size_t)n);
    }
    return 0;
}

// [offset, offset + n) as it is in the base.
static int read_base(struct disk *d, uint64_t offset, uint64_t n, const struct iovec *iov, size_t count, bool nowait,
                     uint64_t *done)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    uint64_t in_file = offset >= d->base_bytes ? 0 : d->base_bytes - offset < n ? d->base_bytes - offset : n;
    if (in_file > 0) {
        size_t parts = iov_part(iov, count, 0, in_file, part);
        int r = read_fully(d, d->base, offset, part, parts, nowait, done);
        if (r < 0)
            return r;
    }
    zero_fill(part, iov_part(iov, count, in_file, n - in_file, part));
    *done += n - in_file;
    return 0;
}

// [offset, offset + n), whose blocks are all in the same place.
static int read_run(struct disk *d, enum source from, uint64_t offset, uint64_t n, struct iovec *iov, size_t count, bool nowait,
                    uint64_t *done)
{
    if (from == FROM_BASE)
        return read_base(d, offset, n, iov, count, nowait, done);
    return read_fully(d, from == FROM_DELTA ? d->delta : d->layer, offset, iov, count, nowait, done);
}

static uint64_t total(const struct iovec *iov, size_t count)
{
    uint64_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += iov[i].iov_len;
    return n;
}

int disk_read(struct disk *disk, uint64_t offset, const struct iovec *iov, size_t count, bool nowait, uint64_t *ret_done)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    uint64_t n = total(iov, count);
    *ret_done = 0;
    if (count > VIRTQ_SIZE_MAX || !disk_has(disk, offset, n))
        return -EINVAL;
    if (nowait && disk->waits_always)
        return -EAGAIN;
    uint64_t last = (offset + n + DISK_BLOCK - 1) / DISK_BLOCK;
    while (*ret_done < n) {
        uint64_t at = offset + *ret_done, block = at / DISK_BLOCK;
        uint64_t end = run_end(disk, block, last) * DISK_BLOCK;
        uint64_t len = (end < offset + n ? end : offset + n) - at;
        size_t parts = iov_part(iov, count, *ret_done, len, part);
        int r = read_run(disk, source_of(disk, block), at, len, part, parts, nowait, ret_done);
        if (r < 0)
            return r;
    }
    return 0;
}

// ---- writing ----

static int write_fully(int fd, uint64_t offset, struct iovec *iov, size_t count, uint64_t *done)
{
    while (count > 0) {
        ssize_t n = pwritev(fd, iov, (int)count, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        offset += (uint64_t)n;
        *done += (uint64_t)n;
        drop_front(&iov, &count, (size_t)n);
    }
    return 0;
}

static int write_delta(struct disk *d, uint64_t offset, struct iovec *iov, size_t count, uint64_t *done)
{
    uint64_t before = *done;
    int r = write_fully(d->delta, offset, iov, count, done);
    d->moved.written += *done - before;
    return r;
}

// A write of blocks [block, end) stopped after `done` bytes.  What is whole is in the delta; the rest must not look as if it
// were, now or when the delta is opened again.
static void settle_write(struct disk *d, uint64_t block, uint64_t end, uint64_t done)
{
    uint64_t whole = block + done / DISK_BLOCK;
    set_present(d, block, whole, true);
    for (uint64_t b = whole, run; b < end; b = run) {
        run = run_end(d, b, end);
        if (!is_present(d, b) && punch(d->delta, b * DISK_BLOCK, (run - b) * DISK_BLOCK) < 0)
            d->lost = -EIO;
    }
}

static int write_blocks(struct disk *d, uint64_t block, uint64_t blocks, struct iovec *iov, size_t count)
{
    uint64_t done = 0;
    int r = write_delta(d, block * DISK_BLOCK, iov, count, &done);
    settle_write(d, block, block + blocks, done);
    return r;
}

// [offset, offset + n), inside one block.
static int write_part(struct disk *d, uint64_t offset, uint64_t n, struct iovec *iov, size_t count)
{
    uint64_t block = offset / DISK_BLOCK, done = 0;
    if (is_present(d, block))
        return write_delta(d, offset, iov, count, &done);
    uint8_t bytes[DISK_BLOCK];
    struct iovec whole = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct iovec used_up = whole;
    int r = read_run(d, source_of(d, block), block * DISK_BLOCK, sizeof bytes, &used_up, 1, false, &done);
    if (r < 0)
        return r;
    iov_read(iov, count, 0, bytes + offset % DISK_BLOCK, n);
    return write_blocks(d, block, 1, &whole, 1);
}

int disk_write(struct disk *disk, uint64_t offset, const struct iovec *iov, size_t count)
{
    struct iovec part[VIRTQ_SIZE_MAX];
    uint64_t n = total(iov, count);
    if (disk->delta < 0)
        return -EROFS;
    if (count > VIRTQ_SIZE_MAX || !disk_has(disk, offset, n))
        return -EINVAL;
    for (uint64_t done = 0; done < n;) {
        uint64_t at = offset + done, left = n - done;
        uint64_t in_block = DISK_BLOCK - at % DISK_BLOCK;
        bool whole = in_block == DISK_BLOCK && left >= DISK_BLOCK;
        uint64_t len = whole ? left / DISK_BLOCK * DISK_BLOCK : left < in_block ? left : in_block;
        size_t parts = iov_part(iov, count, done, len, part);
        int r =
            whole ? write_blocks(disk, at / DISK_BLOCK, len / DISK_BLOCK, part, parts) : write_part(disk, at, len, part, parts);
        if (r < 0)
            return r;
        done += len;
    }
    return 0;
}

// ---- zeros ----

static int write_zeros(struct disk *d, uint64_t offset, uint64_t n)
{
    static const uint8_t zeros[ZERO_BYTES];
    for (uint64_t done = 0; done < n;) {
        struct iovec iov[ZERO_VECTORS];
        size_t count = 0;
        uint64_t len = 0;
        for (; count < ZERO_VECTORS && done + len < n; count++) {
            size_t take = n - done - len < ZERO_BYTES ? n - done - len : ZERO_BYTES;
            iov[count] = (struct iovec){.iov_base = (void *)zeros, .iov_len = take};
            len += take;
        }
        int r = disk_write(d, offset + done, iov, count);
        if (r < 0)
            return r;
        done += len;
    }
    return 0;
}

// The end of the run of blocks from `block` on (at most `end`) that the base has as zeros without storing them, or that it
// stores.
static int base_run(const struct disk *d, uint64_t block, uint64_t end, bool *ret_zero, uint64_t *ret_end)
{
    uint64_t at = block * DISK_BLOCK, data = 0, hole = 0, same = block + 1;
    while (same < end && is_in_layer(d, same) == is_in_layer(d, block))
        same++;
    end = same;
    *ret_zero = !is_in_layer(d, block);
    *ret_end = end;
    if (!*ret_zero)
        return 0;
    if (at >= d->base_bytes)
        return 0;
    int r = seek(d->base, at, d->base_bytes, SEEK_DATA, &data);
    if (r < 0 || data >= d->base_bytes)
        return r;
    *ret_zero = data / DISK_BLOCK > block;
    uint64_t run = data / DISK_BLOCK;
    if (!*ret_zero) {
        r = seek(d->base, at > data ? at : data, d->base_bytes, SEEK_HOLE, &hole);
        run = (hole + DISK_BLOCK - 1) / DISK_BLOCK;
    }
    *ret_end = run < end ? run : end;
    return r;
}

// Whole blocks become holes where a hole reads as zeros.
static int release_blocks(struct disk *d, uint64_t block, uint64_t end)
{
    while (block < end) {
        bool zero;
        uint64_t run;
        int r = base_run(d, block, end, &zero, &run);
        if (r == 0 && zero) {
            r = punch(d->delta, block * DISK_BLOCK, (run - block) * DISK_BLOCK);
            if (r == 0)
                set_present(d, block, run, false);
        } else if (r == 0) {
            r = write_zeros(d, block * DISK_BLOCK, (run - block) * DISK_BLOCK);
        }
        if (r < 0)
            return r;
        block = run;
    }
    return 0;
}

// A part of a block: zeros need not be written where it reads as zeros already, for want of any data.
static int zero_part(struct disk *d, uint64_t offset, uint64_t n, bool release)
{
    uint64_t block = offset / DISK_BLOCK, run;
    bool zero = false;
    if (release && !is_present(d, block)) {
        int r = base_run(d, block, block + 1, &zero, &run);
        if (r < 0)
            return r;
    }
    return zero ? 0 : write_zeros(d, offset, n);
}

int disk_zero(struct disk *disk, uint64_t offset, uint64_t n, bool release)
{
    if (disk->delta < 0)
        return -EROFS;
    if (!disk_has(disk, offset, n))
        return -EINVAL;
    uint64_t end = offset + n;
    uint64_t first = (offset + DISK_BLOCK - 1) / DISK_BLOCK, last = end / DISK_BLOCK;
    if (!release)
        return write_zeros(disk, offset, n);
    if (first > last)  // inside one block
        return zero_part(disk, offset, n, release);
    int r = offset < first * DISK_BLOCK ? zero_part(disk, offset, first * DISK_BLOCK - offset, release) : 0;
    if (r == 0)
        r = release_blocks(disk, first, last);
    if (r == 0 && last * DISK_BLOCK < end)
        r = zero_part(disk, last * DISK_BLOCK, end - last * DISK_BLOCK, release);
    return r;
}

// ---- snapshots ----

static int copy_run(struct disk *d, uint64_t block, uint64_t end, uint8_t *bytes, int fd)
{
    enum source from = source_of(d, block);
    for (uint64_t at = block * DISK_BLOCK, stop = end * DISK_BLOCK, n; at < stop; at += n) {
        n = stop - at < ZERO_BYTES ? stop - at : ZERO_BYTES;
        struct iovec in = {.iov_base = bytes, .iov_len = n}, out = in;
        uint64_t done = 0, written = 0;
        int r = read_run(d, from, at, n, &in, 1, false, &done);
        if (r == 0)
            r = write_fully(fd, at, &out, 1, &written);
        if (r < 0)
            return r;
    }
    return 0;
}

int disk_copy_delta(struct disk *disk, int fd)
{
    cleanup_free uint8_t *bytes = malloc(ZERO_BYTES);
    if (bytes == NULL)
        return -ENOMEM;
    if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)disk->bytes) < 0)
        return -errno;
    int r = 0;
    for (uint64_t block = 0, end, last = disk->bytes / DISK_BLOCK; r == 0 && block < last; block = end) {
        end = run_end(disk, block, last);
        if (source_of(disk, block) != FROM_BASE)
            r = copy_run(disk, block, end, bytes, fd);
    }
    return r;
}

int disk_flush(struct disk *disk)
{
    if (disk->delta < 0)
        return 0;
    // The kernel reports what it could not write once; the guest must hear of it for ever.
    if (disk->lost == 0 && fdatasync(disk->delta) < 0)
        disk->lost = -errno;
    return disk->lost;
}
