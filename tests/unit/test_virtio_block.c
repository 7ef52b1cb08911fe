// vmm/virtio/block: requests as a driver makes them, good, malformed and in flight.
#include "base/cleanup.h"
#include "virtio_driver.h"
#include "vmm/virtio/block.h"
#include "vmm/virtio/device.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { Q = 0, SIZE = 64, KIB = 1024, DISK_SIZE = 1024 * KIB, UNANSWERED = 0xee };

struct world {
    struct driver d;
    int base, delta;
    struct disk *disk;
    struct block *block;
    uint64_t header, data, status;
};

static struct world w;

static void open_world(bool read_only, uint64_t bytes_per_s, uint64_t ops_per_s)
{
    driver_open(&w.d);
    w.base = memfd_create("base", MFD_CLOEXEC);
    w.delta = read_only ? -1 : memfd_create("delta", MFD_CLOEXEC);
    assert_int_equal(ftruncate(w.base, DISK_SIZE), 0);
    for (unsigned i = 0; i < DISK_SIZE / 512; i++) {
        char sector[512];
        memset(sector, 'a' + (int)(i % 26), sizeof sector);
        assert_int_equal(pwrite(w.base, sector, sizeof sector, (off_t)i * 512), 512);
    }
    assert_int_equal(disk_open(&(struct disk_config){.base = w.base, .delta = w.delta}, &w.disk), 0);
    struct block_config config = {.disk = w.disk, .id = "root", .bytes_per_s = bytes_per_s, .ops_per_s = ops_per_s};
    assert_int_equal(block_new(w.d.loop, w.d.memory, &config, &w.block), 0);
    w.d.mmio = block_mmio(w.block);
}

static int setup(void **state)
{
    open_world(false, 0, 0);
    return 0;
}

static int teardown(void **state)
{
    w.block = block_free(w.block);
    w.disk = disk_close(w.disk);
    close_fd(&w.base);
    close_fd(&w.delta);
    driver_close(&w.d);
    return 0;
}

static void start(void)
{
    w.d.next_free = 0x100000;
    driver_start(&w.d, driver_offered(&w.d), SIZE);
    w.header = driver_alloc(&w.d, 4096);
    w.status = driver_alloc(&w.d, 4096);
    w.data = driver_alloc(&w.d, 1024 * KIB);
}

static void put_header(uint32_t type, uint64_t sector)
{
    struct virtio_blk_outhdr h = {.type = htole32(type), .sector = htole64(sector)};
    memcpy(driver_at(&w.d, w.header, sizeof h), &h, sizeof h);
    *(uint8_t *)driver_at(&w.d, w.status, 1) = UNANSWERED;
}

// Header, data, status; the status it got, with *ret_len what the used ring said.
static uint8_t request(uint32_t type, uint64_t sector, uint32_t len, uint32_t *ret_len)
{
    put_header(type, sector);
    bool in = type == VIRTIO_BLK_T_IN || type == VIRTIO_BLK_T_GET_ID;
    struct driver_buffer b[3] = {{w.header, 16, false}};
    size_t n = 1;
    if (len > 0)
        b[n++] = (struct driver_buffer){w.data, len, in};
    b[n++] = (struct driver_buffer){w.status, 1, true};
    driver_submit(&w.d, Q, b, n);
    uint32_t used = driver_wait_used(&w.d, Q, NULL);
    if (ret_len != NULL)
        *ret_len = used;
    return *(uint8_t *)driver_at(&w.d, w.status, 1);
}

static char *data(void)
{
    return driver_at(&w.d, w.data, 1024 * KIB);
}

