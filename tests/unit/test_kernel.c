// Kernels for virtual machines: the ELF file out of a bzImage, modules in load order, and the initramfs, from inputs made here.
#include "base/buf.h"
#include "base/cleanup.h"
#include "image/cpio.h"
#include "image/kernel_image.h"
#include "image/kernel_modules.h"
#include "image/kernel_source.h"
#include "image/unpack.h"
#include "unit.h"

#include <archive.h>
#include <archive_entry.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 4 * 1024 * 1024 };

// ---- inputs ----

static void put_elf(struct buf *out, size_t padding)
{
    Elf64_Ehdr e = {.e_machine = EM_X86_64};
    memcpy(e.e_ident, ELFMAG, SELFMAG);
    e.e_ident[EI_CLASS] = ELFCLASS64;
    e.e_ident[EI_DATA] = ELFDATA2LSB;
    buf_append(out, &e, sizeof e);
    for (size_t i = 0; i < padding; i++)
        buf_append(out, &(uint8_t){(uint8_t)(i * 7)}, 1);
}

static void pack(const struct buf *in, int (*filter)(struct archive *a), struct buf *out)
{
    size_t used = 0;
    uint8_t *space;
    struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    assert_int_equal(buf_reserve(out, ROOM / 2, &space), 0);
    assert_int_equal(filter(a), ARCHIVE_OK);
    assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_memory(a, space, ROOM / 2, &used), ARCHIVE_OK);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_write_header(a, entry);
    assert_int_equal(archive_write_data(a, in->data, in->len), in->len);
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_entry_free(entry);
    archive_write_free(a);
    buf_commit(out, used);
}

static void set_u32(struct buf *b, size_t at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        b->data[at + (size_t)i] = (uint8_t)(value >> (8 * i));
}

// A bzImage with `sectors` of setup and `payload` some way behind them; formats other than gzip have their size behind them.
static void put_bzimage(struct buf *out, uint8_t sectors, const struct buf *payload, bool trailer)
{
    enum { OFFSET = 96 };
    size_t start = ((size_t)(sectors != 0 ? sectors : 4) + 1) * 512 + OFFSET;
    for (size_t i = 0; i < start; i++)
        buf_append(out, "", 1);
    buf_append(out, payload->data, payload->len);
    if (trailer)
        buf_append(out, "\1\2\3\4", 4);
    out->data[0x1f1] = sectors;
    out->data[0x1fe] = 0x55;
    out->data[0x1ff] = 0xaa;
    memcpy(out->data + 0x202, "HdrS", 4);
    out->data[0x206] = 0x0f;
    out->data[0x207] = 0x02;
    set_u32(out, 0x248, OFFSET);
    set_u32(out, 0x24c, (uint32_t)(out->len - start));
}

// ---- the kernel ----

