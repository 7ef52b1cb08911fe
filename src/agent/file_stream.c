// One file of any size, out and in.
#include "agent/job.h"
#include "agent/strv.h"
#include "base/cleanup.h"
#include "base/id.h"
#include "wire/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 64 * 1024, TEMPORARY_HEX = 16 };

// Opens without waiting (a FIFO), and gives back what is a regular file only.
static int open_regular(const char *path, int flags, mode_t mode, struct stat *ret_stat)
{
    cleanup_fd int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    if (fstat(fd, ret_stat) < 0)
        return -errno;
    if (S_ISDIR(ret_stat->st_mode))
        return -EISDIR;
    return S_ISREG(ret_stat->st_mode) ? take_fd(&fd) : -EMEDIUMTYPE;
}

static int copy(int from, int to, uint64_t *bytes)
{
    static uint8_t piece[PIECE];
    for (;;) {
        ssize_t n = read_some(from, piece, sizeof piece);
        if (n <= 0)
            return (int)n;
        int r = write_fully(to, piece, (size_t)n);
        if (r < 0)
            return r;
        *bytes += (uint64_t)n;
    }
}

static void fill(struct answer *a, uint64_t bytes)
{
    sandbox__guest__transfer_result__init(&a->body.transfer);
    a->body.transfer.entries = 1;
    a->body.transfer.bytes = bytes;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    a->result.transfer = &a->body.transfer;
}

void read_stream_run(const Sandbox__Guest__ReadStream *request, struct answer *a)
{
    cleanup_free char *path = text_copy(&request->path);
    struct stat st;
    uint64_t bytes = 0;
    cleanup_fd int fd = path != NULL ? open_regular(path, O_RDONLY, 0, &st) : -ENOMEM;
    int r = fd < 0 ? fd : 0;
    if (r == 0 && request->offset > 0 && lseek(fd, (off_t)request->offset, SEEK_SET) < 0)
        r = -errno;
    if (r == 0)
        r = copy(fd, STDOUT_FILENO, &bytes);
    if (r < 0)
        answer_file_error(a, "read", path != NULL ? path : "", r);
    else
        fill(a, bytes);
}

static int make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        int r = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
        *slash = '/';
        if (r < 0)
            return r;
    }
    return 0;
}

static int append_to(const Sandbox__Guest__WriteStream *request, const char *path, mode_t mode, uint64_t *bytes)
{
    struct stat st;
    int flags = O_WRONLY | O_APPEND | O_CREAT | (request->exclusive ? O_EXCL : 0);
    cleanup_fd int fd = open_regular(path, flags, mode, &st);
    return fd < 0 ? fd : copy(STDIN_FILENO, fd, bytes);
}

// What is in the way of the new file, which takes its permission bits from it.
static int look_at_old(const char *path, bool exclusive, mode_t *mode)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (exclusive)
        return -EEXIST;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (!S_ISREG(st.st_mode))
        return -EMEDIUMTYPE;
    *mode = st.st_mode & 07777;
    return 0;
}

// A new file that takes the old one's place when all has come, so that nobody ever sees a part of it.
struct replacement {
    const char *final;
    int fd;
    bool nameless;                       // until it is whole; then nothing is left of one that is broken off
    char temporary[PATH_BYTES_MAX + 1];  // beside the final one
};

static int open_new(struct replacement *n)
{
    char hex[TEMPORARY_HEX + 1];
    int r = random_hex(hex, TEMPORARY_HEX);
    int folder = (int)(strrchr(n->final, '/') + 1 - n->final);
    int len = snprintf(n->temporary, sizeof n->temporary, "%.*s.sandbox-%s", folder, n->final, hex);
    if (r < 0 || len < 0 || (size_t)len >= sizeof n->temporary)
        return r < 0 ? r : -ENAMETOOLONG;
    char dir[PATH_BYTES_MAX + 1];
    snprintf(dir, sizeof dir, "%.*s", folder, n->final);
    n->fd = open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    n->nameless = n->fd >= 0;
    if (n->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
        n->fd = open(n->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return n->fd < 0 ? -errno : 0;
}

static int name_it(struct replacement *n)
{
    char self[48];
    snprintf(self, sizeof self, "/proc/self/fd/%d", n->fd);
    if (n->nameless && linkat(AT_FDCWD, self, AT_FDCWD, n->temporary, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    n->nameless = false;
    return 0;
}

static int put_in_place(struct replacement *n, bool exclusive)
{
    int r = name_it(n);
    if (r < 0)
        return r;
    if (exclusive)
        return link(n->temporary, n->final) < 0 ? -errno : 0;
    return rename(n->temporary, n->final) < 0 ? -errno : 0;
}

static int replace(const Sandbox__Guest__WriteStream *request, const char *path, mode_t mode, uint64_t *bytes)
{
    int r = look_at_old(path, request->exclusive, &mode);
    if (r < 0)
        return r;
    // A link's target is replaced, not the link.
    cleanup_free char *real = realpath(path, NULL);
    static struct replacement n;
    n = (struct replacement){.final = real != NULL ? real : path, .fd = -1};
    r = open_new(&n);
    if (r < 0)
        return r;
    r = copy(STDIN_FILENO, n.fd, bytes);
    if (r == 0 && fchmod(n.fd, mode) < 0)
        r = -errno;
    if (r == 0)
        r = put_in_place(&n, request->exclusive);
    if (!n.nameless && (r < 0 || request->exclusive))
        unlink(n.temporary);
    close_fd(&n.fd);
    return r;
}

void write_stream_run(const Sandbox__Guest__WriteStream *request, struct answer *a)
{
    cleanup_free char *path = text_copy(&request->path);
    mode_t mode = request->mode != 0 ? request->mode : 0644;
    uint64_t bytes = 0;
    int r = path == NULL ? -ENOMEM : request->parents ? make_parents(path) : 0;
    if (r == 0)
        r = request->append ? append_to(request, path, mode, &bytes) : replace(request, path, mode, &bytes);
    if (r < 0)
        answer_file_error(a, "write", path != NULL ? path : "", r);
    else
        fill(a, bytes);
}
