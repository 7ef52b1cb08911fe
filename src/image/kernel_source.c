#include "image/kernel_source.h"

#include "base/cleanup.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum {
    BLOCK = 64 * 1024,
    PASSES_MAX = 8,  // a dependency can lie before the module that names it, and is found by the next pass
    BUILT_IN_MAX = 1024 * 1024,
};

static void cleanup_archive(struct archive **a)
{
    archive_read_free(*a);
}

#define cleanup_reader __attribute__((cleanup(cleanup_archive)))

struct reading {
    struct buf *vmlinuz;  // NULL: it comes from elsewhere
    struct module_set *set;
};

static int unreadable(struct archive *a, struct err *err)
{
    const char *why = archive_error_string(a);
    return err_set(err, -EBADMSG, "the kernel's files cannot be read: %s", why != NULL ? why : "they are damaged");
}

static int read_entry(struct archive *a, struct buf *out, struct err *err)
{
    const void *bytes;
    size_t n;
    la_int64_t at;
    int r;
    while ((r = archive_read_data_block(a, &bytes, &n, &at)) == ARCHIVE_OK) {
        if ((size_t)at != out->len)
            return err_set(err, -EBADMSG, "the kernel's files cannot be read: one of them has holes");
        if (n > 0 && buf_append(out, bytes, n) < 0)
            return err_set(err, buf_error(out), "a file of the kernel is longer than %zu bytes", out->max);
    }
    return r == ARCHIVE_EOF ? 0 : unreadable(a, err);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static int take_entry(struct archive *a, const char *path, const struct reading *r, struct err *err)
{
    char name[MODULE_NAME_MAX + 1];
    if (r->vmlinuz != NULL && r->vmlinuz->len == 0 && strncmp(base_name(path), "vmlinuz-", 8) == 0)
        return read_entry(a, r->vmlinuz, err);
    if (strcmp(base_name(path), "modules.builtin") == 0) {
        cleanup_buf struct buf text = BUF_INIT(BUILT_IN_MAX);
        int result = read_entry(a, &text, err);
        if (result == 0 && buf_text(&text) != NULL)
            module_set_built_in(r->set, buf_text(&text));
        return result;
    }
    if (!module_name_of(path, name) || !module_set_wants(r->set, name))
        return 0;
    cleanup_buf struct buf packed = BUF_INIT(MODULE_BYTES_MAX);
    int result = read_entry(a, &packed, err);
    return result == 0 ? module_set_add(r->set, name, &packed, err) : result;
}

static int take_entries(struct archive *a, bool disk, const struct reading *reading, struct err *err)
{
    struct archive_entry *entry;
    int r;
    while ((r = archive_read_next_header(a, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        if (disk && archive_read_disk_can_descend(a))
            archive_read_disk_descend(a);
        const char *path = archive_entry_pathname(entry);
        if (path == NULL || archive_entry_filetype(entry) != AE_IFREG)
            continue;
        int result = take_entry(a, path, reading, err);
        if (result < 0)
            return result;
    }
    return r == ARCHIVE_EOF ? 0 : unreadable(a, err);
}

// ---- a package: an ar archive, in which a member data.tar.* has the files ----

static la_ssize_t member_bytes(struct archive *tar, void *arg, const void **ret_bytes)
{
    (void)tar;
    struct archive *ar = arg;
    size_t n;
    la_int64_t at;
    int r = archive_read_data_block(ar, ret_bytes, &n, &at);
    return r == ARCHIVE_EOF ? 0 : r == ARCHIVE_OK ? (la_ssize_t)n : -1;
}

static int read_tar(struct archive *ar, const struct reading *reading, struct err *err)
{
    cleanup_reader struct archive *tar = archive_read_new();
    if (tar == NULL || archive_read_support_format_tar(tar) != ARCHIVE_OK ||
        archive_read_support_filter_gzip(tar) != ARCHIVE_OK || archive_read_support_filter_xz(tar) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(tar) != ARCHIVE_OK)
        return err_set(err, -ENOMEM, "this libarchive cannot read tar with gzip, xz and zstd");
    if (archive_read_open(tar, ar, NULL, member_bytes, NULL) != ARCHIVE_OK)
        return unreadable(tar, err);
    return take_entries(tar, false, reading, err);
}

static int read_package(int fd, const struct reading *reading, struct err *err)
{
    cleanup_reader struct archive *ar = archive_read_new();
    struct archive_entry *entry;
    if (ar == NULL || archive_read_support_format_ar(ar) != ARCHIVE_OK)
        return err_set(err, -ENOMEM, "this libarchive cannot read ar");
    if (lseek(fd, 0, SEEK_SET) < 0 || archive_read_open_fd(ar, fd, BLOCK) != ARCHIVE_OK)
        return unreadable(ar, err);
    int r;
    while ((r = archive_read_next_header(ar, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        const char *name = archive_entry_pathname(entry);
        if (name != NULL && strncmp(name, "data.tar", 8) == 0)
            return read_tar(ar, reading, err);
    }
    return r == ARCHIVE_EOF ? err_set(err, -EBADMSG, "the package has no member data.tar") : unreadable(ar, err);
}

// ---- a folder ----

static int read_folder(int fd, const struct reading *reading, struct err *err)
{
    cleanup_reader struct archive *disk = archive_read_disk_new();
    if (disk == NULL || archive_read_disk_set_symlink_physical(disk) != ARCHIVE_OK)
        return err_set(err, -ENOMEM, "this libarchive cannot read folders");
    if (fchdir(fd) < 0)
        return err_set(err, -errno, "the folder of modules cannot be entered: %s", strerror(errno));
    if (archive_read_disk_open(disk, ".") != ARCHIVE_OK)
        return unreadable(disk, err);
    return take_entries(disk, true, reading, err);
}

static int read_file(int fd, struct buf *out, struct err *err)
{
    for (;;) {
        uint8_t *space;
        ssize_t n = buf_reserve(out, BLOCK, &space) < 0 ? -1 : read(fd, space, BLOCK);
        if (buf_error(out) < 0)
            return err_set(err, buf_error(out), "the kernel is longer than %zu bytes", out->max);
        if (n < 0 && errno != EINTR)
            return err_set(err, -errno, "the kernel cannot be read: %s", strerror(errno));
        if (n == 0)
            return 0;
        if (n > 0)
            buf_commit(out, (size_t)n);
    }
}

int kernel_source_read(const struct kernel_source *source, struct buf *vmlinuz, struct module_set *set, struct err *err)
{
    const struct reading reading = {.vmlinuz = source->deb_fd >= 0 ? vmlinuz : NULL, .set = set};
    int r = source->deb_fd >= 0 ? 0 : read_file(source->vmlinuz_fd, vmlinuz, err);
    for (int pass = 0; r == 0 && module_set_missing(set) != NULL && pass < PASSES_MAX; pass++) {
        if (source->deb_fd >= 0)
            r = read_package(source->deb_fd, &reading, err);
        else if (source->modules_fd >= 0)
            r = read_folder(source->modules_fd, &reading, err);
    }
    if (r == 0 && vmlinuz->len == 0)
        r = err_set(err, -ENOENT, "the package has no vmlinuz-*: is it a linux-image package?");
    if (r == 0 && module_set_missing(set) != NULL)
        r = err_set(err, -ENOENT, "the kernel has no module %s, neither as a file nor built in", module_set_missing(set));
    return r;
}
