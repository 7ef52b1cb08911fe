// One file of any size, out and in.
#include "agent/file_open.h"
#include "agent/files.h"
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
static int open_regular(int dir, const char *path, int flags, mode_t mode, struct stat *ret_stat)
{
    cleanup_fd int fd = openat(dir, path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    if (fstat(fd, ret_stat) < 0)
        return -errno;
    if (S_ISDIR(ret_stat->st_mode))
        return -EISDIR;
    return S_ISREG(ret_stat->st_mode) ? take_fd(&fd) : -EMEDIUMTYPE;
}

// At most `most` bytes.
static int copy(int from, int to, uint64_t most, uint64_t *bytes)
{
    static uint8_t piece[PIECE];
    while (*bytes < most) {
        uint64_t left = most - *bytes;
        ssize_t n = read_some(from, piece, left < sizeof piece ? (size_t)left : sizeof piece);
        if (n <= 0)
            return (int)n;
        int r = write_fully(to, piece, (size_t)n);
        if (r < 0)
            return r;
        *bytes += (uint64_t)n;
    }
    return 0;
}

static void fill(struct answer *a, uint64_t bytes)
{
    sandbox__guest__transfer_result__init(&a->body.transfer);
    a->body.transfer.entries = 1;
    a->body.transfer.bytes = bytes;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    a->result.transfer = &a->body.transfer;
}

// ---- out ----

// What a confined request may reach is found step by step (resolve.h).  A descriptor, a negative errno, or 0 with `a` refused.
static int open_confined(const Sandbox__Guest__ReadStream *request, struct stat *ret_stat, struct answer *a)
{
    cleanup_target struct target t = TARGET_INIT;
    cleanup_place struct place p = PLACE_INIT;
    if (!target_open(&t, &request->path, false, a))
        return 0;
    int r = t.wants_dir ? -ENOTDIR : resolve(&t.scope, t.rest, true, &p);
    return r < 0 ? r : file_open_regular(&p, O_RDONLY, ret_stat);
}

static void put_u64(uint64_t value, uint8_t *bytes)
{
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (56 - 8 * i));
}

static int send_file(const Sandbox__Guest__ReadStream *request, int fd, const struct stat *st, uint64_t *bytes)
{
    uint64_t size = (uint64_t)st->st_size, offset = request->offset;
    if (request->from_end)
        offset = offset < size ? size - offset : 0;
    if (offset > 0 && lseek(fd, (off_t)offset, SEEK_SET) < 0)
        return -errno;
    uint64_t most = request->most > 0 ? request->most : UINT64_MAX;
    if (request->described) {
        uint8_t head[16];
        put_u64(size, head);
        put_u64(offset, head + 8);
        int r = write_fully(STDOUT_FILENO, head, sizeof head);
        if (r < 0)
            return r;
        uint64_t left = offset < size ? size - offset : 0;
        if (most > left)
            most = left;
    }
    return copy(fd, STDOUT_FILENO, most, bytes);
}

void read_stream_run(const Sandbox__Guest__ReadStream *request, struct answer *a)
{
    cleanup_free char *path = text_copy(&request->path);
    struct stat st;
    uint64_t bytes = 0;
    cleanup_fd int fd = path == NULL        ? -ENOMEM
                        : request->confined ? open_confined(request, &st, a)
                                            : open_regular(AT_FDCWD, path, O_RDONLY, 0, &st);
    if (fd == 0) {  // refused; descriptor 0 is the stream's
        fd = -1;
        return;
    }
    int r = fd < 0 ? fd : send_file(request, fd, &st, &bytes);
    if (r < 0)
        answer_file_error(a, "read", path != NULL ? path : "", r);
    else
        fill(a, bytes);
}

// ---- in ----

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

// The folder of `path` and the name in it, a link's target in place of the link.
static int split(const char *path, struct place *p)
{
    cleanup_free char *real = realpath(path, NULL);
    const char *whole = real != NULL ? real : path;
    const char *slash = strrchr(whole, '/');
    size_t n = strlen(slash + 1);
    if (n == 0)
        return -EISDIR;
    if (n > NAME_BYTES_MAX)
        return -ENAMETOOLONG;
    memcpy(p->name, slash + 1, n + 1);
    cleanup_free char *folder = strndup(whole, (size_t)(slash - whole) + 1);
    if (folder == NULL)
        return -ENOMEM;
    p->dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return p->dir < 0 ? -errno : 0;
}

