// read_file, and the opening of regular files only.
#include "agent/file_open.h"
#include "agent/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

int file_open_regular(const struct place *p, int flags, struct stat *ret_stat)
{
    struct stat st;
    if (fstatat(p->dir, p->name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (!S_ISREG(st.st_mode))
        return -EMEDIUMTYPE;
    // Whatever is swapped in now is opened without waiting for a FIFO's other end, a lease or a device, and refused below.
    cleanup_fd int fd = openat(p->dir, p->name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EMEDIUMTYPE;
    *ret_stat = st;
    return take_fd(&fd);
}

int file_open_path(int dir, const char *path, int flags, mode_t mode, struct stat *ret_stat)
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

// Reads until `n` bytes or the end of the file.  How many, or a negative errno.
static ssize_t read_all(int fd, uint8_t *bytes, size_t n, off_t offset)
{
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(fd, bytes + got, n - got, offset + (off_t)got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        got += (size_t)r;
    }
    return (ssize_t)got;
}

static bool more_follows(int fd, off_t offset)
{
    char byte;
    return pread(fd, &byte, 1, offset) == 1;
}

int file_read(const Sandbox__Guest__ReadFile *request, const struct target *t, struct answer *a)
{
    if (t->wants_dir)
        return -ENOTDIR;
    cleanup_place struct place p = PLACE_INIT;
    int r = resolve(&t->scope, t->rest, true, &p);
    if (r < 0)
        return r;
    struct stat st;
    cleanup_fd int fd = file_open_regular(&p, O_RDONLY, &st);
    if (fd < 0)
        return fd;
    size_t most = request->max_bytes > 0 && request->max_bytes < FILE_CHUNK_MAX ? request->max_bytes : FILE_CHUNK_MAX;
    uint8_t *space;
    r = buf_reserve(&a->data, most, &space);
    if (r < 0)
        return r;
    off_t offset = (off_t)request->offset;
    ssize_t n = read_all(fd, space, most, offset);
    if (n < 0)
        return (int)n;
    buf_commit(&a->data, (size_t)n);
    Sandbox__Guest__ReadFileResult *result = &a->body.read_file;
    sandbox__guest__read_file_result__init(result);
    result->data = (ProtobufCBinaryData){a->data.len, a->data.data};
    result->truncated = (size_t)n == most && more_follows(fd, offset + n);
    result->file_size = (uint64_t)st.st_size;
    a->result.result_case = SANDBOX__GUEST__RESULT__RESULT_READ_FILE;
    a->result.read_file = result;
    return 0;
}
