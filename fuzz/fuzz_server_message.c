// What an engine may send a client: whatever the bytes, libsandbox's reader hands each caller at most one answer, its own, and
// every caller gets an end.
#include "base/cleanup.h"
#include "lib/conn.h"
#include "wire/limits.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ASKED = 8, INPUT_MAX = 128 * 1024 };

static void need(int promise)
{
    if (!promise)
        abort();
}

// As conn_open makes one, but with no thread: the reader is run here, when all its bytes are there.
static sandbox_conn_t *new_conn(int fd)
{
    sandbox_conn_t *conn = calloc(1, sizeof *conn);
    need(conn != NULL);
    conn->fd = fd;
    conn->owner = getpid();
    atomic_init(&conn->refs, 1);
    atomic_init(&conn->next_id, 1);
    pthread_mutex_init(&conn->send_lock, NULL);
    pthread_mutex_init(&conn->lock, NULL);
    return conn;
}

// The answer to request i + 1, as the functions behind conn_call take it.
static void finish(sandbox_conn_t *conn, struct pending *pending, Sandbox__ServerMessage__ResponseCase want)
{
    need(pending->finished);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_finish(conn, pending, want, &reply);
    need(r <= SANDBOX_OK && r >= SANDBOX_ERR_TIMEOUT && (r == SANDBOX_OK) == (reply != NULL));
    if (r == SANDBOX_OK)
        need(reply->request_id == pending->id && reply->response_case == want);
    else
        need(sandbox_last_error()[0] != '\0');
    for (const char *c = sandbox_last_error(); r != SANDBOX_OK && *c != '\0'; c++)
        need((unsigned char)*c >= 0x20 && *c != 0x7F);
    pb_free(reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (size < 1 || size > INPUT_MAX || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    cleanup_fd int far = pair[1];
    sandbox_conn_t *conn = new_conn(pair[0]);
    // The first byte: whether the engine has answered before.
    conn->established = (data[0] & 1) != 0;
    struct pending pending[ASKED];
    for (size_t i = 0; i < ASKED; i++) {
        Sandbox__StatusRequest status = SANDBOX__STATUS_REQUEST__INIT;
        DEFINE_REQUEST(request, STATUS, status, &status);
        need(conn_begin(conn, &request, &pending[i]) == SANDBOX_OK);
    }
    need(send(far, data + 1, size - 1, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)(size - 1));
    shutdown(far, SHUT_WR);
    reader_main(conn);
    static const Sandbox__ServerMessage__ResponseCase wants[ASKED] = {
        SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE,  SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY,
        SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE,   SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME,
        SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT, SANDBOX__SERVER_MESSAGE__RESPONSE_GUEST,
        SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS,  SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS,
    };
    for (size_t i = 0; i < ASKED; i++)
        finish(conn, &pending[i], wants[i]);
    conn_unref(conn);
    return 0;
}
