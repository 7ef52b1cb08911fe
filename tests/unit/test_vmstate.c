// wire/vmstate: one encoding for a list of sections; every changed, missing or added byte is refused, by name.
#include "unit.h"
#include "wire/vmstate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char regs[] = "registers", clock_bytes[] = "12345678";

static struct vmstate two(void)
{
    struct vmstate s = {0};
    assert_int_equal(vmstate_add(&s, VMSTATE_CLOCK, 0, clock_bytes, 8), 0);
    assert_int_equal(vmstate_add(&s, VMSTATE_REGS, 1, regs, sizeof regs), 0);
    return s;
}

static void file_of(const struct vmstate *s, struct buf *out)
{
    *out = BUF_INIT(VMSTATE_FILE_MAX);
    assert_int_equal(vmstate_write(s, out), 0);
}

static void round_trip(void **state)
{
    static struct vmstate s, back;
    struct err err;
    cleanup_buf struct buf b = {0};
    s = two();
    file_of(&s, &b);
    assert_int_equal(b.len, 32 + 2 * 32 + 16 + 8);
    assert_memory_equal(b.data, "SBXVMST1\1\0\0\0\2\0\0\0\x78\0\0\0\0\0\0\0", 24);
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), 0);
    assert_int_equal(back.count, 2);
    assert_int_equal(back.section[0].type, VMSTATE_REGS);  // sorted
    char out[sizeof regs];
    assert_int_equal(vmstate_get(&back, VMSTATE_REGS, 1, out, sizeof out, &err), 0);
    assert_string_equal(out, regs);
    assert_null(vmstate_find(&back, VMSTATE_REGS, 0));
    assert_int_equal(vmstate_get(&back, VMSTATE_REGS, 1, out, 3, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "\"vCPU registers\" 1 has 10 bytes, not 3"));
    assert_int_equal(vmstate_get(&back, VMSTATE_LAPIC, 7, out, 3, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "\"local APIC\" 7 is missing"));
}

// The check value of CRC-32C, as published for "123456789".
static void the_checksum_is_the_known_one(void **state)
{
    static struct vmstate s;
    cleanup_buf struct buf b = {0};
    s = (struct vmstate){0};
    assert_int_equal(vmstate_add(&s, VMSTATE_CLOCK, 0, "123456789", 9), 0);
    file_of(&s, &b);
    assert_memory_equal(b.data + 32 + 12, "\x83\x92\x06\xe3", 4);
}

static void every_changed_bit_and_every_cut_is_refused(void **state)
{
    static struct vmstate s, back;
    struct err err;
    cleanup_buf struct buf b = {0};
    s = two();
    file_of(&s, &b);
    back.count = 99;
    for (size_t bit = 0; bit < 8 * b.len; bit++) {
        b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        err.text[0] = '\0';
        assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), -EBADMSG);
        assert_true(err.text[0] != '\0');
        b.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < b.len; n++)
        assert_int_equal(vmstate_parse(b.data, n, &back, &err), -EBADMSG);
    assert_int_equal(buf_append(&b, "\0\0\0\0\0\0\0\0", 8), 0);
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), -EBADMSG);
    assert_int_equal(back.count, 99);
}

static void a_damaged_section_is_named(void **state)
{
    static struct vmstate s, back;
    struct err err;
    cleanup_buf struct buf b = {0};
    s = two();
    file_of(&s, &b);
    b.data[32 + 64] ^= 1;
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "\"vCPU registers\" 1 is damaged"));
    b.data[32 + 64] ^= 1;
    b.data[b.len - 1] ^= 1;
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "\"clock\" 0 is damaged"));
}

// What a list may not be; each would make a file that is refused.
static void bad_lists_are_not_written(void **state)
{
    static struct vmstate s;
    cleanup_buf struct buf b = BUF_INIT(VMSTATE_FILE_MAX);
    s = (struct vmstate){0};
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    s = two();
    assert_int_equal(vmstate_add(&s, VMSTATE_REGS, 1, regs, 1), 0);  // twice
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    s = two();
    s.section[0].type = 0;
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    s.section[0].type = VMSTATE_TYPE_END_;
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    s = two();
    s.section[0].len = 0;
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    assert_int_equal(b.len, 0);
    s = (struct vmstate){0};
    for (uint32_t i = 0; i < VMSTATE_SECTIONS_MAX; i++)
        assert_int_equal(vmstate_add(&s, VMSTATE_REGS, i, regs, 1), 0);
    assert_int_equal(vmstate_add(&s, VMSTATE_CLOCK, 0, regs, 1), -ENOSPC);
    assert_int_equal(vmstate_write(&s, &b), 0);
    static struct vmstate back;
    struct err err;
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), 0);
}

