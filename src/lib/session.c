#include "lib/default_conn.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "wire/pb.h"

static sandbox_error_t renew(sandbox_conn_t *conn, const char *key, uint32_t extra_seconds, uint64_t *out_expires_at)
{
    Sandbox__SessionRenewRequest renewal = SANDBOX__SESSION_RENEW_REQUEST__INIT;
    renewal.session_key = bytes_of_text(key);
    renewal.extra_seconds = extra_seconds;
    DEFINE_REQUEST(request, SESSION_RENEW, session_renew, &renewal);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SESSION_RENEW, &reply);
    if (r != SANDBOX_OK)
        return r;
    if (out_expires_at != NULL)
        *out_expires_at = reply->session_renew->expires_at;
    pb_free(reply);
    return SANDBOX_OK;
}

sandbox_error_t sandbox_conn_session_renew(sandbox_conn_t *conn, const char *session_key, uint32_t extra_seconds,
                                           uint64_t *out_expires_at)
{
    if (session_key == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "session_key is NULL");
    if (conn != NULL)
        return renew(conn, session_key, extra_seconds, out_expires_at);
    sandbox_error_t r = default_conn_ref(&conn);
    if (r != SANDBOX_OK)
        return r;
    r = renew(conn, session_key, extra_seconds, out_expires_at);
    conn_unref(conn);
    return r;
}

sandbox_error_t sandbox_session_renew(const char *session_key, uint32_t extra_seconds, uint64_t *out_expires_at)
{
    return sandbox_conn_session_renew(NULL, session_key, extra_seconds, out_expires_at);
}