static void must_read(uint64_t sector, uint32_t len, char byte)
{
    uint32_t used;
    memset(data(), UNANSWERED, len);
    assert_int_equal(request(VIRTIO_BLK_T_IN, sector, len, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, len + 1);
    for (uint32_t i = 0; i < len; i++)
        assert_int_equal(data()[i], byte);
}

// ---- what works ----

static void configuration(void **state)
{
    struct virtio_blk_config c = {0};
    for (uint32_t i = 0; i < sizeof c; i++)
        virtio_mmio_read(w.d.mmio, 0x100 + i, (uint8_t *)&c + i, 1);
    assert_int_equal(driver_read(&w.d, VIRTIO_MMIO_DEVICE_ID), 2);
    assert_int_equal(le64toh(c.capacity), DISK_SIZE / 512);
    assert_int_equal(le32toh(c.seg_max), BLOCK_SEGMENTS_MAX);
    assert_int_equal(le32toh(c.size_max), BLOCK_SEGMENT_BYTES);
    assert_int_equal(le32toh(c.blk_size), 512);
    assert_int_equal(c.physical_block_exp, 3);
    assert_int_equal(le32toh(c.max_discard_sectors), BLOCK_ZERO_SECTORS_MAX);
    assert_int_equal(le32toh(c.max_discard_seg), 1);
    assert_int_equal(le32toh(c.discard_sector_alignment), 8);
    assert_int_equal(le32toh(c.max_write_zeroes_sectors), BLOCK_ZERO_SECTORS_MAX);
    uint64_t f = driver_offered(&w.d);
    assert_true((f & DRIVER_FEATURE(VIRTIO_BLK_F_FLUSH)) != 0 && (f & DRIVER_FEATURE(VIRTIO_BLK_F_DISCARD)) != 0);
    assert_true((f & DRIVER_FEATURE(VIRTIO_BLK_F_RO)) == 0 && (f & DRIVER_FEATURE(VIRTIO_RING_F_INDIRECT_DESC)) == 0);
}

static void read_and_write(void **state)
{
    uint32_t used;
    start();
    must_read(0, 512, 'a');
    must_read(27, 512, 'b');
    memset(data(), '!', 1024);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 27, 1024, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, 1);
    must_read(27, 1024, '!');
    must_read(26, 512, 'a');
    must_read(29, 512, 'd');
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, 0, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, 1);
    must_read(DISK_SIZE / 512 - 1, 512, 'a' + (DISK_SIZE / 512 - 1) % 26);
    struct block_counters c;
    block_counters(w.block, &c);
    assert_int_equal(c.writes, 1);
    assert_int_equal(c.written_bytes, 1024);
    assert_int_equal(c.flushes, 1);
    assert_int_equal(c.reads, 6);
    assert_int_equal(c.errors + c.refused, 0);
}

static void serial_number(void **state)
{
    uint32_t used;
    start();
    assert_int_equal(request(VIRTIO_BLK_T_GET_ID, 0, 20, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, 21);
    assert_memory_equal(data(), "root\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20);
    memset(data(), '#', 64);
    assert_int_equal(request(VIRTIO_BLK_T_GET_ID, 0, 2, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, 3);
    assert_memory_equal(data(), "ro#", 3);
    assert_int_equal(request(VIRTIO_BLK_T_GET_ID, 0, 64, &used), VIRTIO_BLK_S_OK);
    assert_int_equal(used, 20);  // what is behind was not written
    assert_int_equal(data()[20], '#');
}

static uint8_t zeroes(uint32_t type, uint64_t sector, uint32_t sectors, uint32_t flags)
{
    struct virtio_blk_discard_write_zeroes s = {htole64(sector), htole32(sectors), htole32(flags)};
    memcpy(data(), &s, sizeof s);
    return request(type, 0, sizeof s, NULL);
}

static void discard_and_zeroes(void **state)
{
    start();
    for (unsigned kind = 0; kind < 3; kind++) {
        uint32_t type = kind == 0 ? VIRTIO_BLK_T_DISCARD : VIRTIO_BLK_T_WRITE_ZEROES;
        assert_int_equal(zeroes(type, 100 + kind * 50, 20, kind == 2), VIRTIO_BLK_S_OK);
        must_read(100 + kind * 50, 20 * 512, 0);
        must_read(99 + kind * 50, 512, (char)('a' + (99 + kind * 50) % 26));
        must_read(120 + kind * 50, 512, (char)('a' + (120 + kind * 50) % 26));
    }
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, 0, 8, 1), VIRTIO_BLK_S_UNSUPP);
    assert_int_equal(zeroes(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 2), VIRTIO_BLK_S_UNSUPP);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, DISK_SIZE / 512 - 1, 2, 0), VIRTIO_BLK_S_IOERR);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, UINT64_MAX, 1, 0), VIRTIO_BLK_S_IOERR);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, UINT64_MAX / 512, 2, 0), VIRTIO_BLK_S_IOERR);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, 0, UINT32_MAX, 0), VIRTIO_BLK_S_IOERR);
    // One segment, exactly.
    assert_int_equal(request(VIRTIO_BLK_T_DISCARD, 0, 15, NULL), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_DISCARD, 0, 32, NULL), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_DISCARD, 0, 0, NULL), VIRTIO_BLK_S_IOERR);
    must_read(0, 512, 'a');
}

