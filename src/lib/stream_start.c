// The beginning and the end of a stream.
#include "base/cleanup.h"
#include "lib/errors.h"
#include "lib/stream.h"

static sandbox_error_t ask(sandbox_handle_t *handle, Sandbox__StreamRequest *op, struct stream_made *ret)
{
    sandbox_conn_t *conn = handle->conn;
    if (conn_is_ours(conn) && conn_closed(conn))
        return fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection was closed, and its sandboxes with it");
    op->sandbox_id = handle->id;
    DEFINE_REQUEST(request, STREAM, stream, op);
    struct pending pending = {0};
    sandbox_error_t r = conn_begin(conn, &request, &pending);
    return r == SANDBOX_OK ? conn_finish_stream(conn, &pending, handle->id, ret) : r;
}

sandbox_error_t stream_start(sandbox_handle_t *handle, Sandbox__StreamRequest *op, stream_result_fn *take_result,
                             sandbox_stream_t **ret_stream)
{
    cleanup_free sandbox_stream_t *s = calloc(1, sizeof *s);
    if (s == NULL)
        return fail_memory();
    struct stream_made made = {.fd = -1};
    sandbox_error_t r = ask(handle, op, &made);
    if (r != SANDBOX_OK)
        return r;
    s->fd = made.fd;
    s->isolation = made.isolation;
    s->grant_id = made.grant_id;
    s->op = op->op_case;
    s->take_result = take_result;
    atomic_init(&s->window, STREAM_WINDOW);
    atomic_init(&s->send_failed, false);
    pthread_mutex_init(&s->send_lock, NULL);
    *ret_stream = take_ptr(&s);
    return SANDBOX_OK;
}

void sandbox_stream_free(sandbox_stream_t *stream)
{
    if (stream == NULL)
        return;
    close_fd(&stream->fd);
    pthread_mutex_destroy(&stream->send_lock);
    sandbox_exec_result_free(&stream->result);
    free(stream);
}

uint32_t sandbox_stream_grant_id(const sandbox_stream_t *stream)
{
    return stream != NULL ? stream->grant_id : 0;
}

int sandbox_stream_fd(const sandbox_stream_t *stream)
{
    return stream != NULL ? stream->fd : -1;
}
