// N new sandboxes over one snapshot, all or none.
//
//     checked (count, caps, owner) -> N creates without a request of their own (create.h), which take their turns among all
//     others -> all are running -> answered
//
// The first that fails, its owner's going, or the death of one before the answer undoes all of them.  Until the answer nobody
// can find them.
//
// A fork's disk is either empty, over all layers of the snapshot, which costs nothing however much was written; or, where
// little was written or there would be too many layers, a copy of the uppermost layer over the others.  So a chain of snapshots
// and forks never stands on more than SNAPSHOT_LAYERS_MAX of them.
//
// A fork has no network.  A policy is chosen by whoever creates a sandbox, and a fork request chooses none: neither that of the
// sandbox that was kept, whose session token and addresses a fork never has, nor the engine's own, which that sandbox may have
// been created without.
#ifndef ENGINE_FORK_H
#define ENGINE_FORK_H

#include "engine/create.h"
#include "engine/snapshot_store.h"

struct fork;

// Takes over the request.
void fork_begin(struct request *r, const Sandbox__ForkRequest *message);

// ---- for its creates ----

struct snapshot *fork_snapshot(const struct fork *f);
// Where the files of a snapshot with memory are; -1: it has none.
int fork_folder(const struct fork *f);
// Whether a fork's disk is a copy of the snapshot's uppermost layer.
bool fork_copies(const struct fork *f);
// Its template has been loaded: 0, or a sandbox_error_t if it is not what the snapshot stands on.
int fork_check_template(const struct fork *f, const uint8_t rootfs[static DIGEST_LEN], struct err *err);
// One runs.
void fork_ready(struct fork *f, struct sandbox *sb);
// One will not be.
void fork_failed(struct fork *f, int code, const char *text);

#endif
