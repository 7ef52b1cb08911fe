// Session volumes: who has which, until when, and what becomes of them.
//
// Actors: creates, which want the volume of a key; sandboxes, which have one; clients that renew; the reaper, which deletes
// what has expired.  The database (volume_table.h) is the truth, kept by one worker thread; the jailer has the files.  Who has
// a volume right now is also known here, on the loop, so that the next one can wait for it.
//
// A key's way:  free -> (asked of the database) -> [file made by the jailer] -> held by a sandbox -> released -> the next in
// line, or free.  Nobody else can touch the key's volume between the first step and the last: that is the one writer.  A
// sandbox that outlives its volume's time keeps the volume until it ends.
//
// Order of writes, so that a crash at any point loses no volume that was promised and leaves none that nobody knows: row
// (making), file, row (live), answer; row (expired), file deleted, row (gone).  The next start deletes files without a row and
// drops rows without a file.  If there are files but no database at all, somebody has lost it: nothing is deleted, and there
// are no volumes until that is settled.
#ifndef ENGINE_VOLUMES_H
#define ENGINE_VOLUMES_H

#include "base/err.h"
#include "engine/volume_table.h"

#include <stdbool.h>
#include <sys/queue.h>

struct engine;
struct request;
struct volumes;
struct volume_lease;

struct volume_answer {
    const struct err *err;       // NULL: here it is
    struct volume_lease *lease;  // the callback's, until volume_release
};

// Embedded in who waits; set `want`, `done` and `arg`.
struct volume_waiter {
    struct volume_want want;
    void (*done)(void *arg, const struct volume_answer *answer);  // once, later, unless cancelled
    void *arg;
    // The rest is not the caller's.
    TAILQ_ENTRY(volume_waiter) link;
    struct volume_lease *lease;
};

// Opens the database in `state_dir`, which stays the caller's, and settles what a crash has left; `ready(arg)` follows, also
// when there can be no volumes.  0 or a negative errno.
int volumes_new(struct engine *e, int state_dir, void (*ready)(void *arg), void *arg, struct volumes **ret_volumes);
// All waiters and leases must be gone or never be used again.  NULL is fine; returns NULL.
struct volumes *volumes_free(struct volumes *volumes);

// NULL, or why there are none; valid as long as `volumes`.
const char *volumes_trouble(const struct volumes *volumes);
// The key of a client's session.
struct volume_key volume_key_of(uid_t uid, const uint8_t *key, size_t n);
// Whether somebody has the volume, or is about to.
bool volumes_busy(const struct volumes *volumes, const struct volume_key *key);
unsigned volumes_held(const struct volumes *volumes);
// What the database has, as it was a moment ago: it is asked again after each change.  Zeros where there can be no volumes.
struct volume_facts volumes_facts(const struct volumes *volumes);

// Gets in line for a volume, which is made if there is none.  0 or -ENOMEM.
int volume_acquire(struct volumes *volumes, const struct volume_key *key, struct volume_waiter *waiter);
// Leaves the line; fine for one that is in none.
void volume_cancel(struct volume_waiter *waiter);
uint32_t volume_tier(const struct volume_lease *lease);
const uint8_t *volume_id(const struct volume_lease *lease);
// Nothing uses it any more.  NULL is fine.
void volume_release(struct volume_lease *lease);

// Answers `r`, later.
void volume_renew(struct volumes *volumes, struct request *r, const struct volume_key *key, uint32_t extra_s);

#endif
