// wire/snapshot_meta: one encoding for a snapshot, everything else refused.
#include "unit.h"
#include "wire/snapshot_meta.h"
#include "wire/spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct snapshot_meta some(void)
{
    struct snapshot_meta m = {.isolation = 2,
                              .volume_left_out = true,
                              .source = 7,
                              .vcpus = 2,
                              .memory_mib = 512,
                              .disk_mib = 1024,
                              .created = 1700000000,
                              .bytes = UINT64_C(0x0102030405060708),
                              .pause_us = 12345,
                              .layers = 2,
                              .variables = 2,
                              .variable = {{"A=1", 3}, {"B=", 2}}};
    strcpy(m.id, "snp_0123456789abv");
    strcpy(m.owner, "uid:1000");
    strcpy(m.template_name, "debian");
    memset(m.rootfs, 0xAB, sizeof m.rootfs);
    memset(m.layer[0], 1, sizeof m.layer[0]);
    memset(m.layer[1], 2, sizeof m.layer[1]);
    return m;
}

static void same(const struct snapshot_meta *a, const struct snapshot_meta *b)
{
    assert_string_equal(a->id, b->id);
    assert_string_equal(a->owner, b->owner);
    assert_string_equal(a->template_name, b->template_name);
    assert_memory_equal(a->rootfs, b->rootfs, DIGEST_LEN);
    assert_int_equal(a->isolation, b->isolation);
    assert_int_equal(a->memory, b->memory);
    assert_int_equal(a->volume_left_out, b->volume_left_out);
    assert_int_equal(a->unsynced, b->unsynced);
    assert_int_equal(a->source, b->source);
    assert_int_equal(a->vcpus, b->vcpus);
    assert_true(a->memory_mib == b->memory_mib && a->disk_mib == b->disk_mib && a->created == b->created);
    assert_true(a->bytes == b->bytes && a->pause_us == b->pause_us);
    assert_int_equal(a->layers, b->layers);
    assert_memory_equal(a->layer, b->layer, a->layers * sizeof a->layer[0]);
    assert_int_equal(a->variables, b->variables);
    for (uint32_t i = 0; i < a->variables; i++) {
        assert_int_equal(a->variable[i].len, b->variable[i].len);
        assert_memory_equal(a->variable[i].text, b->variable[i].text, a->variable[i].len);
    }
}

static void comes_back(const struct snapshot_meta *m)
{
    struct snapshot_meta back;
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(m, &b), 0);
    assert_int_equal(snapshot_meta_parse(b.data, b.len, &back), 0);
    same(m, &back);
}

static void round_trip(void **state)
{
    struct snapshot_meta m = some();
    comes_back(&m);
    m.memory = true;
    m.volume_left_out = false;
    m.unsynced = true;
    m.layers = m.variables = 0;
    comes_back(&m);
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(&m, &b), 0);
    assert_memory_equal(b.data, "SBXSNAP1\0\0\0\1\x11snp_0123456789abv\x08uid:1000\6debian\xab", 12 + 18 + 9 + 7 + 1);
}

static void the_most_fits_and_one_more_does_not(void **state)
{
    struct snapshot_meta m = some();
    m.layers = SNAPSHOT_LAYERS_MAX;
    memset(m.owner, 'o', SNAPSHOT_OWNER_MAX);
    memset(m.template_name, 't', TEMPLATE_NAME_MAX);
    // All variables there may be, as long as they may be together: with 4 bytes of its own for each.
    static char text[SPEC_ENV_TOTAL_MAX];
    memset(text, 'v', sizeof text);
    text[1] = '=';
    m.variables = ENV_VARS_MAX;
    for (uint32_t i = 0; i < ENV_VARS_MAX; i++)
        m.variable[i] = (struct snapshot_variable){text, SPEC_ENV_TOTAL_MAX / ENV_VARS_MAX - 4};
    comes_back(&m);
    m.variable[0].len++;
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(&m, &b), -EINVAL);
    m.variables = 1;
    m.variable[0].len = ENV_VAR_MAX;
    comes_back(&m);
    m.variable[0].len = ENV_VAR_MAX + 1;
    assert_int_equal(snapshot_meta_write(&m, &b), -EINVAL);
    m = some();
    m.layers = SNAPSHOT_LAYERS_MAX + 1;
    assert_int_equal(snapshot_meta_write(&m, &b), -EINVAL);
    m = some();
    m.variables = ENV_VARS_MAX + 1;
    assert_int_equal(snapshot_meta_write(&m, &b), -EINVAL);
    assert_int_equal(b.len, 0);
}

