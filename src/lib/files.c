// Whole files in chunks of 48 KiB, and the single-message operations on paths.
#include "base/cleanup.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/guest.h"
#include "wire/pb.h"

enum { MODE_BITS = 07777 };

_Static_assert(SANDBOX_MAX_FILE == FILE_MAX, "the header promises what the wire allows");

// ---- Reading -------------------------------------------------------------------------------------------------------

struct reading {
    uint8_t *data;
    size_t len, allocated;
};

static sandbox_error_t too_large(void)
{
    return fail(SANDBOX_ERR_TOO_LARGE, "the file has more than %d bytes, the most that is read at once", FILE_MAX);
}

// Room for `n` more bytes and a NUL; `expected` is what the guest says the file has, a hint only.
static sandbox_error_t make_room(struct reading *in, size_t n, uint64_t expected)
{
    size_t need = in->len + n + 1;
    if (in->data != NULL && need <= in->allocated)
        return SANDBOX_OK;
    size_t size = in->allocated * 2;
    if (size < need)
        size = need;
    if (expected < FILE_MAX && size < expected + 1)
        size = (size_t)expected + 1;
    uint8_t *grown = realloc(in->data, size);
    if (grown == NULL)
        return fail_memory();
    in->data = grown;
    in->allocated = size;
    return SANDBOX_OK;
}

static sandbox_error_t take_chunk(const Sandbox__Guest__ReadFileResult *chunk, struct reading *in)
{
    if (chunk->data.len > FILE_CHUNK_MAX)
        return guest_nonsense("a chunk longer than was asked for");
    if (chunk->truncated && chunk->data.len == 0)
        return guest_nonsense("more to come, but nothing now");
    if (in->len + chunk->data.len > FILE_MAX || (chunk->truncated && in->len + chunk->data.len == FILE_MAX))
        return too_large();
    sandbox_error_t r = make_room(in, chunk->data.len, chunk->file_size);
    if (r != SANDBOX_OK)
        return r;
    if (chunk->data.len > 0)
        memcpy(in->data + in->len, chunk->data.data, chunk->data.len);
    in->len += chunk->data.len;
    in->data[in->len] = '\0';
    return SANDBOX_OK;
}

static sandbox_error_t read_chunk(sandbox_handle_t *handle, const char *path, struct reading *in, bool *ret_more)
{
    Sandbox__Guest__ReadFile read = SANDBOX__GUEST__READ_FILE__INIT;
    read.path = bytes_of_text(path);
    read.offset = in->len;
    read.max_bytes = FILE_CHUNK_MAX;
    DEFINE_OPERATION(op, READ_FILE, read_file, &read);
    Sandbox__Guest__Result *result = NULL;
    sandbox_error_t r = guest_call(handle, &op, &result);
    if (r != SANDBOX_OK)
        return r;
    bool first = in->len == 0;
    const Sandbox__Guest__ReadFileResult *chunk = result->read_file;
    // A file that is plainly too large is refused before megabytes of it have come over.
    r = first && chunk->truncated && chunk->file_size > FILE_MAX ? too_large() : take_chunk(chunk, in);
    if (r == SANDBOX_OK)
        *ret_more = chunk->truncated;
    pb_free(result);
    return r;
}

sandbox_error_t sandbox_read_file(sandbox_handle_t *handle, const char *path, uint8_t **data, size_t *len)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    if (data == NULL || len == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", data == NULL ? "data" : "len");
    struct reading in = {0};
    for (bool more = true; more && r == SANDBOX_OK;)
        r = read_chunk(handle, path, &in, &more);
    if (r != SANDBOX_OK) {
        free(in.data);
        return r;
    }
    *data = in.data;
    *len = in.len;
    return SANDBOX_OK;
}

// ---- Writing -------------------------------------------------------------------------------------------------------

static sandbox_error_t write_chunk(sandbox_handle_t *handle, Sandbox__Guest__WriteFile *chunk)
{
    DEFINE_OPERATION(op, WRITE_FILE, write_file, chunk);
    Sandbox__Guest__Result *result = NULL;
    sandbox_error_t r = guest_call(handle, &op, &result);
    pb_free(result);
    return r;
}

