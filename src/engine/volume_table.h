// Which volumes there are, whose they are and how long they live: the table of the engine's database, and the rules about it.
//
// A volume belongs to an owner and a key.  States of its row:
//
//     making -> live -> expired -> gone -> (the row is dropped)
//
// making: there may be a file, but nobody was told of the volume.  live: there is a file.  expired: its time has passed; once a
// row says so it never lives again, whatever the clock says later.  The file goes when no sandbox has it.  gone: the file is
// deleted; the row stays for a while, so that a renewal can say "expired" and not "unknown".
//
// At most one row of an owner and key is making or live; the newest of them is the one that counts.  The caller (volumes.h)
// lets nobody in between acquire and release of one key.
//
// All calls are made on the database's thread, one after the other: that is what decides between a renewal and an expiry.
#ifndef ENGINE_VOLUME_TABLE_H
#define ENGINE_VOLUME_TABLE_H

#include "base/err.h"
#include "engine/state_db.h"
#include "sys/jail.h"
#include "wire/limits.h"

#include <stdint.h>
#include <sys/types.h>

enum volume_state { VOLUME_MAKING, VOLUME_LIVE, VOLUME_EXPIRED, VOLUME_GONE };

enum {
    VOLUME_OWNER_MAX = 31,
    VOLUME_TTL_DEFAULT_S = 7 * 24 * 3600,  // spec 000
    VOLUME_GONE_ROWS_MAX = 1000,           // of one owner; older ones are dropped
};

struct volume_key {
    char owner[VOLUME_OWNER_MAX + 1];  // "uid:N"
    uint8_t key[SESSION_KEY_MAX];
    size_t key_len;
};

struct volume_want {
    uint32_t ttl_s;  // 0: the default; used when a volume is made, and cut to max_ttl_s
    uint64_t max_ttl_s;
    uint64_t size_mib;
    uint32_t tier;         // that a new one is made for
    uint32_t floor;        // the weakest tier that will do for one that is there
    uint32_t tiers;        // those that work, as bits 1 << tier
    uint64_t max_volumes;  // of this owner
};

struct volume_row {
    uint8_t id[JAIL_VOLUME_ID];
    uint64_t size_mib;
    uint32_t tier;  // that it was made for, and is for as long as it lives
    int64_t expires_ms;
    bool fresh;     // it was made now: there is no file yet
    bool replaces;  // in the place of one that has expired
};

// Each returns 0, or a sandbox_error_t with a sentence.  `now_ms` is the wall clock.

// The live volume of this key, or a new one in `making`; in use from now on.  INVALID_SPEC: it is of a tier below the
// floor, or of one that does not work.
// POOL_EXHAUSTED: the owner has max_volumes.
int volume_table_acquire(struct state_db *db, const struct volume_key *key, const struct volume_want *want, int64_t now_ms,
                         struct volume_row *ret_row, struct err *err);
// The file of a new one is there.
int volume_table_made(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err);
// It could not be made: forgets it.
int volume_table_unmake(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err);
// No sandbox has it any more.
int volume_table_release(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err);

// Adds to a volume's time, up to max_ttl_s after it was made; 0 seconds only asks.  *ret_expires_ms is when it ends.
// SESSION_UNKNOWN, SESSION_EXPIRED, SESSION_LIMIT (it has all of max_ttl_s already).
int volume_table_renew(struct state_db *db, const struct volume_key *key, uint32_t extra_s, uint64_t max_ttl_s, int64_t now_ms,
                       int64_t *ret_expires_ms, struct err *err);

// Marks what has expired.  Up to `room` volumes whose file is to be deleted go to `ret_ids`; *ret_next_ms is when the next one
// expires (INT64_MAX: none).
int volume_table_expire(struct state_db *db, int64_t now_ms, size_t room, uint8_t ret_ids[][JAIL_VOLUME_ID], size_t *ret_count,
                        int64_t *ret_next_ms, struct err *err);
// What there is that can be asked for.
struct volume_facts {
    uint64_t live;
    uint64_t size_mib;  // of all of them, were they full
    int64_t next_ms;    // when the first of them expires; INT64_MAX: there is none
};
int volume_table_facts(struct state_db *db, struct volume_facts *ret_facts, struct err *err);
// Its file is deleted.
int volume_table_gone(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], int64_t now_ms, uint64_t keep_s,
                      struct err *err);

// After a start: no sandbox has anything, and what was being made is forgotten.  *ret_ids (free it) are those that have a file,
// in order.
int volume_table_recover(struct state_db *db, uint8_t (**ret_ids)[JAIL_VOLUME_ID], size_t *ret_count, struct err *err);
// Its file is not there.
int volume_table_lost(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err);

#endif
