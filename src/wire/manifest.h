// The body of a template's manifest.bin: which files the template is made of, their sizes and digests.  Pure: no I/O, no
// cryptography (digests are bytes here); the only allocation is in the output buffer.
//
// manifest.bin is this body followed by the SHA-256 of the body.  That seal is written and checked where there is a hash
// function (sys/template_store.h); the layout is documented for users in docs/templates.md.
//
//     body:  magic "SBXMANI1", u32 version (1), u32 number of files (1 to MANIFEST_FILES_MAX), then for each file
//     file:  u8 length of the name, the name, u64 size, DIGEST_LEN bytes of digest (sys/digest.h)
//
// Integers are big-endian.  There is exactly one encoding of a list of files: names are sorted by their bytes and unique.
#ifndef WIRE_MANIFEST_H
#define WIRE_MANIFEST_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MANIFEST_MAX = 64 * 1024,  // bytes of a manifest.bin, its seal included
    MANIFEST_FILES_MAX = 16,
    MANIFEST_NAME_MAX = 63,
    MANIFEST_VERSION = 1,
    DIGEST_LEN = 32,
    DIGEST_BLOCK = 64 * 1024,
};

struct manifest_file {
    char name[MANIFEST_NAME_MAX + 1];
    uint64_t size;
    uint8_t digest[DIGEST_LEN];
};

struct manifest {
    uint32_t files;
    struct manifest_file file[MANIFEST_FILES_MAX];
};

// Whether `name` may stand in a manifest: 1 to MANIFEST_NAME_MAX characters of [a-z0-9._-], not beginning with a dot.
bool manifest_name_valid(const char *name, size_t n);

// Parses a body.  0, or -EBADMSG when it is not exactly one (cut, trailing bytes, bad, repeated or unsorted names, another
// version); *ret_manifest is untouched then.
int manifest_parse(const uint8_t *bytes, size_t n, struct manifest *ret_manifest);

// Appends the body of `m`.  0, -EINVAL when manifest_parse would refuse it, or the buffer's error.
int manifest_write(const struct manifest *m, struct buf *out);

#endif
