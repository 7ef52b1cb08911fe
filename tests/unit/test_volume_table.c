// The table of volumes: its rules, and that what it has said once is so after any crash.
#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/volume_table.h"
#include "libsandbox.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECOND = 1000, START = 1000000 * SECOND, MAX_TTL_S = 100, KILLS = 200 };

struct fixture {
    char dir[64];
    int fd;
    struct state_db *db;
};

static void open_db(struct fixture *f)
{
    struct err err;
    if (state_db_open(f->fd, &f->db, &err) != 0)
        fail_msg("%s", err.text);
}

static void reopen(struct fixture *f)
{
    f->db = state_db_close(f->db);
    open_db(f);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/volume-table-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    open_db(f);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    state_db_close(f->db);
    static const char *const names[] = {"state.db", "state.db-wal", "state.db-journal", "state.db-shm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlinkat(f->fd, names[i], 0);
    close(f->fd);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static struct volume_key key(const char *owner, const char *text)
{
    struct volume_key k = {.key_len = strlen(text)};
    snprintf(k.owner, sizeof k.owner, "%s", owner);
    memcpy(k.key, text, k.key_len);
    return k;
}

static struct volume_want want(uint32_t ttl_s)
{
    return (struct volume_want){
        .ttl_s = ttl_s, .max_ttl_s = MAX_TTL_S, .size_mib = 64, .tier = 2, .tiers = 1U << 2 | 1U << 4, .max_volumes = 1000000};
}

static int acquire(struct fixture *f, const struct volume_key *k, uint32_t ttl_s, int64_t now, struct volume_row *row)
{
    struct volume_want w = want(ttl_s);
    struct err err = {.code = 0};
    int code = volume_table_acquire(f->db, k, &w, now, row, &err);
    assert_true(code == 0 || err.text[0] != '\0');
    return code;
}

// A live volume that nobody has.
static struct volume_row live(struct fixture *f, const struct volume_key *k, uint32_t ttl_s, int64_t now)
{
    struct volume_row row;
    struct err err;
    assert_int_equal(acquire(f, k, ttl_s, now, &row), 0);
    assert_true(row.fresh);
    assert_int_equal(volume_table_made(f->db, row.id, &err), 0);
    assert_int_equal(volume_table_release(f->db, row.id, &err), 0);
    return row;
}

static int renew(struct fixture *f, const struct volume_key *k, uint32_t extra, int64_t now, int64_t *expires)
{
    struct err err = {.code = 0};
    return volume_table_renew(f->db, k, extra, MAX_TTL_S, now, expires, &err);
}

static size_t expire(struct fixture *f, int64_t now, uint8_t ids[8][JAIL_VOLUME_ID], int64_t *next)
{
    size_t n = 99;
    struct err err;
    assert_int_equal(volume_table_expire(f->db, now, 8, ids, &n, next, &err), 0);
    return n;
}

static void a_key_has_one_volume(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a"), other_key = key("uid:1", "b"), other_owner = key("uid:10", "a");
    struct volume_row first = live(f, &k, 10, START), row;
    assert_int_equal(first.expires_ms, START + 10 * SECOND);
    assert_int_equal(first.size_mib, 64);
    // The same one again, whatever life is asked for now.
    assert_int_equal(acquire(f, &k, 50, START + SECOND, &row), 0);
    assert_false(row.fresh);
    assert_memory_equal(row.id, first.id, sizeof row.id);
    assert_int_equal(row.expires_ms, first.expires_ms);
    struct volume_row b = live(f, &other_key, 10, START), c = live(f, &other_owner, 10, START);
    assert_memory_not_equal(b.id, first.id, sizeof row.id);
    assert_memory_not_equal(c.id, first.id, sizeof row.id);
    assert_memory_not_equal(c.id, b.id, sizeof row.id);
    // It is still there after a restart.
    reopen(f);
    assert_int_equal(acquire(f, &k, 0, START + SECOND, &row), 0);
    assert_memory_equal(row.id, first.id, sizeof row.id);
}

static void life_is_bounded(void **state)
{
    struct fixture *f = *state;
    static const struct {
        uint32_t ttl;
        int64_t lives;
    } cases[] = {{1, 1}, {MAX_TTL_S, MAX_TTL_S}, {MAX_TTL_S + 1, MAX_TTL_S}, {UINT32_MAX, MAX_TTL_S}, {0, MAX_TTL_S}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[8];
        snprintf(text, sizeof text, "%zu", i);
        struct volume_key k = key("uid:1", text);
        assert_int_equal(live(f, &k, cases[i].ttl, START).expires_ms, START + cases[i].lives * SECOND);
    }
    struct volume_key k = key("uid:1", "long");
    struct volume_want w = want(0);
    w.max_ttl_s = 3000000;
    struct volume_row row;
    struct err err;
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START, &row, &err), 0);
    assert_int_equal(row.expires_ms, START + INT64_C(604800) * SECOND);
}

