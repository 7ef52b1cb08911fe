#include "broker/profile.h"

#include "broker/profile_token.h"
#include "broker/secret_file.h"
#include "wire/host_policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// What is being read, for sentences.
struct reading {
    struct profile *p;
    int dir_fd;
    const char *field;
    struct err *err;
};

#define BAD(r, ...) bad_field(r, err_set(r->err, -EINVAL, __VA_ARGS__))

// Puts profile and field before a sentence.
static int bad_field(struct reading *r, int code)
{
    struct err what = *r->err;
    return err_set(r->err, code, "profile \"%.128s\": %.40s: %.200s", r->p->name, r->field, what.text);
}

// ---- base_url ----

static bool loopback_only(const struct host *h)
{
    return h->is_address && ip_classify(&h->addr) == IP_LOOPBACK;
}

// Scheme, host and port, and nothing else; a plain connection goes to this host only.
static int read_base_url(struct reading *r, json_t *value)
{
    const char *url = json_string_value(value), *rest = NULL;
    struct profile *p = r->p;
    if (url == NULL)
        return BAD(r, "it must be a text");
    if (strncmp(url, "https://", 8) == 0)
        p->tls = true, rest = url + 8;
    else if (strncmp(url, "http://", 7) == 0)
        rest = url + 7;
    if (rest == NULL)
        return BAD(r, "it must start with https:// (or http:// for this host's loopback)");
    if (strpbrk(rest, "/?#@\\") != NULL)
        return BAD(r, "it must be an origin: scheme, host and port, without a user, a path (not even \"/\") or a query");
    enum host_problem why;
    uint16_t port = 0;
    if (host_port_parse(rest, strlen(rest), &(struct host_idna){0}, &p->host, &port, &why) < 0)
        return BAD(r, "the host is bad: %s", host_problem_text(why));
    if (!p->tls && !p->host.is_address && strcmp(p->host.name, "localhost") == 0)
        p->host = (struct host){.is_address = true, .addr = {.bytes = {127, 0, 0, 1}}};
    else if (!p->tls && !loopback_only(&p->host))
        return BAD(r, "http:// is for localhost and loopback addresses only: the credential would be on the network");
    p->port = port != 0 ? port : p->tls ? 443 : 80;
    bool usual = p->port == (p->tls ? 443 : 80);
    char host[HOST_FORMAT_MAX];
    host_format(&p->host, host);
    if (usual)
        snprintf(p->host_field, sizeof p->host_field, "%s", host);
    else
        snprintf(p->host_field, sizeof p->host_field, "%s:%u", host, (unsigned)p->port);
    return 0;
}

// ---- routes ----

static int add_route(struct reading *r, struct route_list *list, json_t *value)
{
    const char *text = json_string_value(value);
    enum route_problem why;
    if (text == NULL)
        return BAD(r, "each route must be a text");
    if (route_list_add(list, text, json_string_length(value), &why) < 0)
        return BAD(r, "\"%.100s\": %s", text, route_problem_text(why));
    return 0;
}

static int read_routes(struct reading *r, struct route_list *list, json_t *value)
{
    size_t i;
    json_t *one;
    if (!json_is_array(value))
        return BAD(r, "it must be a list of \"METHOD /path\"");
    json_array_foreach(value, i, one)
    {
        int e = add_route(r, list, one);
        if (e < 0)
            return e;
    }
    return 0;
}

static int read_allow(struct reading *r, json_t *value)
{
    return read_routes(r, &r->p->allow, value);
}

static int read_catalog(struct reading *r, json_t *value)
{
    return read_routes(r, &r->p->catalog, value);
}

// One route by itself, read as those of lists are.
static int read_route(struct reading *r, const char *text, struct route *ret)
{
    struct route_list *list = calloc(1, sizeof *list);
    enum route_problem why = ROUTE_FINE;
    if (list == NULL)
        return err_set(r->err, -ENOMEM, "no memory");
    int e = route_list_add(list, text, strlen(text), &why);
    *ret = list->route[0];
    free(list);
    return e < 0 ? BAD(r, "\"%.100s\": %s", text, route_problem_text(why)) : 0;
}

static int find_route(const struct route_list *list, const struct route *route)
{
    for (unsigned i = 0; i < list->n; i++)
        if (strcmp(list->route[i].method, route->method) == 0 && http_text_equal(list->route[i].path, route->path))
            return (int)i;
    return -1;
}

