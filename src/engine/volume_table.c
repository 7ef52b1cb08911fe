#include "engine/volume_table.h"

#include "base/cleanup.h"
#include "base/id.h"
#include "libsandbox.h"

#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { MS_PER_S = 1000 };

#define KEY_VALUES(k) DB_TEXT((k)->owner), DB_BYTES((k)->key, (k)->key_len)
#define ID_VALUE(id) DB_BYTES(id, JAIL_VOLUME_ID)

static int failed(int error, struct err *err)
{
    if (error == -ENOSPC)
        return err_set(err, SANDBOX_ERR_INTERNAL, "the disk of the engine's database is full; nothing was changed");
    return err_set(err, SANDBOX_ERR_INTERNAL, "the engine's database failed: %s", strerror(-error));
}

// Ends a transaction, and makes of an errno a code.  `code` is what the rules said.
static int conclude(struct state_db *db, int error, int code, struct err *err)
{
    error = db_end(db, error);
    return error < 0 ? failed(error, err) : code;
}

static int run_on(struct state_db *db, const char *sql, const uint8_t id[static JAIL_VOLUME_ID], struct err *err)
{
    int r = db_run(db, sql, DB_VALUES(ID_VALUE(id)));
    return r < 0 ? failed(r, err) : 0;
}

static int64_t end_of(int64_t created_ms, uint64_t seconds)
{
    return created_ms + (int64_t)seconds * MS_PER_S;
}

// ---- acquire ----

struct found {
    struct volume_row row;
    enum volume_state state;
    int64_t created_ms;
};

static const char columns_of[] = "SELECT id, state, tier, size_mib, created, expires FROM volumes WHERE owner = ? AND key = ? ";

// 1: found; 0: none.
static int find(struct state_db *db, const char *condition, const struct volume_key *key, struct found *ret_found)
{
    char sql[256];
    snprintf(sql, sizeof sql, "%s%s", columns_of, condition);
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, sql, DB_VALUES(KEY_VALUES(key)), &q);
    if (r == 0)
        r = db_step(q);
    if (r != 1)
        return r;
    const void *id = sqlite3_column_blob(q, 0);
    if (id == NULL || sqlite3_column_bytes(q, 0) != JAIL_VOLUME_ID)
        return -EUCLEAN;
    *ret_found = (struct found){.state = (enum volume_state)sqlite3_column_int(q, 1), .created_ms = sqlite3_column_int64(q, 4)};
    memcpy(ret_found->row.id, id, JAIL_VOLUME_ID);
    ret_found->row.tier = (uint32_t)sqlite3_column_int64(q, 2);
    ret_found->row.size_mib = (uint64_t)sqlite3_column_int64(q, 3);
    ret_found->row.expires_ms = sqlite3_column_int64(q, 5);
    return 1;
}

static int mark_expired(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID])
{
    int r = db_run(db, "UPDATE volumes SET state = 2 WHERE id = ?", DB_VALUES(ID_VALUE(id)));
    return r < 0 ? r : 0;
}

static int count_of_owner(struct state_db *db, const char *owner, uint64_t *ret_count)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "SELECT count(*) FROM volumes WHERE owner = ? AND state < 3", DB_VALUES(DB_TEXT(owner)), &q);
    if (r == 0)
        r = db_step(q);
    if (r == 1)
        *ret_count = (uint64_t)sqlite3_column_int64(q, 0);
    return r < 0 ? r : 0;
}

static int insert(struct state_db *db, const struct volume_key *key, const struct volume_want *want, int64_t now_ms,
                  struct volume_row *ret_row)
{
    uint64_t ttl = want->ttl_s != 0 ? want->ttl_s : VOLUME_TTL_DEFAULT_S;
    if (ttl > want->max_ttl_s)
        ttl = want->max_ttl_s;
    struct volume_row row = {.size_mib = want->size_mib, .tier = want->tier, .expires_ms = end_of(now_ms, ttl), .fresh = true};
    int r = random_bytes(row.id, sizeof row.id);
    if (r < 0)
        return r;
    r = db_run(db,
               "INSERT INTO volumes(id, owner, key, state, tier, size_mib, created, expires, in_use) "
               "VALUES(?, ?, ?, 0, ?, ?, ?, ?, 1)",
               DB_VALUES(ID_VALUE(row.id), KEY_VALUES(key), DB_NUMBER(want->tier), DB_NUMBER(row.size_mib), DB_NUMBER(now_ms),
                         DB_NUMBER(row.expires_ms)));
    if (r < 0)
        return r;
    *ret_row = row;
    return 0;
}