static void a_tier_keeps_its_volumes(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a");
    live(f, &k, 10, START);
    struct volume_want w = want(10);
    w.tier = 4;
    struct volume_row row;
    struct err err;
    // A new one would be on the vm tier now; this one stays where it is, where that is allowed and works.
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START, &row, &err), 0);
    assert_true(row.tier == 2 && !row.fresh);
    assert_int_equal(volume_table_release(f->db, row.id, &err), 0);
    w.floor = 2;
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START, &row, &err), 0);
    w.floor = 3;
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START, &row, &err), SANDBOX_ERR_INVALID_SPEC);
    assert_non_null(strstr(err.text, "of the container tier, below the isolation floor \"kernel\""));
    w.floor = 0;
    w.tiers = 1U << 4;
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START, &row, &err), SANDBOX_ERR_INVALID_SPEC);
    assert_non_null(strstr(err.text, "of the container tier, which does not work on this machine now"));
    // Once it has expired, the key is free for the other tier.
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START + 10 * SECOND, &row, &err), 0);
    assert_true(row.fresh && row.replaces && row.tier == 4);
    assert_int_equal(volume_table_made(f->db, row.id, &err), 0);
    // And never comes down again.
    w = want(10);
    w.tiers = 1U << 2;
    assert_int_equal(volume_table_acquire(f->db, &k, &w, START + 11 * SECOND, &row, &err), SANDBOX_ERR_INVALID_SPEC);
    assert_non_null(strstr(err.text, "of the vm tier, which does not work on this machine now"));
}

static void an_owner_has_at_most_so_many(void **state)
{
    struct fixture *f = *state;
    struct volume_key a = key("uid:1", "a"), b = key("uid:1", "b"), c = key("uid:1", "c"), other = key("uid:2", "c");
    live(f, &a, 10, START);
    live(f, &b, 20, START);
    struct volume_want w = want(10);
    w.max_volumes = 2;
    struct volume_row row;
    struct err err;
    assert_int_equal(volume_table_acquire(f->db, &c, &w, START, &row, &err), SANDBOX_ERR_POOL_EXHAUSTED);
    assert_non_null(strstr(err.text, "max_volumes_per_uid is 2"));
    assert_int_equal(volume_table_acquire(f->db, &b, &w, START, &row, &err), 0);
    assert_int_equal(volume_table_acquire(f->db, &other, &w, START, &row, &err), 0);
    // One whose file is deleted does not count any more.
    uint8_t ids[8][JAIL_VOLUME_ID];
    int64_t next;
    assert_int_equal(expire(f, START + 10 * SECOND, ids, &next), 1);
    assert_int_equal(volume_table_acquire(f->db, &c, &w, START, &row, &err), SANDBOX_ERR_POOL_EXHAUSTED);
    assert_int_equal(volume_table_gone(f->db, ids[0], START, 1000, &err), 0);
    assert_int_equal(volume_table_acquire(f->db, &c, &w, START, &row, &err), 0);
}

