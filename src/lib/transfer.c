// Files through streams.
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sandbox_error_t take_transfer(sandbox_stream_t *s, const Sandbox__Guest__Result *result)
{
    if (result->result_case != SANDBOX__GUEST__RESULT__RESULT_TRANSFER)
        return guest_nonsense("a result of another kind");
    const Sandbox__Guest__TransferResult *t = result->transfer;
    s->transfer = (sandbox_transfer_t){.entries = t->entries, .bytes = t->bytes, .skipped = t->skipped};
    return SANDBOX_OK;
}

static sandbox_error_t check(const sandbox_handle_t *handle, const char *path, int fd)
{
    if (handle == NULL || path == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", handle == NULL ? "the sandbox handle" : "path");
    return fd >= 0 ? SANDBOX_OK : fail(SANDBOX_ERR_INVALID_SPEC, "fd is %d", fd);
}

// ---- out of the sandbox ----

static sandbox_error_t write_all(int fd, const uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t w = write(fd, bytes + at, n - at);
        if (w < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, -1);
        } else if (w < 0 && errno != EINTR) {
            return fail(SANDBOX_ERR_INTERNAL, "writing what came from the sandbox: %s", strerror(errno));
        }
        at += w > 0 ? (size_t)w : 0;
    }
    return SANDBOX_OK;
}

static sandbox_error_t receive(sandbox_stream_t *s, int fd)
{
    for (;;) {
        sandbox_event_t event;
        sandbox_error_t r = sandbox_stream_read(s, -1, &event);
        if (r == SANDBOX_OK && event.type == SANDBOX_EVENT_STDOUT)
            r = write_all(fd, event.data, event.len);
        if (r != SANDBOX_OK || event.type == SANDBOX_EVENT_EXIT)
            return r;
    }
}

// ---- into the sandbox ----

enum { PIECE = 64 * 1024 };

// Takes what the stream has now, or waits for the first.  *ret_over: it was the end.
static sandbox_error_t listen_to(sandbox_stream_t *s, int timeout_ms, bool *ret_over)
{
    sandbox_event_t event = {0};
    sandbox_error_t r;
    do {
        r = sandbox_stream_read(s, timeout_ms, &event);
        timeout_ms = 0;
    } while (r == SANDBOX_OK && event.type != SANDBOX_EVENT_NONE && event.type != SANDBOX_EVENT_EXIT);
    *ret_over = r != SANDBOX_OK || event.type == SANDBOX_EVENT_EXIT;
    return r;
}

static sandbox_error_t send_piece(sandbox_stream_t *s, const uint8_t *bytes, size_t n, bool *ret_over)
{
    for (size_t at = 0, written; at < n && !*ret_over; at += written) {
        written = 0;
        // One that takes nothing more has an end that says why.
        bool closed = sandbox_stream_write_stdin(s, bytes + at, n - at, &written) != SANDBOX_OK;
        if (written < n - at || closed) {
            sandbox_error_t r = listen_to(s, -1, ret_over);
            if (r != SANDBOX_OK)
                return r;
        }
    }
    return SANDBOX_OK;
}

// Until there is something to read from `fd`, or the stream is over.
static sandbox_error_t await_source(sandbox_stream_t *s, int fd, bool *ret_over)
{
    for (;;) {
        struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = s->fd, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return fail(SANDBOX_ERR_INTERNAL, "waiting: %s", strerror(errno));
        if (p[1].revents != 0) {
            sandbox_error_t r = listen_to(s, 0, ret_over);
            if (r != SANDBOX_OK || *ret_over)
                return r;
        }
        if (p[0].revents != 0)
            return SANDBOX_OK;
    }
}

static sandbox_error_t send_all(sandbox_stream_t *s, int fd)
{
    uint8_t *piece = malloc(PIECE);
    if (piece == NULL)
        return fail_memory();
    bool over = false, ended = false;
    sandbox_error_t r = SANDBOX_OK;
    while (r == SANDBOX_OK && !over && !ended) {
        r = await_source(s, fd, &over);
        if (r != SANDBOX_OK || over)
            break;
        ssize_t n = read(fd, piece, PIECE);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            r = fail(SANDBOX_ERR_INTERNAL, "reading what goes to the sandbox: %s", strerror(errno));
        else if (n > 0)
            r = send_piece(s, piece, (size_t)n, &over);
        ended = n == 0;
    }
    free(piece);
    if (r != SANDBOX_OK || over)
        return r;
    sandbox_stream_close_stdin(s);
    while (r == SANDBOX_OK && !over)
        r = listen_to(s, -1, &over);
    return r;
}

static sandbox_error_t run(sandbox_handle_t *handle, Sandbox__StreamRequest *op, int fd, bool into,
                           sandbox_transfer_t *out_transfer)
{
    sandbox_stream_t *s = NULL;
    sandbox_error_t r = stream_start(handle, op, take_transfer, &s);
    if (r == SANDBOX_OK)
        r = into ? send_all(s, fd) : receive(s, fd);
    if (r == SANDBOX_OK && out_transfer != NULL)
        *out_transfer = s->transfer;
    sandbox_stream_free(s);
    return r;
}

