// write_file: a whole file at once (temporary file and rename, so that a reader sees the old bytes or the new ones), or bytes
// at the end of one.
#include "agent/file_open.h"
#include "agent/files.h"
#include "base/id.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MODE_DEFAULT = 0644 };

struct temporary {
    int dir;  // not owned
    int fd;
    char name[48];  // empty once it has its final name
};

static void temporary_end(struct temporary *t)
{
    close_fd(&t->fd);
    if (t->name[0] != '\0')
        unlinkat(t->dir, t->name, 0);
}

#define cleanup_temporary __attribute__((cleanup(temporary_end)))

static int temporary_make(int dir, struct temporary *t)
{
    char random[25];
    int r = random_hex(random, sizeof random - 1);
    if (r < 0)
        return r;
    char name[sizeof t->name];
    snprintf(name, sizeof name, ".sandbox-write-%s", random);
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    t->dir = dir;
    t->fd = fd;
    memcpy(t->name, name, sizeof name);
    return 0;
}

static int write_all(int fd, const ProtobufCBinaryData *data)
{
    for (size_t done = 0; done < data->len;) {
        ssize_t n = write(fd, data->data + done, data->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
    }
    return 0;
}

static int rename_no_replace(const struct temporary *t, const char *name)
{
    if (syscall(SYS_renameat2, t->dir, t->name, t->dir, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    if (linkat(t->dir, t->name, t->dir, name, 0) < 0)
        return -errno;
    unlinkat(t->dir, t->name, 0);
    return 0;
}

// What is at the place now: 0 with *ret_old, -ENOENT, or why it cannot be replaced.
static int look(const struct place *p, struct stat *ret_old)
{
    if (p->name[0] == '\0')
        return -EISDIR;
    if (fstatat(p->dir, p->name, ret_old, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return S_ISREG(ret_old->st_mode) ? 0 : S_ISDIR(ret_old->st_mode) ? -EISDIR : -EMEDIUMTYPE;
}

// A replaced file keeps its owner, and its mode unless another one was asked for.
static int dress(int fd, uint32_t mode, const struct stat *old)
{
    if (old != NULL && fchown(fd, old->st_uid, old->st_gid) < 0 && errno != EPERM && errno != EINVAL)
        return -errno;
    mode_t bits = mode != 0 ? mode : old != NULL ? old->st_mode & 07777 : MODE_DEFAULT;
    return fchmod(fd, bits) < 0 ? -errno : 0;
}

static int replace(const Sandbox__Guest__WriteFile *request, const struct place *p, uint64_t *ret_size)
{
    struct stat old;
    int found = look(p, &old);
    if (request->exclusive && (found == 0 || found == -EISDIR || found == -EMEDIUMTYPE))
        return -EEXIST;
    if (found < 0 && found != -ENOENT)
        return found;
    cleanup_temporary struct temporary t = {.fd = -1};
    int r = temporary_make(p->dir, &t);
    if (r == 0)
        r = write_all(t.fd, &request->data);
    if (r == 0)
        r = dress(t.fd, request->mode, found == 0 ? &old : NULL);
    if (r == 0 && request->exclusive)
        r = rename_no_replace(&t, p->name);
    else if (r == 0)
        r = renameat(t.dir, t.name, t.dir, p->name) < 0 ? -errno : 0;
    if (r < 0)
        return r;
    t.name[0] = '\0';
    *ret_size = request->data.len;
    return 0;
}

// Opens for appending: a new file with the right mode, or an existing regular one.
static int open_for_append(const Sandbox__Guest__WriteFile *request, const struct place *p)
{
    cleanup_fd int fd = openat(p->dir, p->name, O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        int r = dress(fd, request->mode, NULL);
        return r < 0 ? r : take_fd(&fd);
    }
    if (errno != EEXIST || request->exclusive)
        return -errno;
    struct stat st;
    return file_open_regular(p, O_WRONLY | O_APPEND, &st);
}

static int append(const Sandbox__Guest__WriteFile *request, const struct place *p, uint64_t *ret_size)
{
    if (p->name[0] == '\0')
        return -EISDIR;
    cleanup_fd int fd = open_for_append(request, p);
    if (fd < 0)
        return fd;
    int r = write_all(fd, &request->data);
    struct stat st;
    if (r == 0 && fstat(fd, &st) < 0)
        r = -errno;
    if (r == 0)
        *ret_size = (uint64_t)st.st_size;
    return r;
}

int file_write(const Sandbox__Guest__WriteFile *request, const struct target *t, struct answer *a)
{
    if (t->wants_dir)
        return -EISDIR;
    int r = request->parents ? resolve_make_parents(&t->scope, t->rest) : 0;
    cleanup_place struct place p = PLACE_INIT;
    // An exclusive write makes a new file: a link in its place, wherever it leads, is something that exists.
    if (r == 0)
        r = resolve(&t->scope, t->rest, !request->exclusive, &p);
    Sandbox__Guest__WriteFileResult *result = &a->body.write_file;
    sandbox__guest__write_file_result__init(result);
    if (r == 0)
        r = request->append ? append(request, &p, &result->file_size) : replace(request, &p, &result->file_size);
    if (r < 0)
        return r;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_WRITE_FILE;
    a->result.write_file = result;
    return 0;
}
