// sandbox-api new-token, token list, token revoke: what writes the tokens file.
//
// A change is a new file that takes the old one's place, with its owner and mode, so that a server that reads it meanwhile sees
// the one or the other.
#include "api/tokens.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "sys/digest.h"
#include "wire/ini.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static int check_name(const char *name, struct err *err)
{
    size_t n = strlen(name);
    if (n == 0 || n > PRINCIPAL_NAME_MAX ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != n)
        return err_set(err, -EINVAL, "\"%.80s\" is no name of a token: 1 to %d letters, digits, _ . -", name,
                       PRINCIPAL_NAME_MAX);
    return 0;
}

static int read_old(const char *path, struct buf *text, struct stat *st, struct err *err)
{
    cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, st) < 0)
        return err_set(err, -errno, "%.200s cannot be opened: %s", path, strerror(errno));
    for (;;) {
        uint8_t *space;
        if (buf_reserve(text, 4096, &space) < 0)
            return err_set(err, -EFBIG, "%.200s is longer than %d bytes", path, INI_FILE_MAX);
        ssize_t n = read(fd, space, 4096);
        if (n <= 0)
            return n < 0 ? err_set(err, -errno, "%.200s cannot be read: %s", path, strerror(errno)) : 0;
        buf_commit(text, (size_t)n);
    }
}

static int write_new(const char *path, const struct buf *text, const struct stat *old, struct err *err)
{
    cleanup_buf struct buf name = BUF_INIT(4096);
    char hex[17];
    if (random_hex(hex, 16) < 0 || buf_printf(&name, "%s.%s", path, hex) < 0)
        return err_set(err, -ENOMEM, "no memory");
    const char *temporary = buf_text(&name);
    cleanup_fd int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write(fd, text->data, text->len) == (ssize_t)text->len;
    if (good && old != NULL)
        good = fchown(fd, old->st_uid, old->st_gid) == 0 && fchmod(fd, old->st_mode & 07777) == 0;
    if (!good || fsync(fd) < 0 || rename(temporary, path) < 0) {
        int saved = errno;
        unlink(temporary);
        return err_set(err, -saved, "%.200s cannot be written: %s", path, strerror(saved));
    }
    return 0;
}

static int add_entry(const char *path, const char *name, const char *entry, struct err *err)
{
    cleanup_buf struct buf text = BUF_INIT(INI_FILE_MAX);
    struct stat st;
    bool there = access(path, F_OK) == 0;
    if (there) {
        struct tokens *t;
        int r = tokens_new(path, &t, err);
        if (r < 0)
            return r;
        tokens_free(t);
        r = read_old(path, &text, &st, err);
        if (r < 0)
            return r;
    }
    cleanup_buf struct buf section = BUF_INIT(128);
    buf_printf(&section, "[%s]\n", name);
    const char *old = buf_text(&text);
    const char *found = old != NULL ? strstr(old, buf_text(&section)) : NULL;
    if (found != NULL && (found == old || found[-1] == '\n'))
        return err_set(err, -EEXIST, "%.200s has an entry [%s] already; revoke it first", path, name);
    if (text.len > 0)
        buf_append_text(&text, text.data[text.len - 1] == '\n' ? "\n" : "\n\n");
    if (buf_append_text(&text, entry) < 0)
        return err_set(err, -EFBIG, "%.200s would be longer than %d bytes", path, INI_FILE_MAX);
    return write_new(path, &text, there ? &st : NULL, err);
}

int tokens_command_new(const char *path, const char *name, struct err *err)
{
    uint8_t secret[TOKEN_SECRET_BYTES], digest[DIGEST_LEN];
    char token[TOKEN_TEXT_MAX + 1] = TOKEN_PREFIX, hex[2 * DIGEST_LEN + 1];
    int r = check_name(name, err);
    if (r < 0)
        return r;
    if (random_bytes(secret, sizeof secret) < 0)
        return err_set(err, -EIO, "there is no randomness");
    hex_encode(secret, sizeof secret, token + strlen(TOKEN_PREFIX));
    if (digest_bytes(token, strlen(token), digest) < 0)
        return err_set(err, -ENOMEM, "no memory");
    hex_encode(digest, sizeof digest, hex);
    cleanup_buf struct buf entry = BUF_INIT(512);
    buf_printf(&entry, "[%s]\ntoken_sha256 = %s\n", name, hex);
    if (path[0] != '\0')
        r = add_entry(path, name, buf_text(&entry), err);
    if (r < 0)
        return r;
    printf("token (shown once, keep it): %s\n\n", token);
    if (path[0] != '\0')
        printf("added to %s:\n\n%s", path, buf_text(&entry));
    else
        printf("for the tokens file:\n\n%s", buf_text(&entry));
    explicit_bzero(token, sizeof token);
    explicit_bzero(secret, sizeof secret);
    return 0;
}

int tokens_command_list(const char *path, FILE *out, struct err *err)
{
    struct tokens *t;
    int r = tokens_new(path, &t, err);
    if (r == 0)
        tokens_print(t, out);
    if (r == 0)
        tokens_free(t);
    return r;
}

// Leaves out the lines from [name] to the next section.
static bool leave_out(const char *old, const char *name, struct buf *text)
{
    size_t n = strlen(name);
    bool out = false, found = false;
    for (const char *line = old; *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t len = end != NULL ? (size_t)(end - line) + 1 : strlen(line);
        size_t blank = strspn(line, " \t");
        if (line[blank] == '[') {
            out = strncmp(line + blank + 1, name, n) == 0 && line[blank + 1 + n] == ']';
            found = found || out;
        }
        if (!out)
            buf_append(text, line, len);
        line += len;
    }
    return found;
}

int tokens_command_revoke(const char *path, const char *name, struct err *err)
{
    cleanup_buf struct buf old = BUF_INIT(INI_FILE_MAX), text = BUF_INIT(INI_FILE_MAX);
    struct stat st;
    int r = check_name(name, err);
    if (r == 0)
        r = read_old(path, &old, &st, err);
    if (r < 0)
        return r;
    if (buf_text(&old) == NULL || !leave_out(buf_text(&old), name, &text))
        return err_set(err, -ENOENT, "%.200s has no entry [%s]", path, name);
    if (buf_error(&text) < 0)
        return err_set(err, -ENOMEM, "no memory");
    return write_new(path, &text, &st, err);
}