static sandbox_error_t describe_write(const char *path, uint32_t mode, uint32_t flags, Sandbox__Guest__WriteStream *ret)
{
    enum {
        KNOWN = SANDBOX_WRITE_APPEND | SANDBOX_WRITE_EXCL | SANDBOX_WRITE_PARENTS | SANDBOX_WRITE_INSIDE | SANDBOX_WRITE_BRIEF
    };
    if ((flags & ~(uint32_t)KNOWN) != 0)
        return fail(SANDBOX_ERR_INVALID_SPEC, "flags 0x%x has bits that are not known", flags);
    sandbox__guest__write_stream__init(ret);
    ret->path = bytes_of_text(path);
    ret->mode = mode;
    ret->append = (flags & SANDBOX_WRITE_APPEND) != 0;
    ret->exclusive = (flags & SANDBOX_WRITE_EXCL) != 0;
    ret->parents = (flags & SANDBOX_WRITE_PARENTS) != 0;
    ret->most = (flags & SANDBOX_WRITE_BRIEF) != 0 ? SANDBOX_MAX_FILE : 0;
    ret->confined = (flags & SANDBOX_WRITE_INSIDE) != 0;
    return SANDBOX_OK;
}

// ---- the interface ----

sandbox_error_t sandbox_tar_in(sandbox_handle_t *handle, const char *path, int fd, sandbox_transfer_t *out_transfer)
{
    sandbox_error_t r = check(handle, path, fd);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__TarIn tar = SANDBOX__GUEST__TAR_IN__INIT;
    tar.path = bytes_of_text(path);
    DEFINE_STREAM(op, TAR_IN, tar_in, &tar);
    return run(handle, &op, fd, true, out_transfer);
}

sandbox_error_t sandbox_tar_out(sandbox_handle_t *handle, const char *path, int fd, uint64_t max_bytes,
                                sandbox_transfer_t *out_transfer)
{
    sandbox_error_t r = check(handle, path, fd);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__TarOut tar = SANDBOX__GUEST__TAR_OUT__INIT;
    tar.path = bytes_of_text(path);
    tar.max_bytes = max_bytes;
    DEFINE_STREAM(op, TAR_OUT, tar_out, &tar);
    return run(handle, &op, fd, false, out_transfer);
}

sandbox_error_t sandbox_read_stream(sandbox_handle_t *handle, const char *path, uint64_t offset, int fd,
                                    sandbox_transfer_t *out_transfer)
{
    sandbox_error_t r = check(handle, path, fd);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__ReadStream what = SANDBOX__GUEST__READ_STREAM__INIT;
    what.path = bytes_of_text(path);
    what.offset = offset;
    DEFINE_STREAM(op, READ, read, &what);
    return run(handle, &op, fd, false, out_transfer);
}

sandbox_error_t sandbox_write_stream(sandbox_handle_t *handle, const char *path, int fd, uint32_t mode, uint32_t flags,
                                     sandbox_transfer_t *out_transfer)
{
    sandbox_error_t r = check(handle, path, fd);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__Guest__WriteStream what;
    r = describe_write(path, mode, flags, &what);
    if (r != SANDBOX_OK)
        return r;
    DEFINE_STREAM(op, WRITE, write, &what);
    return run(handle, &op, fd, true, out_transfer);
}

// ---- the same, driven by the caller ----

sandbox_error_t sandbox_open_read(sandbox_handle_t *handle, const char *path, const sandbox_read_options_t *options,
                                  sandbox_stream_t **out_stream)
{
    static const sandbox_read_options_t plain;
    if (options == NULL)
        options = &plain;
    if (out_stream == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "out_stream is NULL");
    sandbox_error_t r = check(handle, path, 0);
    if (r == SANDBOX_OK)
        r = check_reserved(options->reserved, sizeof options->reserved / sizeof options->reserved[0], "sandbox_read_options_t");
    if (r != SANDBOX_OK)
        return r;
    if ((options->from_end & ~1) != 0 || (options->inside & ~1) != 0)
        return fail(SANDBOX_ERR_INVALID_SPEC, "from_end is %d and inside is %d; they are 0 or 1", options->from_end,
                    options->inside);
    Sandbox__Guest__ReadStream what = SANDBOX__GUEST__READ_STREAM__INIT;
    what.path = bytes_of_text(path);
    what.offset = options->offset;
    what.most = options->most;
    what.from_end = options->from_end;
    what.confined = options->inside;
    what.described = true;
    DEFINE_STREAM(op, READ, read, &what);
    sandbox_stream_t *s = NULL;
    r = stream_start(handle, &op, take_transfer, &s);
    if (r != SANDBOX_OK)
        return r;
    s->head_left = STREAM_FILE_HEAD;
    s->stdin_closed = true;
    *out_stream = s;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_open_write(sandbox_handle_t *handle, const char *path, uint32_t mode, uint32_t flags,
                                   sandbox_stream_t **out_stream)
{
    if (out_stream == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "out_stream is NULL");
    sandbox_error_t r = check(handle, path, 0);
    Sandbox__Guest__WriteStream what;
    if (r == SANDBOX_OK)
        r = describe_write(path, mode, flags, &what);
    if (r != SANDBOX_OK)
        return r;
    DEFINE_STREAM(op, WRITE, write, &what);
    return stream_start(handle, &op, take_transfer, out_stream);
}
