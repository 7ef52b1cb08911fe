#include "engine/state_db.h"

#include "base/cleanup.h"
#include "base/clock.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCHEMA_VERSION = 1,
    BUSY_WAIT_MS = 10000,  // an engine whose jailer was killed may still be on its way out
    BUSY_STEP_MS = 20,
};

// The name of the file's folder is only a descriptor: the folders above it need not be open to the engine's uid.
#define VFS_NAME "state-folder"

struct state_db {
    sqlite3 *handle;
    int version;  // of what is in the file; 0: not settled
};

static const char schema[] =
    // One row for each volume there is or was.  state: enum volume_state (volume_table.h).  Times are milliseconds since 1970.
    "CREATE TABLE IF NOT EXISTS volumes("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id BLOB NOT NULL UNIQUE CHECK(length(id) = 16),"
    "  owner TEXT NOT NULL,"
    "  key BLOB NOT NULL,"
    "  state INTEGER NOT NULL CHECK(state BETWEEN 0 AND 3),"
    "  tier INTEGER NOT NULL,"
    "  size_mib INTEGER NOT NULL,"
    "  created INTEGER NOT NULL,"
    "  expires INTEGER NOT NULL,"
    "  in_use INTEGER NOT NULL DEFAULT 0,"
    "  gone INTEGER NOT NULL DEFAULT 0"
    ") STRICT;"
    "CREATE UNIQUE INDEX IF NOT EXISTS volumes_one ON volumes(owner, key) WHERE state < 2;"
    "CREATE INDEX IF NOT EXISTS volumes_newest ON volumes(owner, key, seq);"
    "CREATE INDEX IF NOT EXISTS volumes_due ON volumes(state, expires);";

static int errno_of(int code)
{
    switch (code & 0xFF) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
        return -EUCLEAN;
    default:
        return -EIO;
    }
}

// ---- opening ----

// SQLite would follow the descriptor's link and then need to walk the path behind it.
static int keep_path(sqlite3_vfs *vfs, const char *name, int size, char *out)
{
    (void)vfs;
    return snprintf(out, (size_t)size, "%s", name) < size ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int register_vfs(void)
{
    static sqlite3_vfs vfs;
    int code = sqlite3_initialize();
    if (code != SQLITE_OK)
        return code;
    if (sqlite3_vfs_find(VFS_NAME) != NULL)
        return SQLITE_OK;
    vfs = *sqlite3_vfs_find(NULL);
    vfs.zName = VFS_NAME;
    vfs.pNext = NULL;
    vfs.xFullPathname = keep_path;
    return sqlite3_vfs_register(&vfs, 0);
}

static int one_number(struct state_db *db, const char *sql, int *ret_number)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, sql, NULL, 0, &q);
    if (r == 0)
        r = db_step(q);
    if (r == 1)
        *ret_number = sqlite3_column_int(q, 0);
    return r < 0 ? r : r == 1 ? 0 : -EIO;
}

static int check(struct state_db *db)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, "PRAGMA quick_check(1)", NULL, 0, &q);
    if (r == 0)
        r = db_step(q);
    if (r < 0)
        return r;
    const char *text = r == 1 ? (const char *)sqlite3_column_text(q, 0) : NULL;
    return text != NULL && strcmp(text, "ok") == 0 ? 0 : -EUCLEAN;
}

static int set_up(struct state_db *db, struct err *err)
{
    // One process, one connection: no shared memory file, and no other writer can come between.
    int code = sqlite3_exec(db->handle, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
                            NULL, NULL, NULL);
    int r = errno_of(code);
    if (r == 0)
        r = check(db);
    if (r == 0)
        r = one_number(db, "PRAGMA user_version", &db->version);
    if (r == 0 && db->version > SCHEMA_VERSION)
        return err_set(err, -EPROTONOSUPPORT, "state.db was written by a later version of the engine (%d; this one knows %d)",
                       db->version, SCHEMA_VERSION);
    if (r == 0)
        r = db_begin(db);
    if (r == 0)
        r = db_end(db, errno_of(sqlite3_exec(db->handle, schema, NULL, NULL, NULL)));
    return r < 0 ? err_set(err, r, "state.db cannot be used: %s", sqlite3_errmsg(db->handle)) : 0;
}

