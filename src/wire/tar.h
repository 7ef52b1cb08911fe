// Tar archives: a reader that is fed bytes as they come, and a writer of headers.  Pure: no files, no descriptors.
//
// Formats: read, ustar, pax and GNU's long names; written, ustar with pax records where ustar has no room.  Sparse files, in
// whatever notation, and volumes are refused rather than guessed at.
// Trust: an archive is hostile.  Every number is checked, no name is longer than PATH_BYTES_MAX, and memory does not depend on
// what an archive claims.
#ifndef WIRE_TAR_H
#define WIRE_TAR_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TAR_BLOCK = 512,
    TAR_PAX_MAX = 64 * 1024,  // of one extended header
};

enum tar_type { TAR_FILE, TAR_DIRECTORY, TAR_SYMLINK, TAR_HARDLINK, TAR_OTHER /* a device or a FIFO */ };

struct tar_entry {
    enum tar_type type;
    const char *path;  // as in the archive
    const char *link;  // of SYMLINK and HARDLINK, else ""
    uint64_t size;     // of FILE
    uint32_t mode;     // permission bits
    int64_t mtime;
    uint32_t mtime_nsec;
};

// Each returns 0, or a negative errno that ends the reading and is passed on.
struct tar_sink {
    int (*on_entry)(void *arg, const struct tar_entry *entry);  // `entry` is valid during the call
    int (*on_data)(void *arg, const uint8_t *bytes, size_t n);  // of the last entry, if it is a FILE
    int (*on_entry_end)(void *arg);                             // all of a FILE's data has come
};

struct tar_reader;

struct tar_reader *tar_reader_new(const struct tar_sink *sink, void *arg);  // NULL: no memory
struct tar_reader *tar_reader_free(struct tar_reader *r);
// 0; -EBADMSG: no tar archive, or a broken one; -EOPNOTSUPP: a sparse file or a volume; -ENAMETOOLONG; or the sink's.
// What comes behind the archive's end is ignored.
int tar_reader_feed(struct tar_reader *r, const uint8_t *bytes, size_t n);
// There are no more bytes: 0, or -EBADMSG when the archive is cut off, or empty of even its end.
int tar_reader_finish(struct tar_reader *r);

// The path as names below a directory: without "./", double and final slashes.  `out` has room for strlen(path) + 1.
// 0 ("" is the directory itself); -EACCES: it is absolute or has a "..".
int tar_path(const char *path, char *out);

// Appends an entry's header blocks; a FILE's `size` bytes follow, and tar_padding(size) zeros.  0 or the buffer's error.
int tar_put_header(struct buf *out, const struct tar_entry *entry);
static inline size_t tar_padding(uint64_t size)
{
    return (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}
// Appends the end of an archive.
int tar_put_end(struct buf *out);

#endif
