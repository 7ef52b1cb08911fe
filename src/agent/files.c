#include "agent/files.h"

#include "agent/strv.h"
#include "wire/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void target_free(struct target *t)
{
    scope_close(&t->scope);
    free(t->path);
    t->path = NULL;
}

static void refuse_scope(struct answer *a, int r)
{
    struct err e;
    if (r == -ELOOP) {
        err_set(&e, r, "/workspace has been replaced by a symbolic link, which is not followed.");
        answer_refuse(a, STATUS(DENIED), &e);
    } else {
        err_set(&e, r, "There is no /workspace in this sandbox: %s.", strerror(-r));
        answer_refuse(a, STATUS(NO_WORKSPACE), &e);
    }
}

bool target_open(struct target *t, const ProtobufCBinaryData *path, bool allow_outside, struct answer *a)
{
    t->path = text_copy(path);
    if (t->path == NULL) {
        answer_file_error(a, "look at", "the path", -ENOMEM);
        return false;
    }
    if (!path_below(t->path, allow_outside ? "" : WORKSPACE_PATH, &t->rest)) {
        answer_file_error(a, "use", t->path, -EXDEV);
        return false;
    }
    size_t n = strlen(t->rest);
    t->wants_dir = n > 0 && t->rest[n - 1] == '/';
    int r = scope_open(allow_outside, &t->scope);
    if (r < 0)
        refuse_scope(a, r);
    return r == 0;
}

uint32_t file_type(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_REGULAR;
    case S_IFDIR:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_DIRECTORY;
    case S_IFLNK:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_SYMLINK;
    case S_IFIFO:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_FIFO;
    case S_IFSOCK:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_SOCKET;
    case S_IFCHR:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_CHAR_DEVICE;
    case S_IFBLK:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_BLOCK_DEVICE;
    default:
        return SANDBOX__GUEST__FILE_TYPE__FILE_TYPE_OTHER;
    }
}

static int file_stat(const struct target *t, struct answer *a)
{
    cleanup_place struct place p = PLACE_INIT;
    int r = resolve(&t->scope, t->rest, t->wants_dir, &p);
    if (r < 0)
        return r;
    struct stat st;
    if (fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
        return -errno;
    if (t->wants_dir && !S_ISDIR(st.st_mode))
        return -ENOTDIR;
    Sandbox__Guest__StatResult *s = &a->body.stat;
    sandbox__guest__stat_result__init(s);
    s->type = file_type(st.st_mode);
    s->size = (uint64_t)st.st_size;
    s->mtime = st.st_mtim.tv_sec;
    s->mtime_nsec = (uint32_t)st.st_mtim.tv_nsec;
    s->mode = st.st_mode & 07777;
    s->uid = st.st_uid;
    s->gid = st.st_gid;
    s->inode = st.st_ino;
    s->nlink = (uint32_t)st.st_nlink;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_STAT;
    a->result.stat = s;
    return 0;
}

// mkdir -p takes what exists if it is a directory.
static int take_existing_dir(const struct target *t)
{
    cleanup_place struct place p = PLACE_INIT;
    struct stat st;
    int r = resolve(&t->scope, t->rest, true, &p);
    if (r < 0)
        return r;
    if (fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? 0 : -EEXIST;
}

static int file_mkdir(const Sandbox__Guest__Mkdir *request, const struct target *t, struct answer *a)
{
    cleanup_place struct place p = PLACE_INIT;
    int r = request->parents ? resolve_make_parents(&t->scope, t->rest) : 0;
    if (r == 0)
        r = resolve(&t->scope, t->rest, false, &p);
    if (r < 0)
        return r;
    // The asked-for mode is meant as it is; only the default goes through nothing either, so the mask is out of the way.
    mode_t mask = umask(0);
    r = p.name[0] == '\0' ? -EEXIST : mkdirat(p.dir, p.name, request->mode != 0 ? request->mode : 0755) < 0 ? -errno : 0;
    umask(mask);
    if (r == -EEXIST && request->parents)
        r = take_existing_dir(t);
    if (r < 0)
        return r;
    sandbox__guest__mkdir_result__init(&a->body.mkdir);
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_MKDIR;
    a->result.mkdir = &a->body.mkdir;
    return 0;
}

// What an operation is called in messages, and its path.
static const char *describe(const Sandbox__Agent__Request *request, const ProtobufCBinaryData **ret_path)
{
    switch (request->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_READ_FILE:
        *ret_path = &request->read_file->path;
        return "read";
    case SANDBOX__AGENT__REQUEST__OP_WRITE_FILE:
        *ret_path = &request->write_file->path;
        return "write";
    case SANDBOX__AGENT__REQUEST__OP_LIST_DIR:
        *ret_path = &request->list_dir->path;
        return "list";
    case SANDBOX__AGENT__REQUEST__OP_MKDIR:
        *ret_path = &request->mkdir->path;
        return "make directory";
    default:
        *ret_path = &request->stat->path;
        return "look at";
    }
}

static int run(const Sandbox__Agent__Request *request, const struct target *t, struct answer *a)
{
    switch (request->op_case) {
    case SANDBOX__AGENT__REQUEST__OP_READ_FILE:
        return file_read(request->read_file, t, a);
    case SANDBOX__AGENT__REQUEST__OP_WRITE_FILE:
        return file_write(request->write_file, t, a);
    case SANDBOX__AGENT__REQUEST__OP_LIST_DIR:
        return file_list(request->list_dir, t, a);
    case SANDBOX__AGENT__REQUEST__OP_MKDIR:
        return file_mkdir(request->mkdir, t, a);
    default:
        return file_stat(t, a);
    }
}

void files_run(const Sandbox__Agent__Request *request, struct answer *a)
{
    const ProtobufCBinaryData *path;
    const char *verb = describe(request, &path);
    cleanup_target struct target t = TARGET_INIT;
    if (!target_open(&t, path, request->allow_outside, a))
        return;
    int r = run(request, &t, a);
    if (r < 0)
        answer_file_error(a, verb, t.path, r);
}