static void largest_zeroes(void **state)
{
    start();
    assert_int_equal(block_grow(w.block, (uint64_t)64 * KIB * KIB), 0);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, DISK_SIZE / 512, BLOCK_ZERO_SECTORS_MAX, 0), VIRTIO_BLK_S_OK);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, DISK_SIZE / 512, BLOCK_ZERO_SECTORS_MAX + 1, 0), VIRTIO_BLK_S_IOERR);
}

// Data in as many descriptors as are allowed, and one byte of status in the last of them.
static void many_segments(void **state)
{
    start();
    put_header(VIRTIO_BLK_T_IN, 26);
    struct driver_buffer b[SIZE] = {{w.header, 7, false}, {w.header + 7, 9, false}};
    uint32_t total = 8 * 512 + 1;  // data and status share the last descriptor
    uint32_t at = 0;
    size_t n = 2;
    while (at < total) {
        uint32_t len = n == SIZE - 1 || total - at < 100 ? total - at : 100;
        b[n++] = (struct driver_buffer){w.data + at, len, true};
        at += len;
    }
    memset(data(), UNANSWERED, 8192);
    driver_submit(&w.d, Q, b, n);
    assert_int_equal(driver_wait_used(&w.d, Q, NULL), total);
    for (unsigned i = 0; i < 8 * 512; i++)
        assert_int_equal(data()[i], 'a' + (int)(i / 512));
    assert_int_equal(data()[8 * 512], VIRTIO_BLK_S_OK);
    assert_int_equal((uint8_t)data()[8 * 512 + 1], UNANSWERED);
}

// More at once than the device takes in one turn, in order: what was written last is what is there after a flush.
static void many_at_once(void **state)
{
    start();
    struct driver *d = &w.d;
    enum { ROUNDS = 50, AT_ONCE = SIZE / 3 };
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < AT_ONCE; i++) {
            struct virtio_blk_outhdr h = {.type = htole32(VIRTIO_BLK_T_OUT), .sector = htole64(3)};
            memcpy(driver_at(d, w.header + i * 16, sizeof h), &h, sizeof h);
            memset(data() + i * 512, (int)(round + i), 512);
            struct driver_buffer b[3] = {
                {w.header + i * 16, 16, false}, {w.data + i * 512, 512, false}, {w.status + i, 1, true}};
            driver_submit(d, Q, b, 3);
        }
        for (unsigned i = 0; i < AT_ONCE; i++) {
            driver_wait_used(d, Q, NULL);
        }
        must_read(3, 512, (char)(round + AT_ONCE - 1));
    }
}

