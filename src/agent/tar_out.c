// Packing a directory or a file into an archive.
//
// Names are relative to the directory, whose own entry comes first as "./"; a file goes by its last name.  Links are packed,
// not followed.  Devices, FIFOs and sockets, and the kernel's own file systems (/proc and the like), are counted and left out.
// Threat: the tree changes while it is read.  Each file has as many bytes as it had when it was opened, filled up with zeros if
// it became shorter.
#include "agent/job.h"
#include "agent/strv.h"
#include "base/cleanup.h"
#include "wire/limits.h"
#include "wire/tar.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum {
    PIECE = 64 * 1024,
    DEPTH_MAX = 256,     // directories in one another: each is open while it is read
    LINKS_KNOWN = 8192,  // files with several names that are told apart; further ones are packed once for each name
};

struct known {
    dev_t dev;
    ino_t ino;
    char *path;
};

struct packing {
    Sandbox__Guest__TransferResult done;
    uint64_t max_bytes;  // 0: any number
    struct known *known;
    size_t known_count;
    char path[PATH_BYTES_MAX + 2];  // of the entry, with a directory's final slash
    size_t len;
};

static int put(const struct packing *p, const void *bytes, size_t n)
{
    (void)p;
    return write_fully(STDOUT_FILENO, bytes, n);
}

static int put_entry(struct packing *p, enum tar_type type, const char *link, const struct stat *st)
{
    cleanup_buf struct buf b = BUF_INIT(128 * 1024);
    const struct tar_entry e = {.type = type,
                                .path = p->path,
                                .link = link,
                                .size = type == TAR_FILE ? (uint64_t)st->st_size : 0,
                                .mode = st->st_mode & 07777,
                                .mtime = st->st_mtim.tv_sec,
                                .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec};
    int r = tar_put_header(&b, &e);
    p->done.entries++;
    return r < 0 ? r : put(p, b.data, b.len);
}

// Exactly as many bytes as were promised, and the padding.
static int put_data(struct packing *p, int fd, uint64_t size)
{
    static uint8_t piece[PIECE];
    uint64_t left = size;
    while (left > 0) {
        ssize_t n = read_some(fd, piece, left < sizeof piece ? (size_t)left : sizeof piece);
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        int r = put(p, piece, (size_t)n);
        if (r < 0)
            return r;
        left -= (uint64_t)n;
        p->done.bytes += (uint64_t)n;
    }
    memset(piece, 0, sizeof piece);
    for (left += tar_padding(size); left > 0;) {
        size_t n = left < sizeof piece ? (size_t)left : sizeof piece;
        int r = put(p, piece, n);
        if (r < 0)
            return r;
        left -= n;
    }
    return 0;
}

// The name under which a file with several has been packed already; else this one is remembered.
static const char *known_as(struct packing *p, const struct stat *st)
{
    if (st->st_nlink < 2)
        return NULL;
    for (size_t i = 0; i < p->known_count; i++)
        if (p->known[i].dev == st->st_dev && p->known[i].ino == st->st_ino)
            return p->known[i].path;
    char *copy = p->known != NULL && p->known_count < LINKS_KNOWN ? strdup(p->path) : NULL;
    if (copy != NULL)
        p->known[p->known_count++] = (struct known){st->st_dev, st->st_ino, copy};
    return NULL;
}

static int pack_file(struct packing *p, int dir, const char *name)
{
    struct stat st;
    cleanup_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode)) {  // it was swapped
        p->done.skipped++;
        return 0;
    }
    const char *link = known_as(p, &st);
    if (link != NULL)
        return put_entry(p, TAR_HARDLINK, link, &st);
    if (p->max_bytes > 0 && (uint64_t)st.st_size > p->max_bytes - p->done.bytes)
        return -EFBIG;
    int r = put_entry(p, TAR_FILE, "", &st);
    return r < 0 ? r : put_data(p, fd, (uint64_t)st.st_size);
}

static int pack_link(struct packing *p, int dir, const char *name, const struct stat *st)
{
    static char target[PATH_BYTES_MAX + 1];
    ssize_t n = readlinkat(dir, name, target, sizeof target);
    if (n < 0)
        return -errno;
    if ((size_t)n == sizeof target)
        return -ENAMETOOLONG;
    target[n] = '\0';
    return put_entry(p, TAR_SYMLINK, target, st);
}

