// From a request to its operation.
//
// A dialect is a table of routes: method, form of the path, what the body may be, and the function.  A request is matched as it
// came, before anything is decoded; then who calls is established, and whether they may; then the body is read; then the
// operation is called.  Whatever fails before that is answered here, in the dialect's own form of errors.
//
// A call is one request on its way through an operation.  It is the exchange's: whoever keeps a pointer to it sets
// `call->x->ops`, and forgets it in on_gone, or when it has answered.
#ifndef API_ROUTE_H
#define API_ROUTE_H

#include "api/api.h"
#include "api/tokens.h"
#include "base/buf.h"
#include "wire/http_query.h"

#include <libsandbox.h>

enum { PRINCIPAL_TEXT_MAX = PRINCIPAL_NAME_MAX, JSON_BODY_MAX = 1024 * 1024, ROUTES_MAX = 48 };

struct call;

enum route_body {
    BODY_NO,      // none is wanted; one that comes is thrown away
    BODY_JSON,    // all of it, at most JSON_BODY_MAX bytes, is given to the operation
    BODY_PASSED,  // the operation reads it as it comes
};

struct route {
    const char *method, *path;
    const char *id;  // for logs, metrics and the OpenAPI document
    enum route_body body;
    bool open;       // needs no authentication
    unsigned scope;  // that the caller's token must have
    void (*fn)(struct call *call, const char *body, size_t n);
};

struct dialect {
    unsigned bit;  // enum dialect_bit
    const struct route *routes;
    unsigned n_routes;
    // Writes the body of an error.
    void (*put_error)(struct buf *out, unsigned status, const char *code, const char *message);
};

// Of a listener that asks for nothing.
#define PRINCIPAL_OF_NOBODY "local"

struct principal {
    char name[PRINCIPAL_TEXT_MAX + 1];  // "uid:1000", or the token's entry
    uint64_t max_sessions;
    unsigned scopes;
    const struct token *token;  // NULL: none was needed; valid until the operation's function returns
};

struct call {
    struct api *api;
    struct http_exchange *x;
    const struct listener *listener;
    const struct dialect *dialect;
    const struct route *route;  // NULL: none was found
    struct principal principal;
    char *target;  // the request's, kept for as long as the call
    struct http_text params[HTTP_ROUTE_PARAMS_MAX];
    struct http_text query;
};

extern const struct http_server_handler route_handler;

// Number of a route, for its counters; the last one is of requests without a route.
unsigned route_number(const struct route *route);
unsigned routes_count(void);
const struct route *route_at(unsigned number);

// ---- answers ----

void reply_json(struct call *call, unsigned status, struct buf *body);
void reply_empty(struct call *call, unsigned status);
void reply_error(struct call *call, unsigned status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// What the engine said: spec 000, "Errors".
void reply_engine_error(struct call *call, sandbox_error_t code, const char *text);
unsigned engine_error_status(sandbox_error_t code);
const char *engine_error_code(sandbox_error_t code);
// Whether it is worth trying again, which Retry-After says.
bool status_is_retryable(unsigned status);

// ---- the query ----

enum { PATH_PARAM_MAX = 4095 };

struct query_param {
    const char *name;
    char *value;  // has `size` bytes; untouched when it is missing
    size_t size;
    bool required;
    bool present;  // set
};

// Reads those parameters and no others, each at most once.  False: an error has been replied.
bool query_read(struct call *call, struct query_param *params, size_t n);
// "1", "true", "0", "false" or nothing.  False: an error has been replied.
bool query_flag(struct call *call, const struct query_param *param, bool *ret);

#endif
