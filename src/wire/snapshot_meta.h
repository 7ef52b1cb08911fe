// The body of a snapshot's snapshot.bin: whose it is, what a fork of it is made of, and where its disk is.  Pure: no I/O, no
// cryptography; the only allocation is in the output buffer.
//
// snapshot.bin is this body followed by the SHA-256 of the body, which is written and checked where there is a hash function
// (engine/snapshot_store.h).  Only the engine can write the file; the seal finds damage, not forgery.
//
//     magic "SBXSNAP1", u32 version (1)
//     id, owner, template: each u8 length, then that many bytes
//     DIGEST_LEN bytes: the digest of the template's root file system, over which the layers lie
//     u8 isolation, u8 flags (1: memory, 2: a volume was left out, 4: not synced)
//     u32 source sandbox, u32 vcpus, u64 memory_mib, u64 disk_mib, u64 created (seconds since 1970), u64 bytes, u64 pause_us
//     u8 number of layers (0 to SNAPSHOT_LAYERS_MAX), each SNAPSHOT_LAYER_ID bytes, uppermost first
//     u16 number of variables (0 to ENV_VARS_MAX), each u16 length, then "KEY=VALUE"
//
// Integers are big-endian.  There is exactly one encoding of a snapshot.
#ifndef WIRE_SNAPSHOT_META_H
#define WIRE_SNAPSHOT_META_H

#include "base/buf.h"
#include "wire/limits.h"
#include "wire/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SNAPSHOT_META_VERSION = 1,
    SNAPSHOT_META_MAX = 80 * 1024,  // bytes of a snapshot.bin, its seal included
    SNAPSHOT_ID_LEN = 17,           // "snp_" and 13 digits
    SNAPSHOT_OWNER_MAX = 127,
    SNAPSHOT_LAYERS_MAX = 8,
    SNAPSHOT_LAYER_ID = 16,
};

struct snapshot_variable {
    const char *text;  // in the body that was parsed, or the caller's; not terminated
    size_t len;
};

struct snapshot_meta {
    char id[SNAPSHOT_ID_LEN + 1];
    char owner[SNAPSHOT_OWNER_MAX + 1];  // 1 or more printable ASCII characters
    char template_name[TEMPLATE_NAME_MAX + 1];
    uint8_t rootfs[DIGEST_LEN];
    uint8_t isolation;  // 1 to 4
    bool memory;
    bool volume_left_out;
    bool unsynced;  // its guest had not written what it held to its disk
    uint32_t source;
    uint32_t vcpus;  // 1 or more, as the two below
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint64_t created;
    uint64_t bytes;
    uint64_t pause_us;
    uint32_t layers;
    uint8_t layer[SNAPSHOT_LAYERS_MAX][SNAPSHOT_LAYER_ID];
    uint32_t variables;
    struct snapshot_variable variable[ENV_VARS_MAX];
};

// "snp_" and 13 of [0-9a-v].
bool snapshot_id_valid(const char *id);
// The id that belongs to 8 random bytes.
void snapshot_id_make(const uint8_t random[static 8], char ret_id[static SNAPSHOT_ID_LEN + 1]);

// Parses a body.  0, or -EBADMSG when it is not exactly one, whatever is wrong with it; *ret_meta is untouched then.  Its
// variables point into `bytes`.
int snapshot_meta_parse(const uint8_t *bytes, size_t n, struct snapshot_meta *ret_meta);
// Appends the body.  0, -EINVAL when snapshot_meta_parse would refuse it, or the buffer's error.
int snapshot_meta_write(const struct snapshot_meta *meta, struct buf *out);

#endif
