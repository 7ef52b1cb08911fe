#include "api/route.h"

#include "api/dialects.h"
#include "api/metrics.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

// ---- the table ----

static const struct dialect *const dialects[] = {&sessions_dialect};
enum { DIALECTS = sizeof dialects / sizeof dialects[0] };

unsigned routes_count(void)
{
    unsigned n = 0;
    for (size_t i = 0; i < DIALECTS; i++)
        n += dialects[i]->n_routes;
    return n;
}

const struct route *route_at(unsigned number)
{
    for (size_t i = 0; i < DIALECTS; i++) {
        if (number < dialects[i]->n_routes)
            return &dialects[i]->routes[number];
        number -= dialects[i]->n_routes;
    }
    return NULL;
}

unsigned route_number(const struct route *route)
{
    unsigned n = 0;
    while (n < routes_count() && route_at(n) != route)
        n++;
    return n;
}

static bool method_fits(const struct route *r, struct http_text method)
{
    struct http_text own = {r->method, strlen(r->method)};
    return http_text_equal(own, method) || (http_text_equal(method, HTTP_TEXT("HEAD")) && strcmp(r->method, "GET") == 0);
}

// Finds the route; *ret_known: there is one for the path, with another method.
static void find_route(struct call *call, struct http_text method, struct http_text path, bool *ret_known)
{
    struct http_text params[HTTP_ROUTE_PARAMS_MAX] = {0};
    *ret_known = false;
    for (size_t d = 0; d < DIALECTS; d++)
        for (unsigned i = 0; (call->listener->dialects & dialects[d]->bit) && i < dialects[d]->n_routes; i++) {
            const struct route *r = &dialects[d]->routes[i];
            if (!http_route_match(r->path, path, params))
                continue;
            call->dialect = dialects[d];
            *ret_known = true;
            if (!method_fits(r, method))
                continue;
            call->route = r;
            memcpy(call->params, params, sizeof params);
            return;
        }
}

