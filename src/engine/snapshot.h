// The requests about snapshots: take one, list, inspect, delete; and suspend.
//
// Taking one:  sandbox running or paused -> (with memory) pauses and resumes that are under way have ended -> (and running) its
//              guest is asked to write what it holds to its disk, SYNC_MS at most -> the driver keeps it (it goes on, whatever
//              comes) -> the store makes it durable -> answered.
// One at a time for a sandbox; with memory, a pause or resume that comes meanwhile waits until the driver has kept it.  If its
// client goes before it is durable, nothing is left of it.
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include "engine/request.h"
#include "engine/sandbox.h"
#include "engine/snapshot_store.h"

enum {
    SNAPSHOTS_LISTED = 256,  // in one answer; the client asks for more
    SYNC_MS = 2000,          // a guest that has not answered by then is kept all the same, and marked
};

#define SNAPSHOT_NOT_FOUND "you have no such snapshot"

// Whose it is that a client makes.
struct snapshot_owner {
    char text[SNAPSHOT_OWNER_MAX + 1];
};
struct snapshot_owner snapshot_owner_of(const struct client *c);

// Each takes over the request.
void snapshot_take(struct sandbox *sb, struct request *r);
// True: one is being taken that pauses and resumes have to wait for; it goes on when nothing else is under way.
bool snapshot_has_turn(struct sandbox *sb);
// The guest has written what it held.
void snapshot_synced(struct sandbox *sb);
// It is closing, and its line still there.
void snapshot_sandbox_ends(struct sandbox *sb);
void snapshot_list(struct request *r, const char *after);
void snapshot_inspect(struct request *r, const char *id);
void snapshot_delete(struct request *r, const char *id);
void snapshot_suspend(struct sandbox *sb, struct request *r);

#endif