static int read_caps(struct reading *r, json_t *value)
{
    const char *key;
    json_t *one;
    struct profile *p = r->p;
    if (!json_is_object(value))
        return BAD(r, "it must be an object, \"METHOD /path\" to a number");
    p->cap = calloc(json_object_size(value) + 1, sizeof *p->cap);
    if (p->cap == NULL)
        return err_set(r->err, -ENOMEM, "no memory");
    json_object_foreach(value, key, one)
    {
        struct route route;
        int e = read_route(r, key, &route);
        if (e < 0)
            return e;
        int place = find_route(&p->allow, &route);
        if (place < 0)
            return BAD(r, "\"%.100s\" is not an entry of allow", key);
        json_int_t most = json_integer_value(one);
        if (!json_is_integer(one) || most < 1 || most > GRANT_CALLS_MAX)
            return BAD(r, "\"%.100s\" must have a number from 1 to %d", key, (int)GRANT_CALLS_MAX);
        for (unsigned i = 0; i < p->n_caps; i++)
            if (p->cap[i].route == (unsigned)place)
                return BAD(r, "\"%.100s\" is there twice", key);
        p->cap[p->n_caps++] = (struct profile_cap){(unsigned)place, (uint32_t)most};
    }
    return 0;
}

static int read_health(struct reading *r, json_t *value)
{
    const char *text = json_string_value(value);
    struct route route;
    if (text == NULL)
        return BAD(r, "it must be \"GET /path\" or empty");
    if (text[0] == '\0')
        return 0;
    int e = read_route(r, text, &route);
    if (e < 0)
        return e;
    if (strcmp(route.method, "GET") != 0 || memchr(route.path.at, '*', route.path.n) != NULL)
        return BAD(r, "it must be a GET of one path, without a \"*\"");
    r->p->health = strndup(route.path.at, route.path.n);
    return r->p->health != NULL ? 0 : err_set(r->err, -ENOMEM, "no memory");
}

static int read_batch_item(struct reading *r, const struct route *batch, json_t *value)
{
    struct profile *p = r->p;
    struct route item;
    const char *text = json_string_value(value);
    if (text == NULL)
        return BAD(r, "each route must be a text");
    int e = read_route(r, text, &item);
    if (e < 0)
        return e;
    if (strcmp(item.method, "GET") != 0 || memchr(item.path.at, '*', item.path.n) == NULL)
        return BAD(r, "\"%.100s\" must be a GET with a \"*\": it is served one by one", text);
    if (http_text_equal(item.path, batch->path))
        return BAD(r, "\"%.100s\" cannot serve itself", text);
    for (unsigned i = 0; i < p->n_batches; i++)
        if (http_text_equal(p->batch[i].item.path, item.path))
            return BAD(r, "\"%.100s\" is claimed twice", text);
    if (p->n_batches == ADVICE_BATCHES_MAX)
        return BAD(r, "there are more than %d", (int)ADVICE_BATCHES_MAX);
    p->batch[p->n_batches++] = (struct advice_batch){*batch, item};
    return 0;
}

static int read_batches(struct reading *r, json_t *value)
{
    const char *key;
    json_t *items, *one;
    struct profile *p = r->p;
    if (!json_is_object(value))
        return BAD(r, "it must be an object, \"GET /many\" to a list of what it serves");
    p->batch = calloc(ADVICE_BATCHES_MAX, sizeof *p->batch);
    if (p->batch == NULL)
        return err_set(r->err, -ENOMEM, "no memory");
    json_object_foreach(value, key, items)
    {
        struct route batch;
        size_t i;
        int e = read_route(r, key, &batch);
        if (e < 0)
            return e;
        if (strcmp(batch.method, "GET") != 0)
            return BAD(r, "\"%.100s\" must be a GET", key);
        if (!json_is_array(items) || json_array_size(items) == 0)
            return BAD(r, "\"%.100s\" must have a list of routes, not empty", key);
        json_array_foreach(items, i, one) if ((e = read_batch_item(r, &batch, one)) < 0) return e;
    }
    return 0;
}

// ---- words ----

static bool has_space_or_control(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++)
        if (*c <= 0x20 || *c == 0x7F)
            return true;
    return false;
}

