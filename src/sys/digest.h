// Digests of template files.
//
// The digest of a file is the SHA-256 of the list of the SHA-256 of its 64 KiB blocks (DIGEST_BLOCK; the last may be shorter).
// A whole block of zeros has a known hash, so the holes of a sparse file cost nothing, and a sparse and a written-out copy
// of the same bytes have the same digest.
#ifndef SYS_DIGEST_H
#define SYS_DIGEST_H

#include "wire/manifest.h"

// Reads all of the regular file `fd` (open for reading; its offset is moved) and gives its size and digest.  Blocks for as
// long as reading takes; may run on any thread, but not on one descriptor from two.
// 0, -EINVAL (not a regular file), -ESTALE (its size changed meanwhile), or another negative errno; outputs untouched then.
int digest_file(int fd, uint64_t *ret_size, uint8_t ret_digest[DIGEST_LEN]);

// The plain SHA-256 of some bytes.  0 or -ENOMEM.
int digest_bytes(const void *bytes, size_t n, uint8_t ret_digest[DIGEST_LEN]);

#endif
