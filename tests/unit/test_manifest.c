// wire/manifest: one encoding for a list of files, everything else refused.
#include "unit.h"
#include "wire/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct manifest two_files(void)
{
    struct manifest m = {.files = 2};
    strcpy(m.file[0].name, "memory.snap");
    m.file[0].size = UINT64_C(0x0102030405060708);
    memset(m.file[0].digest, 0xAB, DIGEST_LEN);
    strcpy(m.file[1].name, "rootfs.ext4");
    m.file[1].size = 4096;
    return m;
}

static void round_trip(void **state)
{
    struct manifest m = two_files(), back;
    memset(&back, 0x55, sizeof back);
    cleanup_buf struct buf b = BUF_INIT(MANIFEST_MAX);
    assert_int_equal(manifest_write(&m, &b), 0);
    assert_int_equal(b.len, 16 + 2 * (1 + 11 + 8 + 32));
    assert_memory_equal(b.data, "SBXMANI1\0\0\0\1\0\0\0\2\x0bmemory.snap\1\2\3\4\5\6\7\x08\xab", 16 + 12 + 8 + 1);
    assert_int_equal(manifest_parse(b.data, b.len, &back), 0);
    assert_int_equal(back.files, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(back.file[i].name, m.file[i].name);
        assert_true(back.file[i].size == m.file[i].size);
        assert_memory_equal(back.file[i].digest, m.file[i].digest, DIGEST_LEN);
    }
}

static void every_cut_and_any_trailing_byte_is_refused(void **state)
{
    struct manifest m = two_files(), out = {.files = 99};
    cleanup_buf struct buf b = BUF_INIT(MANIFEST_MAX);
    assert_int_equal(manifest_write(&m, &b), 0);
    for (size_t n = 0; n < b.len; n++)
        assert_int_equal(manifest_parse(b.data, n, &out), -EBADMSG);
    assert_int_equal(buf_append(&b, "", 1), 0);
    assert_int_equal(manifest_parse(b.data, b.len, &out), -EBADMSG);
    assert_int_equal(out.files, 99);
}

static int parse_changed(size_t at, uint8_t value)
{
    struct manifest m = two_files(), out;
    cleanup_buf struct buf b = BUF_INIT(MANIFEST_MAX);
    assert_int_equal(manifest_write(&m, &b), 0);
    b.data[at] = value;
    return manifest_parse(b.data, b.len, &out);
}

static void bad_heads_and_names_are_refused(void **state)
{
    assert_int_equal(parse_changed(0, 'S'), 0);
    assert_int_equal(parse_changed(0, 's'), -EBADMSG);
    assert_int_equal(parse_changed(11, 2), -EBADMSG);    // version
    assert_int_equal(parse_changed(15, 0), -EBADMSG);    // no file
    assert_int_equal(parse_changed(15, 17), -EBADMSG);   // too many
    assert_int_equal(parse_changed(16, 0), -EBADMSG);    // empty name
    assert_int_equal(parse_changed(16, 64), -EBADMSG);   // too long a name
    assert_int_equal(parse_changed(17, '/'), -EBADMSG);  // names
    assert_int_equal(parse_changed(17, '.'), -EBADMSG);
    assert_int_equal(parse_changed(18, '\0'), -EBADMSG);
    assert_int_equal(parse_changed(17, 'M'), -EBADMSG);
    assert_int_equal(parse_changed(17, 's'), -EBADMSG);  // unsorted
    assert_int_equal(parse_changed(17, 'n'), 0);
}

static void a_writer_makes_only_what_a_reader_takes(void **state)
{
    cleanup_buf struct buf b = BUF_INIT(MANIFEST_MAX);
    struct manifest m = two_files();
    strcpy(m.file[1].name, m.file[0].name);
    assert_int_equal(manifest_write(&m, &b), -EINVAL);
    m = two_files();
    memset(m.file[1].name, 'z', sizeof m.file[1].name);
    assert_int_equal(manifest_write(&m, &b), -EINVAL);
    m = (struct manifest){.files = 0};
    assert_int_equal(manifest_write(&m, &b), -EINVAL);
    m.files = MANIFEST_FILES_MAX + 1;
    assert_int_equal(manifest_write(&m, &b), -EINVAL);
    assert_int_equal(b.len, 0);
}

static void the_largest_one_fits(void **state)
{
    struct manifest m = {.files = MANIFEST_FILES_MAX}, back;
    for (int i = 0; i < MANIFEST_FILES_MAX; i++) {
        memset(m.file[i].name, 'a' + i, MANIFEST_NAME_MAX);
        m.file[i].name[MANIFEST_NAME_MAX] = '\0';
    }
    cleanup_buf struct buf b = BUF_INIT(MANIFEST_MAX - DIGEST_LEN);
    assert_int_equal(manifest_write(&m, &b), 0);
    assert_int_equal(manifest_parse(b.data, b.len, &back), 0);
    assert_int_equal(back.files, MANIFEST_FILES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(every_cut_and_any_trailing_byte_is_refused),
        cmocka_unit_test(bad_heads_and_names_are_refused),
        cmocka_unit_test(a_writer_makes_only_what_a_reader_takes),
        cmocka_unit_test(the_largest_one_fits),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
