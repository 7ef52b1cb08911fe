// wire: archives, written and read back, and hostile ones.
#include "base/buf.h"
#include "unit.h"
#include "wire/limits.h"
#include "wire/tar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kept {
    struct tar_entry e;
    char path[PATH_BYTES_MAX + 1], link[PATH_BYTES_MAX + 1];
    uint64_t bytes;
    uint8_t last;
    bool whole;
};

struct take {
    struct kept entry[8];
    size_t n;
    int stop;  // a negative errno for the next entry
};

static int on_entry(void *arg, const struct tar_entry *e)
{
    struct take *t = arg;
    if (t->stop < 0)
        return t->stop;
    struct kept *k = &t->entry[t->n++];
    assert_true(t->n <= 8);
    *k = (struct kept){.e = *e};
    strcpy(k->path, e->path);
    strcpy(k->link, e->link);
    return 0;
}

static int on_data(void *arg, const uint8_t *bytes, size_t n)
{
    struct take *t = arg;
    t->entry[t->n - 1].bytes += n;
    t->entry[t->n - 1].last = bytes[n - 1];
    return 0;
}

static int on_entry_end(void *arg)
{
    struct take *t = arg;
    t->entry[t->n - 1].whole = true;
    return 0;
}

static int read_all(struct take *t, const uint8_t *bytes, size_t n, size_t piece)
{
    static const struct tar_sink sink = {.on_entry = on_entry, .on_data = on_data, .on_entry_end = on_entry_end};
    t->n = 0;
    struct tar_reader *r = tar_reader_new(&sink, t);
    assert_non_null(r);
    int result = 0;
    for (size_t at = 0; at < n && result == 0; at += piece)
        result = tar_reader_feed(r, bytes + at, n - at < piece ? n - at : piece);
    if (result == 0)
        result = tar_reader_finish(r);
    tar_reader_free(r);
    return result;
}

static void put(struct buf *b, const struct tar_entry *e)
{
    static const uint8_t data[4096] = {[0 ... 4095] = 'x'};
    assert_int_equal(tar_put_header(b, e), 0);
    assert_int_equal(b->len % TAR_BLOCK, 0);
    if (e->type != TAR_FILE)
        return;
    static const uint8_t zeros[TAR_BLOCK];
    assert_true(e->size <= sizeof data);
    buf_append(b, data, (size_t)e->size);
    assert_int_equal(buf_append(b, zeros, tar_padding(e->size)), 0);
}

static void what_is_written_is_read_back(void **state)
{
    static char long_path[PATH_BYTES_MAX + 1], long_link[PATH_BYTES_MAX + 1];
    memset(long_path, 'p', PATH_BYTES_MAX);
    memset(long_link, 'l', PATH_BYTES_MAX);
    const struct tar_entry entries[] = {
        {.type = TAR_DIRECTORY, .path = "d/", .link = "", .mode = 0755, .mtime = 1700000000},
        {.type = TAR_FILE, .path = "d/f", .link = "", .size = 700, .mode = 04755, .mtime = 0, .mtime_nsec = 999999999},
        {.type = TAR_SYMLINK, .path = "d/l", .link = "../../etc", .mode = 0777, .mtime = -1, .mtime_nsec = 750000000},
        {.type = TAR_HARDLINK, .path = "d/h", .link = "d/f", .mode = 0600, .mtime = -5},
        {.type = TAR_FILE, .path = long_path, .link = "", .size = 0, .mode = 0, .mtime = INT64_C(1) << 40},
        {.type = TAR_SYMLINK, .path = "s", .link = long_link, .mode = 0777, .mtime = 8589934591},
    };
    enum { N = sizeof entries / sizeof entries[0] };
    struct buf b = BUF_INIT(1 << 20);
    for (size_t i = 0; i < N; i++)
        put(&b, &entries[i]);
    assert_int_equal(tar_put_end(&b), 0);
    static struct take t;
    for (size_t piece = 1; piece < 4000; piece = piece * 3 + 1) {
        assert_int_equal(read_all(&t, b.data, b.len, piece), 0);
        assert_int_equal(t.n, N);
        for (size_t i = 0; i < N; i++) {
            const struct tar_entry *want = &entries[i], *got = &t.entry[i].e;
            assert_int_equal(got->type, want->type);
            assert_string_equal(t.entry[i].path, want->path);
            assert_string_equal(t.entry[i].link, want->link);
            assert_int_equal(got->size, want->size);
            assert_int_equal(got->mode, want->mode);
            assert_int_equal(got->mtime, want->mtime);
            assert_int_equal(got->mtime_nsec, want->mtime_nsec);
            assert_int_equal(t.entry[i].bytes, want->size);
            assert_true(want->type != TAR_FILE || t.entry[i].whole);
        }
    }
    // Cut off anywhere it is noticed, except between entries.
    size_t cuts = 0;
    for (size_t n = 0; n < b.len - 2 * TAR_BLOCK; n += 100)
        cuts += read_all(&t, b.data, n, 512) == -EBADMSG;
    assert_true(cuts > (b.len - 2 * TAR_BLOCK) / 100 - 8);
    buf_free(&b);
}