static void sizes_have_ceilings(void **state)
{
    static struct vmstate s, back;
    struct err err;
    uint8_t *big = calloc(1, VMSTATE_SECTION_MAX + 1);
    cleanup_buf struct buf b = BUF_INIT(2 * (size_t)VMSTATE_FILE_MAX);
    s = (struct vmstate){0};
    assert_int_equal(vmstate_add(&s, VMSTATE_REGS, 0, big, VMSTATE_SECTION_MAX + 1), 0);
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);
    s.section[0].len = VMSTATE_SECTION_MAX;
    assert_int_equal(vmstate_write(&s, &b), 0);
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), 0);
    buf_clear(&b);
    for (uint32_t i = 1; i < VMSTATE_FILE_MAX / VMSTATE_SECTION_MAX; i++)
        assert_int_equal(vmstate_add(&s, VMSTATE_REGS, i, big, VMSTATE_SECTION_MAX), 0);
    assert_int_equal(vmstate_write(&s, &b), -EINVAL);  // with its head, longer than a file may be
    uint8_t *file = calloc(1, VMSTATE_FILE_MAX + 1);
    assert_int_equal(vmstate_parse(file, VMSTATE_FILE_MAX + 1, &back, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "at most"));
    free(file);
    free(big);
}

static int check_ranges(const struct vmstate_range *ranges, size_t count, uint64_t pages)
{
    static struct vmstate s, back;
    struct err err;
    cleanup_buf struct buf b = {0};
    const struct vmstate_range *got;
    size_t n;
    s = (struct vmstate){0};
    assert_int_equal(vmstate_add(&s, VMSTATE_WORKING_SET, 0, ranges, count * sizeof *ranges), 0);
    file_of(&s, &b);
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), 0);
    int r = vmstate_working_set(&back, pages, &got, &n, &err);
    if (r == 0)
        assert_memory_equal(got, ranges, count * sizeof *ranges);
    return r;
}

static void working_sets_are_looked_at(void **state)
{
    const struct vmstate_range good[] = {{0, 2, 0, 0}, {2, 1, 1, 0}, {10, 6, 0, 0}};
    assert_int_equal(check_ranges(good, 3, 16), 0);
    assert_int_equal(check_ranges(good, 3, 15), -EBADMSG);
    const struct vmstate_range bad[][2] = {
        {{0, 2, 0, 0}, {1, 1, 0, 0}}, {{5, 1, 0, 0}, {4, 1, 0, 0}}, {{0, 0, 0, 0}, {1, 1, 0, 0}},
        {{0, 1, 2, 0}, {1, 1, 0, 0}}, {{0, 1, 0, 1}, {1, 1, 0, 0}}, {{UINT32_MAX, UINT32_MAX, 0, 0}, {1, 1, 0, 0}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(check_ranges(bad[i], 2, 16), -EBADMSG);
    const struct vmstate_range most = {0, VMSTATE_WORKING_SET_PAGES, 0, 0}, more = {0, VMSTATE_WORKING_SET_PAGES + 1, 0, 0};
    assert_int_equal(check_ranges(&most, 1, 1 << 20), 0);
    assert_int_equal(check_ranges(&more, 1, 1 << 20), -EBADMSG);
    struct vmstate_range *many = calloc(VMSTATE_RANGES_MAX + 1, sizeof *many);
    for (uint32_t i = 0; i <= VMSTATE_RANGES_MAX; i++)
        many[i] = (struct vmstate_range){.first = 2 * i, .pages = 1};
    assert_int_equal(check_ranges(many, VMSTATE_RANGES_MAX, 1 << 20), 0);
    assert_int_equal(check_ranges(many, VMSTATE_RANGES_MAX + 1, 1 << 20), -EBADMSG);
    free(many);
}

// A whole state in the place of a working set, and the other way round.
static void files_cannot_change_places(void **state)
{
    static struct vmstate s, back;
    struct err err;
    const struct vmstate_range *ranges;
    size_t n;
    cleanup_buf struct buf b = {0};
    s = two();
    file_of(&s, &b);
    assert_int_equal(vmstate_parse(b.data, b.len, &back, &err), 0);
    assert_int_equal(vmstate_working_set(&back, 16, &ranges, &n, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "not a working set"));
}

static void every_type_has_a_name(void **state)
{
    for (uint32_t type = 1; type < VMSTATE_TYPE_END_; type++)
        assert_string_not_equal(vmstate_type_name(type), "unknown section");
    assert_string_equal(vmstate_type_name(0), "unknown section");
    assert_string_equal(vmstate_type_name(VMSTATE_TYPE_END_), "unknown section");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(the_checksum_is_the_known_one),
        cmocka_unit_test(every_changed_bit_and_every_cut_is_refused),
        cmocka_unit_test(a_damaged_section_is_named),
        cmocka_unit_test(bad_lists_are_not_written),
        cmocka_unit_test(sizes_have_ceilings),
        cmocka_unit_test(working_sets_are_looked_at),
        cmocka_unit_test(files_cannot_change_places),
        cmocka_unit_test(every_type_has_a_name),
    };
    return cmocka_run_group_tests_name("vmstate", tests, NULL, NULL);
}