static void every_cut_and_any_trailing_byte_is_refused(void **state)
{
    struct snapshot_meta m = some(), out = {.layers = 99};
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(&m, &b), 0);
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *exact = malloc(n > 0 ? n : 1);
        memcpy(exact, b.data, n);
        assert_int_equal(snapshot_meta_parse(exact, n, &out), -EBADMSG);
        free(exact);
    }
    assert_int_equal(buf_append(&b, "", 1), 0);
    assert_int_equal(snapshot_meta_parse(b.data, b.len, &out), -EBADMSG);
    assert_int_equal(out.layers, 99);
}

// Whatever one byte becomes: it is refused, or it is another snapshot, which is written as it was read.
static void every_changed_byte_is_another_snapshot_or_none(void **state)
{
    struct snapshot_meta m = some();
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
    assert_int_equal(snapshot_meta_write(&m, &b), 0);
    unsigned refused = 0;
    for (size_t at = 0; at < b.len; at++)
        for (unsigned value = 0; value < 256; value++) {
            uint8_t old = b.data[at];
            b.data[at] = (uint8_t)value;
            struct snapshot_meta changed;
            if (snapshot_meta_parse(b.data, b.len, &changed) == 0) {
                cleanup_buf struct buf again = BUF_INIT(SNAPSHOT_META_MAX);
                assert_int_equal(snapshot_meta_write(&changed, &again), 0);
                assert_int_equal(again.len, b.len);
                assert_memory_equal(again.data, b.data, b.len);
            } else {
                refused++;
            }
            b.data[at] = old;
        }
    assert_true(refused > 12 * 255);
}

static void what_cannot_be_is_refused(void **state)
{
    cleanup_buf struct buf b = BUF_INIT(SNAPSHOT_META_MAX);
#define REFUSED(change)                                                                                                        \
    do {                                                                                                                       \
        struct snapshot_meta m = some();                                                                                       \
        change;                                                                                                                \
        assert_int_equal(snapshot_meta_write(&m, &b), -EINVAL);                                                                \
    } while (0)
    REFUSED(m.id[16] = 'w');
    REFUSED(m.id[16] = '\0');
    REFUSED(m.owner[0] = '\0');
    REFUSED(m.owner[3] = ' ');
    REFUSED(m.owner[3] = '\n');
    REFUSED(strcpy(m.template_name, "../x"));
    REFUSED(m.template_name[0] = '\0');
    REFUSED(m.isolation = 0);
    REFUSED(m.isolation = 5);
    REFUSED(m.vcpus = 0);
    REFUSED(m.memory_mib = 0);
    REFUSED(m.disk_mib = 0);
    REFUSED(m.variable[0] = ((struct snapshot_variable){"=1", 2}));
    REFUSED(m.variable[0] = ((struct snapshot_variable){"A", 1}));
    REFUSED(m.variable[0] = ((struct snapshot_variable){"A=\0x", 4}));
    REFUSED(m.variable[0] = ((struct snapshot_variable){"", 0}));
#undef REFUSED
}

static void ids(void **state)
{
    static const char *const good[] = {"snp_0000000000000", "snp_vvvvvvvvvvvvv", "snp_0123456789abc"};
    static const char *const bad[] = {"",
                                      "snp_",
                                      "snp_000000000000",
                                      "snp_00000000000000",
                                      "snp_000000000000w",
                                      "snp_000000000000A",
                                      "snap_000000000000",
                                      "xnp_0000000000000",
                                      "snp_00000000000/0",
                                      "snp_000000000000\n"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(snapshot_id_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(snapshot_id_valid(bad[i]));
    char a[SNAPSHOT_ID_LEN + 1], b[SNAPSHOT_ID_LEN + 1];
    uint8_t random[8] = {0};
    snapshot_id_make(random, a);
    assert_string_equal(a, "snp_0000000000000");
    for (unsigned bit = 0; bit < 64; bit++) {  // each counts
        memset(random, 0, sizeof random);
        random[bit / 8] = (uint8_t)(1U << bit % 8);
        snapshot_id_make(random, b);
        assert_true(snapshot_id_valid(b) && strcmp(a, b) != 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(the_most_fits_and_one_more_does_not),
        cmocka_unit_test(every_cut_and_any_trailing_byte_is_refused),
        cmocka_unit_test(every_changed_byte_is_another_snapshot_or_none),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(ids),
    };
    return cmocka_run_group_tests_name("snapshot_meta", tests, NULL, NULL);
}
