// stat, ls, mkdir and DELETE: one exchange with the sandbox each.
#include "api/file_op.h"
#include "api/json_in.h"
#include "base/base64.h"
#include "base/json_out.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { LISTING_BYTES_MAX = 4 * 1024 * 1024 };

static const char *type_name(uint32_t type)
{
    static const char *const names[] = {[SANDBOX_FILE_OTHER] = "other",
                                        [SANDBOX_FILE_REGULAR] = "file",
                                        [SANDBOX_FILE_DIRECTORY] = "directory",
                                        [SANDBOX_FILE_SYMLINK] = "symlink",
                                        [SANDBOX_FILE_FIFO] = "fifo",
                                        [SANDBOX_FILE_SOCKET] = "socket",
                                        [SANDBOX_FILE_CHAR_DEVICE] = "char_device",
                                        [SANDBOX_FILE_BLOCK_DEVICE] = "block_device"};
    return type < sizeof names / sizeof names[0] ? names[type] : "other";
}

static void put_mode(struct json_out *j, uint32_t mode)
{
    char text[16];
    snprintf(text, sizeof text, "%04o", mode & 07777);
    json_str(j, "mode", text);
}

// Reads `path` and what else there is, and begins.
static bool read_path(struct call *call, struct file_op *op, struct query_param *more)
{
    struct query_param params[2] = {{.name = "path", .value = op->path, .size = sizeof op->path, .required = true}};
    if (more != NULL)
        params[1] = *more;
    bool good = query_read(call, params, more != NULL ? 2 : 1);
    if (more != NULL)
        more->present = params[1].present;
    return good;
}

// ---- stat ----

struct stat_op {
    struct file_op op;  // first
    sandbox_fstat_t stat;
};

static sandbox_error_t run_stat(struct file_op *op)
{
    return sandbox_stat(op->handle, op->path, &((struct stat_op *)op)->stat);
}

static void done_stat(struct file_op *op)
{
    const sandbox_fstat_t *st = &((struct stat_op *)op)->stat;
    if (op->error != SANDBOX_OK) {
        file_op_fail(op);
        return;
    }
    cleanup_buf struct buf out = BUF_INIT(64 * 1024);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_str(&j, "path", op->path);
    json_str(&j, "type", type_name(st->type));
    put_mode(&j, st->mode);
    json_u64(&j, "size", st->size);
    json_i64(&j, "mtime", st->mtime);
    json_u64(&j, "uid", st->uid);
    json_u64(&j, "gid", st->gid);
    json_u64(&j, "nlink", st->nlink);
    json_close(&j, '}');
    struct call *call = file_op_take_call(op);
    file_op_free(op);
    if (call != NULL)
        reply_json(call, 200, &out);
}

void op_stat(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s;
    struct stat_op *o = file_op_new(call, sizeof *o, run_stat, done_stat, &s);
    if (o == NULL)
        return;
    if (read_path(call, &o->op, NULL))
        file_op_begin(&o->op, call, s);
    else
        free(o);
}

// ---- ls ----

struct ls_op {
    struct file_op op;  // first
    sandbox_dirent_t *entries;
    size_t count;
    bool truncated;
};

static sandbox_error_t run_ls(struct file_op *op)
{
    struct ls_op *o = (struct ls_op *)op;
    return sandbox_list_dir(op->handle, op->path, &o->entries, &o->count, &o->truncated);
}

static void discard_ls(struct file_op *op)
{
    free(((struct ls_op *)op)->entries);
}

static void put_entry(struct json_out *j, const sandbox_dirent_t *e)
{
    size_t n = strlen(e->name);
    json_open(j, NULL, '{');
    json_bytes(j, "name", e->name, n);
    if (!utf8_valid((const uint8_t *)e->name, n)) {  // the text above is not the name
        char text[512];
        base64_encode(e->name, n < 255 ? n : 255, text);
        json_bytes(j, "name_base64", text, base64_length(n < 255 ? n : 255));
    }
    json_str(j, "type", type_name(e->type));
    put_mode(j, e->mode);
    json_u64(j, "size", e->size);
    json_i64(j, "mtime", e->mtime);
    json_close(j, '}');
}

static void done_ls(struct file_op *op)
{
    struct ls_op *o = (struct ls_op *)op;
    if (op->error != SANDBOX_OK) {
        file_op_fail(op);
        return;
    }
    cleanup_buf struct buf out = BUF_INIT(LISTING_BYTES_MAX);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_str(&j, "path", op->path);
    json_open(&j, "entries", '[');
    for (size_t i = 0; i < o->count; i++)
        put_entry(&j, &o->entries[i]);
    json_close(&j, ']');
    json_bool(&j, "truncated", o->truncated);
    json_close(&j, '}');
    struct call *call = file_op_take_call(op);
    free(o->entries);
    file_op_free(op);
    if (call != NULL)
        reply_json(call, 200, &out);
}

void op_ls(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s;
    struct ls_op *o = file_op_new(call, sizeof *o, run_ls, done_ls, &s);
    if (o == NULL)
        return;
    o->op.discard = discard_ls;
    if (read_path(call, &o->op, NULL))
        file_op_begin(&o->op, call, s);
    else
        free(o);
}

// ---- mkdir, DELETE ----

struct change_op {
    struct file_op op;  // first
    bool flag;          // parents, recursive
    bool made;
};

static sandbox_error_t run_mkdir(struct file_op *op)
{
    return sandbox_mkdir(op->handle, op->path, 0, ((struct change_op *)op)->flag);
}

static sandbox_error_t run_remove(struct file_op *op)
{
    return sandbox_remove(op->handle, op->path, ((struct change_op *)op)->flag);
}

static void done_change(struct file_op *op)
{
    if (op->error != SANDBOX_OK) {
        file_op_fail(op);
        return;
    }
    struct call *call = file_op_take_call(op);
    file_op_free(op);
    if (call != NULL)
        reply_empty(call, 204);
}

void op_file_delete(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    struct session *s;
    struct change_op *o = file_op_new(call, sizeof *o, run_remove, done_change, &s);
    if (o == NULL)
        return;
    char flag[8] = "";
    struct query_param recursive = {.name = "recursive", .value = flag, .size = sizeof flag};
    if (read_path(call, &o->op, &recursive) && query_flag(call, &recursive, &o->flag))
        file_op_begin(&o->op, call, s);
    else
        free(o);
}

void op_mkdir(struct call *call, const char *body, size_t n)
{
    struct session *s;
    struct err err;
    cleanup_json_in struct json_in in = {0};
    struct change_op *o = file_op_new(call, sizeof *o, run_mkdir, done_change, &s);
    if (o == NULL)
        return;
    if (!query_read(call, NULL, 0)) {
        free(o);
        return;
    }
    int r = json_in_open(&in, body, n, &err);
    if (r == 0) {
        const char *path = json_in_text(&in, "path", PATH_PARAM_MAX);
        if (path == NULL)
            json_in_fault(&in, "path is missing");
        else if (in.error == 0)
            snprintf(o->op.path, sizeof o->op.path, "%s", path);
        o->flag = json_in_flag(&in, "parents");
        r = json_in_close(&in, &err);
    }
    if (r < 0) {
        free(o);
        reply_error(call, 400, "invalid_argument", "%s", err.text);
        return;
    }
    file_op_begin(&o->op, call, s);
}