static void grows_online(void **state)
{
    start();
    driver_interrupts(&w.d);
    uint32_t generation = driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION);
    assert_int_equal(request(VIRTIO_BLK_T_IN, DISK_SIZE / 512, 512, NULL), VIRTIO_BLK_S_IOERR);
    driver_interrupts(&w.d);
    assert_int_equal(block_grow(w.block, DISK_SIZE - 4096), -EINVAL);
    assert_int_equal(driver_interrupts(&w.d), 0);
    assert_int_equal(block_grow(w.block, 2 * DISK_SIZE), 0);
    assert_int_equal(driver_interrupts(&w.d), VIRTIO_MMIO_INT_CONFIG);
    assert_int_not_equal(driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION), generation);
    uint64_t capacity;
    virtio_mmio_read(w.d.mmio, 0x100, &capacity, 8);
    assert_int_equal(le64toh(capacity), 2 * DISK_SIZE / 512);
    must_read(DISK_SIZE / 512, 4096, 0);
    memset(data(), 'z', 512);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 2 * DISK_SIZE / 512 - 1, 512, NULL), VIRTIO_BLK_S_OK);
    must_read(2 * DISK_SIZE / 512 - 1, 512, 'z');
}

static void read_only(void **state)
{
    teardown(NULL);
    open_world(true, 0, 0);
    start();
    assert_true((driver_offered(&w.d) & DRIVER_FEATURE(VIRTIO_BLK_F_RO)) != 0);
    assert_true((driver_offered(&w.d) & DRIVER_FEATURE(VIRTIO_BLK_F_DISCARD)) == 0);
    must_read(1, 512, 'b');
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, 512, NULL), VIRTIO_BLK_S_IOERR);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, 0, 8, 0), VIRTIO_BLK_S_IOERR);
    assert_int_equal(zeroes(VIRTIO_BLK_T_WRITE_ZEROES, 0, 8, 0), VIRTIO_BLK_S_IOERR);
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
    assert_int_equal(block_grow(w.block, 2 * DISK_SIZE), -EROFS);
    must_read(0, 512, 'a');
}

// ---- how fast ----

// A request that waits for its turn, for far longer than this test lives.
static void submit_write(void)
{
    put_header(VIRTIO_BLK_T_OUT, 4);
    struct driver_buffer b[3] = {{w.header, 16, false}, {w.data, 512, false}, {w.status, 1, true}};
    driver_submit(&w.d, Q, b, 3);
    driver_rounds(&w.d, 10);
}

static void a_slow_disk_waits_and_holds_up_nobody(void **state)
{
    teardown(NULL);
    open_world(false, 1, 0);
    start();
    // What is read of the base costs nothing, and writes do not hold up reads.
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(request(VIRTIO_BLK_T_IN, 0, 512 * KIB, NULL), VIRTIO_BLK_S_OK);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, 512, NULL), VIRTIO_BLK_S_OK);
    must_read(8, 512, 'a' + 8);
    submit_write();
    // It holds up neither a pause nor a reset, and is never carried out.
    assert_int_equal(block_grow(w.block, 2 * DISK_SIZE), 0);
    assert_int_equal(*(uint8_t *)driver_at(&w.d, w.status, 1), UNANSWERED);
    driver_reset(&w.d);
    start();
    must_read(8, 512, 'a' + 8);
    struct block_counters c;
    block_counters(w.block, &c);
    assert_int_equal(c.writes, 1);
    // Nor the end, in teardown.
    submit_write();
}

static void a_disk_of_few_requests_likewise(void **state)
{
    enum { REQUESTS_SAVED = 2 };
    teardown(NULL);
    open_world(false, 0, 10 * REQUESTS_SAVED);  // of THROTTLE_SAVED_NS
    start();
    for (unsigned i = 0; i < REQUESTS_SAVED; i++)
        assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, 512, NULL), VIRTIO_BLK_S_OK);
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
}

