// sys/digest: block lists, holes, short ends.
#include "base/cleanup.h"
#include "base/id.h"
#include "sys/digest.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

static int scratch(void)
{
    // A file on a filesystem with holes; a memory file has them too.
    int fd = memfd_create("digest", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

// The definition, written out: every block hashed as it is, no holes, no shortcuts.
static void by_definition(int fd, uint64_t size, uint8_t digest[DIGEST_LEN])
{
    size_t blocks = (size_t)((size + DIGEST_BLOCK - 1) / DIGEST_BLOCK);
    cleanup_free uint8_t *list = calloc(blocks + 1, DIGEST_LEN);
    cleanup_free uint8_t *block = malloc(DIGEST_BLOCK);
    for (size_t i = 0; i < blocks; i++) {
        ssize_t n = pread(fd, block, DIGEST_BLOCK, (off_t)(i * DIGEST_BLOCK));
        assert_true(n > 0);
        assert_int_equal(digest_bytes(block, (size_t)n, list + i * DIGEST_LEN), 0);
    }
    assert_int_equal(digest_bytes(list, blocks * DIGEST_LEN, digest), 0);
}

static void check(int fd, uint64_t size)
{
    uint8_t got[DIGEST_LEN], want[DIGEST_LEN];
    uint64_t got_size = 0;
    assert_int_equal(digest_file(fd, &got_size, got), 0);
    assert_true(got_size == size);
    by_definition(fd, size, want);
    assert_memory_equal(got, want, DIGEST_LEN);
}

static void sizes_around_a_block(void **state)
{
    static const uint64_t sizes[] = {0, 1, DIGEST_BLOCK - 1, DIGEST_BLOCK, DIGEST_BLOCK + 1, 3 * DIGEST_BLOCK};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cleanup_fd int hole = scratch();
        assert_int_equal(ftruncate(hole, (off_t)sizes[i]), 0);
        check(hole, sizes[i]);
        cleanup_fd int data = scratch();
        cleanup_free uint8_t *bytes = malloc(sizes[i] + 1);
        assert_int_equal(random_bytes(bytes, sizes[i]), 0);
        assert_int_equal(pwrite(data, bytes, sizes[i], 0), sizes[i]);
        check(data, sizes[i]);
    }
}

static void holes_and_written_zeros_agree(void **state)
{
    enum { SIZE = 20 * DIGEST_BLOCK + 777 };
    cleanup_fd int sparse = scratch();
    cleanup_fd int full = scratch();
    assert_int_equal(ftruncate(sparse, SIZE), 0);
    static const off_t places[] = {0, DIGEST_BLOCK * 3 - 1, DIGEST_BLOCK * 7 + 4096, SIZE - 5};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pwrite(sparse, "data!", 5, places[i]), 5);
    cleanup_free uint8_t *bytes = malloc(SIZE);
    assert_int_equal(pread(sparse, bytes, SIZE, 0), SIZE);
    assert_int_equal(pwrite(full, bytes, SIZE, 0), SIZE);
    check(sparse, SIZE);
    check(full, SIZE);
}

static void holes_cost_nothing(void **state)
{
    // 64 GiB of hole: only possible when it is not read.
    cleanup_fd int fd = scratch();
    assert_int_equal(ftruncate(fd, (off_t)1 << 36), 0);
    assert_int_equal(pwrite(fd, "x", 1, ((off_t)1 << 36) - 1), 1);
    uint64_t size;
    uint8_t digest[DIGEST_LEN];
    assert_int_equal(digest_file(fd, &size, digest), 0);
    assert_true(size == UINT64_C(1) << 36);
}

static void only_regular_files(void **state)
{
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    uint64_t size = 5;
    uint8_t digest[DIGEST_LEN] = {1};
    assert_int_equal(digest_file(pipe_fds[0], &size, digest), -EINVAL);
    assert_int_equal(digest_file(-1, &size, digest), -EBADF);
    assert_true(size == 5 && digest[0] == 1);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_around_a_block),
        cmocka_unit_test(holes_and_written_zeros_agree),
        cmocka_unit_test(holes_cost_nothing),
        cmocka_unit_test(only_regular_files),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
