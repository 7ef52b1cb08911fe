#include "image/tree_read.h"

#include "base/cleanup.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { PAGE = 4096, READ_BLOCK = 64 * 1024 };

static void cleanup_archive(struct archive **a)
{
    archive_read_free(*a);
}

static int broken(struct archive *a, struct err *err)
{
    const char *why = archive_error_string(a);
    return err_set(err, -EBADMSG, "the archive cannot be read: %s", why != NULL ? why : "it is damaged");
}

static int no_space(int r, struct err *err)
{
    if (r == -ENOSPC)
        return err_set(
            err, r,
            "the staging memory is full: the files are larger than --staging-mib, or than 80%% of this machine's memory");
    return err_set(err, r, "staging: %s", strerror(-r));
}

static int spool_open(int spool_fd, uint32_t number)
{
    char name[16];
    snprintf(name, sizeof name, "%u", number);
    int fd = openat(spool_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0;
}

// Writes page by page, but no page that is all zeros: which pages are holes then depends on the contents alone, not on how
// the archive was cut into blocks.
static int put_bytes(int fd, uint64_t at, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        size_t part = PAGE - at % PAGE;
        if (part > n)
            part = n;
        if (!all_zero(bytes, part)) {
            ssize_t put = pwrite(fd, bytes, part, (off_t)at);
            if (put < 0)
                return -errno;
            part = (size_t)put;
        }
        at += part;
        bytes += part;
        n -= part;
    }
    return 0;
}

static int copy_contents(struct archive *a, int spool_fd, const struct inode *inode, struct err *err)
{
    cleanup_fd int fd = spool_open(spool_fd, inode->spool);
    if (fd < 0)
        return no_space(fd, err);
    for (;;) {
        const void *bytes;
        size_t n;
        la_int64_t at;
        int r = archive_read_data_block(a, &bytes, &n, &at);
        if (r == ARCHIVE_EOF)
            break;
        if (r != ARCHIVE_OK)
            return broken(a, err);
        if (at < 0 || (uint64_t)at > inode->size || n > inode->size - (uint64_t)at)
            return err_set(err, -EBADMSG, "the archive cannot be read: a file is longer than its own header says");
        int w = put_bytes(fd, (uint64_t)at, bytes, n);
        if (w < 0)
            return no_space(w, err);
    }
    return ftruncate(fd, (off_t)inode->size) < 0 ? no_space(-errno, err) : 0;
}

static uint32_t id_of(la_int64_t id)
{
    return id < 0 || id > UINT32_MAX ? UINT32_MAX : (uint32_t)id;
}

// ext4's inode has 32 bits of seconds without the extra field, which the image does not use.
static int64_t time_of(struct archive_entry *entry)
{
    int64_t t = archive_entry_mtime(entry);
    return t < 0 ? 0 : t > INT32_MAX ? INT32_MAX : t;
}

static int put_entry(struct archive *a, struct archive_entry *entry, int spool_fd, struct tree *tree,
                     struct read_counts *counts, struct err *err)
{
    const char *path = archive_entry_pathname(entry);
    if (path == NULL || path[0] == '\0')
        return err_set(err, -EILSEQ, "entry %llu of the archive has no name, or one that is not UTF-8 where it must be",
                       (unsigned long long)counts->entries);
    if (archive_entry_xattr_count(entry) > 0)
        counts->xattrs++;
    if (archive_entry_hardlink(entry) != NULL)
        return tree_link(tree, path, archive_entry_hardlink(entry), err);
    mode_t type = archive_entry_filetype(entry);
    if (type == AE_IFBLK || type == AE_IFCHR || type == AE_IFSOCK) {
        counts->devices++;
        return 0;
    }
    if (type != AE_IFREG && type != AE_IFDIR && type != AE_IFLNK && type != AE_IFIFO)
        return err_set(err, -EINVAL, "\"%.120s\": an entry that is not a file, folder, link or FIFO", path);
    if (archive_entry_size(entry) < 0)
        return err_set(err, -EBADMSG, "\"%.120s\": a file of negative size", path);
    const struct inode meta = {
        .mode = type | (archive_entry_perm(entry) & 07777),
        .uid = id_of(archive_entry_uid(entry)),
        .gid = id_of(archive_entry_gid(entry)),
        .mtime = time_of(entry),
        .size = type == AE_IFREG ? (uint64_t)archive_entry_size(entry) : 0,
        .target = type == AE_IFLNK ? (char *)archive_entry_symlink(entry) : NULL,
    };
    struct inode *inode;
    int r = tree_put(tree, path, &meta, &inode, err);
    return r == 0 && type == AE_IFREG ? copy_contents(a, spool_fd, inode, err) : r;
}

static int read_entries(struct archive *a, int spool_fd, struct tree *tree, struct read_counts *counts, struct err *err)
{
    struct archive_entry *entry;
    int r;
    while ((r = archive_read_next_header(a, &entry)) == ARCHIVE_OK || r == ARCHIVE_WARN) {
        counts->entries++;
        int put = put_entry(a, entry, spool_fd, tree, counts, err);
        if (put < 0)
            return put;
    }
    return r == ARCHIVE_EOF ? 0 : broken(a, err);
}

static void drain(int fd)
{
    char scratch[READ_BLOCK];
    ssize_t n;
    while ((n = read(fd, scratch, sizeof scratch)) > 0 || (n < 0 && errno == EINTR))
        ;
}

int tree_read(int tar_fd, int spool_fd, struct tree *tree, struct read_counts *counts, struct err *err)
{
    __attribute__((cleanup(cleanup_archive))) struct archive *a = archive_read_new();
    // Only what the library decompresses itself: no filter that would run a program.
    if (a == NULL || archive_read_support_format_tar(a) != ARCHIVE_OK || archive_read_support_filter_gzip(a) != ARCHIVE_OK ||
        archive_read_support_filter_xz(a) != ARCHIVE_OK || archive_read_support_filter_bzip2(a) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(a) != ARCHIVE_OK)
        return err_set(err, -ENOMEM, "this libarchive cannot read tar with gzip, xz, bzip2 and zstd");
    if (archive_read_open_fd(a, tar_fd, READ_BLOCK) != ARCHIVE_OK)
        return broken(a, err);
    int r = read_entries(a, spool_fd, tree, counts, err);
    if (r == 0 && counts->entries == 0)
        r = err_set(err, -ENODATA, "the input has no files in it");
    if (r == 0)
        drain(tar_fd);
    return r;
}

int tree_put_text(struct tree *tree, int spool_fd, const char *path, const char *text, int64_t mtime, struct err *err)
{
    const struct inode meta = {.mode = S_IFREG | 0644, .mtime = mtime, .size = strlen(text)};
    struct inode *inode;
    int r = tree_put(tree, path, &meta, &inode, err);
    if (r < 0)
        return r;
    cleanup_fd int fd = spool_open(spool_fd, inode->spool);
    if (fd < 0)
        return no_space(fd, err);
    r = put_bytes(fd, 0, (const uint8_t *)text, meta.size);
    return r < 0 ? no_space(r, err) : 0;
}