// What a request makes the host write is what it pays for, also where it has no data of its own.
static void zeros_that_are_written_are_paid_for(void **state)
{
    teardown(NULL);
    open_world(false, 1, 0);
    start();
    // Beyond the base a discard is a hole, which costs nothing; over it, zeros are written.
    assert_int_equal(block_grow(w.block, 2 * DISK_SIZE), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, DISK_SIZE / 512, 64, 0), VIRTIO_BLK_S_OK);
    assert_int_equal(zeroes(VIRTIO_BLK_T_DISCARD, 0, 64, 0), VIRTIO_BLK_S_OK);
    submit_write();
    assert_int_equal(block_grow(w.block, 3 * DISK_SIZE), 0);
    assert_int_equal(*(uint8_t *)driver_at(&w.d, w.status, 1), UNANSWERED);
}

// ---- what does not ----

static void refused_requests(void **state)
{
    start();
    uint32_t used;
    static const struct {
        uint32_t type;
        uint64_t sector;
        uint32_t len;
        uint8_t status;
    } bad[] = {
        {VIRTIO_BLK_T_IN, DISK_SIZE / 512, 512, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, DISK_SIZE / 512 - 1, 1024, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, UINT64_MAX, 512, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, UINT64_MAX / 512, 512, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, UINT64_C(1) << 55, 512, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_OUT, DISK_SIZE / 512, 512, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_OUT, UINT64_MAX - 1, 1024, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, 0, 511, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_IN, 0, 513, VIRTIO_BLK_S_IOERR},
        {VIRTIO_BLK_T_OUT, 0, 1, VIRTIO_BLK_S_IOERR},
        {2, 0, 512, VIRTIO_BLK_S_UNSUPP},  // SCSI commands, of old
        {3, 0, 512, VIRTIO_BLK_S_UNSUPP},
        {12, 0, 0, VIRTIO_BLK_S_UNSUPP},
        {UINT32_MAX, 0, 0, VIRTIO_BLK_S_UNSUPP},
        {0x80000000, 0, 512, VIRTIO_BLK_S_UNSUPP},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memset(data(), '#', 2048);
        assert_int_equal(request(bad[i].type, bad[i].sector, bad[i].len, &used), bad[i].status);
        // The used length claims no byte that was not written.
        assert_int_equal(used, bad[i].type == VIRTIO_BLK_T_IN ? 0 : 1);
        for (unsigned k = 0; k < 2048; k++)
            assert_int_equal(data()[k], '#');
    }
    struct block_counters c;
    block_counters(w.block, &c);
    assert_int_equal(c.refused, sizeof bad / sizeof bad[0]);
    must_read(0, 512, 'a');
}

// One segment may be as large as BLOCK_REQUEST_MAX in all: beyond it nothing is carried out.
static void longest_request(void **state)
{
    start();
    assert_int_equal(block_grow(w.block, (uint64_t)64 * KIB * KIB), 0);
    uint64_t big = driver_alloc(&w.d, (size_t)BLOCK_REQUEST_MAX + 512);
    for (uint32_t more = 0; more <= 512; more += 512) {
        put_header(VIRTIO_BLK_T_IN, 0);
        struct driver_buffer b[3] = {{w.header, 16, false}, {big, BLOCK_REQUEST_MAX + more, true}, {w.status, 1, true}};
        driver_submit(&w.d, Q, b, 3);
        assert_int_equal(driver_wait_used(&w.d, Q, NULL), more == 0 ? BLOCK_REQUEST_MAX + 1 : 0);
        assert_int_equal(*(uint8_t *)driver_at(&w.d, w.status, 1), more == 0 ? VIRTIO_BLK_S_OK : VIRTIO_BLK_S_IOERR);
    }
}