static int pack_directory(struct packing *p, int dir, const char *name, unsigned depth);

static int pack(struct packing *p, int dir, const char *name, unsigned depth)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return pack_directory(p, dir, name, depth);
    if (S_ISREG(st.st_mode))
        return pack_file(p, dir, name);
    if (S_ISLNK(st.st_mode))
        return pack_link(p, dir, name, &st);
    p->done.skipped++;
    return 0;
}

// /proc, /sys and the like have no files that could be packed.
static bool is_kernels(int fd)
{
    struct statfs fs;
    static const unsigned long kinds[] = {0x9fa0, 0x62656572, 0x27e0eb, 0x63677270, 0x1cd1, 0x19800202, 0x64626720, 0x74726163};
    for (size_t i = 0; fstatfs(fd, &fs) == 0 && i < sizeof kinds / sizeof kinds[0]; i++)
        if ((unsigned long)fs.f_type == kinds[i])
            return true;
    return false;
}

static int pack_member(struct packing *p, int dir, const char *name, unsigned depth)
{
    size_t before = p->len, n = strlen(name);
    if (p->len + n > PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    memcpy(p->path + p->len, name, n + 1);
    p->len += n;
    int r = pack(p, dir, name, depth);
    p->len = before;
    if (r == -ENOENT)  // it went away meanwhile
        r = 0;
    if (r == 0)
        p->path[before] = '\0';
    return r;
}

static int pack_directory(struct packing *p, int dir, const char *name, unsigned depth)
{
    struct stat st;
    cleanup_fd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (is_kernels(fd)) {
        p->done.skipped++;
        return 0;
    }
    if (depth == DEPTH_MAX)
        return -ELOOP;
    p->path[p->len++] = '/';
    p->path[p->len] = '\0';
    if (p->len == 1)
        memcpy(p->path, "./", 3);
    int r = put_entry(p, TAR_DIRECTORY, "", &st);
    if (p->len == 1)
        p->len = 0;  // names are relative to it
    DIR *list = r == 0 ? fdopendir(fd) : NULL;
    if (list == NULL)
        return r < 0 ? r : -errno;
    take_fd(&fd);
    for (struct dirent *d; r == 0 && (errno = 0, d = readdir(list)) != NULL;)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            r = pack_member(p, dirfd(list), d->d_name, depth + 1);
    closedir(list);
    return r;
}

static int pack_all(struct packing *p, const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return -errno;
    cleanup_free char *real = realpath(path, NULL);
    if (real == NULL)
        return -errno;
    char *slash = strrchr(real, '/');
    const char *last = slash + 1;
    if (S_ISDIR(st.st_mode))
        return pack_directory(p, AT_FDCWD, real, 0);
    *slash = '\0';
    cleanup_fd int dir = open(slash == real ? "/" : real, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return dir < 0 ? -errno : pack_member(p, dir, last, 0);
}

static int put_end(struct packing *p)
{
    cleanup_buf struct buf b = BUF_INIT(4 * TAR_BLOCK);
    int r = tar_put_end(&b);
    return r < 0 ? r : put(p, b.data, b.len);
}

void tar_out_run(const Sandbox__Guest__TarOut *request, struct answer *a)
{
    static struct packing p;
    sandbox__guest__transfer_result__init(&p.done);
    p.max_bytes = request->max_bytes;
    p.known = calloc(LINKS_KNOWN, sizeof p.known[0]);
    cleanup_free char *path = text_copy(&request->path);
    int r = path != NULL ? pack_all(&p, path) : -ENOMEM;
    if (r == 0)
        r = put_end(&p);
    if (r < 0) {
        struct err e;
        err_set(&e, -r,
                r == -EFBIG ? "Packing %.100s stopped at \"%.200s\": it is more than the limit allows%s."
                            : "Cannot pack %.100s, at \"%.200s\": %s.",
                path != NULL ? path : "", p.path, r == -EFBIG ? "" : strerror(-r));
        answer_refuse(a, r == -EFBIG ? STATUS(TOO_LARGE) : file_status(r), &e);
        return;
    }
    a->body.transfer = p.done;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_TRANSFER;
    a->result.transfer = &a->body.transfer;
}
