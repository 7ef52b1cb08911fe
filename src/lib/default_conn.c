#include "lib/default_conn.h"

#include "base/cleanup.h"
#include "lib/errors.h"
#include "lib/handle.h"
#include "wire/pb.h"

#include <string.h>

// Held while the connection is being opened, so that two threads that start at once share one.
static pthread_mutex_t default_lock = PTHREAD_MUTEX_INITIALIZER;
static sandbox_conn_t *default_conn;

static const char *or_default(const char *socket_path)
{
    return socket_path != NULL ? socket_path : SANDBOX_DEFAULT_SOCKET;
}

sandbox_error_t sandbox_conn_open(const char *socket_path, sandbox_conn_t **out_conn)
{
    if (out_conn == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "out_conn is NULL");
    return conn_open(or_default(socket_path), out_conn);
}

void sandbox_conn_close(sandbox_conn_t *conn)
{
    if (conn == NULL)
        return;
    if (conn_mark_closed(conn)) {
        if (conn_is_ours(conn))
            handles_destroy_all(conn);
        conn_shut(conn);
    }
    conn_unref(conn);
}

sandbox_error_t default_conn_ref(sandbox_conn_t **ret_conn)
{
    pthread_mutex_lock(&default_lock);
    bool there = default_conn != NULL;
    if (there)
        *ret_conn = conn_ref(default_conn);
    pthread_mutex_unlock(&default_lock);
    if (!there)
        return fail(SANDBOX_ERR_DAEMON_UNREACHABLE, "there is no connection to an engine: call sandbox_init first");
    return SANDBOX_OK;
}

// A connection that broke, or that a parent process opened, does not count as open.
static sandbox_error_t init_locked(const char *path)
{
    if (default_conn != NULL && conn_usable(default_conn)) {
        if (strcmp(default_conn->path, path) == 0)
            return SANDBOX_OK;
        return fail(SANDBOX_ERR_INVALID_SPEC,
                    "the default connection is open to %s: call sandbox_cleanup first, or use sandbox_conn_open for %s",
                    default_conn->path, path);
    }
    sandbox_conn_t *made = NULL;
    sandbox_error_t r = conn_open(path, &made);
    if (r != SANDBOX_OK)
        return r;
    sandbox_conn_close(default_conn);
    default_conn = made;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_init(const char *socket_path)
{
    pthread_mutex_lock(&default_lock);
    sandbox_error_t r = init_locked(or_default(socket_path));
    pthread_mutex_unlock(&default_lock);
    return r;
}

void sandbox_cleanup(void)
{
    pthread_mutex_lock(&default_lock);
    sandbox_conn_t *conn = take_ptr(&default_conn);
    pthread_mutex_unlock(&default_lock);
    sandbox_conn_close(conn);
}

static sandbox_error_t ask_status(sandbox_conn_t *conn, char **out_json)
{
    Sandbox__StatusRequest status = SANDBOX__STATUS_REQUEST__INIT;
    DEFINE_REQUEST(request, STATUS, status, &status);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS, &reply);
    if (r != SANDBOX_OK)
        return r;
    char *json = strdup(reply->status->json);
    pb_free(reply);
    if (json == NULL)
        return fail_memory();
    *out_json = json;
    return SANDBOX_OK;
}

sandbox_error_t sandbox_conn_engine_status(sandbox_conn_t *conn, char **out_json)
{
    if (out_json == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "out_json is NULL");
    if (conn != NULL)
        return ask_status(conn, out_json);
    sandbox_error_t r = default_conn_ref(&conn);
    if (r != SANDBOX_OK)
        return r;
    r = ask_status(conn, out_json);
    conn_unref(conn);
    return r;
}