static void every_compression_of_a_kernel_is_unpacked(void **state)
{
    static const struct {
        int (*filter)(struct archive *a);
        bool trailer;
    } ways[] = {{archive_write_add_filter_gzip, false},
                {archive_write_add_filter_xz, true},
                {archive_write_add_filter_zstd, true},
                {archive_write_add_filter_bzip2, true},
                {archive_write_add_filter_lzma, true}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        for (unsigned sectors = 0; sectors < 40; sectors += 39) {
            cleanup_buf struct buf elf = BUF_INIT(ROOM), packed = BUF_INIT(ROOM), image = BUF_INIT(ROOM), out = BUF_INIT(ROOM);
            struct err err = {0};
            put_elf(&elf, 5000);
            pack(&elf, ways[i].filter, &packed);
            put_bzimage(&image, (uint8_t)sectors, &packed, ways[i].trailer);
            assert_int_equal(kernel_image_extract(&image, &out, &err), 0);
            assert_int_equal(out.len, elf.len);
            assert_memory_equal(out.data, elf.data, elf.len);
        }
}

static void an_elf_kernel_is_taken_as_it_is(void **state)
{
    cleanup_buf struct buf elf = BUF_INIT(ROOM), out = BUF_INIT(ROOM);
    struct err err = {0};
    put_elf(&elf, 100);
    assert_int_equal(kernel_image_extract(&elf, &out, &err), 0);
    assert_memory_equal(out.data, elf.data, elf.len);
    elf.data[EI_CLASS] = ELFCLASS32;
    assert_int_equal(kernel_image_extract(&elf, &out, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "x86-64"));
}

static void bad_kernels_are_refused_with_a_reason(void **state)
{
    cleanup_buf struct buf elf = BUF_INIT(ROOM), packed = BUF_INIT(ROOM), image = BUF_INIT(ROOM), small = BUF_INIT(1000);
    struct err err;
    put_elf(&elf, 5000);
    pack(&elf, archive_write_add_filter_gzip, &packed);
    put_bzimage(&image, 4, &packed, false);
    // Cut anywhere, it is refused and not read beyond.
    for (size_t n = 0; n < image.len; n += n < 0x300 ? 1 : 511) {
        struct buf out = BUF_INIT(ROOM);
        struct buf cut = {.data = malloc(n > 0 ? n : 1), .len = n, .max = ROOM};
        memcpy(cut.data, image.data, n);
        assert_int_equal(kernel_image_extract(&cut, &out, &err), -EBADMSG);
        free(cut.data);
        buf_free(&out);
    }
    assert_int_equal(kernel_image_extract(&image, &small, &err), -EFBIG);
    static const struct {
        size_t at;
        uint32_t value;
    } lies[] = {{0x248, UINT32_MAX}, {0x24c, UINT32_MAX}, {0x206, 0x0207}, {0x202, 0}, {0x1fe, 0}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct buf out = BUF_INIT(ROOM);
        uint8_t saved[4];
        memcpy(saved, image.data + lies[i].at, 4);
        set_u32(&image, lies[i].at, lies[i].value);
        assert_int_equal(kernel_image_extract(&image, &out, &err), -EBADMSG);
        memcpy(image.data + lies[i].at, saved, 4);
        buf_free(&out);
    }
}

// ---- modules ----

static void add_module(struct module_set *set, const char *name, const char *depends, int expected)
{
    cleanup_buf struct buf file = BUF_INIT(ROOM);
    struct err err = {0};
    put_elf(&file, 10);
    buf_printf(&file, "%cname=%s%cdepends=%s%cretpoline=Y%c", 0, name, 0, depends, 0, 0);
    assert_int_equal(module_set_add(set, name, &file, &err), expected);
}

static const char *ordered(const struct module_set *set, uint32_t i)
{
    return set->module[set->order[i]].name;
}

static void modules_come_after_what_they_depend_on(void **state)
{
    static struct module_set set;
    struct err err = {0};
    module_set_begin(&set);
    module_set_built_in(&set, "kernel/fs/ext4/ext4.ko\nkernel/drivers/char/hw_random/virtio-rng.ko\n");
    add_module(&set, "virtio_net", "virtio,virtio_ring,net-failover", 0);
    add_module(&set, "virtio_mmio", "virtio,virtio_ring", 0);
    add_module(&set, "virtio_blk", "virtio_ring,virtio", 0);
    add_module(&set, "vmw_vsock_virtio_transport", "vsock,virtio", 0);
    assert_true(module_set_wants(&set, "net_failover"));
    assert_false(module_set_wants(&set, "ext4"));
    assert_false(module_set_wants(&set, "nvme"));
    add_module(&set, "nvme", "", -EEXIST);
    add_module(&set, "net_failover", "", 0);
    add_module(&set, "vsock", "", 0);
    add_module(&set, "virtio", "virtio_ring", 0);
    assert_string_equal(module_set_missing(&set), "virtio_ring");
    add_module(&set, "virtio_ring", "", 0);
    assert_null(module_set_missing(&set));
    assert_int_equal(module_set_order(&set, &err), 0);
    static const char *const expected[] = {"virtio_ring",  "virtio",    "virtio_mmio",
                                           "virtio_blk",   "vsock",     "vmw_vsock_virtio_transport",
                                           "net_failover", "virtio_net"};
    assert_int_equal(set.order_count, sizeof expected / sizeof expected[0]);
    for (uint32_t i = 0; i < set.order_count; i++)
        assert_string_equal(ordered(&set, i), expected[i]);
    module_set_free(&set);
}

static void a_circle_of_modules_is_refused(void **state)
{
    static struct module_set set;
    struct err err = {0};
    module_set_begin(&set);
    add_module(&set, "virtio_mmio", "virtio", 0);
    add_module(&set, "virtio", "virtio_mmio", 0);
    assert_int_equal(module_set_order(&set, &err), -ELOOP);
    module_set_free(&set);
}

static void more_modules_than_can_be_are_refused(void **state)
{
    static struct module_set set;
    cleanup_buf struct buf list = BUF_INIT(ROOM);
    module_set_begin(&set);
    uint32_t free_places = MODULES_MAX - set.count;
    for (uint32_t i = 0; i < free_places; i++)
        buf_printf(&list, "%sm%u", i > 0 ? "," : "", i);
    add_module(&set, "virtio_mmio", buf_text(&list), 0);
    add_module(&set, "virtio_blk", "one_more", -E2BIG);
    module_set_free(&set);
}

static void module_files_have_names(void **state)
{
    static const struct {
        const char *path, *name;
    } good[] = {{"a/b/virtio-rng.ko", "virtio_rng"}, {"ext4.ko.xz", "ext4"}, {"./x.ko.zst", "x"}, {"/y.ko.gz", "y"}};
    static const char *const bad[] = {"",
                                      ".ko",
                                      "a/.ko.xz",
                                      "ext4.ko.lz4",
                                      "ext4",
                                      "ext4.ko/",
                                      "a_name_of_fifty_six_letters_is_longer_than_any_module_has.ko"};
    char name[MODULE_NAME_MAX + 1];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(module_name_of(good[i].path, name));
        assert_string_equal(name, good[i].name);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(module_name_of(bad[i], name));
}

static void what_is_no_module_is_refused(void **state)
{
    static struct module_set set;
    cleanup_buf struct buf file = BUF_INIT(ROOM);
    struct err err = {0};
    module_set_begin(&set);
    buf_append_text(&file, "not a module");
    assert_int_equal(module_set_add(&set, "virtio_mmio", &file, &err), -EBADMSG);
    module_set_free(&set);
}

// ---- the initramfs ----

static void cpio_is_as_the_kernel_reads_it(void **state)
{
    cleanup_buf struct buf out = BUF_INIT(ROOM);
    struct cpio c = {.out = &out};
    cpio_folder(&c, "dev");
    cpio_character_device(&c, "dev/console", 0600, 5, 1);
    cpio_file(&c, "init", 0755, "abcde", 5);
    assert_int_equal(cpio_end(&c), 0);
    assert_int_equal(out.len % 4, 0);
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    assert_int_equal(archive_read_support_format_cpio(a), ARCHIVE_OK);
    assert_int_equal(archive_read_open_memory(a, out.data, out.len), ARCHIVE_OK);
    assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_OK);
    assert_string_equal(archive_entry_pathname(entry), "dev");
    assert_int_equal(archive_entry_filetype(entry), AE_IFDIR);
    assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_OK);
    assert_int_equal(archive_entry_filetype(entry), AE_IFCHR);
    assert_int_equal(archive_entry_rdevmajor(entry), 5);
    assert_int_equal(archive_entry_rdevminor(entry), 1);
    assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_OK);
    assert_int_equal(archive_entry_perm(entry), 0755);
    assert_int_equal(archive_entry_size(entry), 5);
    assert_int_equal(archive_entry_mtime(entry), 0);
    char text[6] = "";
    assert_int_equal(archive_read_data(a, text, 5), 5);
    assert_string_equal(text, "abcde");
    assert_int_equal(archive_read_next_header(a, &entry), ARCHIVE_EOF);
    archive_read_free(a);
}

static void a_full_cpio_says_so(void **state)
{
    cleanup_buf struct buf out = BUF_INIT(300);
    struct cpio c = {.out = &out};
    cpio_file(&c, "init", 0755, "abcde", 5);
    cpio_file(&c, "more", 0755, "abcde", 5);
    assert_int_equal(cpio_end(&c), -ENOSPC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_compression_of_a_kernel_is_unpacked),
        cmocka_unit_test(an_elf_kernel_is_taken_as_it_is),
        cmocka_unit_test(bad_kernels_are_refused_with_a_reason),
        cmocka_unit_test(modules_come_after_what_they_depend_on),
        cmocka_unit_test(a_circle_of_modules_is_refused),
        cmocka_unit_test(more_modules_than_can_be_are_refused),
        cmocka_unit_test(module_files_have_names),
        cmocka_unit_test(what_is_no_module_is_refused),
        cmocka_unit_test(cpio_is_as_the_kernel_reads_it),
        cmocka_unit_test(a_full_cpio_says_so),
    };
    return cmocka_run_group_tests_name("kernel", tests, NULL, NULL);
}
