// A machine that was kept as it ran: what is on the host's disk of it, and how its memory comes back.
//
//     base.snap      the memory of the template that all of it stands on: another name of the template's own file, which
//                    therefore stays for as long as this needs it; none for a machine that booted without a template
//     memory.delta   the pages written since then, and their list (wire/page_delta.h)
//     disk.delta     the blocks of the disk that differ from the template's image
//     vmstate.bin    processors and devices (wire/vmstate.h)
//     key.bin        struct kept_key: whose snapshot it is, and of which shape, host, image and kernel
//     manifest.bin   the digests of them all (wire/manifest.h)
//
// memory.delta is of everything since the template, also where the machine is a fork: what the snapshot below differed by, and
// this one did not write again, is added to it after the machine goes on.  So a snapshot stands on one file and never on
// another snapshot, however long the chain: one may be deleted, and coming back takes the same work at any depth.
//
// Trust: vmstate.bin, the pages and the list were written by a monitor which a guest may have taken over, or take over later;
// they are never looked into but for the list, any of which is a valid one.  It writes to files without names, and what becomes
// of these is copied: nobody but the engine ever has a snapshot's own files open for writing.  Its sizes are bounded by what
// its machine may have (sys/vm_ram.h, VMSTATE_FILE_MAX, and the disk by the limit that the jailer gave it).  Against damage,
// and files that were mixed up, nothing is believed before its digest was checked and the key is the one that was asked for.
//
// One that only waits to come back (suspended) has those files without names themselves, and its manifest and key in memory:
// its monitor has ended before anybody can ask for it.
//
// Functions block; each may run on any thread.
#ifndef ENGINE_ISOLATION_KEPT_H
#define ENGINE_ISOLATION_KEPT_H

#include "base/err.h"
#include "engine/isolation/snapshot_store.h"

enum { KEPT_DISK, KEPT_MEMORY, KEPT_STATE, KEPT_FILES, KEPT_ID_ROOM = 24 };

struct kept_key {
    char magic[8];
    char id[KEPT_ID_ROOM];  // of the snapshot, padded with NULs
    struct snapshot_key machine;
};

struct kept {
    int fd[KEPT_FILES];
    int root;  // base.snap, or -1
    struct manifest manifest;
};
#define KEPT_INIT ((struct kept){.fd = {-1, -1, -1}, .root = -1})
void kept_close(struct kept *kept);

// Three empty files for a monitor to write, without names, on the file system of `folder`.  0 or a negative errno.
int kept_create(int folder, struct kept *ret_kept);
// They are written: adds what `base` (NULL: nothing) holds, syncs all, and if `folder` is not -1, has them, `root` and the
// manifest under their names there.  `key`: its id and machine.  *ret_bytes: what it takes of the host's disk.  0; -EBADMSG: of
// a size that they cannot have; or another negative errno, with a sentence.
int kept_finish(struct kept *kept, const struct memory_base *base, int folder, const struct kept_key *key, uint64_t *ret_bytes,
                struct err *err);
// The one in `folder`, which must be `id`'s.  *ret_key is its.  0; -EBADMSG with a sentence that names the file; or another
// negative errno.
int kept_open(int folder, const char *id, struct kept *ret_kept, struct kept_key *ret_key, struct err *err);
// For starting machines like `machine` from it: its memory and state in sealed memfds, its disk as it is, checked against the
// manifest.  What `kept` has open stays its.  As kept_open.
int kept_load(const struct kept *kept, const struct snapshot_key *machine, struct snapshot_files *ret_files, struct err *err);

#endif