static void sizes_beyond_ustar_are_written_in_pax(void **state)
{
    const struct tar_entry e = {.type = TAR_FILE, .path = "big", .link = "", .size = UINT64_C(1) << 40, .mode = 0644};
    struct buf b = BUF_INIT(1 << 20);
    assert_int_equal(tar_put_header(&b, &e), 0);
    static struct take t;
    assert_int_equal(read_all(&t, b.data, b.len, 512), -EBADMSG);  // its data is missing
    assert_int_equal(t.n, 1);
    assert_int_equal(t.entry[0].e.size, UINT64_C(1) << 40);
    buf_free(&b);
}

static void names_stay_below(void **state)
{
    static const struct {
        const char *path, *want;  // NULL: refused
    } cases[] = {{"a", "a"},     {"./a/b/", "a/b"}, {"a//b/./c", "a/b/c"}, {"", ""},     {"./", ""},
                 {".", ""},      {"...", "..."},    {"a/..b", "a/..b"},    {"/a", NULL}, {"..", NULL},
                 {"a/..", NULL}, {"a/../b", NULL},  {"./../b", NULL},      {"//", NULL}, {"a/.../b", "a/.../b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[64];
        int r = tar_path(cases[i].path, out);
        assert_int_equal(r, cases[i].want != NULL ? 0 : -EACCES);
        if (r == 0)
            assert_string_equal(out, cases[i].want);
    }
}

// One header block, with a right checksum.
static void seal(uint8_t h[TAR_BLOCK])
{
    memset(h + 148, ' ', 8);
    unsigned sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += h[i];
    char text[16];
    snprintf(text, sizeof text, "%06o", sum);
    memcpy(h + 148, text, 7);
}

static int read_block(char type, const char *size, const char *data)
{
    static uint8_t bytes[3 * TAR_BLOCK];
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, "name", 4);
    memcpy(bytes + 100, "0000644", 8);
    memcpy(bytes + 124, size, strlen(size));
    memcpy(bytes + 136, "00000000000", 11);
    bytes[156] = (uint8_t)type;
    memcpy(bytes + 257, "ustar\00000", 8);
    seal(bytes);
    memcpy(bytes + TAR_BLOCK, data, strlen(data));
    static struct take t;
    return read_all(&t, bytes, sizeof bytes, sizeof bytes);
}

static void broken_archives_are_refused(void **state)
{
    assert_int_equal(read_block('0', "00000000001", "x"), 0);
    assert_int_equal(read_block('0', "0000000000z", "x"), -EBADMSG);
    assert_int_equal(read_block('0', "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "x"), -EBADMSG);  // -1
    assert_int_equal(read_block('0', "\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "x"), -EBADMSG);  // too large
    assert_int_equal(read_block('S', "00000000000", ""), -EOPNOTSUPP);
    assert_int_equal(read_block('V', "00000000000", ""), -EOPNOTSUPP);
    assert_int_equal(read_block('2', "00000000000", ""), -EBADMSG);  // a link to nothing
    assert_int_equal(read_block('x', "00000200001", ""), -EBADMSG);  // one byte more than is kept
    static const char *const bad[] = {
        "5",           "5 a",   "99 path=a\n", "9 path=ab\n",  "11 path=\n",
        "0 \n",        "7 =\n", "-5 a=b\n",    "12 size=-1\n", "31 size=99999999999999999999999\n",
        "12 mtime=x\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char size[32];
        snprintf(size, sizeof size, "%011zo", strlen(bad[i]));
        assert_int_equal(read_block('x', size, bad[i]), -EBADMSG);
    }
    assert_int_equal(read_block('x', "00000000030", "24 GNU.sparse.size=1024\n"), -EOPNOTSUPP);
    static struct take t;
    assert_int_equal(read_all(&t, NULL, 0, 1), -EBADMSG);
    static const uint8_t zeros[2 * TAR_BLOCK];
    assert_int_equal(read_all(&t, zeros, sizeof zeros, 100), 0);
    assert_int_equal(t.n, 0);
    uint8_t noise[TAR_BLOCK];
    memset(noise, 'n', sizeof noise);
    assert_int_equal(read_all(&t, noise, sizeof noise, 100), -EBADMSG);
}

static void the_sinks_error_ends_it(void **state)
{
    struct buf b = BUF_INIT(1 << 20);
    const struct tar_entry e = {.type = TAR_FILE, .path = "f", .link = "", .size = 1, .mode = 0644};
    put(&b, &e);
    static struct take t;
    t.stop = -ENOSPC;
    assert_int_equal(read_all(&t, b.data, b.len, 512), -ENOSPC);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(sizes_beyond_ustar_are_written_in_pax),
        cmocka_unit_test(names_stay_below),
        cmocka_unit_test(broken_archives_are_refused),
        cmocka_unit_test(the_sinks_error_ends_it),
    };
    return cmocka_run_group_tests_name("tar", tests, NULL, NULL);
}
