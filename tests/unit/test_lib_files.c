// libsandbox: files, from an honest guest and a hostile one.
#include "guest_world.h"
#include "wire/limits.h"

#include <stdio.h>

// ---- Files ---------------------------------------------------------------------------------------------------------

static void serve_file(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    const Sandbox__Guest__ReadFile *read = m->guest->read_file;
    size_t offset = read->offset < g->file_len ? read->offset : g->file_len;
    size_t n = g->file_len - offset < read->max_bytes ? g->file_len - offset : read->max_bytes;
    Sandbox__Guest__ReadFileResult chunk = SANDBOX__GUEST__READ_FILE_RESULT__INIT;
    chunk.data = (ProtobufCBinaryData){.data = g->file + offset, .len = n};
    chunk.truncated = offset + n < g->file_len;
    chunk.file_size = g->file_len;
    result_t result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_READ_FILE;
    result.read_file = &chunk;
    fake_guest(peer, m, &result);
}

static uint8_t *make_file(size_t n)
{
    uint8_t *file = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        file[i] = (uint8_t)(i * 2654435761u >> 11);
    return file;
}

static void read_file_joins_chunks(void **state)
{
    struct world *w = *state;
    static const size_t sizes[] = {0, 1, FILE_CHUNK_MAX - 1, FILE_CHUNK_MAX, FILE_CHUNK_MAX + 1, FILE_MAX - 1, FILE_MAX};
    w->guest.file = make_file(FILE_MAX + 1);
    w->guest.answer = serve_file;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        w->guest.file_len = sizes[i];
        w->guest.calls = 0;
        uint8_t *data = NULL;
        size_t n;
        assert_int_equal(sandbox_read_file(w->h, "/workspace/f", &data, &n), SANDBOX_OK);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(data, w->guest.file, n);
        assert_int_equal(data[n], 0);
        assert_int_equal(w->guest.calls, n == 0 ? 1 : (n + FILE_CHUNK_MAX - 1) / FILE_CHUNK_MAX);
        free(data);
    }
    w->guest.file_len = FILE_MAX + 1;
    w->guest.calls = 0;
    uint8_t *data = NULL;
    size_t n = 5;
    assert_int_equal(sandbox_read_file(w->h, "/workspace/f", &data, &n), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(w->guest.calls, 1);
    assert_true(data == NULL && n == 5);
    free(w->guest.file);
}

// A file without end, whose size it lies about.
static void serve_forever(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    Sandbox__Guest__ReadFileResult chunk = SANDBOX__GUEST__READ_FILE_RESULT__INIT;
    chunk.data = (ProtobufCBinaryData){.data = g->file, .len = g->file_len};
    chunk.truncated = true;
    chunk.file_size = 1;
    result_t result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_READ_FILE;
    result.read_file = &chunk;
    fake_guest(peer, m, &result);
}