static int read_scopes(struct reading *r, json_t *value)
{
    size_t i, room = 1;
    json_t *one;
    if (!json_is_array(value) || json_array_size(value) > PROFILE_SCOPES_MAX)
        return BAD(r, "it must be a list of at most %d texts", (int)PROFILE_SCOPES_MAX);
    json_array_foreach(value, i, one)
    {
        const char *text = json_string_value(one);
        if (text == NULL || text[0] == '\0' || strlen(text) > PROFILE_WORD_MAX || has_space_or_control(text))
            return BAD(r, "each scope must be a word of 1 to %d bytes, without spaces", (int)PROFILE_WORD_MAX);
        if (strcmp(text, "code:run") == 0 || strcmp(text, "*") == 0)
            return BAD(r, "\"%s\" cannot be given to code in a sandbox", text);
        room += strlen(text) + 1;
    }
    if (room > PROFILE_SCOPE_TEXT_MAX + 2)
        return BAD(r, "all together are longer than %d bytes", (int)PROFILE_SCOPE_TEXT_MAX);
    free(r->p->scope);
    r->p->scope = calloc(1, room);
    if (r->p->scope == NULL)
        return err_set(r->err, -ENOMEM, "no memory");
    json_array_foreach(value, i, one)
    {
        size_t at = strlen(r->p->scope);
        snprintf(r->p->scope + at, room - at, "%s%s", i > 0 ? " " : "", json_string_value(one));
    }
    return 0;
}

static int add_caller(struct reading *r, const char *text)
{
    struct profile *p = r->p;
    size_t n = text != NULL ? strlen(text) : 0;
    if (n == 0 || n > BROKER_PRINCIPAL_MAX)
        return BAD(r, "each caller must be a text of 1 to %d bytes", (int)BROKER_PRINCIPAL_MAX);
    if (strchr(" \t\r\n", text[0]) != NULL || strchr(" \t\r\n", text[n - 1]) != NULL)
        return BAD(r, "\"%.100s\" begins or ends with a space", text);
    for (unsigned i = 0; i < p->n_callers; i++)
        if (strcmp(p->caller[i], text) == 0)
            return BAD(r, "\"%.100s\" is there twice", text);
    p->caller[p->n_callers++] = text;
    p->any_caller = p->any_caller || strcmp(text, "*") == 0;
    return 0;
}

static int read_callers(struct reading *r, json_t *value)
{
    size_t n = json_array_size(value), i;
    json_t *one;
    if (!json_is_array(value) || n == 0 || n > PROFILE_CALLERS_MAX)
        return BAD(r, "it must be a list of 1 to %d callers; \"*\" is everybody who is authenticated",
                   (int)PROFILE_CALLERS_MAX);
    r->p->caller = calloc(n, sizeof *r->p->caller);
    if (r->p->caller == NULL)
        return err_set(r->err, -ENOMEM, "no memory");
    json_array_foreach(value, i, one)
    {
        int e = add_caller(r, json_string_value(one));
        if (e < 0)
            return e;
    }
    return 0;
}

static int read_max_calls(struct reading *r, json_t *value)
{
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > GRANT_CALLS_MAX)
        return BAD(r, "it must be a number from 1 to %d, or 0 for %d", (int)GRANT_CALLS_MAX, (int)GRANT_CALLS_DEFAULT);
    if (n > 0)
        r->p->max_calls = (uint32_t)n;
    return 0;
}

static int read_in_sessions(struct reading *r, json_t *value)
{
    if (!json_is_boolean(value))
        return BAD(r, "it must be true or false");
    r->p->allow_in_sessions = json_is_true(value);
    return 0;
}

static int read_global(struct reading *r, json_t *value)
{
    const char *text = json_string_value(value);
    if (text == NULL || text[0] == '\0' || strlen(text) > PROFILE_WORD_MAX)
        return BAD(r, "it must be a name of 1 to %d bytes", (int)PROFILE_WORD_MAX);
    r->p->global = text;
    return 0;
}

static int take_preamble(struct reading *r, char *text)
{
    if (r->p->preamble != NULL) {
        free(text);
        return BAD(r, "preamble and preamble_file are there both");
    }
    r->p->preamble = text;
    return text != NULL ? 0 : err_set(r->err, -ENOMEM, "no memory");
}

static int read_preamble(struct reading *r, json_t *value)
{
    const char *text = json_string_value(value);
    if (text == NULL || strlen(text) > PROFILE_PREAMBLE_MAX)
        return BAD(r, "it must be a text of at most %d bytes", (int)PROFILE_PREAMBLE_MAX);
    return take_preamble(r, strdup(text));
}