static int open_once(int dir_fd, struct state_db **ret_db, struct err *err)
{
    struct state_db *db = calloc(1, sizeof *db);
    if (db == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    char path[48];
    snprintf(path, sizeof path, "/proc/self/fd/%d/state.db", dir_fd);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    int code = register_vfs();
    if (code == SQLITE_OK)
        code = sqlite3_open_v2(path, &db->handle, flags, VFS_NAME);
    int r = code == SQLITE_OK ? set_up(db, err)
                              : err_set(err, errno_of(code), "state.db cannot be opened: %s", sqlite3_errstr(code));
    if (r < 0) {
        state_db_close(db);
        return r;
    }
    *ret_db = db;
    return 0;
}

int state_db_open(int dir_fd, struct state_db **ret_db, struct err *err)
{
    uint64_t give_up = mono_ns() + BUSY_WAIT_MS * NS_PER_MS;
    int r;
    while ((r = open_once(dir_fd, ret_db, err)) == -EBUSY && mono_ns() < give_up)
        usleep(BUSY_STEP_MS * 1000);
    return r;
}

struct state_db *state_db_close(struct state_db *db)
{
    if (db != NULL)
        sqlite3_close_v2(db->handle);
    free(db);
    return NULL;
}

bool state_db_is_new(const struct state_db *db)
{
    return db->version == 0;
}

int state_db_settle(struct state_db *db)
{
    char sql[48];
    snprintf(sql, sizeof sql, "PRAGMA user_version=%d", SCHEMA_VERSION);
    int r = errno_of(sqlite3_exec(db->handle, sql, NULL, NULL, NULL));
    if (r == 0)
        db->version = SCHEMA_VERSION;
    return r;
}

// ---- statements ----

static int bind(sqlite3_stmt *q, int at, const struct db_value *v)
{
    switch (v->type) {
    case DB_NUMBER:
        return sqlite3_bind_int64(q, at, v->number);
    case DB_TEXT:
        return sqlite3_bind_text(q, at, v->bytes, -1, SQLITE_TRANSIENT);
    default:
        return sqlite3_bind_blob(q, at, v->bytes, (int)v->n, SQLITE_TRANSIENT);
    }
}

int db_query(struct state_db *db, const char *sql, const struct db_value *values, size_t count, sqlite3_stmt **ret_query)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(db->handle, sql, -1, &q, NULL);
    for (size_t i = 0; i < count && code == SQLITE_OK; i++)
        code = bind(q, (int)i + 1, &values[i]);
    if (code == SQLITE_OK)
        *ret_query = take_ptr(&q);
    return errno_of(code);
}

int db_step(sqlite3_stmt *query)
{
    int code = sqlite3_step(query);
    return code == SQLITE_ROW ? 1 : errno_of(code);
}

void db_query_end(sqlite3_stmt **query)
{
    sqlite3_finalize(*query);
    *query = NULL;
}

int db_run(struct state_db *db, const char *sql, const struct db_value *values, size_t count)
{
    cleanup_query sqlite3_stmt *q = NULL;
    int r = db_query(db, sql, values, count, &q);
    if (r < 0)
        return r;
    while ((r = db_step(q)) == 1)
        ;
    return r < 0 ? r : sqlite3_changes(db->handle);
}

int db_begin(struct state_db *db)
{
    return errno_of(sqlite3_exec(db->handle, "BEGIN IMMEDIATE", NULL, NULL, NULL));
}

int db_end(struct state_db *db, int result)
{
    if (result == 0)
        result = errno_of(sqlite3_exec(db->handle, "COMMIT", NULL, NULL, NULL));
    if (result != 0 && sqlite3_get_autocommit(db->handle) == 0)
        sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
    return result;
}