sandbox_error_t sandbox_write_file(sandbox_handle_t *handle, const char *path, const uint8_t *data, size_t len, uint32_t mode,
                                   uint32_t flags)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    if (data == NULL && len > 0)
        return fail(SANDBOX_ERR_INVALID_SPEC, "data is NULL, but len is %zu", len);
    if ((flags & ~(SANDBOX_WRITE_APPEND | SANDBOX_WRITE_EXCL | SANDBOX_WRITE_PARENTS)) != 0)
        return fail(SANDBOX_ERR_INVALID_SPEC, "flags 0x%x has bits that are not SANDBOX_WRITE_*", flags);
    if (len > SANDBOX_MAX_FILE)
        return fail(SANDBOX_ERR_TOO_LARGE, "%zu bytes are more than the limit of %u for one file", len, SANDBOX_MAX_FILE);
    Sandbox__Guest__WriteFile chunk = SANDBOX__GUEST__WRITE_FILE__INIT;
    chunk.path = bytes_of_text(path);
    chunk.mode = mode;
    chunk.append = (flags & SANDBOX_WRITE_APPEND) != 0;
    chunk.exclusive = (flags & SANDBOX_WRITE_EXCL) != 0;
    chunk.parents = (flags & SANDBOX_WRITE_PARENTS) != 0;
    size_t done = 0;
    do {
        size_t n = len - done < FILE_CHUNK_MAX ? len - done : FILE_CHUNK_MAX;
        chunk.data = bytes_of(n > 0 ? data + done : NULL, n);
        r = write_chunk(handle, &chunk);
        done += n;
        // The file is there now, and what follows belongs behind it.
        chunk.append = true;
        chunk.exclusive = chunk.parents = false;
    } while (r == SANDBOX_OK && done < len);
    return r;
}

// ---- Paths ---------------------------------------------------------------------------------------------------------

static sandbox_error_t take_stat(const Sandbox__Guest__StatResult *s, sandbox_fstat_t *out_stat)
{
    if (s->type > SANDBOX_FILE_BLOCK_DEVICE)
        return guest_nonsense("no such file type");
    if (s->mtime_nsec >= 1000000000)
        return guest_nonsense("no such time");
    *out_stat = (sandbox_fstat_t){.type = s->type,
                                  .mode = s->mode & MODE_BITS,
                                  .uid = s->uid,
                                  .gid = s->gid,
                                  .size = s->size,
                                  .mtime = s->mtime,
                                  .mtime_nsec = s->mtime_nsec,
                                  .nlink = s->nlink,
                                  .inode = s->inode};
    return SANDBOX_OK;
}

sandbox_error_t sandbox_stat(sandbox_handle_t *handle, const char *path, sandbox_fstat_t *out_stat)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    if (out_stat == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "out_stat is NULL");
    Sandbox__Guest__Stat stat = SANDBOX__GUEST__STAT__INIT;
    stat.path = bytes_of_text(path);
    DEFINE_OPERATION(op, STAT, stat, &stat);
    Sandbox__Guest__Result *result = NULL;
    r = guest_call(handle, &op, &result);
    if (r == SANDBOX_OK)
        r = take_stat(result->stat, out_stat);
    pb_free(result);
    return r;
}

sandbox_error_t sandbox_mkdir(sandbox_handle_t *handle, const char *path, uint32_t mode, bool parents)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__Mkdir mkdir = SANDBOX__GUEST__MKDIR__INIT;
    mkdir.path = bytes_of_text(path);
    mkdir.mode = mode;
    mkdir.parents = parents;
    DEFINE_OPERATION(op, MKDIR, mkdir, &mkdir);
    Sandbox__Guest__Result *result = NULL;
    r = guest_call(handle, &op, &result);
    pb_free(result);
    return r;
}

sandbox_error_t sandbox_remove(sandbox_handle_t *handle, const char *path, bool recursive)
{
    sandbox_error_t r = guest_check_path(handle, path);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__Remove remove = SANDBOX__GUEST__REMOVE__INIT;
    remove.path = bytes_of_text(path);
    remove.recursive = recursive;
    DEFINE_OPERATION(op, REMOVE, remove, &remove);
    Sandbox__Guest__Result *result = NULL;
    r = guest_call(handle, &op, &result);
    pb_free(result);
    return r;
}