// Where the file is to be: 0, a negative errno, or 1 with `a` refused.
static int find_place(const Sandbox__Guest__WriteStream *request, char *path, struct place *p, struct answer *a)
{
    if (!request->confined) {
        int r = request->parents ? make_parents(path) : 0;
        return r < 0 ? r : split(path, p);
    }
    cleanup_target struct target t = TARGET_INIT;
    if (!target_open(&t, &request->path, false, a))
        return 1;
    int r = t.wants_dir ? -EISDIR : request->parents ? resolve_make_parents(&t.scope, t.rest) : 0;
    // An exclusive write makes a new file: a link in its place, wherever it leads, is something that exists.
    if (r == 0)
        r = resolve(&t.scope, t.rest, !request->exclusive, p);
    return r == 0 && p->name[0] == '\0' ? -EISDIR : r;
}

static int append_to(const Sandbox__Guest__WriteStream *request, const struct place *p, mode_t mode, uint64_t *bytes)
{
    struct stat st;
    int flags = O_WRONLY | O_APPEND | O_CREAT | (request->exclusive ? O_EXCL : 0) | (request->confined ? O_NOFOLLOW : 0);
    cleanup_fd int fd = open_regular(p->dir, p->name, flags, mode, &st);
    return fd < 0 ? fd : copy(STDIN_FILENO, fd, UINT64_MAX, bytes);
}

// What is in the way of the new file, which takes its permission bits from it.
static int look_at_old(const Sandbox__Guest__WriteStream *request, const struct place *p, mode_t *mode)
{
    struct stat st;
    if (fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (request->exclusive)
        return -EEXIST;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (S_ISLNK(st.st_mode) && !request->confined)
        return 0;  // it leads nowhere, and gives way
    if (!S_ISREG(st.st_mode))
        return -EMEDIUMTYPE;
    *mode = st.st_mode & 07777;
    return 0;
}

// A new file that takes the old one's place when all has come, so that nobody ever sees a part of it.
struct replacement {
    const struct place *place;
    int fd;
    bool nameless;       // until it is whole; then nothing is left of one that is broken off
    char temporary[32];  // beside the final one
};

static int open_new(struct replacement *n)
{
    char hex[TEMPORARY_HEX + 1];
    int r = random_hex(hex, TEMPORARY_HEX);
    if (r < 0)
        return r;
    snprintf(n->temporary, sizeof n->temporary, ".sandbox-%s", hex);
    n->fd = openat(n->place->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    n->nameless = n->fd >= 0;
    if (n->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
        n->fd = openat(n->place->dir, n->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return n->fd < 0 ? -errno : 0;
}

static int name_it(struct replacement *n)
{
    char self[48];
    snprintf(self, sizeof self, "/proc/self/fd/%d", n->fd);
    if (n->nameless && linkat(AT_FDCWD, self, n->place->dir, n->temporary, AT_SYMLINK_FOLLOW) < 0)
        return -errno;
    n->nameless = false;
    return 0;
}

static int put_in_place(struct replacement *n, bool exclusive)
{
    int r = name_it(n), dir = n->place->dir;
    if (r < 0)
        return r;
    if (exclusive)
        return linkat(dir, n->temporary, dir, n->place->name, 0) < 0 ? -errno : 0;
    return renameat(dir, n->temporary, dir, n->place->name) < 0 ? -errno : 0;
}

static int replace(const Sandbox__Guest__WriteStream *request, const struct place *p, mode_t mode, uint64_t *bytes)
{
    int r = look_at_old(request, p, &mode);
    if (r < 0)
        return r;
    struct replacement n = {.place = p, .fd = -1};
    r = open_new(&n);
    if (r < 0)
        return r;
    r = copy(STDIN_FILENO, n.fd, UINT64_MAX, bytes);
    if (r == 0 && fchmod(n.fd, mode) < 0)
        r = -errno;
    if (r == 0)
        r = put_in_place(&n, request->exclusive);
    if (!n.nameless && (r < 0 || request->exclusive))
        unlinkat(p->dir, n.temporary, 0);
    close_fd(&n.fd);
    return r;
}

void write_stream_run(const Sandbox__Guest__WriteStream *request, struct answer *a)
{
    cleanup_free char *path = text_copy(&request->path);
    cleanup_place struct place p = PLACE_INIT;
    mode_t mode = request->mode != 0 ? request->mode : 0644;
    uint64_t bytes = 0;
    int r = path == NULL ? -ENOMEM : find_place(request, path, &p, a);
    if (r > 0)
        return;
    if (r == 0)
        r = request->append ? append_to(request, &p, mode, &bytes) : replace(request, &p, mode, &bytes);
    if (r < 0)
        answer_file_error(a, "write", path != NULL ? path : "", r);
    else
        fill(a, bytes);
}
