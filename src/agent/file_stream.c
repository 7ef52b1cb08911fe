// One file of any size, out; and in, from a child's standard input.
#include "agent/file_open.h"
#include "agent/file_writing.h"
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

enum { PIECE = 64 * 1024 };

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

// ---- out ----

int read_stream_open(const Sandbox__Guest__ReadStream *request, struct stat *ret_stat, int *ret_fd, struct answer *a)
{
    if (!request->confined) {
        cleanup_free char *path = text_copy(&request->path);
        int fd = path == NULL ? -ENOMEM : file_open_path(AT_FDCWD, path, O_RDONLY, 0, ret_stat);
        *ret_fd = fd;
        return fd < 0 ? fd : 0;
    }
    cleanup_target struct target t = TARGET_INIT;
    cleanup_place struct place p = PLACE_INIT;
    if (!target_open(&t, &request->path, false, a))
        return 1;
    int r = t.wants_dir ? -ENOTDIR : resolve(&t.scope, t.rest, true, &p);
    int fd = r < 0 ? r : file_open_regular(&p, O_RDONLY, ret_stat);
    *ret_fd = fd;
    return fd < 0 ? fd : 0;
}

struct file_range read_stream_range(const Sandbox__Guest__ReadStream *request, const struct stat *st)
{
    struct file_range range = {.size = (uint64_t)st->st_size, .offset = request->offset};
    if (request->from_end)
        range.offset = range.offset < range.size ? range.size - range.offset : 0;
    range.most = range.offset < range.size ? range.size - range.offset : 0;
    if (request->most > 0 && request->most < range.most)
        range.most = request->most;
    return range;
}

void read_stream_describe(const struct file_range *range, uint8_t head[READ_STREAM_HEAD])
{
    for (int i = 0; i < 8; i++) {
        head[i] = (uint8_t)(range->size >> (56 - 8 * i));
        head[8 + i] = (uint8_t)(range->offset >> (56 - 8 * i));
    }
}

static int send_file(const Sandbox__Guest__ReadStream *request, int fd, const struct stat *st, uint64_t *bytes)
{
    struct file_range range = read_stream_range(request, st);
    if (range.offset > 0 && lseek(fd, (off_t)range.offset, SEEK_SET) < 0)
        return -errno;
    if (!request->described)  // whoever was told no size gets what there is when it is read
        return copy(fd, STDOUT_FILENO, request->most > 0 ? request->most : UINT64_MAX, bytes);
    uint8_t head[READ_STREAM_HEAD];
    read_stream_describe(&range, head);
    int r = write_fully(STDOUT_FILENO, head, sizeof head);
    return r < 0 ? r : copy(fd, STDOUT_FILENO, range.most, bytes);
}

void read_stream_run(const Sandbox__Guest__ReadStream *request, struct answer *a)
{
    struct stat st;
    uint64_t bytes = 0;
    cleanup_fd int fd = -1;
    int r = read_stream_open(request, &st, &fd, a);
    if (r > 0)
        return;
    if (r == 0)
        r = send_file(request, fd, &st, &bytes);
    if (r < 0)
        answer_path_error(a, "read", &request->path, r);
    else
        answer_transfer(a, bytes);
}

// ---- in ----

void write_stream_run(const Sandbox__Guest__WriteStream *request, struct answer *a)
{
    static uint8_t piece[PIECE];
    cleanup_writing struct writing w = WRITING_INIT;
    int r = writing_open(request, &w, a);
    if (r > 0)
        return;
    ssize_t n = 0;
    while (r == 0 && (n = read_some(STDIN_FILENO, piece, sizeof piece)) > 0)
        r = writing_add(&w, piece, (size_t)n);
    if (r == 0)
        r = n < 0 ? (int)n : writing_finish(&w);
    if (r < 0)
        answer_path_error(a, "write", &request->path, r);
    else
        answer_transfer(a, w.bytes);
}