static int make_new(struct state_db *db, const struct volume_key *key, const struct volume_want *want, int64_t now_ms,
                    struct volume_row *ret_row, int *ret_code, struct err *err)
{
    uint64_t count = 0;
    int r = count_of_owner(db, key->owner, &count);
    if (r == 0 && count >= want->max_volumes)
        *ret_code = err_set(err, SANDBOX_ERR_POOL_EXHAUSTED,
                            "%s has %" PRIu64 " session volumes, the most allowed (max_volumes_per_uid is %" PRIu64 ")",
                            key->owner, count, want->max_volumes);
    else if (r == 0)
        r = insert(db, key, want, now_ms, ret_row);
    return r;
}

static const char *tier_name(uint32_t tier)
{
    static const char *const names[] = {"none", "process", "container", "kernel", "vm"};
    return tier < sizeof names / sizeof names[0] ? names[tier] : "unknown";
}

// A volume stays on its tier: what a machine could write raw is never mounted by the host, and what is the host's is given to
// no machine.
static int check_tier(const struct volume_row *row, const struct volume_want *want, struct err *err)
{
    static const char moving[] = "a volume stays on the tier it was made on; to move, copy its files into another session's";
    if (row->tier < want->floor)
        return err_set(
            err, SANDBOX_ERR_INVALID_SPEC,
            "session_key: this session's volume is of the %s tier, below the isolation floor \"%s\": lower the floor, or "
            "use another key (%s)",
            tier_name(row->tier), tier_name(want->floor), moving);
    if (row->tier >= 32 || (want->tiers & 1U << row->tier) == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC,
                       "session_key: this session's volume is of the %s tier, which does not work on this machine now: see "
                       "sandbox-cli doctor, or use another key (%s)",
                       tier_name(row->tier), moving);
    return 0;
}

int volume_table_acquire(struct state_db *db, const struct volume_key *key, const struct volume_want *want, int64_t now_ms,
                         struct volume_row *ret_row, struct err *err)
{
    struct found f;
    int code = 0;
    int r = db_begin(db);
    if (r < 0)
        return failed(r, err);
    int there = r = find(db, "AND state < 2", key, &f);
    bool replaces = false;
    // A row still being made is what a failure left: its file, if it has one, is deleted like an expired one's.
    if (there == 1 && (f.state == VOLUME_MAKING || f.row.expires_ms <= now_ms)) {
        there = 0;
        replaces = true;
        r = mark_expired(db, f.row.id);
        if (r == 0)
            r = db_run(db, "UPDATE volumes SET in_use = 0 WHERE id = ?", DB_VALUES(ID_VALUE(f.row.id)));
    }
    if (r >= 0 && there == 1 && (code = check_tier(&f.row, want, err)) != 0) {
        r = 0;
    } else if (r >= 0 && there == 1) {
        r = db_run(db, "UPDATE volumes SET in_use = 1 WHERE id = ?", DB_VALUES(ID_VALUE(f.row.id)));
        *ret_row = f.row;
    } else if (r >= 0) {
        r = make_new(db, key, want, now_ms, ret_row, &code, err);
        ret_row->replaces = replaces;
    }
    return conclude(db, r < 0 ? r : 0, code, err);
}

int volume_table_made(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err)
{
    return run_on(db, "UPDATE volumes SET state = 1 WHERE id = ? AND state = 0", id, err);
}

int volume_table_unmake(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err)
{
    return run_on(db, "DELETE FROM volumes WHERE id = ? AND state = 0", id, err);
}

