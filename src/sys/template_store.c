#include "sys/template_store.h"

#include "base/cleanup.h"
#include "sys/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

bool template_name_valid(const char *name)
{
    size_t n = strnlen(name, TEMPLATE_NAME_MAX + 1);
    if (n == 0 || n > TEMPLATE_NAME_MAX)
        return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!letter && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return strcmp(name, KERNELS_FOLDER) != 0;
}

static int unknown(const char *name, struct err *err)
{
    return err_set(err, -ENOENT, "there is no template \"%s\"; \"sandbox-cli template list\" shows those there are", name);
}

int template_resolve(int store_fd, const char *name, char ret_real_name[TEMPLATE_NAME_MAX + 1], struct err *err)
{
    if (!template_name_valid(name))
        return err_set(err, -EINVAL,
                       "\"%.80s\" is not a template's name: 1 to %d of a-z 0-9 . _ -, beginning with a letter or digit", name,
                       TEMPLATE_NAME_MAX);
    char target[TEMPLATE_NAME_MAX + 2];
    ssize_t n = readlinkat(store_fd, name, target, sizeof target - 1);
    if (n < 0 && errno == ENOENT)
        return unknown(name, err);
    if (n < 0 && errno != EINVAL)
        return err_set(err, -errno, "the template store cannot be read at \"%s\": %s", name, strerror(errno));
    if (n >= 0)
        target[n] = '\0';
    else
        memcpy(target, name, strlen(name) + 1);
    if (!template_name_valid(target))
        return err_set(err, -ELOOP, "the alias \"%s\" does not point at a template of its own store; remove it", name);
    struct stat st;
    if (fstatat(store_fd, target, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? unknown(target, err)
                               : err_set(err, -errno, "template \"%s\" cannot be read: %s", target, strerror(errno));
    if (S_ISLNK(st.st_mode))
        return err_set(err, -ELOOP, "the alias \"%s\" points at another alias, \"%s\"; remove it", name, target);
    if (!S_ISDIR(st.st_mode))
        return err_set(err, -ENOTDIR, "\"%s\" in the template store is not a folder", target);
    memcpy(ret_real_name, target, strlen(target) + 1);
    return 0;
}

static int open_regular(int dir_fd, const char *name, int *ret_fd, uint64_t *ret_size)
{
    // O_NONBLOCK, so that a FIFO in place of a file cannot hold the caller.
    cleanup_fd int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    *ret_size = (uint64_t)st.st_size;
    *ret_fd = take_fd(&fd);
    return 0;
}

static int read_whole(int fd, struct buf *out)
{
    for (;;) {
        uint8_t *space;
        // The room is one byte more than the file may have, so that a larger one shows.
        int r = buf_reserve(out, out->max - out->len, &space);
        if (r < 0)
            return r;
        ssize_t n = read(fd, space, out->max - out->len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return 0;
        buf_commit(out, (size_t)n);
        if (out->len == out->max)
            return -EBADMSG;
    }
}

int template_read_manifest(int dir_fd, struct manifest *ret_manifest)
{
    cleanup_fd int fd = -1;
    uint64_t size;
    int r = open_regular(dir_fd, TEMPLATE_MANIFEST_FILE, &fd, &size);
    if (r < 0)
        return r;
    cleanup_buf struct buf bytes = BUF_INIT(MANIFEST_MAX + 1);
    r = read_whole(fd, &bytes);
    if (r < 0)
        return r;
    if (bytes.len < DIGEST_LEN)
        return -EBADMSG;
    size_t body = bytes.len - DIGEST_LEN;
    uint8_t seal[DIGEST_LEN];
    r = digest_bytes(bytes.data, body, seal);
    if (r < 0)
        return r;
    if (memcmp(seal, bytes.data + body, DIGEST_LEN) != 0)
        return -EBADMSG;
    return manifest_parse(bytes.data, body, ret_manifest);
}

int template_open(int store_fd, const char *name, char ret_real_name[TEMPLATE_NAME_MAX + 1], struct manifest *ret_manifest,
                  int *ret_dir_fd, struct err *err)
{
    char real[TEMPLATE_NAME_MAX + 1];
    int r = template_resolve(store_fd, name, real, err);
    if (r < 0)
        return r;
    cleanup_fd int dir = openat(store_fd, real, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return err_set(err, -errno, "template \"%s\" cannot be opened: %s", real, strerror(errno));
    struct manifest m;
    r = template_read_manifest(dir, &m);
    if (r == -EBADMSG)
        return err_set(err, r,
                       "%s of template \"%s\" has changed since it was built, or is not a manifest; build the template again",
                       TEMPLATE_MANIFEST_FILE, real);
    if (r < 0)
        return err_set(err, r, "%s of template \"%s\" cannot be read: %s", TEMPLATE_MANIFEST_FILE, real, strerror(-r));
    memcpy(ret_real_name, real, strlen(real) + 1);
    *ret_manifest = m;
    *ret_dir_fd = take_fd(&dir);
    return 0;
}

static int changed(const struct manifest_file *file, const char *how, struct err *err)
{
    return err_set(err, -EBADMSG, "%s has changed since the template was built (%s); build the template again", file->name,
                   how);
}

static int verify_file(int dir_fd, const struct manifest_file *file, int *ret_fd, struct err *err)
{
    cleanup_fd int fd = -1;
    uint64_t size;
    int r = open_regular(dir_fd, file->name, &fd, &size);
    if (r == -ENOENT || r == -ELOOP || r == -EINVAL)
        return changed(file, r == -ENOENT ? "it is gone" : "it is no longer a regular file", err);
    if (r == 0 && size != file->size)
        return changed(file, "its size differs", err);
    uint8_t digest[DIGEST_LEN];
    if (r == 0)
        r = digest_file(fd, &size, digest);
    if (r == -ESTALE)
        return changed(file, "it is being written to", err);
    if (r < 0)
        return err_set(err, r, "%s cannot be read: %s", file->name, strerror(-r));
    if (size != file->size || memcmp(digest, file->digest, DIGEST_LEN) != 0)
        return changed(file, "its contents differ", err);
    *ret_fd = take_fd(&fd);
    return 0;
}

int template_verify(int dir_fd, const struct manifest *m, int ret_fds[MANIFEST_FILES_MAX], struct err *err)
{
    int fds[MANIFEST_FILES_MAX];
    for (size_t i = 0; i < MANIFEST_FILES_MAX; i++)
        fds[i] = -1;
    for (uint32_t i = 0; i < m->files; i++) {
        int r = verify_file(dir_fd, &m->file[i], &fds[i], err);
        if (r < 0) {
            for (uint32_t k = 0; k < i; k++)
                close_fd(&fds[k]);
            return r;
        }
    }
    memcpy(ret_fds, fds, sizeof fds);
    return 0;
}

int template_write_manifest(int dir_fd, const struct manifest *m)
{
    cleanup_buf struct buf bytes = BUF_INIT(MANIFEST_MAX);
    int r = manifest_write(m, &bytes);
    uint8_t seal[DIGEST_LEN];
    if (r == 0)
        r = digest_bytes(bytes.data, bytes.len, seal);
    if (r == 0)
        r = buf_append(&bytes, seal, sizeof seal);
    if (r < 0)
        return r;
    cleanup_fd int fd = openat(dir_fd, TEMPLATE_MANIFEST_FILE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < bytes.len;) {
        ssize_t n = write(fd, bytes.data + done, bytes.len - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            done += (size_t)n;
    }
    return fchmod(fd, 0644) < 0 || fsync(fd) < 0 ? -errno : 0;
}
