#include "image/unpack.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>

static void cleanup_archive(struct archive **a)
{
    archive_read_free(*a);
}

static int read_all(struct archive *a, struct buf *out)
{
    const void *bytes;
    size_t n;
    la_int64_t at;
    int r;
    while ((r = archive_read_data_block(a, &bytes, &n, &at)) == ARCHIVE_OK)
        if (n > 0 && buf_append(out, bytes, n) < 0)
            return buf_error(out) == -ENOSPC ? -EFBIG : -ENOMEM;
    return r == ARCHIVE_EOF ? 0 : -EBADMSG;
}

int unpack(const void *bytes, size_t n, struct buf *out)
{
    __attribute__((cleanup(cleanup_archive))) struct archive *a = archive_read_new();
    struct archive_entry *entry;
    if (a == NULL || archive_read_support_format_raw(a) != ARCHIVE_OK || archive_read_support_filter_gzip(a) != ARCHIVE_OK ||
        archive_read_support_filter_bzip2(a) != ARCHIVE_OK || archive_read_support_filter_xz(a) != ARCHIVE_OK ||
        archive_read_support_filter_lzma(a) != ARCHIVE_OK || archive_read_support_filter_lz4(a) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(a) != ARCHIVE_OK)
        return -ENOMEM;
    if (archive_read_open_memory(a, bytes, n) != ARCHIVE_OK || archive_read_next_header(a, &entry) != ARCHIVE_OK)
        return -EBADMSG;
    return read_all(a, out);
}
