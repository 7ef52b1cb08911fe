// vmm/virtio/disk: a copy-on-write disk against an array of bytes, and everything that could bring bytes of the base back.
#include "base/cleanup.h"
#include "unit.h"
#include "vmm/virtio/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KIB = 1024, MODEL_BYTES = 512 * KIB, MODEL_MAX = 1024 * KIB, STEPS = 3000 };

static uint64_t seed;

static uint32_t random32(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}

// A nameless file in the folder for such things, on whatever file system that is.
static int temp_file(void)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/test-disk-XXXXXX", dir != NULL ? dir : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static int mem_file(void)
{
    int fd = memfd_create("disk", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

// A base of `bytes` with a hole in its middle third; what it reads as goes into `image`.
static int make_base(int fd, uint8_t *image, size_t bytes)
{
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    for (size_t i = 0; i < bytes; i++) {
        bool hole = i >= bytes / 3 / DISK_BLOCK * DISK_BLOCK && i < bytes * 2 / 3 / DISK_BLOCK * DISK_BLOCK;
        image[i] = hole ? 0 : (uint8_t)(1 + random32() % 255);
    }
    size_t third = bytes / 3 / DISK_BLOCK * DISK_BLOCK, two = bytes * 2 / 3 / DISK_BLOCK * DISK_BLOCK;
    assert_int_equal(pwrite(fd, image, third, 0), third);
    assert_int_equal(pwrite(fd, image + two, bytes - two, (off_t)two), bytes - two);
    return fd;
}

static void check_all(struct disk *d, const uint8_t *image)
{
    size_t n = disk_bytes(d);
    cleanup_free uint8_t *bytes = malloc(n);
    struct iovec iov = {bytes, n};
    uint64_t done;
    assert_int_equal(disk_read(d, 0, &iov, 1, false, &done), 0);
    assert_int_equal(done, n);
    assert_memory_equal(bytes, image, n);
}

// `bytes` in up to 6 vectors.
static size_t cut(uint8_t *bytes, size_t n, struct iovec *iov)
{
    size_t count = 0;
    while (n > 0) {
        size_t take = count == 5 ? n : 1 + random32() % n;
        iov[count++] = (struct iovec){bytes, take};
        bytes += take;
        n -= take;
    }
    return count;
}

struct model {
    struct disk *disk;
    struct disk_config config;
    uint8_t image[MODEL_MAX];
    uint8_t base[MODEL_BYTES];
};

static void reopen(struct model *m)
{
    m->config.bytes = disk_bytes(m->disk);
    uint64_t used = disk_delta_bytes(m->disk);
    m->disk = disk_close(m->disk);
    assert_int_equal(disk_open(&m->config, &m->disk), 0);
    assert_int_equal(disk_delta_bytes(m->disk), used);
    check_all(m->disk, m->image);
}

static void step(struct model *m)
{
    static uint8_t bytes[64 * KIB];
    struct iovec iov[8];
    uint64_t sectors = disk_bytes(m->disk) / DISK_SECTOR;
    uint64_t at = random32() % sectors, most = sectors - at < 128 ? sectors - at : 128;
    uint64_t n = 1 + random32() % most, done;
    if (random32() % 3 == 0) {  // whole blocks as well
        at = at / 8 * 8;
        n = (n + 7) / 8 * 8 <= sectors - at ? (n + 7) / 8 * 8 : n;
        n = n > 128 ? 128 : n;
    }
    uint64_t offset = at * DISK_SECTOR, len = n * DISK_SECTOR;
    size_t count = cut(bytes, len, iov);
    switch (random32() % 20) {
    case 0 ... 6:
        memset(bytes, 0xee, len);
        assert_int_equal(disk_read(m->disk, offset, iov, count, false, &done), 0);
        assert_int_equal(done, len);
        assert_memory_equal(bytes, m->image + offset, len);
        break;
    case 7 ... 13:
        for (size_t i = 0; i < len; i++)
            bytes[i] = (uint8_t)random32();
        assert_int_equal(disk_write(m->disk, offset, iov, count), 0);
        memcpy(m->image + offset, bytes, len);
        break;
    case 14 ... 17:
        assert_int_equal(disk_zero(m->disk, offset, len, random32() % 3 != 0), 0);
        memset(m->image + offset, 0, len);
        break;
    case 18:
        assert_int_equal(disk_flush(m->disk), 0);
        if (random32() % 8 == 0)
            reopen(m);
        break;
    default:
        if (disk_bytes(m->disk) + DISK_BLOCK <= MODEL_MAX && random32() % 4 == 0)
            assert_int_equal(disk_grow(m->disk, disk_bytes(m->disk) + DISK_BLOCK), 0);
    }
}

static uint64_t bytes_in(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_size;
}

static void read_whole(int fd, uint8_t *bytes, size_t n)
{
    assert_int_equal(bytes_in(fd), n);
    assert_int_equal(pread(fd, bytes, n, 0), n);
}

// What was written so far becomes a layer, over which a fresh delta goes on; twice, so that layer and delta become one.
static void play_over_layers(struct model *m)
{
    static uint8_t before[MODEL_MAX], after[MODEL_MAX];
    int files[4];
    for (int round = 0; round < 2; round++) {
        int layer = files[2 * round] = temp_file(), delta = files[2 * round + 1] = temp_file();
        size_t n = disk_bytes(m->disk);
        assert_int_equal(disk_copy_delta(m->disk, layer), 0);
        read_whole(layer, before, n);
        disk_close(m->disk);
        m->config.bytes = n;
        m->config.layer = layer;
        m->config.delta = delta;
        assert_int_equal(disk_open(&m->config, &m->disk), 0);
        assert_int_equal(disk_delta_bytes(m->disk), 0);
        check_all(m->disk, m->image);
        for (unsigned i = 0; i < STEPS / 4; i++)
            step(m);
        reopen(m);
        read_whole(layer, after, n);
        assert_memory_equal(after, before, n);
    }
    disk_close(m->disk);
    for (int i = 0; i < 4; i++)
        close(files[i]);
}

static void play(int base, int delta, bool plain, uint64_t start)
{
    static struct model m;
    seed = start;
    memset(&m, 0, sizeof m);
    if (base >= 0)
        make_base(base, m.image, MODEL_BYTES - 1536);  // it ends inside a block
    memcpy(m.base, m.image, sizeof m.base);
    m.config = (struct disk_config){.base = base, .delta = delta, .bytes = MODEL_BYTES, .plain = plain};
    assert_int_equal(disk_open(&m.config, &m.disk), 0);
    assert_int_equal(disk_delta_bytes(m.disk), plain ? MODEL_BYTES : 0);
    check_all(m.disk, m.image);
    for (unsigned i = 0; i < STEPS; i++)
        step(&m);
    reopen(&m);
    if (plain)
        disk_close(m.disk);
    else
        play_over_layers(&m);
    if (base < 0)
        return;
    // The base has not been touched.
    static uint8_t now[MODEL_BYTES];
    assert_int_equal(pread(base, now, sizeof now, 0), MODEL_BYTES - 1536);
    assert_memory_equal(now, m.base, MODEL_BYTES - 1536);
}

static void model(void **state)
{
    for (uint64_t s = 1; s <= 6; s++) {
        cleanup_fd int base = s % 3 == 0 ? -1 : temp_file();
        cleanup_fd int delta = s % 2 == 0 ? temp_file() : mem_file();
        play(base, delta, false, s);
    }
    for (uint64_t s = 7; s <= 8; s++) {
        cleanup_fd int file = s % 2 == 0 ? temp_file() : mem_file();
        play(-1, file, true, s);
    }
}

// A plain disk is its file: what was in it is read, what is written is in it at its place, and a discard makes a hole there.
static void a_plain_disk_is_its_file(void **state)
{
    enum { BYTES = 256 * KIB };
    static uint8_t image[BYTES], now[BYTES], junk[BYTES];
    cleanup_fd int file = make_base(temp_file(), image, BYTES);
    struct disk *d;
    assert_int_equal(disk_open(&(struct disk_config){.base = -1, .delta = file, .plain = true}, &d), 0);
    assert_int_equal(disk_bytes(d), BYTES);
    check_all(d, image);
    memset(junk, 0x5a, sizeof junk);
    struct iovec iov = {junk, 5 * KIB};
    assert_int_equal(disk_write(d, 1536, &iov, 1), 0);
    memcpy(image + 1536, junk, 5 * KIB);
    assert_int_equal(pread(file, now, BYTES, 0), BYTES);
    assert_memory_equal(now, image, BYTES);
    assert_int_equal(disk_zero(d, 1024, BYTES - 1024, true), 0);
    memset(image + 1024, 0, BYTES - 1024);
    assert_int_equal(pread(file, now, BYTES, 0), BYTES);
    assert_memory_equal(now, image, BYTES);
    struct stat st;
    assert_int_equal(fstat(file, &st), 0);
    assert_true(st.st_size == BYTES && st.st_blocks * 512 < BYTES / 2);
    disk_close(d);
}

// Every block of the base, overwritten or not, reads as zeros once it is discarded, now and after the delta is opened again.
static void discarded_stays_discarded(void **state)
{
    for (int overwrite = 0; overwrite < 2; overwrite++)
        for (int release = 0; release < 2; release++) {
            enum { BYTES = 64 * KIB };
            static uint8_t image[BYTES], junk[BYTES];
            cleanup_fd int base = make_base(temp_file(), image, BYTES);
            cleanup_fd int delta = temp_file();
            struct disk_config config = {.base = base, .delta = delta};
            struct disk *d;
            assert_int_equal(disk_open(&config, &d), 0);
            memset(junk, 0x55, sizeof junk);
            struct iovec iov = {junk, BYTES};
            if (overwrite)
                assert_int_equal(disk_write(d, 0, &iov, 1), 0);
            // In pieces that end inside blocks.
            for (uint64_t at = 0; at < BYTES; at += 1536)
                assert_int_equal(disk_zero(d, at, BYTES - at < 1536 ? BYTES - at : 1536, release), 0);
            memset(image, 0, sizeof image);
            check_all(d, image);
            assert_int_equal(disk_flush(d), 0);
            disk_close(d);
            assert_int_equal(disk_open(&config, &d), 0);
            check_all(d, image);
            disk_close(d);
        }
}

// Where the base has nothing, a discard gives the room back; write-zeroes without release keeps it.
static void discard_gives_room_back(void **state)
{
    enum { BYTES = 256 * KIB };
    static uint8_t junk[BYTES];
    cleanup_fd int delta = temp_file();
    struct disk_config config = {.base = -1, .delta = delta, .bytes = BYTES};
    struct disk *d;
    struct stat st;
    assert_int_equal(disk_open(&config, &d), 0);
    memset(junk, 1, sizeof junk);
    struct iovec iov = {junk, BYTES};
    assert_int_equal(disk_write(d, 0, &iov, 1), 0);
    assert_int_equal(disk_delta_bytes(d), BYTES);
    assert_int_equal(disk_zero(d, 0, BYTES / 2, false), 0);
    assert_int_equal(disk_delta_bytes(d), BYTES);
    assert_int_equal(disk_zero(d, 0, BYTES, true), 0);
    assert_int_equal(disk_delta_bytes(d), 0);
    assert_int_equal(fstat(delta, &st), 0);
    assert_true(st.st_blocks * 512 < BYTES);
    // Zeroing what was never there takes no room.
    assert_int_equal(disk_zero(d, 512, BYTES - 1024, true), 0);
    assert_int_equal(disk_delta_bytes(d), 0);
    disk_close(d);
}

static void bad_arguments(void **state)
{
    struct disk *d = NULL;
    cleanup_fd int base = temp_file();
    cleanup_fd int delta = temp_file();
    cleanup_fd int nul = open("/dev/null", O_RDWR | O_CLOEXEC);
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(ftruncate(base, 64 * KIB), 0);
#define REFUSED(...) assert_int_equal(disk_open(&(struct disk_config){__VA_ARGS__}, &d), -EINVAL)
    REFUSED(.base = -1, .delta = delta);
    cleanup_fd int layer = temp_file();
    assert_int_equal(ftruncate(layer, 1000), 0);
    REFUSED(.base = -1, .layer = layer, .delta = delta, .bytes = 64 * KIB);  // not in blocks
    assert_int_equal(ftruncate(layer, 128 * KIB), 0);
    REFUSED(.base = -1, .layer = layer, .delta = delta, .bytes = 64 * KIB);  // longer than the disk
    REFUSED(.base = -1, .layer = nul, .delta = delta, .bytes = 64 * KIB);
    REFUSED(.base = -1, .delta = delta, .bytes = 1000);
    REFUSED(.base = -1, .delta = delta, .bytes = DISK_BYTES_MAX + DISK_BLOCK);
    REFUSED(.base = base, .delta = delta, .bytes = 32 * KIB);  // would cut the base off
    REFUSED(.base = nul, .delta = delta, .bytes = 64 * KIB);
    REFUSED(.base = base, .delta = nul);
    REFUSED(.base = base, .delta = pipes[0]);
    assert_int_equal(ftruncate(delta, 128 * KIB), 0);
    REFUSED(.base = base, .delta = delta, .bytes = 64 * KIB);  // and this the delta
    REFUSED(.base = -1, .delta = delta, .bytes = 64 * KIB, .plain = true);
    REFUSED(.base = base, .delta = delta, .plain = true);
    REFUSED(.base = -1, .delta = nul, .plain = true);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", delta);
    cleanup_fd int read_only = open(path, O_RDONLY | O_CLOEXEC);
    REFUSED(.base = base, .delta = read_only, .bytes = 128 * KIB);
    REFUSED(.base = -1, .delta = read_only, .plain = true);
    assert_int_equal(ftruncate(delta, 128 * KIB + 512), 0);
    REFUSED(.base = -1, .delta = delta, .plain = true);
    assert_int_equal(ftruncate(delta, 128 * KIB), 0);
#undef REFUSED
    assert_null(d);
    close(pipes[0]);
    close(pipes[1]);

    assert_int_equal(disk_open(&(struct disk_config){.base = base, .delta = delta, .bytes = 128 * KIB}, &d), 0);
    static uint8_t bytes[4 * KIB];
    struct iovec iov = {bytes, sizeof bytes};
    uint64_t done;
    static const uint64_t outside[] = {128 * KIB, 128 * KIB - 512, UINT64_MAX - 511, UINT64_MAX / 512 * 512, 1, 511};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        assert_int_equal(disk_read(d, outside[i], &iov, 1, false, &done), -EINVAL);
        assert_int_equal(disk_write(d, outside[i], &iov, 1), -EINVAL);
        assert_int_equal(disk_zero(d, outside[i], sizeof bytes, true), -EINVAL);
    }
    assert_false(disk_has(d, 0, UINT64_MAX));
    assert_false(disk_has(d, 512, UINT64_MAX - 511));
    assert_true(disk_has(d, 128 * KIB, 0));
    assert_int_equal(disk_grow(d, 64 * KIB), -EINVAL);
    assert_int_equal(disk_grow(d, 128 * KIB + 512), -EINVAL);
    assert_int_equal(disk_grow(d, DISK_BYTES_MAX + DISK_BLOCK), -EINVAL);
    disk_close(d);

    assert_int_equal(disk_open(&(struct disk_config){.base = base, .delta = -1}, &d), 0);
    assert_true(disk_read_only(d));
    assert_int_equal(disk_write(d, 0, &iov, 1), -EROFS);
    assert_int_equal(disk_zero(d, 0, 512, true), -EROFS);
    assert_int_equal(disk_grow(d, 128 * KIB), -EROFS);
    assert_int_equal(disk_flush(d), 0);
    disk_close(d);
}

// The file cannot grow where it should: what was not written stays as it was, for good.  RLIMIT_FSIZE plays a full disk.
static void full_disk(void **state)
{
    enum { BYTES = 64 * KIB, LIMIT = 20 * KIB + 700 };
    static uint8_t image[BYTES], junk[BYTES];
    seed = 9;
    cleanup_fd int base = make_base(temp_file(), image, BYTES);
    cleanup_fd int delta = temp_file();
    struct disk_config config = {.base = base, .delta = delta};
    struct disk *d;
    assert_int_equal(disk_open(&config, &d), 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = (struct rlimit){.rlim_cur = LIMIT, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    memset(junk, 0x77, sizeof junk);
    struct iovec iov = {junk, 32 * KIB};
    int r = disk_write(d, 0, &iov, 1);
    // And one inside a single block beyond the limit.
    struct iovec sector = {junk, 512};
    int r2 = disk_write(d, 40 * KIB + 512, &sector, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(r, -EFBIG);
    assert_int_equal(r2, -EFBIG);
    memcpy(image, junk, 20 * KIB);  // five whole blocks were written; the sixth, begun, is still the base's
    check_all(d, image);
    assert_int_equal(disk_flush(d), 0);
    disk_close(d);
    assert_int_equal(disk_open(&config, &d), 0);
    check_all(d, image);
    // With room again, it goes on.
    assert_int_equal(disk_write(d, 0, &iov, 1), 0);
    memcpy(image, junk, 32 * KIB);
    check_all(d, image);
    disk_close(d);
}

// In the place of fdatasync(2), by the linker: counted, and failing as a host's disk does, once.
static unsigned syncs;
static int sync_error;

int __wrap_fdatasync(int fd);
int __real_fdatasync(int fd);

int __wrap_fdatasync(int fd)
{
    syncs++;
    if (sync_error == 0)
        return __real_fdatasync(fd);
    errno = sync_error;
    sync_error = 0;
    return -1;
}

// Every flush reaches the file; and after one that failed none succeeds, because the kernel tells of lost pages only once.
static void check_flush(bool plain)
{
    static uint8_t bytes[8 * KIB];
    cleanup_fd int delta = temp_file();
    struct disk *d;
    assert_int_equal(disk_open(&(struct disk_config){.base = -1, .delta = delta, .bytes = 64 * KIB, .plain = plain}, &d), 0);
    struct iovec iov = {bytes, sizeof bytes};
    unsigned before = syncs;
    for (unsigned n = 1; n <= 3; n++) {
        assert_int_equal(disk_write(d, 0, &iov, 1), 0);
        assert_int_equal(disk_flush(d), 0);
        assert_int_equal(syncs, before + n);
    }
    sync_error = EIO;
    assert_int_equal(disk_flush(d), -EIO);
    assert_int_equal(disk_write(d, 0, &iov, 1), 0);
    assert_int_equal(disk_flush(d), -EIO);
    assert_int_equal(disk_flush(d), -EIO);
    disk_close(d);
}

static void flush_is_honest(void **state)
{
    check_flush(false);
    check_flush(true);
}

static void nowait(void **state)
{
    static uint8_t image[64 * KIB], bytes[64 * KIB];
    cleanup_fd int base = make_base(temp_file(), image, sizeof image);
    cleanup_fd int delta = temp_file();
    struct disk *d;
    assert_int_equal(disk_open(&(struct disk_config){.base = base, .delta = delta}, &d), 0);
    struct iovec iov = {bytes, sizeof bytes};
    uint64_t done;
    // Either it is all there, or it says that one would have to wait.
    for (int i = 0; i < 3; i++) {
        int r = disk_read(d, 0, &iov, 1, true, &done);
        assert_true(r == 0 || r == -EAGAIN);
        if (r == 0)
            assert_memory_equal(bytes, image, sizeof image);
    }
    disk_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model),
        cmocka_unit_test(a_plain_disk_is_its_file),
        cmocka_unit_test(discarded_stays_discarded),
        cmocka_unit_test(discard_gives_room_back),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(flush_is_honest),
        cmocka_unit_test(nowait),
    };
    return cmocka_run_group_tests_name("disk", tests, NULL, NULL);
}