int volume_table_release(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err)
{
    return run_on(db, "UPDATE volumes SET in_use = 0 WHERE id = ?", id, err);
}

// ---- renew ----

static int renew_live(struct state_db *db, const struct found *f, uint32_t extra_s, uint64_t max_ttl_s, int64_t *ret_expires_ms,
                      int *ret_code, struct err *err)
{
    int64_t limit = end_of(f->created_ms, max_ttl_s);
    int64_t wanted = f->row.expires_ms + (int64_t)extra_s * MS_PER_S;
    if (extra_s == 0) {
        *ret_expires_ms = f->row.expires_ms;
        return 0;
    }
    if (f->row.expires_ms >= limit) {
        *ret_code = err_set(err, SANDBOX_ERR_SESSION_LIMIT,
                            "the session is at its maximum lifetime, %" PRIu64 " seconds after its volume was made", max_ttl_s);
        return 0;
    }
    if (wanted > limit)
        wanted = limit;
    int r = db_run(db, "UPDATE volumes SET expires = ? WHERE id = ? AND state = 1",
                   DB_VALUES(DB_NUMBER(wanted), ID_VALUE(f->row.id)));
    if (r >= 0)
        *ret_expires_ms = wanted;
    return r < 0 ? r : 0;
}

int volume_table_renew(struct state_db *db, const struct volume_key *key, uint32_t extra_s, uint64_t max_ttl_s, int64_t now_ms,
                       int64_t *ret_expires_ms, struct err *err)
{
    struct found f;
    int code = 0;
    int r = db_begin(db);
    if (r < 0)
        return failed(r, err);
    int64_t expires = 0;
    int there = r = find(db, "AND state > 0 ORDER BY seq DESC LIMIT 1", key, &f);
    if (there == 0)
        code = err_set(err, SANDBOX_ERR_SESSION_UNKNOWN, "there is no volume for this session key");
    else if (there == 1 && (f.state != VOLUME_LIVE || f.row.expires_ms <= now_ms))
        code = err_set(err, SANDBOX_ERR_SESSION_EXPIRED, "the session has expired; its volume is gone");
    if (there == 1 && f.state == VOLUME_LIVE && code != 0)
        r = mark_expired(db, f.row.id);
    if (there == 1 && code == 0)
        r = renew_live(db, &f, extra_s, max_ttl_s, &expires, &code, err);
    code = conclude(db, r < 0 ? r : 0, code, err);
    if (code == 0)
        *ret_expires_ms = expires;
    return code;
}

// ---- expiry ----

static int list_expired(struct state_db *db, size_t room, uint8_t ret_ids[][JAIL_VOLUME_ID], size_t *ret_count)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "SELECT id FROM volumes WHERE state = 2 AND in_use = 0 LIMIT ?", DB_VALUES(DB_NUMBER(room)), &q);
    size_t n = 0;
    while (r == 0 && (r = db_step(q)) == 1 && n < room) {
        const void *id = sqlite3_column_blob(q, 0);
        memcpy(ret_ids[n++], id, JAIL_VOLUME_ID);
        r = 0;
    }
    *ret_count = n;
    return r < 0 ? r : 0;
}

static int next_expiry(struct state_db *db, int64_t *ret_next_ms)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "SELECT min(expires) FROM volumes WHERE state = 1", NULL, 0, &q);
    if (r == 0)
        r = db_step(q);
    if (r == 1)
        *ret_next_ms = sqlite3_column_type(q, 0) == SQLITE_NULL ? INT64_MAX : sqlite3_column_int64(q, 0);
    return r < 0 ? r : 0;
}

int volume_table_expire(struct state_db *db, int64_t now_ms, size_t room, uint8_t ret_ids[][JAIL_VOLUME_ID], size_t *ret_count,
                        int64_t *ret_next_ms, struct err *err)
{
    int64_t next = INT64_MAX;
    int r = next_expiry(db, &next);
    if (r == 0 && next <= now_ms) {  // most of the time there is nothing to be written
        r = db_run(db, "UPDATE volumes SET state = 2 WHERE state = 1 AND expires <= ?", DB_VALUES(DB_NUMBER(now_ms)));
        if (r >= 0)
            r = next_expiry(db, &next);
    }
    if (r >= 0)
        r = list_expired(db, room, ret_ids, ret_count);
    if (r < 0)
        return failed(r, err);
    *ret_next_ms = next;
    return 0;
}

