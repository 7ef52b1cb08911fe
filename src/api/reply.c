// Answers, and what is in a query.
#include "api/route.h"
#include "api/session.h"
#include "base/json_out.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

enum { ERROR_BODY_MAX = 4096, RETRY_AFTER_S = 1 };

static const char json_type[] = "application/json";

void reply_json(struct call *call, unsigned status, struct buf *body)
{
    if (buf_error(body) < 0 || buf_append_text(body, "\n") < 0) {
        reply_error(call, 500, "internal", "the answer is larger than it may be");
        return;
    }
    http_reply(call->x, status, json_type, body->data, body->len);
}

void reply_empty(struct call *call, unsigned status)
{
    http_reply(call->x, status, NULL, NULL, 0);
}

bool status_is_retryable(unsigned status)
{
    return status == 429 || status == 503;
}

static void reply_refusal(struct call *call, unsigned status, const char *code, const char *message, sandbox_not_run_t not_run)
{
    bool says = call->route != NULL && call->route->runs;
    cleanup_buf struct buf body = BUF_INIT(8 * 1024);
    call->dialect->put_error(&body, status, code, message, says ? sandbox_not_run_name(not_run) : "");
    buf_append_text(&body, "\n");
    if (status_is_retryable(status))
        http_add_header(call->x, "Retry-After", "%d", RETRY_AFTER_S);
    http_add_header(call->x, "Cache-Control", "no-store");
    http_reply(call->x, status, json_type, body.data, body.len);
}

// Of what this program refuses by itself, nothing has gone to the engine.
static sandbox_not_run_t own_reason(unsigned status)
{
    switch (status) {
    case 401:
    case 403:
        return SANDBOX_NOT_RUN_PERMISSION;
    case 429:
        return SANDBOX_NOT_RUN_CAPACITY;
    default:
        return status < 500 ? SANDBOX_NOT_RUN_REQUEST : SANDBOX_NOT_RUN_ENVIRONMENT;
    }
}

void reply_error(struct call *call, unsigned status, const char *code, const char *format, ...)
{
    char message[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    reply_refusal(call, status, code, message, own_reason(status));
}

// ---- what the engine says ----

static const struct {
    sandbox_error_t error;
    unsigned status;
    const char *code;
} errors[] = {
    {SANDBOX_ERR_POOL_EXHAUSTED, 429, "pool_exhausted"},
    {SANDBOX_ERR_INVALID_SPEC, 400, "invalid_argument"},
    {SANDBOX_ERR_DAEMON_UNREACHABLE, 503, "engine_unreachable"},
    {SANDBOX_ERR_PERMISSION_DENIED, 500, "internal"},
    {SANDBOX_ERR_INTERNAL, 500, "internal"},
    {SANDBOX_ERR_SESSION_EXPIRED, 404, "workspace_expired"},
    {SANDBOX_ERR_SESSION_LIMIT, 400, "lifetime_limit"},
    {SANDBOX_ERR_SESSION_UNKNOWN, 404, "workspace_unknown"},
    {SANDBOX_ERR_GUEST_UNAVAILABLE, 503, "unavailable"},
    {SANDBOX_ERR_PATH_DENIED, 400, "path_denied"},
    {SANDBOX_ERR_NOT_FOUND, 404, "path_not_found"},
    {SANDBOX_ERR_EXISTS, 409, "exists"},
    {SANDBOX_ERR_TOO_LARGE, 413, "too_large"},
    {SANDBOX_ERR_GUEST_IO, 500, "guest_io"},
    {SANDBOX_ERR_TIMEOUT, 504, "timeout"},
    {(sandbox_error_t)SESSION_CLOSED, 503, "session_closed"},
};

unsigned engine_error_status(sandbox_error_t code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == code)
            return errors[i].status;
    return 500;
}

const char *engine_error_code(sandbox_error_t code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].error == code)
            return errors[i].code;
    return "internal";
}

void reply_engine_error(struct call *call, sandbox_error_t code, const char *text)
{
    reply_refusal(call, engine_error_status(code), engine_error_code(code), text, SANDBOX_NOT_RUN_UNKNOWN);
}

struct failure failure_of(sandbox_error_t error, sandbox_not_run_t not_run, const char *text)
{
    struct failure why = {.error = error, .not_run = not_run};
    snprintf(why.text, sizeof why.text, "%s", text);
    return why;
}

struct failure failure_of_library(sandbox_error_t error)
{
    return failure_of(error, sandbox_last_not_run(), sandbox_last_error());
}

void reply_failure(struct call *call, const struct failure *why)
{
    reply_refusal(call, engine_error_status(why->error), engine_error_code(why->error), why->text, why->not_run);
}

// ---- the query ----

static bool read_one(struct call *call, struct query_param *p, struct http_text value)
{
    size_t n;
    if (p->present) {
        reply_error(call, 400, "invalid_argument", "the parameter %s is given twice", p->name);
        return false;
    }
    int r = http_percent_decode(value, true, p->value, p->size, &n);
    if (r == -ENAMETOOLONG)
        reply_error(call, 400, "invalid_argument", "the parameter %s is longer than %zu bytes", p->name, p->size - 1);
    else if (r == -EINVAL)
        reply_error(call, 400, "invalid_argument", "the parameter %s has a NUL in it", p->name);
    else if (r < 0)
        reply_error(call, 400, "invalid_argument", "the parameter %s has a %% that two hexadecimal digits do not follow",
                    p->name);
    p->present = r == 0;
    return r == 0;
}

bool query_read(struct call *call, struct query_param *params, size_t n)
{
    struct http_text query = call->query, raw, value;
    char name[64];
    size_t len;
    while (http_query_next(&query, &raw, &value)) {
        struct query_param *p = NULL;
        bool readable = http_percent_decode(raw, true, name, sizeof name, &len) == 0;
        for (size_t i = 0; readable && i < n; i++)
            if (strcmp(params[i].name, name) == 0)
                p = &params[i];
        if (p == NULL) {
            reply_error(call, 400, "invalid_argument", "there is no parameter \"%.*s\" here", (int)(raw.n < 60 ? raw.n : 60),
                        raw.at);
            return false;
        }
        if (!read_one(call, p, value))
            return false;
    }
    for (size_t i = 0; i < n; i++)
        if (params[i].required && !params[i].present) {
            reply_error(call, 400, "invalid_argument", "the parameter %s is missing", params[i].name);
            return false;
        }
    return true;
}

bool query_flag(struct call *call, const struct query_param *param, bool *ret)
{
    const char *v = param->value;
    if (!param->present || strcmp(v, "0") == 0 || strcmp(v, "false") == 0) {
        *ret = false;
    } else if (v[0] == '\0' || strcmp(v, "1") == 0 || strcmp(v, "true") == 0) {
        *ret = true;
    } else {
        reply_error(call, 400, "invalid_argument", "the parameter %s is \"%.60s\"; it must be 1 or 0", param->name, v);
        return false;
    }
    return true;
}
