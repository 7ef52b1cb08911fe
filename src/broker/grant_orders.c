#include "broker/grant_orders.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "broker/api_line.h"
#include "broker/grant.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum {
    TRACE_BYTES_MAX = sizeof(struct grant_trace_head) + GRANT_ROWS_MAX * sizeof(struct grant_row) +
                      ADVICE_FINDINGS_MAX * sizeof(struct advice_finding),
};

// A file without a name, of these bytes and no others.
static int seal(const void *first, size_t n, const struct buf *rest, int *ret_fd)
{
    cleanup_fd int fd = memfd_create("sandbox-broker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    if (write(fd, first, n) != (ssize_t)n || write(fd, rest->data, rest->len) != (ssize_t)rest->len ||
        lseek(fd, 0, SEEK_SET) != 0)
        return -ENOSPC;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

static int line_add(struct broker *b, const struct broker_request *q, int fd, const char **ret_why)
{
    int r = api_line_add(b, q->sandbox_id, (enum broker_line_kind)q->line.kind, fd);
    if (r == -EEXIST)
        *ret_why = "the sandbox has a line already";
    else if (r == -ENOSPC)
        *ret_why = "too many sandboxes have lines already";
    else if (r == -EINVAL)
        *ret_why = q->line.kind == BROKER_LINE_LISTENER ? "the descriptor is not a listening stream socket, Unix or vsock"
                                                        : "the descriptor is not a connected Unix socket of packets";
    else if (r < 0)
        *ret_why = strerror(-r);
    else
        log_info("grant_line_added", log_u64("sandbox_id", q->sandbox_id));
    return r;
}

static void log_open(const struct broker_request *q, int error, const char *why)
{
    const struct broker_grant *g = &q->grant;
    log_info("grant_open", log_u64("sandbox_id", q->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
             log_str("profile", g->profile), log_str("principal", g->principal), log_bool("opened", error == 0),
             log_bool("session", (g->flags & BROKER_GRANT_SESSION) != 0),
             log_bool("remote", (g->flags & BROKER_GRANT_REMOTE) != 0), log_str("reason", error == 0 ? "" : why));
}

static int grant_begin(struct broker *b, const struct broker_request *q, int *ret_fd, const char **ret_why)
{
    struct broker_opened opened = {0};
    cleanup_buf struct buf preload = BUF_INIT(BROKER_PRELOAD_MAX);
    struct grant *g;
    bool remote = (q->grant.flags & BROKER_GRANT_REMOTE) != 0;
    struct api_line *line = remote ? NULL : api_line_find(b, q->sandbox_id);
    int r = grant_open(b, q->sandbox_id, &q->grant, line, &opened, &preload, &g, ret_why);
    if (r == 0 && (r = seal(&opened, sizeof opened, &preload, ret_fd)) < 0) {
        *ret_why = "no memory";
        grant_close(g, NULL);
    }
    explicit_bzero(&opened, sizeof opened);
    log_open(q, r, *ret_why);
    if (r == 0)
        *ret_why = "";
    return r;
}

static int grant_finish(struct broker *b, const struct broker_request *q, int *ret_fd, const char **ret_why)
{
    struct grant *g = grant_find(b, q->sandbox_id, q->grant.grant_id);
    *ret_why = "it is not open";
    if (g == NULL)
        return -ENOENT;
    cleanup_buf struct buf trace = BUF_INIT(TRACE_BYTES_MAX);
    grant_close(g, &trace);
    *ret_why = "the trace is lost: no memory";
    if (buf_error(&trace) < 0 || trace.len == 0)
        return -ENOMEM;
    int r = seal("", 0, &trace, ret_fd);
    if (r == 0)
        *ret_why = "";
    return r;
}

int grant_order(struct broker *b, const struct broker_request *request, int fd, int *ret_fd, const char **ret_why)
{
    if (request->op == BROKER_OP_LINE_ADD)
        return line_add(b, request, fd, ret_why);
    if (request->op == BROKER_OP_GRANT_OPEN)
        return grant_begin(b, request, ret_fd, ret_why);
    if (request->op == BROKER_OP_GRANT_CLOSE)
        return grant_finish(b, request, ret_fd, ret_why);
    int r = api_line_remove(b, request->sandbox_id);
    if (r < 0)
        *ret_why = "it has no line";
    return r;
}

void grant_orders_end(struct broker *b)
{
    api_line_remove_all(b);
    struct grant *g;
    while ((g = LIST_FIRST(&b->grant_list->all)) != NULL)
        grant_close(g, NULL);
}
