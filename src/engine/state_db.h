// The engine's database: one SQLite file, state.db, in the engine's own state folder.
//
// What is in it survives any crash: each change is a transaction that is on the disk (WAL, synchronous=FULL) when the call that
// made it returns 0.  A disk that is full fails the change, and leaves what was there.
//
// Every call blocks on the disk, so none is made on the loop's thread: one worker thread has the database to itself.
#ifndef ENGINE_STATE_DB_H
#define ENGINE_STATE_DB_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct state_db;
struct sqlite3_stmt;

// Opens it in `dir_fd` (which stays the caller's and outlives it), making it if it is not there; checks it.  Waits for a while
// if another process has it open. 0, or a negative errno with a sentence.
int state_db_open(int dir_fd, struct state_db **ret_db, struct err *err);
// NULL is fine; returns NULL.
struct state_db *state_db_close(struct state_db *db);

// Whether state_db_settle has never been called on it: it was made just now, or by a start that was cut short.
bool state_db_is_new(const struct state_db *db);
int state_db_settle(struct state_db *db);

struct db_value {
    enum { DB_NUMBER, DB_TEXT, DB_BYTES } type;
    int64_t number;
    const void *bytes;
    size_t n;
};
#define DB_NUMBER(x) ((struct db_value){.type = DB_NUMBER, .number = (int64_t)(x)})
#define DB_TEXT(x) ((struct db_value){.type = DB_TEXT, .bytes = (x)})
#define DB_BYTES(x, len) ((struct db_value){.type = DB_BYTES, .bytes = (x), .n = (len)})
#define DB_VALUES(...)                                                                                                         \
    (const struct db_value[]){__VA_ARGS__}, sizeof((const struct db_value[]){__VA_ARGS__}) / sizeof(struct db_value)

// All below: 0 or more, or a negative errno: -ENOSPC (disk full), -EUCLEAN (the file is damaged), -ENOMEM, -EIO.

// Runs one statement to its end; the number of rows it changed.
int db_run(struct state_db *db, const char *sql, const struct db_value *values, size_t count);
// A statement to be stepped through; finalized by db_query_end, which takes NULL.
int db_query(struct state_db *db, const char *sql, const struct db_value *values, size_t count,
             struct sqlite3_stmt **ret_query);
// 1: there is a row; 0: there is none any more.
int db_step(struct sqlite3_stmt *query);
void db_query_end(struct sqlite3_stmt **query);
#define cleanup_query __attribute__((cleanup(db_query_end)))

// A transaction: begun, and then ended by db_end with what has become of it so far: 0 commits, all else takes it back.  Returns
// that, or the commit's own failure, after which nothing of it was done.
int db_begin(struct state_db *db);
int db_end(struct state_db *db, int result);

#endif