static void renewals(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a"), foreign = key("uid:2", "a");
    int64_t expires = -7;
    assert_int_equal(renew(f, &k, 5, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    live(f, &k, 10, START);
    assert_int_equal(renew(f, &foreign, 5, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(expires, -7);
    assert_int_equal(renew(f, &k, 5, START + 9999, &expires), 0);
    assert_int_equal(expires, START + 15 * SECOND);
    assert_int_equal(renew(f, &k, 0, START, &expires), 0);
    assert_int_equal(expires, START + 15 * SECOND);
    // Up to the maximum, counted from when it was made, and then no more.
    assert_int_equal(renew(f, &k, MAX_TTL_S - 16, START, &expires), 0);
    assert_int_equal(expires, START + (MAX_TTL_S - 1) * SECOND);
    assert_int_equal(renew(f, &k, UINT32_MAX, START, &expires), 0);
    assert_int_equal(expires, START + MAX_TTL_S * SECOND);
    assert_int_equal(renew(f, &k, 1, START, &expires), SANDBOX_ERR_SESSION_LIMIT);
    assert_int_equal(renew(f, &k, 0, START, &expires), 0);
    reopen(f);
    assert_int_equal(renew(f, &k, 0, START, &expires), 0);
    assert_int_equal(expires, START + MAX_TTL_S * SECOND);
    // In its last millisecond, and in the next.
    assert_int_equal(renew(f, &k, 0, START + MAX_TTL_S * SECOND - 1, &expires), 0);
    assert_int_equal(renew(f, &k, 0, START + MAX_TTL_S * SECOND, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(renew(f, &k, 1, START + MAX_TTL_S * SECOND, &expires), SANDBOX_ERR_SESSION_EXPIRED);
}

static void what_is_being_made_cannot_be_renewed(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a");
    struct volume_row row;
    struct err err;
    int64_t expires;
    assert_int_equal(acquire(f, &k, 10, START, &row), 0);
    assert_int_equal(renew(f, &k, 5, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(volume_table_unmake(f->db, row.id, &err), 0);
    assert_int_equal(acquire(f, &k, 10, START, &row), 0);
    assert_true(row.fresh && !row.replaces);
    // One that a failure left in the making: its file is deleted, the key has another.
    struct volume_row next;
    assert_int_equal(acquire(f, &k, 10, START, &next), 0);
    assert_true(next.fresh && next.replaces);
    uint8_t ids[8][JAIL_VOLUME_ID];
    int64_t due;
    assert_int_equal(expire(f, START, ids, &due), 1);
    assert_memory_equal(ids[0], row.id, sizeof row.id);
    assert_int_equal(volume_table_made(f->db, row.id, &err), 0);  // too late
    assert_int_equal(expire(f, START, ids, &due), 1);
}

static void expiry_spares_what_is_in_use(void **state)
{
    struct fixture *f = *state;
    struct volume_key used = key("uid:1", "used"), idle = key("uid:1", "idle"), later = key("uid:1", "later");
    struct volume_row u = live(f, &used, 10, START), i = live(f, &idle, 10, START), row;
    live(f, &later, 30, START);
    struct err err;
    assert_int_equal(acquire(f, &used, 0, START + 5, &row), 0);
    uint8_t ids[8][JAIL_VOLUME_ID];
    int64_t next, expires;
    assert_int_equal(expire(f, START + 10 * SECOND - 1, ids, &next), 0);
    assert_int_equal(next, START + 10 * SECOND);
    assert_int_equal(expire(f, START + 10 * SECOND, ids, &next), 1);
    assert_memory_equal(ids[0], i.id, sizeof i.id);
    assert_int_equal(next, START + 30 * SECOND);
    // Neither lives again: not by a renewal, not by a clock that is set back, not by a restart.
    assert_int_equal(renew(f, &used, 50, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(renew(f, &idle, 50, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(volume_table_release(f->db, u.id, &err), 0);
    assert_int_equal(expire(f, START, ids, &next), 2);
    assert_int_equal(volume_table_gone(f->db, i.id, START, 1000, &err), 0);
    reopen(f);
    assert_int_equal(expire(f, START, ids, &next), 1);
    assert_memory_equal(ids[0], u.id, sizeof u.id);
    assert_int_equal(renew(f, &idle, 50, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    // A create makes an empty one, and only that can be renewed.
    assert_int_equal(acquire(f, &idle, 10, START, &row), 0);
    assert_true(row.fresh);
    assert_memory_not_equal(row.id, i.id, sizeof i.id);
}

static void a_create_finds_what_has_expired_before_the_reaper(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a");
    struct volume_row old = live(f, &k, 10, START), row;
    assert_int_equal(acquire(f, &k, 10, START + 10 * SECOND - 1, &row), 0);
    assert_false(row.fresh);
    struct err err;
    volume_table_release(f->db, row.id, &err);
    assert_int_equal(acquire(f, &k, 10, START + 10 * SECOND, &row), 0);
    assert_true(row.fresh && row.replaces);
    assert_memory_not_equal(row.id, old.id, sizeof old.id);
    uint8_t ids[8][JAIL_VOLUME_ID];
    int64_t next;
    assert_int_equal(expire(f, START, ids, &next), 1);
    assert_memory_equal(ids[0], old.id, sizeof old.id);
}

static void rows_of_what_is_gone_go_too(void **state)
{
    struct fixture *f = *state;
    struct err err;
    int64_t next, expires;
    uint8_t ids[8][JAIL_VOLUME_ID];
    struct volume_key first = key("uid:1", "first"), last = key("uid:1", "last"), other = key("uid:2", "first");
    live(f, &other, 1, START);
    assert_int_equal(expire(f, START + SECOND, ids, &next), 1);
    assert_int_equal(volume_table_gone(f->db, ids[0], START, MAX_TTL_S, &err), 0);
    for (int i = 0; i <= VOLUME_GONE_ROWS_MAX; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        struct volume_key k = i == 0 ? first : i == VOLUME_GONE_ROWS_MAX ? last : key("uid:1", text);
        live(f, &k, 1, START);
        assert_int_equal(expire(f, START + SECOND, ids, &next), 1);
        if (i == VOLUME_GONE_ROWS_MAX)
            assert_int_equal(renew(f, &first, 1, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
        assert_int_equal(volume_table_gone(f->db, ids[0], START, MAX_TTL_S, &err), 0);
    }
    assert_int_equal(renew(f, &first, 1, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(renew(f, &last, 1, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    assert_int_equal(renew(f, &other, 1, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
    // By age.
    struct volume_key k = key("uid:3", "x");
    live(f, &k, 1, START);
    assert_int_equal(expire(f, START + SECOND, ids, &next), 1);
    assert_int_equal(volume_table_gone(f->db, ids[0], START + MAX_TTL_S * SECOND + 1, MAX_TTL_S, &err), 0);
    assert_int_equal(renew(f, &last, 1, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(renew(f, &k, 1, START, &expires), SANDBOX_ERR_SESSION_EXPIRED);
}

static void a_start_settles_what_was_left(void **state)
{
    struct fixture *f = *state;
    struct volume_key a = key("uid:1", "a"), b = key("uid:1", "b"), c = key("uid:1", "c");
    struct volume_row va = live(f, &a, 10, START), vb = live(f, &b, 1, START), row;
    struct err err;
    assert_int_equal(acquire(f, &a, 10, START, &row), 0);  // in use
    assert_int_equal(acquire(f, &c, 10, START, &row), 0);  // in the making
    assert_true(state_db_is_new(f->db));
    assert_int_equal(state_db_settle(f->db), 0);
    reopen(f);
    assert_false(state_db_is_new(f->db));
    cleanup_free uint8_t(*ids)[JAIL_VOLUME_ID] = NULL;
    size_t n;
    assert_int_equal(volume_table_recover(f->db, &ids, &n, &err), 0);
    assert_int_equal(n, 2);
    bool in_order = memcmp(va.id, vb.id, sizeof va.id) < 0;
    assert_memory_equal(ids[0], in_order ? va.id : vb.id, sizeof va.id);
    assert_memory_equal(ids[1], in_order ? vb.id : va.id, sizeof va.id);
    int64_t next, expires;
    uint8_t due[8][JAIL_VOLUME_ID];
    assert_int_equal(expire(f, START + 10 * SECOND, due, &next), 2);
    assert_int_equal(renew(f, &c, 1, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
    assert_int_equal(volume_table_lost(f->db, va.id, &err), 0);
    assert_int_equal(renew(f, &a, 1, START, &expires), SANDBOX_ERR_SESSION_UNKNOWN);
}

static void a_damaged_file_is_refused_and_kept(void **state)
{
    struct fixture *f = *state;
    f->db = state_db_close(f->db);
    cleanup_fd int fd = openat(f->fd, "state.db", O_WRONLY | O_TRUNC | O_CLOEXEC);
    char rubbish[5000];
    memset(rubbish, 'x', sizeof rubbish);
    assert_int_equal(write(fd, rubbish, sizeof rubbish), sizeof rubbish);
    struct err err;
    struct state_db *db = NULL;
    assert_int_equal(state_db_open(f->fd, &db, &err), -EUCLEAN);
    assert_non_null(strstr(err.text, "state.db"));
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, sizeof rubbish);
}

static void another_process_is_waited_for(void **state)
{
    struct fixture *f = *state;
    f->db = state_db_close(f->db);
    int pipe_fd[2];
    assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        open_db(f);
        if (write(pipe_fd[1], "o", 1) != 1)
            _exit(1);
        usleep(300000);
        state_db_close(f->db);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    uint64_t start = mono_ns();
    open_db(f);
    assert_true(mono_ns() - start > 100 * NS_PER_MS);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

static void a_later_version_is_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(db_run(f->db, "PRAGMA user_version=2", NULL, 0), 0);
    f->db = state_db_close(f->db);
    struct err err;
    struct state_db *db = NULL;
    assert_int_equal(state_db_open(f->fd, &db, &err), -EPROTONOSUPPORT);
    assert_non_null(strstr(err.text, "later version"));
}

static void a_full_disk_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct volume_key k = key("uid:1", "a"), other = key("uid:1", "b");
    live(f, &k, 10, START);
    // As full as a limit on the file's size makes it: the log cannot grow.
    signal(SIGXFSZ, SIG_IGN);
    struct stat st;
    assert_int_equal(fstatat(f->fd, "state.db-wal", &st, 0), 0);
    struct rlimit before;
    getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit none = {.rlim_cur = (rlim_t)st.st_size, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int64_t expires = -7;
    struct volume_row row;
    int renewed = renew(f, &k, 5, START, &expires), acquired = acquire(f, &other, 5, START, &row);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(renewed, SANDBOX_ERR_INTERNAL);
    assert_int_equal(acquired, SANDBOX_ERR_INTERNAL);
    assert_int_equal(expires, -7);
    // With room again it goes on, from where it was.
    assert_int_equal(renew(f, &k, 5, START, &expires), 0);
    assert_int_equal(expires, START + 15 * SECOND);
    assert_int_equal(acquire(f, &other, 5, START, &row), 0);
    assert_true(row.fresh && !row.replaces);
}

// ---- kills ----

// What the victim has been told: written to the parent only after the call has returned.
struct told {
    uint32_t number;  // of the key
    int64_t expires_ms;
};

// Makes volumes and renews them until it is killed.
static void live_until_killed(struct fixture *f, int out, uint32_t first)
{
    struct err err;
    struct state_db *db = NULL;
    if (state_db_open(f->fd, &db, &err) < 0)
        _exit(1);
    for (uint32_t i = first;; i++) {
        char text[16];
        snprintf(text, sizeof text, "%u", i);
        struct volume_key k = key("uid:9", text);
        struct volume_want w = want(10);
        struct volume_row row;
        struct told told = {.number = i};
        if (volume_table_acquire(db, &k, &w, START, &row, &err) != 0 || volume_table_made(db, row.id, &err) != 0)
            _exit(2);
        told.expires_ms = row.expires_ms;
        if (write(out, &told, sizeof told) != sizeof told)
            _exit(3);
        for (int n = 0; n < 3; n++) {
            if (volume_table_renew(db, &k, 1, MAX_TTL_S, START, &told.expires_ms, &err) != 0)
                _exit(4);
            if (write(out, &told, sizeof told) != sizeof told)
                _exit(3);
        }
    }
}

enum { KEYS_MAX = 65536 };
static int64_t promised[KEYS_MAX];

static uint32_t hear(int in)
{
    struct told told;
    uint32_t last = 0;
    while (read(in, &told, sizeof told) == sizeof told) {
        assert_true(told.number < KEYS_MAX);
        promised[told.number] = told.expires_ms;
        last = told.number;
    }
    return last;
}

static void what_was_said_is_so_after_two_hundred_kills(void **state)
{
    struct fixture *f = *state;
    uint32_t next = 0, said = 0;
    for (int i = 0; i < KILLS; i++) {
        f->db = state_db_close(f->db);
        int pipe_fd[2];
        assert_int_equal(pipe2(pipe_fd, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
            close(pipe_fd[0]);
            live_until_killed(f, pipe_fd[1], next);
        }
        close(pipe_fd[1]);
        // At least something has happened, and then any moment.
        struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        usleep((useconds_t)((unsigned)i * 7919u % 9000u));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        next = hear(pipe_fd[0]) + 2;  // one may be there that nobody was told of
        close(pipe_fd[0]);
        open_db(f);
        struct err err;
        cleanup_free uint8_t(*ids)[JAIL_VOLUME_ID] = NULL;
        size_t n;
        assert_int_equal(volume_table_recover(f->db, &ids, &n, &err), 0);
        for (uint32_t k = 0; k < next; k++) {
            if (promised[k] == 0)
                continue;
            char text[16];
            snprintf(text, sizeof text, "%u", k);
            struct volume_key volume = key("uid:9", text);
            int64_t expires = 0;
            if (i % 20 != 19 && k + 50 < next)  // the old ones now and then
                continue;
            assert_int_equal(renew(f, &volume, 0, START, &expires), 0);
            // A renewal may be there that nobody was told of; never is one lost.
            assert_in_range(expires, promised[k], promised[k] + SECOND);
            said++;
        }
    }
    assert_true(said > KILLS);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_key_has_one_volume),
        TEST(life_is_bounded),
        TEST(a_tier_keeps_its_volumes),
        TEST(an_owner_has_at_most_so_many),
        TEST(renewals),
        TEST(what_is_being_made_cannot_be_renewed),
        TEST(expiry_spares_what_is_in_use),
        TEST(a_create_finds_what_has_expired_before_the_reaper),
        TEST(rows_of_what_is_gone_go_too),
        TEST(a_start_settles_what_was_left),
        TEST(a_damaged_file_is_refused_and_kept),
        TEST(another_process_is_waited_for),
        TEST(a_later_version_is_refused),
        TEST(a_full_disk_changes_nothing),
        TEST(what_was_said_is_so_after_two_hundred_kills),
    };
    return cmocka_run_group_tests_name("volume_table", tests, NULL, NULL);
}