static void refuse_method(struct call *call, struct http_text path)
{
    char allow[64] = "";
    struct http_text params[HTTP_ROUTE_PARAMS_MAX];
    for (unsigned i = 0; i < call->dialect->n_routes; i++) {
        const struct route *r = &call->dialect->routes[i];
        size_t n = strlen(allow);
        if (http_route_match(r->path, path, params))
            snprintf(allow + n, sizeof allow - n, "%s%s%s", n > 0 ? ", " : "", r->method,
                     strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
    }
    http_add_header(call->x, "Allow", "%s", allow);
    reply_error(call, 405, "method_not_allowed", "this path takes %s", allow);
}

// ---- who calls ----

static bool known_by_token(struct call *call)
{
    const struct http_fields *fields = &call->x->request->fields;
    const struct http_field *f = http_field_find(fields, 0, HTTP_TEXT("authorization"));
    if (f == NULL || call->api->tokens == NULL)
        return false;
    // Two of them could be understood differently by somebody in front of us.
    if (http_field_find(fields, (unsigned)(f - fields->field) + 1, HTTP_TEXT("authorization")) != NULL)
        return false;
    struct http_text value = f->value;
    const struct http_text scheme = HTTP_TEXT("bearer ");
    if (value.n <= scheme.n || !http_text_is((struct http_text){value.at, scheme.n}, scheme))
        return false;
    const struct token *t = tokens_find(call->api->tokens, value.at + scheme.n, value.n - scheme.n);
    if (t == NULL)
        return false;
    memcpy(call->principal.name, t->name, sizeof t->name);
    call->principal.scopes = t->scopes;
    call->principal.token = t;
    if (t->max_sessions > 0)
        call->principal.max_sessions = t->max_sessions;
    return true;
}

static bool is_loopback_name(struct http_text host)
{
    // Without its port.
    size_t n = host.n;
    while (n > 0 && host.at[n - 1] >= '0' && host.at[n - 1] <= '9')
        n--;
    if (n > 0 && n < host.n && host.at[n - 1] == ':')
        host.n = n - 1;
    return http_text_is(host, HTTP_TEXT("localhost")) || http_text_is(host, HTTP_TEXT("127.0.0.1")) ||
           http_text_is(host, HTTP_TEXT("[::1]"));
}

// A page of somebody else's in a browser on this machine must not reach a listener that asks for nothing: the name it uses is
// its own, or it says where it comes from.
static bool comes_from_here(const struct call *call)
{
    const struct http_request *r = call->x->request;
    const struct http_field *origin = http_field_find(&r->fields, 0, HTTP_TEXT("origin"));
    if (!is_loopback_name(r->host))
        return false;
    if (origin == NULL)
        return true;
    struct http_text o = origin->value;
    const char *prefixes[] = {"http://", "https://"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (o.n > n && memcmp(o.at, prefixes[i], n) == 0)
            return is_loopback_name((struct http_text){o.at + n, o.n - n});
    }
    return false;
}

// Whether the caller is known; if not, an error has been replied.
static bool authenticate(struct call *call)
{
    struct principal *p = &call->principal;
    p->max_sessions = call->api->options.max_sessions;
    p->scopes = SCOPE_ALL;
    switch (call->listener->auth) {
    case AUTH_PEER:
        snprintf(p->name, sizeof p->name, "uid:%u", call->x->peer->uid);
        return true;
    case AUTH_NONE:
        strcpy(p->name, PRINCIPAL_OF_NOBODY);
        if (comes_from_here(call))
            return true;
        reply_error(call, 403, "forbidden", "this listener answers only to loopback names, and to no other origin");
        return false;
    case AUTH_TOKEN:
        break;
    }
    if (known_by_token(call))
        return true;
    http_add_header(call->x, "WWW-Authenticate", "Bearer realm=\"sandbox-api\"");
    reply_error(call, 401, "unauthorized", "a valid bearer token is needed");
    return false;
}

// ---- one request ----

static struct call *call_new(struct api *api, struct http_exchange *x)
{
    struct call *call = calloc(1, sizeof *call);
    if (call == NULL)
        return NULL;
    call->api = api;
    call->x = x;
    call->listener = x->listener;
    call->dialect = dialects[0];
    x->note = call;
    return call;
}

static void on_whole(void *arg, struct http_exchange *x, const char *body, size_t n)
{
    struct call *call = arg;
    (void)x;
    call->route->fn(call, body, n);
}

static void on_request(void *arg, struct http_exchange *x)
{
    struct api *api = arg;
    struct call *call = call_new(api, x);
    const struct http_request *r = x->request;
    struct http_text path, target = r->form == HTTP_ABSOLUTE_FORM ? r->path : r->target;
    bool known;
    if (call == NULL || (call->target = strndup(target.at, target.n)) == NULL) {
        http_abort(x);
        return;
    }
    // Where nobody proves who they are, the host they name counts, and it is to be in one place.
    bool absolute_fits = r->form == HTTP_ABSOLUTE_FORM && call->listener->auth != AUTH_NONE;
    if (r->form != HTTP_ORIGIN_FORM && !absolute_fits) {
        reply_error(call, 400, "bad_target", "the request's target must be a path");
        return;
    }
    http_target_split((struct http_text){call->target, target.n}, &path, &call->query);
    find_route(call, r->method, path, &known);
    // What is open needs nobody to prove who they are; where nobody has to anyway, the host they name is looked at all the
    // same.
    bool open = call->route != NULL && call->route->open && call->listener->auth != AUTH_NONE;
    if (!open && !authenticate(call))
        return;
    if (call->route == NULL && !known)
        reply_error(call, 404, "not_found", "there is no such resource");
    else if (call->route == NULL)
        refuse_method(call, path);
    else if (!call->route->open && (call->route->scope & ~call->principal.scopes) != 0)
        reply_error(call, 403, "forbidden", "this token's scopes do not allow it");
    else if (call->route->body == BODY_JSON)
        http_read_whole(x, JSON_BODY_MAX, on_whole, call);
    else
        call->route->fn(call, NULL, 0);
}

static void on_error(void *arg, struct http_exchange *x, unsigned status, const char *code, const char *sentence)
{
    struct call *call = x->note != NULL ? x->note : call_new(arg, x);
    if (call == NULL)
        http_abort(x);
    else
        reply_error(call, status, code, "%s", sentence);
}

static void on_finish(void *arg, const struct http_exchange *x)
{
    struct api *api = arg;
    struct call *call = x->note;
    const struct route *route = call != NULL ? call->route : NULL;
    metrics_request(api->metrics, route_number(route), x->status);
    char path[HTTP_LOG_TARGET_MAX + 1];
    memcpy(path, x->target, sizeof path);
    path[strcspn(path, "?")] = '\0';  // what a query says may be a secret
    log_info("request", log_str("method", x->method), log_str("path", path),
             log_str("route", route != NULL ? route->id : "none"), log_u64("status", x->status),
             log_str("principal", call != NULL ? call->principal.name : ""), log_str("peer", x->peer->address),
             log_str("listener", ((const struct listener *)x->listener)->name), log_u64("bytes_in", x->bytes_in),
             log_u64("bytes_out", x->bytes_out), log_u64("duration_us", (mono_ns() - x->begun_ns) / NS_PER_US),
             log_bool("aborted", x->aborted));
    if (call != NULL)
        free(call->target);
    free(call);
}

const struct http_server_handler route_handler = {.on_request = on_request, .on_error = on_error, .on_finish = on_finish};
