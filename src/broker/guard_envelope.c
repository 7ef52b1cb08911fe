#include "broker/guard_envelope.h"

#include <errno.h>
#include <string.h>

// ---- where a field stands in bytes that are known to be a JSON object ----

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL && *c->at != '\0')
        c->at++;
}

// At the opening quote; behind the closing one afterwards.
static void skip_string(struct cursor *c)
{
    for (c->at++; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\')
            c->at++;
    if (c->at < c->end)
        c->at++;
}

static void skip_value(struct cursor *c)
{
    int depth = 0;
    while (c->at < c->end) {
        char b = *c->at;
        if (b == '"') {
            skip_string(c);
        } else {
            if (depth == 0 && (b == ',' || b == '}' || b == ']' || b == ' ' || b == '\t' || b == '\r' || b == '\n'))
                return;
            depth += (b == '{' || b == '[') - (b == '}' || b == ']');
            c->at++;
        }
        if (depth == 0 && (b == '"' || b == '}' || b == ']'))
            return;
    }
}

// Whether a name, with its quotes, says `key`; a name may be written with escapes.
static bool name_is(struct http_text name, const char *key)
{
    json_t *text = json_loadb(name.at, name.n, JSON_DECODE_ANY, NULL);
    bool same = text != NULL && strcmp(json_string_value(text), key) == 0;
    json_decref(text);
    return same;
}

static struct http_text find_raw(const char *bytes, size_t n, const char *key)
{
    struct cursor c = {bytes, bytes + n};
    skip_space(&c);
    c.at++;  // the object's bracket
    while (c.at < c.end) {
        skip_space(&c);
        if (c.at >= c.end || *c.at != '"')
            break;
        const char *name = c.at;
        skip_string(&c);
        struct http_text quoted = {name, (size_t)(c.at - name)};
        skip_space(&c);
        c.at++;  // the colon
        skip_space(&c);
        const char *value = c.at;
        skip_value(&c);
        if (name_is(quoted, key))
            return (struct http_text){value, (size_t)(c.at - value)};
        skip_space(&c);
        c.at++;  // the comma, or the last bracket
    }
    return (struct http_text){"", 0};
}

// ---- the envelope ----

static struct http_text text_field(json_t *root, const char *name)
{
    json_t *value = json_object_get(root, name);
    return json_is_string(value) ? (struct http_text){json_string_value(value), json_string_length(value)}
                                 : (struct http_text){"", 0};
}

int guard_envelope_read(const char *bytes, size_t n, struct guard_envelope *ret)
{
    json_t *root = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, NULL);
    struct guard_envelope e = {.root = root};
    e.method = http_trim(text_field(root, "method"));
    e.path = text_field(root, "path");
    if (!json_is_object(root) || e.method.n == 0 || e.path.n == 0) {
        json_decref(root);
        return -EBADMSG;
    }
    e.body = json_object_get(root, "body") != NULL ? find_raw(bytes, n, "body") : (struct http_text){"", 0};
    *ret = e;
    return 0;
}

void guard_envelope_end(struct guard_envelope *e)
{
    json_decref(e->root);
    *e = (struct guard_envelope){0};
}