// The writable length is looked at before anything is written into it.
static void no_room_for_status(void **state)
{
    start();
    put_header(VIRTIO_BLK_T_OUT, 0);
    struct driver_buffer out[2] = {{w.header, 16, false}, {w.data, 512, false}};
    driver_submit(&w.d, Q, out, 2);
    driver_must_break(&w.d, "room for its status");
    start();
    struct driver_buffer only = {w.header, 16, false};
    driver_submit(&w.d, Q, &only, 1);
    driver_must_break(&w.d, "room for its status");
    start();
    must_read(0, 512, 'a');
    // A header that is too short, with a status: an error.
    struct driver_buffer half[2] = {{w.header, 15, false}, {w.status, 1, true}};
    driver_submit(&w.d, Q, half, 2);
    assert_int_equal(driver_wait_used(&w.d, Q, NULL), 1);
    assert_int_equal(*(uint8_t *)driver_at(&w.d, w.status, 1), VIRTIO_BLK_S_IOERR);
    struct driver_buffer none = {w.status, 1, true};
    driver_submit(&w.d, Q, &none, 1);
    assert_int_equal(driver_wait_used(&w.d, Q, NULL), 1);
    // A read of nothing, whose only writable byte is the status.
    assert_int_equal(request(VIRTIO_BLK_T_IN, 0, 0, NULL), VIRTIO_BLK_S_OK);
}

// The buffers of a request may all be the same memory, header and status too: the guest fools only itself.
static void overlapping_buffers(void **state)
{
    start();
    put_header(VIRTIO_BLK_T_IN, 0);
    struct driver_buffer b[3] = {{w.header, 16, false}, {w.header, 512, true}, {w.header, 1, true}};
    driver_submit(&w.d, Q, b, 3);
    assert_int_equal(driver_wait_used(&w.d, Q, NULL), 513);
    assert_int_equal(*(uint8_t *)driver_at(&w.d, w.header, 1), VIRTIO_BLK_S_OK);
    assert_int_equal(((char *)driver_at(&w.d, w.header, 2))[1], 'a');
}

// A full host disk is an error for the request, and nothing else.
static void full_disk(void **state)
{
    start();
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){.rlim_cur = 8192, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    memset(data(), '!', 4096);
    uint8_t status = request(VIRTIO_BLK_T_OUT, 800, 4096, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, VIRTIO_BLK_S_IOERR);
    struct block_counters c;
    block_counters(w.block, &c);
    assert_int_equal(c.errors, 1);
    assert_int_equal(c.last_error, -EFBIG);
    must_read(800, 512, 'a' + 800 % 26);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 800, 4096, NULL), VIRTIO_BLK_S_OK);
    assert_false(driver_broken(&w.d));
}

// ---- resets, with requests in flight, by a thread of its own as a vCPU is ----

struct vcpu {
    pthread_t thread;
    struct loop *loop;
    int done;
};

