// One compressed piece of data, unpacked in memory.
#ifndef IMAGE_UNPACK_H
#define IMAGE_UNPACK_H

#include "base/buf.h"

// Appends to `out`, up to its ceiling, what `bytes` (gzip, bzip2, xz, lzma, lz4, zstd or plain) unpacks to.
// 0, -EBADMSG when it is damaged, -EFBIG beyond the ceiling, or -ENOMEM.
int unpack(const void *bytes, size_t n, struct buf *out);

#endif
