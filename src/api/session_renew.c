// The time of a session's workspace.
#include "api/engine_link.h"
#include "api/json_in.h"
#include "api/session_ops.h"
#include "base/json_out.h"

#include <stdlib.h>
#include <string.h>

struct renewal {
    struct job job;  // first
    struct api *api;
    struct call *call;
    struct engine_conn *conn;
    char id[SESSION_ID_MAX + 1];
    char owner[PRINCIPAL_TEXT_MAX + 1];
    char workspace[WORKSPACE_KEY_MAX + 1];
    uint32_t seconds;
    uint64_t expires_at;
    sandbox_error_t error;
    char text[384];
};

static void run_renewal(struct job *job)
{
    struct renewal *r = (struct renewal *)job;
    r->error = sandbox_conn_session_renew(r->conn->conn, r->workspace, r->seconds, &r->expires_at);
    if (r->error != SANDBOX_OK)
        snprintf(r->text, sizeof r->text, "%s", sandbox_last_error());
}

static void reply_renewal(const struct renewal *r)
{
    cleanup_buf struct buf out = BUF_INIT(256);
    struct json_out j = JSON_OUT_INIT(&out);
    json_open(&j, NULL, '{');
    json_str(&j, "id", r->id);
    json_u64(&j, "expires_at", r->expires_at);
    json_close(&j, '}');
    reply_json(r->call, 200, &out);
}

static void end_renewal(struct job *job, bool ran)
{
    struct renewal *r = (struct renewal *)job;
    engine_conn_unref(r->api->engine, r->conn, false);
    struct session *s = session_find(r->api->sessions, r->owner, r->id, SESSION_ID_MAX);
    if (ran && r->error == SANDBOX_OK && s != NULL)
        s->expires_at = r->expires_at;
    if (ran && r->error == SANDBOX_OK && s != NULL)
        session_touch(s);
    if (ran && r->error == SANDBOX_ERR_DAEMON_UNREACHABLE)
        engine_link_suspect(r->api->engine);
    if (r->call != NULL) {
        r->call->x->ops = NULL;
        if (ran && r->error == SANDBOX_OK)
            reply_renewal(r);
        else if (ran)
            reply_engine_error(r->call, r->error, r->text);
    }
    free(r);
}

static void on_renewer_gone(void *arg)
{
    ((struct renewal *)arg)->call = NULL;
}

static void renew(struct call *call, const struct session *s, uint32_t seconds)
{
    static const struct http_exchange_ops ops = {.on_gone = on_renewer_gone};
    struct engine_conn *conn = engine_link_control(call->api->engine);
    struct renewal *r = conn != NULL ? calloc(1, sizeof *r) : NULL;
    if (r == NULL) {
        if (conn != NULL)
            engine_conn_unref(call->api->engine, conn, false);
        reply_error(call, 503, "engine_unreachable", "the engine cannot be reached");
        return;
    }
    *r = (struct renewal){
        .job = {.run = run_renewal, .finish = end_renewal}, .api = call->api, .call = call, .conn = conn, .seconds = seconds};
    memcpy(r->id, s->id, sizeof r->id);
    memcpy(r->owner, s->owner, sizeof r->owner);
    memcpy(r->workspace, s->workspace, sizeof r->workspace);
    call->x->ops = &ops;
    call->x->arg = r;
    workers_submit(call->api->lanes[LANE_CALLS], &r->job);
}

void op_session_renew(struct call *call, const char *body, size_t n)
{
    struct session *s = session_named(call);
    cleanup_json_in struct json_in in = {0};
    struct err err;
    uint64_t seconds = 0;
    if (s == NULL || !query_read(call, NULL, 0))
        return;
    int r = json_in_open(&in, body, n, &err);
    if (r == 0) {
        if (!json_in_has(&in, "ttl_seconds"))
            json_in_fault(&in, "ttl_seconds is missing");
        seconds = json_in_number(&in, "ttl_seconds", 1, TTL_SECONDS_MAX, 0);
        r = json_in_close(&in, &err);
    }
    if (r < 0)
        reply_error(call, 400, "invalid_argument", "%s", err.text);
    else
        renew(call, s, (uint32_t)seconds);
}
