// Snapshots of booted templates, on the host's disk: STATE/booted/KEY/{vmstate.bin, memory.snap, disk.delta,
// working-set.bin, key.bin, manifest.bin}, in the format of the template store.  Those that clients take are elsewhere
// (engine/snapshot_store.h), and never give way.
//
// KEY is a digest of everything a snapshot is bound to: the template's and the kernel's files, the machine's shape, the
// processor and the kernel of the host, the format.  So a snapshot that does not fit is simply not found, and is made anew.
// key.bin is what KEY is the digest of: a folder that was renamed, or another's copied over it, is found out.
// A snapshot is there whole or not at all: it is written in a folder whose name begins with a dot, synced, listed in its
// manifest, and renamed.  What such folders are left by a crash goes at the next start.
// Nothing is believed before its digest was checked.  All but the disk's part is then copied into sealed memfds, which nobody
// can change; the disk's part stays the file it is, which must be the very one that was checked at each use
// (snapshot_files_unchanged).
// Limits: STORED_MAX snapshots, and the bytes on the disk that snapshot_commit is told; those used longest ago give way.
//
// Functions block; each may run on any thread, but only one at a time for one store; snapshot_touch at any time.
#ifndef ENGINE_ISOLATION_SNAPSHOT_STORE_H
#define ENGINE_ISOLATION_SNAPSHOT_STORE_H

#include "base/err.h"
#include "engine/isolation/memory_base.h"
#include "sys/file_stamp.h"
#include "sys/host_identity.h"
#include "wire/manifest.h"

#include <stdint.h>

enum {
    SNAPSHOTS_STORED_MAX = 32,
    // Of the folder, and of what its machine is; the monitor's own (VMSTATE_VERSION) is bound as well.  2: machines have
    // devices for a line and a volume.
    SNAPSHOT_FORMAT = 2,
    SNAPSHOT_KEY_DIGITS = 2 * DIGEST_LEN,
};

struct snapshot_key {
    uint8_t image[DIGEST_LEN];
    uint8_t kernel[DIGEST_LEN];
    struct host_identity host;
    uint64_t memory_mib;
    uint64_t disk_mib;
    uint32_t vcpus;
    uint32_t pids_max;
    uint32_t format;
    uint32_t vmstate;
};

// Descriptors of one; -1: not open.  All for reading, but while it is being made.
struct snapshot_files {
    int state, memory, layer, working_set, key;
    struct file_stamp layer_is;  // when it was checked
    struct memory_base *base;    // of one that was loaded: what `memory` is a copy of
};
#define SNAPSHOT_FILES_INIT ((struct snapshot_files){.state = -1, .memory = -1, .layer = -1, .working_set = -1, .key = -1})
void snapshot_files_close(struct snapshot_files *files);
// Of one that was loaded: nothing has touched the disk's part since.
bool snapshot_files_unchanged(const struct snapshot_files *files);

// The key as the name of a folder.  0 or -ENOMEM.
int snapshot_key_name(const struct snapshot_key *key, char ret_name[SNAPSHOT_KEY_DIGITS + 1]);

// The store's folder in `state_dir`, made if need be, without what a crash left.  A descriptor or a negative errno.
int snapshot_store_open(int state_dir);

// Opens and verifies; all but `layer` are sealed memfds, and `key` is not open.  0; -ENOENT; -EBADMSG with a sentence that
// names the file; or another negative errno.
int snapshot_load(int store, const char *name, struct snapshot_files *ret_files, struct err *err);
// Copies [at, end), or what of it is no hole.  0 or a negative errno.
int snapshot_copy_bytes(int from, int to, uint64_t at, uint64_t end);
int snapshot_copy_sparse(int from, int to, uint64_t at, uint64_t end);
// For reading only: what a machine is handed it must not be able to write to, and who maps it needs no right to.  A descriptor
// or a negative errno.
int snapshot_reopen(int fd);
// Seals the memfd, and gives one for reading.  A descriptor or a negative errno.
int snapshot_seal_memfd(int memfd);
// A sealed memfd with the bytes of `file`, holes as holes.  A descriptor or a negative errno.
int snapshot_seal(int file);

// A new folder with the key and four empty files, open for reading and writing.  *ret_dir is the caller's.
int snapshot_begin(int store, const char *name, const struct snapshot_key *key, int *ret_dir, struct snapshot_files *ret_files);
// Makes it the snapshot of its name, and lets others go beyond the limits.  0, or a negative errno; it is still to be abandoned
// then.
int snapshot_commit(int store, const char *name, int dir, const struct snapshot_files *files, uint64_t bytes_max);
// Removes one that was begun.
void snapshot_abandon(int store, const char *name);
// It was used now: others give way first.
void snapshot_touch(int store, const char *name);
// Removes one that is no good.
void snapshot_remove(int store, const char *name);

#endif