int volume_table_facts(struct state_db *db, struct volume_facts *ret_facts, struct err *err)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "SELECT count(*), sum(size_mib), min(expires) FROM volumes WHERE state = 1", NULL, 0, &q);
    if (r == 0)
        r = db_step(q);
    if (r < 0)
        return failed(r, err);
    *ret_facts = (struct volume_facts){.next_ms = INT64_MAX};
    if (r == 1 && sqlite3_column_int64(q, 0) > 0)
        *ret_facts = (struct volume_facts){.live = (uint64_t)sqlite3_column_int64(q, 0),
                                           .size_mib = (uint64_t)sqlite3_column_int64(q, 1),
                                           .next_ms = sqlite3_column_int64(q, 2)};
    return 0;
}

int volume_table_gone(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], int64_t now_ms, uint64_t keep_s,
                      struct err *err)
{
    int r = db_begin(db);
    if (r < 0)
        return failed(r, err);
    r = db_run(db, "UPDATE volumes SET state = 3, gone = ? WHERE id = ? AND state = 2",
               DB_VALUES(DB_NUMBER(now_ms), ID_VALUE(id)));
    if (r >= 0)
        r = db_run(db, "DELETE FROM volumes WHERE state = 3 AND gone < ?",
                   DB_VALUES(DB_NUMBER(now_ms - (int64_t)keep_s * MS_PER_S)));
    if (r >= 0)
        r = db_run(db,
                   "DELETE FROM volumes WHERE state = 3 AND owner = (SELECT owner FROM volumes WHERE id = ?1) AND seq <= "
                   "(SELECT seq FROM volumes WHERE state = 3 AND owner = (SELECT owner FROM volumes WHERE id = ?1) "
                   "ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
                   DB_VALUES(ID_VALUE(id), DB_NUMBER(VOLUME_GONE_ROWS_MAX)));
    return conclude(db, r < 0 ? r : 0, 0, err);
}

// ---- after a start ----

static int list_files(struct state_db *db, uint8_t (**ret_ids)[JAIL_VOLUME_ID], size_t *ret_count)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "SELECT id FROM volumes WHERE state IN (1, 2) ORDER BY id", NULL, 0, &q);
    cleanup_free uint8_t(*ids)[JAIL_VOLUME_ID] = NULL;
    size_t n = 0, room = 0;
    while (r == 0 && (r = db_step(q)) == 1) {
        if (n == room) {
            room = room * 2 + 64;
            void *more = reallocarray(ids, room, sizeof *ids);
            if (more == NULL)
                return -ENOMEM;
            ids = more;
        }
        memcpy(ids[n++], sqlite3_column_blob(q, 0), JAIL_VOLUME_ID);
        r = 0;
    }
    if (r < 0)
        return r;
    *ret_ids = take_ptr(&ids);
    *ret_count = n;
    return 0;
}

int volume_table_recover(struct state_db *db, uint8_t (**ret_ids)[JAIL_VOLUME_ID], size_t *ret_count, struct err *err)
{
    int r = db_begin(db);
    if (r < 0)
        return failed(r, err);
    r = db_run(db, "DELETE FROM volumes WHERE state = 0", NULL, 0);
    if (r >= 0)
        r = db_run(db, "UPDATE volumes SET in_use = 0 WHERE in_use != 0", NULL, 0);
    int code = conclude(db, r < 0 ? r : 0, 0, err);
    if (code != 0)
        return code;
    r = list_files(db, ret_ids, ret_count);
    return r < 0 ? failed(r, err) : 0;
}

int volume_table_lost(struct state_db *db, const uint8_t id[static JAIL_VOLUME_ID], struct err *err)
{
    return run_on(db, "DELETE FROM volumes WHERE id = ?", id, err);
}