static void read_file_ends_whatever_the_guest_says(void **state)
{
    struct world *w = *state;
    w->guest.file = make_file(FILE_CHUNK_MAX + 1);
    w->guest.answer = serve_forever;
    uint8_t *data = NULL;
    size_t n;
    w->guest.file_len = FILE_CHUNK_MAX;
    assert_int_equal(sandbox_read_file(w->h, "/workspace/f", &data, &n), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(w->guest.calls, FILE_MAX / FILE_CHUNK_MAX + 1);
    w->guest.file_len = 0;
    assert_int_equal(sandbox_read_file(w->h, "/workspace/f", &data, &n), SANDBOX_ERR_GUEST_UNAVAILABLE);
    w->guest.file_len = FILE_CHUNK_MAX + 1;
    assert_int_equal(sandbox_read_file(w->h, "/workspace/f", &data, &n), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_null(data);
    free(w->guest.file);
}

// Keeps what is written as a file would, and logs how: a/r, then e and p, per chunk.
static void take_file(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    const Sandbox__Guest__WriteFile *wr = m->guest->write_file;
    if (!wr->append)
        g->file_len = 0;
    if (g->file_len + wr->data.len <= FILE_MAX && wr->data.len <= FILE_CHUNK_MAX && wr->data.len > 0)
        memcpy(g->file + g->file_len, wr->data.data, wr->data.len);
    g->file_len += wr->data.len;
    if (g->log_len + 8 < sizeof g->log)
        g->log_len += (size_t)snprintf(g->log + g->log_len, sizeof g->log - g->log_len, "%c%s%s%o ", wr->append ? 'a' : 'r',
                                       wr->exclusive ? "e" : "", wr->parents ? "p" : "", wr->mode);
    Sandbox__Guest__WriteFileResult written = SANDBOX__GUEST__WRITE_FILE_RESULT__INIT;
    written.file_size = g->file_len;
    result_t result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_WRITE_FILE;
    result.write_file = &written;
    fake_guest(peer, m, &result);
}

static void expect_write(struct world *w, const uint8_t *data, size_t n, uint32_t mode, uint32_t flags, const char *log)
{
    w->guest.log_len = w->guest.file_len = 0;
    assert_int_equal(sandbox_write_file(w->h, "/workspace/f", data, n, mode, flags), SANDBOX_OK);
    assert_int_equal(w->guest.file_len, n);
    assert_memory_equal(w->guest.file, data, n);
    if (log != NULL)
        assert_string_equal(w->guest.log, log);
}

static void write_file_splits_into_chunks(void **state)
{
    struct world *w = *state;
    w->guest.file = malloc(FILE_MAX);
    w->guest.answer = take_file;
    uint8_t *data = make_file(FILE_MAX + 1);
    uint32_t all = SANDBOX_WRITE_APPEND | SANDBOX_WRITE_EXCL | SANDBOX_WRITE_PARENTS;
    expect_write(w, data, 0, 0, 0, "r0 ");
    expect_write(w, data, 1, 0600, SANDBOX_WRITE_EXCL, "re600 ");
    expect_write(w, data, FILE_CHUNK_MAX, 0, SANDBOX_WRITE_PARENTS, "rp0 ");
    expect_write(w, data, FILE_CHUNK_MAX + 1, 0640, SANDBOX_WRITE_PARENTS | SANDBOX_WRITE_EXCL, "rep640 a640 ");
    expect_write(w, data, 2 * FILE_CHUNK_MAX + 1, 0, all, "aep0 a0 a0 ");
    w->guest.calls = 0;
    expect_write(w, data, FILE_MAX, 0, 0, NULL);
    assert_int_equal(w->guest.calls, (FILE_MAX + FILE_CHUNK_MAX - 1) / FILE_CHUNK_MAX);
    w->guest.calls = 0;
    assert_int_equal(sandbox_write_file(w->h, "/workspace/f", data, FILE_MAX + 1, 0, 0), SANDBOX_ERR_TOO_LARGE);
    assert_int_equal(sandbox_write_file(w->h, "/workspace/f", data, 1, 0, 8), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(sandbox_write_file(w->h, "/workspace/f", NULL, 1, 0, 0), SANDBOX_ERR_INVALID_SPEC);
    assert_int_equal(w->guest.calls, 0);
    free(data);
    free(w->guest.file);
}

static void refuse_second_chunk(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    result_t result = SANDBOX__GUEST__RESULT__INIT;
    Sandbox__Guest__WriteFileResult written = SANDBOX__GUEST__WRITE_FILE_RESULT__INIT;
    result.result_case = SANDBOX__GUEST__RESULT__RESULT_WRITE_FILE;
    result.write_file = &written;
    if (g->calls == 2)
        result.status = SANDBOX__GUEST__STATUS__STATUS_IO;
    fake_guest(peer, m, &result);
}

static void write_file_stops_at_the_first_failure(void **state)
{
    struct world *w = *state;
    w->guest.answer = refuse_second_chunk;
    uint8_t *data = make_file(4 * FILE_CHUNK_MAX);
    assert_int_equal(sandbox_write_file(w->h, "/workspace/f", data, 4 * FILE_CHUNK_MAX, 0, 0), SANDBOX_ERR_GUEST_IO);
    assert_int_equal(w->guest.calls, 2);
    free(data);
}

static sandbox_error_t list_answered(struct world *w, Sandbox__Guest__DirEntry *entries, size_t n, bool truncated,
                                     sandbox_dirent_t **ret, size_t *ret_count, bool *ret_truncated)
{
    Sandbox__Guest__DirEntry *pointers[4];
    for (size_t i = 0; i < n; i++)
        pointers[i] = &entries[i];
    Sandbox__Guest__ListDirResult list = SANDBOX__GUEST__LIST_DIR_RESULT__INIT;
    list.n_entries = n;
    list.entries = pointers;
    list.truncated = truncated;
    w->guest.answer = answer_result;
    w->guest.result = (result_t)SANDBOX__GUEST__RESULT__INIT;
    w->guest.result.result_case = SANDBOX__GUEST__RESULT__RESULT_LIST_DIR;
    w->guest.result.list_dir = &list;
    return sandbox_list_dir(w->h, "/workspace", ret, ret_count, ret_truncated);
}

static Sandbox__Guest__DirEntry entry(ProtobufCBinaryData name)
{
    Sandbox__Guest__DirEntry e = SANDBOX__GUEST__DIR_ENTRY__INIT;
    e.name = name;
    return e;
}

static void list_dir_gives_one_block(void **state)
{
    struct world *w = *state;
    char longest[NAME_BYTES_MAX + 2];
    memset(longest, 'z', sizeof longest - 1);
    longest[NAME_BYTES_MAX] = '\0';
    Sandbox__Guest__DirEntry e[] = {entry(bytes("..a")), entry(bytes("a")), entry(bytes("ab\xff")), entry(bytes(longest))};
    e[1].type = 7, e[1].mode = 0100644, e[1].size = 1ull << 40, e[1].mtime = -5;
    sandbox_dirent_t *entries = NULL;
    size_t n;
    bool truncated;
    assert_int_equal(list_answered(w, e, 4, true, &entries, &n, &truncated), SANDBOX_OK);
    assert_true(n == 4 && truncated);
    assert_string_equal(entries[0].name, "..a");
    assert_string_equal(entries[2].name, "ab\xff");
    assert_string_equal(entries[3].name, longest);
    assert_true(entries[1].type == SANDBOX_FILE_BLOCK_DEVICE && entries[1].mode == 0644);
    assert_true(entries[1].size == 1ull << 40 && entries[1].mtime == -5);
    free(entries);
    assert_int_equal(list_answered(w, e, 0, false, &entries, &n, &truncated), SANDBOX_OK);
    assert_true(n == 0 && !truncated);
    free(entries);
}

static void list_dir_refuses_nonsense_of_the_guest(void **state)
{
    struct world *w = *state;
    char too_long[NAME_BYTES_MAX + 2];
    memset(too_long, 'z', sizeof too_long - 1);
    too_long[sizeof too_long - 1] = '\0';
    const ProtobufCBinaryData names[] = {
        bytes(""), bytes("."), bytes(".."), bytes("a/b"), bytes(too_long), {.data = (uint8_t *)"a\0b", .len = 3}, bytes("/")};
    sandbox_dirent_t *entries = NULL;
    size_t n = 5;
    bool truncated;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Sandbox__Guest__DirEntry e = entry(names[i]);
        assert_int_equal(list_answered(w, &e, 1, false, &entries, &n, &truncated), SANDBOX_ERR_GUEST_UNAVAILABLE);
    }
    Sandbox__Guest__DirEntry twice[] = {entry(bytes("a")), entry(bytes("a"))};
    assert_int_equal(list_answered(w, twice, 2, false, &entries, &n, &truncated), SANDBOX_ERR_GUEST_UNAVAILABLE);
    Sandbox__Guest__DirEntry disorder[] = {entry(bytes("ab")), entry(bytes("a"))};
    assert_int_equal(list_answered(w, disorder, 2, false, &entries, &n, &truncated), SANDBOX_ERR_GUEST_UNAVAILABLE);
    Sandbox__Guest__DirEntry odd = entry(bytes("a"));
    odd.type = 8;
    assert_int_equal(list_answered(w, &odd, 1, false, &entries, &n, &truncated), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_true(entries == NULL && n == 5);
}

static sandbox_error_t stat_answered(struct world *w, Sandbox__Guest__StatResult *s, sandbox_fstat_t *ret)
{
    w->guest.answer = answer_result;
    w->guest.result = (result_t)SANDBOX__GUEST__RESULT__INIT;
    w->guest.result.result_case = SANDBOX__GUEST__RESULT__RESULT_STAT;
    w->guest.result.stat = s;
    return sandbox_stat(w->h, "/workspace/f", ret);
}

static void stat_gives_what_the_guest_says(void **state)
{
    struct world *w = *state;
    Sandbox__Guest__StatResult s = SANDBOX__GUEST__STAT_RESULT__INIT;
    s.type = 3, s.mode = 0120777, s.uid = 1, s.gid = 2, s.size = 3, s.mtime = -4, s.mtime_nsec = 999999999, s.nlink = 6;
    s.inode = UINT64_MAX;
    sandbox_fstat_t st;
    assert_int_equal(stat_answered(w, &s, &st), SANDBOX_OK);
    assert_true(st.type == SANDBOX_FILE_SYMLINK && st.mode == 0777 && st.uid == 1 && st.gid == 2 && st.size == 3);
    assert_true(st.mtime == -4 && st.mtime_nsec == 999999999 && st.nlink == 6 && st.inode == UINT64_MAX);
    st.size = 77;
    s.mtime_nsec++;
    assert_int_equal(stat_answered(w, &s, &st), SANDBOX_ERR_GUEST_UNAVAILABLE);
    s.mtime_nsec = 0, s.type = 8;
    assert_int_equal(stat_answered(w, &s, &st), SANDBOX_ERR_GUEST_UNAVAILABLE);
    assert_int_equal(st.size, 77);
}

static void log_path_operation(struct fake_peer *peer, const Sandbox__ClientMessage *m, struct guest *g)
{
    static Sandbox__Guest__MkdirResult mkdir = SANDBOX__GUEST__MKDIR_RESULT__INIT;
    static Sandbox__Guest__RemoveResult remove = SANDBOX__GUEST__REMOVE_RESULT__INIT;
    result_t result = SANDBOX__GUEST__RESULT__INIT;
    result.result_case = (Sandbox__Guest__Result__ResultCase)m->guest->op_case;
    if (m->guest->op_case == SANDBOX__GUEST_REQUEST__OP_MKDIR) {
        const Sandbox__Guest__Mkdir *op = m->guest->mkdir;
        snprintf(g->log, sizeof g->log, "mkdir %.*s %o %d", (int)op->path.len, (char *)op->path.data, op->mode, op->parents);
        result.mkdir = &mkdir;
    } else {
        const Sandbox__Guest__Remove *op = m->guest->remove;
        snprintf(g->log, sizeof g->log, "remove %.*s %d", (int)op->path.len, (char *)op->path.data, op->recursive);
        result.remove = &remove;
    }
    fake_guest(peer, m, &result);
}

static void mkdir_and_remove_send_their_flags(void **state)
{
    struct world *w = *state;
    w->guest.answer = log_path_operation;
    assert_int_equal(sandbox_mkdir(w->h, "/workspace/d", 0700, true), SANDBOX_OK);
    assert_string_equal(w->guest.log, "mkdir /workspace/d 700 1");
    assert_int_equal(sandbox_mkdir(w->h, "/workspace/d", 0, false), SANDBOX_OK);
    assert_string_equal(w->guest.log, "mkdir /workspace/d 0 0");
    assert_int_equal(sandbox_remove(w->h, "/workspace/d", true), SANDBOX_OK);
    assert_string_equal(w->guest.log, "remove /workspace/d 1");
    assert_int_equal(sandbox_remove(w->h, "/workspace/d", false), SANDBOX_OK);
    assert_string_equal(w->guest.log, "remove /workspace/d 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(read_file_joins_chunks),         TEST(read_file_ends_whatever_the_guest_says),
        TEST(write_file_splits_into_chunks),  TEST(write_file_stops_at_the_first_failure),
        TEST(list_dir_gives_one_block),       TEST(list_dir_refuses_nonsense_of_the_guest),
        TEST(stat_gives_what_the_guest_says), TEST(mkdir_and_remove_send_their_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