static int read_preamble_file(struct reading *r, json_t *value)
{
    const char *path = json_string_value(value);
    char *text;
    size_t n;
    if (path == NULL)
        return BAD(r, "it must be a path");
    int e = secret_file_read_below(r->dir_fd, path, PROFILE_PREAMBLE_MAX, &text, &n, r->err);
    if (e < 0)
        return bad_field(r, e);
    if (strlen(text) != n) {
        free(text);
        return BAD(r, "\"%.100s\" is not a text", path);
    }
    return take_preamble(r, text);
}

// The place of a word among `words`.
static int read_word(struct reading *r, json_t *value, const char *const *words, unsigned n, unsigned *ret)
{
    const char *text = json_string_value(value);
    for (unsigned i = 0; text != NULL && i < n; i++)
        if (strcmp(text, words[i]) == 0) {
            *ret = i;
            return 0;
        }
    return BAD(r, "it must be %s, %s or %s", words[0], words[1], words[2]);
}

static int read_advice(struct reading *r, json_t *value)
{
    static const char *const words[] = {"off", "operator", "caller"};
    unsigned place = 0;
    int e = read_word(r, value, words, 3, &place);
    r->p->advice = (enum advice_mode)place;
    return e;
}

static int read_retention(struct reading *r, json_t *value)
{
    static const char *const words[] = {"none", "aggregate", "detailed"};
    unsigned place = 0;
    int e = read_word(r, value, words, 3, &place);
    r->p->retention = (enum advice_retention)place;
    return e;
}

static int read_token(struct reading *r, json_t *value)
{
    int e = token_read(value, r->dir_fd, &r->p->token, r->err);
    return e < 0 ? bad_field(r, e) : 0;
}

// ---- a profile ----

// In this order, whatever the file's: caps are looked up in what is allowed.
static const struct {
    const char *name;
    int (*read)(struct reading *r, json_t *value);
    bool required;
} fields[] = {
    {"base_url", read_base_url, true},     {"allow", read_allow, false},
    {"scopes", read_scopes, false},        {"allowed_callers", read_callers, true},
    {"token", read_token, false},          {"max_calls", read_max_calls, false},
    {"route_max_calls", read_caps, false}, {"allow_in_sessions", read_in_sessions, false},
    {"health_check", read_health, false},  {"catalog", read_catalog, false},
    {"batch_of", read_batches, false},     {"global", read_global, false},
    {"preamble", read_preamble, false},    {"preamble_file", read_preamble_file, false},
    {"advice", read_advice, false},        {"advice_retention", read_retention, false},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static bool is_field(const char *name)
{
    for (unsigned i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return true;
    return false;
}

static bool name_ok(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n >= 1 && n <= BROKER_PROFILE_MAX && name[n] == '\0';
}

int profile_read(const char *name, json_t *object, int dir_fd, struct profile *ret, struct err *err)
{
    *ret = (struct profile){.name = name, .max_calls = GRANT_CALLS_DEFAULT, .global = "host"};
    struct reading r = {.p = ret, .dir_fd = dir_fd, .err = err};
    if (!name_ok(name))
        return err_set(err, -EINVAL, "profile \"%.100s\": a name is 1 to %d letters, digits, '.', '_' or '-'", name,
                       (int)BROKER_PROFILE_MAX);
    if (!json_is_object(object))
        return err_set(err, -EINVAL, "profile \"%.128s\": it must be an object", name);
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) if (!is_field(key)) return err_set(
        err, -EINVAL, "profile \"%.128s\": %.40s: there is no such field", name, key);
    for (unsigned i = 0; i < FIELDS; i++) {
        r.field = fields[i].name;
        value = json_object_get(object, r.field);
        if (value == NULL && fields[i].required)
            return BAD((&r), "it is missing");
        int e = value != NULL ? fields[i].read(&r, value) : 0;
        if (e < 0)
            return e;
    }
    if (ret->scope == NULL && (ret->scope = strdup("")) == NULL)
        return err_set(err, -ENOMEM, "no memory");
    if (ret->preamble == NULL && (ret->preamble = strdup("")) == NULL)
        return err_set(err, -ENOMEM, "no memory");
    return 0;
}

void profile_end(struct profile *p)
{
    token_end(&p->token);
    free(p->scope);
    free(p->caller);
    free(p->cap);
    free(p->batch);
    free((char *)p->health);
    free(p->preamble);
    memset(p, 0, sizeof *p);
}

bool profile_is_for(const struct profile *p, const char *principal)
{
    if (principal[0] == '\0')
        return false;
    if (p->any_caller)
        return true;
    for (unsigned i = 0; i < p->n_callers; i++)
        if (strcmp(p->caller[i], principal) == 0)
            return true;
    return false;
}
