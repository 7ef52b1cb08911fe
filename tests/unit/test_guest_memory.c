// vmm/mem/guest_memory: every address becomes a pointer only together with a length that fits.
#include "unit.h"
#include "vmm/mem/guest_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)

static void sizes(void **state)
{
    struct guest_memory *m = (void *)1;
    static const uint64_t bad[] = {0, MIB(126), MIB(128) - 4096, MIB(129), GIB(64) + MIB(2), UINT64_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(guest_memory_new(bad[i], &m), -EINVAL);
    assert_ptr_equal(m, (void *)1);
    static const uint64_t good[] = {MIB(128), MIB(130), GIB(3) - MIB(2), GIB(3), GIB(3) + MIB(2), GIB(5), GIB(64)};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(guest_memory_new(good[i], &m), 0);
        size_t n;
        const struct guest_region *r = guest_memory_regions(m, &n);
        assert_int_equal(n, good[i] > GIB(3) ? 2 : 1);
        assert_int_equal(r[0].start.value, 0);
        assert_int_equal(r[0].bytes, good[i] > GIB(3) ? GIB(3) : good[i]);
        if (n == 2) {
            assert_int_equal(r[1].start.value, GIB(4));
            assert_int_equal(r[1].bytes, good[i] - GIB(3));
        }
        // KVM maps huge pages only where both addresses have the same offset in one.
        for (size_t k = 0; k < n; k++)
            assert_int_equal(((uintptr_t)r[k].host ^ r[k].start.value) % MIB(2), 0);
        assert_null(guest_memory_free(m));
    }
    assert_null(guest_memory_free(NULL));
}

static unsigned mappings(void)
{
    unsigned n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

// What was reserved to find an aligned place is given back at once, the rest at the end.
static void nothing_is_left_mapped(void **state)
{
    struct guest_memory *m;
    assert_int_equal(guest_memory_new(GIB(5), &m), 0);  // libc's own buffers are there now
    guest_memory_free(m);
    unsigned before = mappings();
    for (int i = 0; i < 20; i++) {
        assert_int_equal(guest_memory_new(GIB(5), &m), 0);
        assert_true(mappings() <= before + 6);  // two regions, each between two guards
        guest_memory_free(m);
        assert_int_equal(mappings(), before);
    }
}

static void edges(void **state)
{
    struct guest_memory *m;
    assert_int_equal(guest_memory_new(GIB(5), &m), 0);
    size_t n;
    const struct guest_region *r = guest_memory_regions(m, &n);
    assert_ptr_equal(guest_memory_at(m, gpa(0), 1), r[0].host);
    assert_ptr_equal(guest_memory_at(m, gpa(GIB(3) - 1), 1), (char *)r[0].host + GIB(3) - 1);
    assert_ptr_equal(guest_memory_at(m, gpa(0), GIB(3)), r[0].host);
    assert_ptr_equal(guest_memory_at(m, gpa(GIB(4)), GIB(2)), r[1].host);
    assert_ptr_equal(guest_memory_at(m, gpa(GIB(6) - 8), 8), (char *)r[1].host + GIB(2) - 8);
    static const struct {
        uint64_t at;
        size_t len;
    } bad[] = {
        {0, 0},          {GIB(3) - 1, 2},     {GIB(3), 1},          {GIB(4) - 1, 1},         {GIB(4) - 1, 2},
        {GIB(6) - 8, 9}, {GIB(6), 1},         {0, GIB(3) + 1},      {GIB(3) - 4096, GIB(2)}, {UINT64_MAX, 1},
        {UINT64_MAX, 2}, {0, SIZE_MAX},       {4096, SIZE_MAX},     {GIB(4), SIZE_MAX},      {UINT64_MAX - 4095, 8192},
        {GIB(4), 0},     {1, UINT64_MAX - 0}, {GIB(5), GIB(1) + 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_null(guest_memory_at(m, gpa(bad[i].at), bad[i].len));
    guest_memory_free(m);
}

// One byte before and one behind RAM end the process that touches them.
static void guards(void **state)
{
    struct guest_memory *m;
    assert_int_equal(guest_memory_new(MIB(128), &m), 0);
    size_t n;
    volatile char *host = guest_memory_regions(m, &n)[0].host;
    host[0] = host[MIB(128) - 1] = 1;
    for (int side = 0; side < 2; side++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            signal(SIGSEGV, SIG_DFL);
            host[side == 0 ? (int64_t)-1 : (int64_t)MIB(128)] = 1;
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    guest_memory_free(m);
}

static uint64_t held(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

// A snapshot's file has holes, where its machine had written nothing.  What a clone writes there is its own, once: the file has
// no page more for it, which the clone would pay for, too, and which would stay.
static void a_clone_fills_no_holes(void **state)
{
    static const uint64_t data[] = {
        0, 4096, MIB(1), MIB(1) + 65536, MIB(64) - 4096, GIB(3) - 4096, GIB(3), GIB(3) + MIB(2) - 4096};
    enum { DATA = sizeof data / sizeof data[0] };
    uint64_t bytes = GIB(3) + MIB(2);
    int fd = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    for (size_t i = 0; i < DATA; i++)
        assert_int_equal(pwrite(fd, "data", 4, (off_t)data[i]), 4);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    uint64_t before = held(fd);
    assert_int_equal(before, DATA * 4096);
    struct guest_memory *m;
    assert_int_equal(guest_memory_map(bytes, fd, &m), 0);
    size_t n;
    const struct guest_region *r = guest_memory_regions(m, &n);
    assert_int_equal(n, 2);
    for (size_t i = 0; i < DATA; i++) {
        char *at = data[i] < GIB(3) ? (char *)r[0].host + data[i] : (char *)r[1].host + (data[i] - GIB(3));
        assert_memory_equal(at, "data", 5);
        memcpy(at, "mine", 4);
    }
    char *host = r[0].host;
    for (uint64_t at = MIB(2); at < MIB(64) - 4096; at += 4096) {
        assert_int_equal(host[at], 0);
        host[at] = 1;
    }
    for (uint64_t at = MIB(64); at < MIB(96); at += 4096)
        assert_int_equal(host[at], 0);
    assert_int_equal(held(fd), before);
    char got[5] = "";
    for (size_t i = 0; i < DATA; i++) {
        assert_int_equal(pread(fd, got, 4, (off_t)data[i]), 4);
        assert_string_equal(got, "data");
    }
    guest_memory_free(m);
    close(fd);
}

// More pieces than there may be mappings: the memory is the same.
static void a_file_of_many_pieces(void **state)
{
    enum { STEP = 65536 };
    uint64_t bytes = MIB(1024);
    int fd = memfd_create("snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    for (uint64_t at = 0; at < bytes; at += STEP)
        assert_int_equal(pwrite(fd, &at, sizeof at, (off_t)at), sizeof at);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    unsigned before = mappings();
    struct guest_memory *m;
    assert_int_equal(guest_memory_map(bytes, fd, &m), 0);
    assert_in_range(mappings() - before, 8192, 2 * 8192 + 8);
    size_t n;
    const char *host = guest_memory_regions(m, &n)[0].host;
    for (uint64_t at = 0; at < bytes; at += STEP)
        assert_memory_equal(host + at, &at, sizeof at);
    guest_memory_free(m);
    assert_int_equal(mappings(), before);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),  cmocka_unit_test(nothing_is_left_mapped), cmocka_unit_test(edges),
        cmocka_unit_test(guards), cmocka_unit_test(a_clone_fills_no_holes), cmocka_unit_test(a_file_of_many_pieces)};
    return cmocka_run_group_tests_name("guest_memory", tests, NULL, NULL);
}
