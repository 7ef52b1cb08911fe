// The requests about snapshots: take one, list, inspect, delete; and suspend.
//
// Taking one:  sandbox running or paused -> the driver keeps it (it goes on, whatever comes) -> the store makes it durable
//              -> answered.  One at a time for a sandbox.  If its client goes before it is durable, nothing is left of it.
#ifndef ENGINE_SNAPSHOT_H
#define ENGINE_SNAPSHOT_H

#include "engine/request.h"
#include "engine/sandbox.h"
#include "engine/snapshot_store.h"

enum { SNAPSHOTS_LISTED = 256 };  // in one answer; the client asks for more

#define SNAPSHOT_NOT_FOUND "you have no such snapshot"

// Whose it is that a client makes.
struct snapshot_owner {
    char text[SNAPSHOT_OWNER_MAX + 1];
};
struct snapshot_owner snapshot_owner_of(const struct client *c);

// Each takes over the request.
void snapshot_take(struct sandbox *sb, struct request *r);
void snapshot_list(struct request *r, const char *after);
void snapshot_inspect(struct request *r, const char *id);
void snapshot_delete(struct request *r, const char *id);
void snapshot_suspend(struct sandbox *sb, struct request *r);

#endif