// Writes and resets, again and again, and after each reset reuses the memory of the requests it abandoned: were one of them
// still carried out, it would show as the device's bytes in memory that is the guest's again.
static void *reset_in_flight(void *arg)
{
    enum { TURNS = 200, AT_ONCE = 16, LEN = 16 * KIB };
    struct vcpu *v = arg;
    struct driver *d = &w.d;
    for (unsigned turn = 0; turn < TURNS; turn++) {
        start();
        for (unsigned i = 0; i < AT_ONCE; i++) {
            struct virtio_blk_outhdr h = {.type = htole32(i % 3 == 0 ? VIRTIO_BLK_T_OUT : VIRTIO_BLK_T_IN),
                                          .sector = htole64(i)};
            memcpy(driver_at(d, w.header + i * 16, sizeof h), &h, sizeof h);
            struct driver_buffer b[3] = {
                {w.header + i * 16, 16, false}, {w.data + i * LEN, LEN, i % 3 != 0}, {w.status + i, 1, true}};
            driver_submit(d, Q, b, 3);
        }
        if (turn % 2 == 0)  // some are done, some are under way
            while (driver_used_index(d, Q) == 0)
                sched_yield();
        driver_reset(d);
        memset(data(), turn % 256 == 'a' ? 0 : (int)turn, AT_ONCE * LEN);
        uint16_t used = driver_used_index(d, Q);
        for (unsigned look = 0; look < 20; look++)
            for (unsigned i = 0; i < AT_ONCE * LEN; i += 512)
                if ((uint8_t)data()[i] != (turn % 256 == 'a' ? 0 : (uint8_t)turn) || driver_used_index(d, Q) != used) {
                    v->done = -1;
                    return NULL;
                }
    }
    start();
    __atomic_store_n(&v->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static bool is_done(void *arg)
{
    struct vcpu *v = arg;
    return __atomic_load_n(&v->done, __ATOMIC_SEQ_CST) != 0;
}

static void resets_in_flight(void **state)
{
    struct vcpu v = {0};
    start();
    assert_int_equal(pthread_create(&v.thread, NULL, reset_in_flight, &v), 0);
    driver_run(&w.d, is_done, &v);
    pthread_join(v.thread, NULL);
    assert_int_equal(v.done, 1);
    start();
    must_read(200, 512, 'a' + 200 % 26);
}

enum { BIG_AT = 0x2000000, BIG = 24 * 1024 * KIB };

// A guest that looks into a buffer that is the device's: a race by intention, which TSan need not report.
__attribute__((no_sanitize("thread"))) static bool has_begun(void *arg)
{
    return *(volatile uint8_t *)arg == 0;
}

// A reset in the middle of a long read: when it returns, the memory is the guest's.
static void reset_waits(void **state)
{
    assert_int_equal(block_grow(w.block, (uint64_t)64 * KIB * KIB), 0);
    for (unsigned turn = 0; turn < 5; turn++) {
        start();
        uint8_t *big = driver_at(&w.d, BIG_AT, BIG);
        memset(big, UNANSWERED, BIG);
        put_header(VIRTIO_BLK_T_IN, DISK_SIZE / 512);  // zeros
        struct driver_buffer b[3] = {{w.header, 16, false}, {BIG_AT, BIG, true}, {w.status, 1, true}};
        driver_submit(&w.d, Q, b, 3);
        driver_run(&w.d, has_begun, big);
        driver_reset(&w.d);
        memset(big, turn + 1, BIG);
        start();
        must_read(0, 512, 'a');  // whatever the worker was at, it is through with it
        for (size_t i = 0; i < BIG; i++)
            if (big[i] != turn + 1)
                fail_msg("byte %zu was written after the reset", i);
    }
}

// Freed with requests in flight.
static void freed_in_flight(void **state)
{
    start();
    for (unsigned i = 0; i < 16; i++) {
        put_header(VIRTIO_BLK_T_OUT, 0);
        struct driver_buffer b[3] = {{w.header, 16, false}, {w.data, 64 * KIB, false}, {w.status, 1, true}};
        driver_submit(&w.d, Q, b, 3);
    }
    driver_rounds(&w.d, 1);
}

// ---- a place for a disk ----

static void make_block(struct disk *disk)
{
    struct block_config config = {.disk = disk, .id = "volume"};
    assert_int_equal(block_new(w.d.loop, w.d.memory, &config, &w.block), 0);
    w.d.mmio = block_mmio(w.block);
}

static int setup_without_disk(void **state)
{
    driver_open(&w.d);
    w.base = w.delta = -1;
    make_block(NULL);
    return 0;
}

static uint64_t capacity(void)
{
    uint64_t sectors;
    virtio_mmio_read(w.d.mmio, 0x100, &sectors, 4);
    virtio_mmio_read(w.d.mmio, 0x104, (uint8_t *)&sectors + 4, 4);
    return le64toh(sectors);
}

static void without_a_disk_there_is_no_data(void **state)
{
    static const uint32_t types[] = {VIRTIO_BLK_T_IN,      VIRTIO_BLK_T_OUT,          VIRTIO_BLK_T_FLUSH,
                                     VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES, 12345};
    start();
    assert_int_equal(capacity(), 0);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bool data = types[i] == VIRTIO_BLK_T_IN || types[i] == VIRTIO_BLK_T_OUT;
        assert_int_equal(request(types[i], 0, data ? 512 : types[i] == VIRTIO_BLK_T_FLUSH ? 0 : 16, NULL), VIRTIO_BLK_S_IOERR);
    }
    uint32_t used;
    assert_int_equal(request(VIRTIO_BLK_T_GET_ID, 0, BLOCK_ID_BYTES, &used), VIRTIO_BLK_S_OK);
    assert_string_equal(data(), "volume");
    struct block_counters c;
    block_counters(w.block, &c);
    assert_int_equal(c.refused, sizeof types / sizeof types[0]);
    assert_int_equal(c.errors + c.reads + c.writes + c.flushes + c.zeroes, 0);
    assert_int_equal(block_grow(w.block, DISK_SIZE), -ENODEV);
    assert_false(driver_broken(&w.d));
    driver_reset(&w.d);
    start();
    assert_int_equal(request(VIRTIO_BLK_T_IN, 0, 512, NULL), VIRTIO_BLK_S_IOERR);
}

// A machine that was saved without goes on with one, once it is told: to its driver it is the same device, larger.
static void restored_with_a_disk(void **state)
{
    struct virtio_mmio_state saved;
    start();
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, 512, NULL), VIRTIO_BLK_S_IOERR);
    assert_int_equal(virtio_mmio_save(w.d.mmio, &saved), 0);
    uint64_t offered = driver_offered(&w.d);
    w.block = block_free(w.block);
    w.delta = memfd_create("volume", MFD_CLOEXEC);
    assert_int_equal(ftruncate(w.delta, DISK_SIZE), 0);
    assert_int_equal(disk_open(&(struct disk_config){.base = -1, .delta = w.delta, .plain = true}, &w.disk), 0);
    make_block(w.disk);
    assert_int_equal(driver_offered(&w.d), offered);
    assert_int_equal(virtio_mmio_restore(w.d.mmio, &saved), 0);
    uint32_t generation = driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION);
    driver_interrupts(&w.d);
    block_announce(w.block);
    assert_int_equal(driver_interrupts(&w.d), VIRTIO_MMIO_INT_CONFIG);
    assert_int_not_equal(driver_read(&w.d, VIRTIO_MMIO_CONFIG_GENERATION), generation);
    assert_int_equal(capacity(), DISK_SIZE / 512);
    memset(data(), 'v', 512);
    assert_int_equal(request(VIRTIO_BLK_T_OUT, 0, 512, NULL), VIRTIO_BLK_S_OK);
    assert_int_equal(request(VIRTIO_BLK_T_FLUSH, 0, 0, NULL), VIRTIO_BLK_S_OK);
    char kept;
    assert_int_equal(pread(w.delta, &kept, 1, 511), 1);
    assert_int_equal(kept, 'v');
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(configuration),
        T(read_and_write),
        T(serial_number),
        T(discard_and_zeroes),
        T(largest_zeroes),
        T(many_segments),
        T(many_at_once),
        T(grows_online),
        T(read_only),
        T(refused_requests),
        T(longest_request),
        T(no_room_for_status),
        T(overlapping_buffers),
        T(full_disk),
        T(resets_in_flight),
        T(reset_waits),
        T(freed_in_flight),
        T(a_slow_disk_waits_and_holds_up_nobody),
        T(a_disk_of_few_requests_likewise),
        T(zeros_that_are_written_are_paid_for),
        cmocka_unit_test_setup_teardown(without_a_disk_there_is_no_data, setup_without_disk, teardown),
        cmocka_unit_test_setup_teardown(restored_with_a_disk, setup_without_disk, teardown)};
    return cmocka_run_group_tests_name("virtio_block", tests, NULL, NULL);
}
