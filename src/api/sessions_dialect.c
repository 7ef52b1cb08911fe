// The table of the session dialect, and the operations that are not a session's.
#include "api/dialects.h"
#include "api/engine_link.h"
#include "api/metrics.h"
#include "api/openapi.h"
#include "api/session_ops.h"
#include "base/json_out.h"

static void op_health(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    cleanup_buf struct buf out = BUF_INIT(256);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_str(&j, "status", "ok");
    json_bool(&j, "engine_reachable", engine_link_reachable(call->api->engine));
    json_str(&j, "version", API_VERSION);
    json_close(&j, '}');
    reply_json(call, 200, &out);
}

static void op_metrics(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    cleanup_buf struct buf out = BUF_INIT(METRICS_TEXT_MAX);
    metrics_write(call->api, &out);
    http_reply(call->x, 200, "text/plain; version=0.0.4", out.data, out.len);
}

static void op_openapi(struct call *call, const char *body, size_t n)
{
    (void)body;
    (void)n;
    http_reply(call->x, 200, "application/json", openapi_json, openapi_json_len);
}

static void put_error(struct buf *out, unsigned status, const char *code, const char *message, const char *not_run)
{
    struct json_out j = JSON_OUT_INIT(out);
    (void)status;
    json_open(&j, NULL, '{');
    json_open(&j, "error", '{');
    json_str(&j, "code", code);
    json_str(&j, "message", message);
    if (not_run[0] != '\0')
        json_str(&j, "not_run", not_run);
    json_close(&j, '}');
    json_close(&j, '}');
}

#define SESSION "/v1/sessions/{id}"
static const struct route routes[] = {
    {"GET", "/v1/health", "health", BODY_NO, true, 0, op_health, false},
    {"GET", "/openapi.json", "openapi", BODY_NO, true, 0, op_openapi, false},
    {"GET", "/metrics", "metrics", BODY_NO, false, SCOPE_METRICS, op_metrics, false},
    {"POST", "/v1/sessions", "createSession", BODY_JSON, false, SCOPE_SESSIONS, op_session_create, true},
    {"GET", "/v1/sessions", "listSessions", BODY_NO, false, SCOPE_SESSIONS, op_session_list, false},
    {"GET", SESSION, "getSession", BODY_NO, false, SCOPE_SESSIONS, op_session_get, false},
    {"DELETE", SESSION, "deleteSession", BODY_NO, false, SCOPE_SESSIONS, op_session_delete, false},
    {"POST", SESSION "/renew", "renewSession", BODY_JSON, false, SCOPE_SESSIONS, op_session_renew, false},
    {"POST", SESSION "/exec", "exec", BODY_JSON, false, SCOPE_SESSIONS, op_exec, true},
    {"GET", SESSION "/exec", "listExecs", BODY_NO, false, SCOPE_SESSIONS, op_exec_list, false},
    {"GET", SESSION "/exec/{exec_id}", "followExec", BODY_NO, false, SCOPE_SESSIONS, op_exec_events, false},
    {"DELETE", SESSION "/exec/{exec_id}", "killExec", BODY_NO, false, SCOPE_SESSIONS, op_exec_kill, false},
    {"GET", SESSION "/files", "readFile", BODY_NO, false, SCOPE_SESSIONS, op_file_get, false},
    {"PUT", SESSION "/files", "writeFile", BODY_PASSED, false, SCOPE_SESSIONS, op_file_put, false},
    {"DELETE", SESSION "/files", "deleteFile", BODY_NO, false, SCOPE_SESSIONS, op_file_delete, false},
    {"GET", SESSION "/stat", "stat", BODY_NO, false, SCOPE_SESSIONS, op_stat, false},
    {"GET", SESSION "/ls", "listDirectory", BODY_NO, false, SCOPE_SESSIONS, op_ls, false},
    {"POST", SESSION "/mkdir", "makeDirectory", BODY_JSON, false, SCOPE_SESSIONS, op_mkdir, false},
};

const struct dialect sessions_dialect = {
    .bit = DIALECT_SESSIONS, .routes = routes, .n_routes = sizeof routes / sizeof routes[0], .put_error = put_error};
