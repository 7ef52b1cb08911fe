// engine/snapshot_files: a snapshot's description is there as a whole or not at all, whichever system call fails.
#include "base/cleanup.h"
#include "engine/snapshot_files.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- failing calls ----

static int calls_left = -1;  // until one fails; negative: none does
static int fail_with;

static bool fails(void)
{
    if (calls_left < 0 || calls_left-- > 0)
        return false;
    errno = fail_with;
    return true;
}

#define WRAP(type, name, parameters, arguments)                                                                                \
    type __real_##name parameters;                                                                                             \
    type __wrap_##name parameters;                                                                                             \
    type __wrap_##name parameters                                                                                              \
    {                                                                                                                          \
        return fails() ? -1 : __real_##name arguments;                                                                         \
    }
WRAP(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
WRAP(int, renameat, (int dir, const char *from, int to_dir, const char *to), (dir, from, to_dir, to))
WRAP(int, fsync, (int fd), (fd))
WRAP(ssize_t, write, (int fd, const void *bytes, size_t n), (fd, bytes, n))

// ---- a folder ----

static char folder[] = "/tmp/test-snapshot-files-XXXXXX";
static int state_dir = -1;

static int set_up(void **state)
{
    return mkdtemp(folder) != NULL && (state_dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0 ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    return remove(path);
}

static int tear_down(void **state)
{
    close_fd(&state_dir);
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct snapshot_meta some(const char *id)
{
    struct snapshot_meta m = {.isolation = 2, .vcpus = 1, .memory_mib = 64, .disk_mib = 64, .layers = 1};
    strcpy(m.id, id);
    strcpy(m.owner, "uid:0");
    strcpy(m.template_name, "t");
    return m;
}

static int write_one(int dir, const char *id)
{
    struct snapshot_meta m = some(id);
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(&m, &b), 0);
    return snapshot_files_write(dir, id, b.data, b.len);
}

static int read_one(int dir, const char *id)
{
    struct snapshot_meta m;
    uint8_t *body = NULL;
    int r = snapshot_files_read(dir, id, &m, &body);
    if (r == 0)
        assert_string_equal(m.id, id);
    free(body);
    return r;
}

static size_t count(int dir)
{
    char(*ids)[SNAPSHOT_ID_LEN + 1] = NULL;
    size_t n = 99;
    assert_int_equal(snapshot_files_list(dir, &ids, &n), 0);
    for (size_t i = 1; i < n; i++)
        assert_true(strcmp(ids[i - 1], ids[i]) < 0);
    free(ids);
    return n;
}

// Nothing in the folder but what is listed.
static void assert_tidy(int dir)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_nlink, 2 + count(dir));
}

static void written_is_read_and_removed_is_gone(void **state)
{
    cleanup_fd int dir = snapshot_files_open(state_dir);
    assert_true(dir >= 0);
    assert_int_equal(count(dir), 0);
    assert_int_equal(write_one(dir, "snp_0000000000002"), 0);
    assert_int_equal(write_one(dir, "snp_0000000000001"), 0);
    assert_int_equal(count(dir), 2);
    assert_int_equal(read_one(dir, "snp_0000000000001"), 0);
    assert_int_equal(read_one(dir, "snp_0000000000003"), -ENOENT);
    assert_int_equal(write_one(dir, "snp_0000000000001"), -EEXIST);
    assert_int_equal(read_one(dir, "snp_0000000000001"), 0);
    assert_int_equal(snapshot_files_remove(dir, "snp_0000000000001"), 0);
    assert_int_equal(snapshot_files_remove(dir, "snp_0000000000001"), -ENOENT);
    assert_int_equal(snapshot_files_remove(dir, "snp_0000000000002"), 0);
    assert_tidy(dir);
}

static void a_write_that_fails_leaves_nothing(void **state)
{
    cleanup_fd int dir = snapshot_files_open(state_dir);
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        int failures = 0, r;
        for (;; failures++) {
            fail_with = errors[i];
            calls_left = failures;
            r = write_one(dir, "snp_0000000000001");
            calls_left = -1;
            if (r == 0)
                break;
            assert_int_equal(r, -errors[i]);
            assert_int_equal(count(dir), 0);
            assert_tidy(dir);
        }
        assert_true(failures >= 6);
        assert_int_equal(read_one(dir, "snp_0000000000001"), 0);
        assert_int_equal(snapshot_files_remove(dir, "snp_0000000000001"), 0);
    }
}

static void damage_is_found(void **state)
{
    cleanup_fd int dir = snapshot_files_open(state_dir);
    static const char id[] = "snp_0000000000001", path[] = "snp_0000000000001/snapshot.bin";
    assert_int_equal(write_one(dir, id), 0);
    cleanup_fd int file = openat(dir, path, O_RDWR | O_CLOEXEC);
    struct stat st;
    assert_int_equal(fstat(file, &st), 0);
    for (off_t at = 0; at < st.st_size; at++) {
        uint8_t byte;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        assert_int_equal(read_one(dir, id), -EBADMSG);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    assert_int_equal(read_one(dir, id), 0);
    // Longer, cut, empty, absent; and another's, under this name.
    assert_int_equal(ftruncate(file, st.st_size + 1), 0);
    assert_int_equal(read_one(dir, id), -EBADMSG);
    assert_int_equal(ftruncate(file, SNAPSHOT_META_MAX + 1), 0);
    assert_int_equal(read_one(dir, id), -EBADMSG);
    for (off_t n = st.st_size - 1; n >= 0; n--) {
        assert_int_equal(ftruncate(file, n), 0);
        assert_int_equal(read_one(dir, id), -EBADMSG);
    }
    assert_int_equal(unlinkat(dir, path, 0), 0);
    assert_int_equal(read_one(dir, id), -EBADMSG);
    assert_int_equal(write_one(dir, "snp_0000000000002"), 0);
    assert_int_equal(renameat(dir, "snp_0000000000002", dir, id), 0);
    assert_int_equal(read_one(dir, id), -EBADMSG);
    assert_int_equal(snapshot_files_remove(dir, id), 0);
}

static void leftovers_go_at_the_next_start(void **state)
{
    static const char *const left[] = {"snapshots/.new-snp_0000000000001", "snapshots/.old-snp_0000000000002"};
    cleanup_fd int dir = snapshot_files_open(state_dir);
    assert_int_equal(write_one(dir, "snp_0000000000003"), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mkdirat(state_dir, left[i], 0700), 0);
        char path[80];
        snprintf(path, sizeof path, "%s/snapshot.bin", left[i]);
        cleanup_fd int file = openat(state_dir, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(write(file, "half", 4), 4);
    }
    cleanup_fd int again = snapshot_files_open(state_dir);
    assert_true(again >= 0);
    assert_int_equal(count(again), 1);
    assert_tidy(again);
    assert_int_equal(read_one(again, "snp_0000000000003"), 0);
    assert_int_equal(snapshot_files_remove(again, "snp_0000000000003"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read_and_removed_is_gone),
        cmocka_unit_test(a_write_that_fails_leaves_nothing),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(leftovers_go_at_the_next_start),
    };
    return cmocka_run_group_tests_name("snapshot_files", tests, set_up, tear_down);
}
