#include "api/json_in.h"

#include <errno.h>
#include <libsandbox.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int json_in_open(struct json_in *in, const char *body, size_t n, struct err *err)
{
    *in = (struct json_in){0};
    json_error_t why;
    bool empty = n == 0 || strspn(body, " \t\r\n") == n;
    in->root = empty ? json_object() : json_loadb(body, n, JSON_REJECT_DUPLICATES, &why);
    if (in->root == NULL && empty)
        return err_set(err, -EINVAL, "no memory");
    if (in->root == NULL)
        return err_set(err, -EINVAL, "the body is not JSON: line %d, column %d: %.120s", why.line, why.column, why.text);
    if (!json_is_object(in->root)) {
        json_in_free(in);
        return err_set(err, -EINVAL, "the body must be a JSON object");
    }
    return 0;
}

void json_in_free(struct json_in *in)
{
    json_decref(in->root);
    in->root = NULL;
}

void json_in_fault(struct json_in *in, const char *format, ...)
{
    if (in->error != 0)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(in->err.text, sizeof in->err.text, format, args);
    va_end(args);
    in->error = -EINVAL;
}

int json_in_close(struct json_in *in, struct err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(in->root, key, value)
    {
        bool asked = false;
        for (unsigned i = 0; i < in->n_asked; i++)
            asked = asked || strcmp(in->asked[i], key) == 0;
        if (!asked)
            json_in_fault(in, "there is no field \"%.60s\" here", key);
    }
    return in->error != 0 ? err_set(err, in->error, "%s", in->err.text) : 0;
}

static json_t *ask(struct json_in *in, const char *name)
{
    if (in->n_asked < JSON_FIELDS_MAX)
        in->asked[in->n_asked++] = name;
    return json_object_get(in->root, name);
}

bool json_in_has(struct json_in *in, const char *name)
{
    return json_object_get(in->root, name) != NULL;
}

const char *json_in_text(struct json_in *in, const char *name, size_t most)
{
    json_t *v = ask(in, name);
    if (v == NULL)
        return NULL;
    if (!json_is_string(v))
        json_in_fault(in, "%s must be text", name);
    else if (json_string_length(v) > most)
        json_in_fault(in, "%s has %zu bytes; at most %zu are possible", name, json_string_length(v), most);
    return json_string_value(v);
}

uint64_t json_in_number(struct json_in *in, const char *name, uint64_t least, uint64_t most, uint64_t without)
{
    json_t *v = ask(in, name);
    if (v == NULL)
        return without;
    if (!json_is_integer(v)) {
        json_in_fault(in, "%s must be a whole number", name);
        return without;
    }
    json_int_t number = json_integer_value(v);
    if (number < 0 || (uint64_t)number < least || (uint64_t)number > most) {
        json_in_fault(in, "%s is %" JSON_INTEGER_FORMAT "; it must be from %llu to %llu", name, number,
                      (unsigned long long)least, (unsigned long long)most);
        return without;
    }
    return (uint64_t)number;
}

bool json_in_flag(struct json_in *in, const char *name)
{
    json_t *v = ask(in, name);
    if (v != NULL && !json_is_boolean(v))
        json_in_fault(in, "%s must be true or false", name);
    return json_is_true(v);
}

uint32_t json_in_isolation(struct json_in *in, const char *name)
{
    const char *text = json_in_text(in, name, SIZE_MAX);
    if (text == NULL)
        return SANDBOX_ISOLATION_NONE;
    for (uint32_t tier = SANDBOX_ISOLATION_PROCESS; tier <= SANDBOX_ISOLATION_VM; tier++)
        if (strcmp(text, sandbox_isolation_name((sandbox_isolation_t)tier)) == 0)
            return tier;
    json_in_fault(in, "%s is \"%.60s\"; it must be process, container, kernel or vm", name, text);
    return SANDBOX_ISOLATION_NONE;
}

void json_in_texts(struct json_in *in, const char *name, size_t most, const char ***ret)
{
    json_t *v = ask(in, name);
    *ret = NULL;
    if (v == NULL)
        return;
    if (!json_is_array(v)) {
        json_in_fault(in, "%s must be a list of texts", name);
        return;
    }
    size_t n = json_array_size(v);
    if (n > most) {
        json_in_fault(in, "%s has %zu members; at most %zu are possible", name, n, most);
        return;
    }
    const char **list = calloc(n + 1, sizeof *list);
    if (list == NULL) {
        json_in_fault(in, "no memory");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        list[i] = json_string_value(json_array_get(v, i));
        if (list[i] == NULL) {
            json_in_fault(in, "%s must be a list of texts; member %zu is none", name, i);
            free(list);
            return;
        }
    }
    *ret = list;
}

static size_t env_bytes(struct json_in *in, const char *name, json_t *v)
{
    size_t bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value)
    {
        if (!json_is_string(value))
            json_in_fault(in, "%s.%.60s must be text", name, key);
        else if (key[0] == '\0' || strchr(key, '=') != NULL)
            json_in_fault(in, "%s: \"%.60s\" is no name of a variable", name, key);
        bytes += strlen(key) + 1 + json_string_length(value) + 1;
    }
    return bytes;
}

void json_in_env(struct json_in *in, const char *name, size_t most, char ***ret)
{
    json_t *v = ask(in, name);
    *ret = NULL;
    if (v == NULL)
        return;
    size_t n = json_object_size(v);
    if (!json_is_object(v)) {
        json_in_fault(in, "%s must be an object of texts", name);
        return;
    }
    if (n > most) {
        json_in_fault(in, "%s has %zu variables; at most %zu are possible", name, n, most);
        return;
    }
    size_t bytes = env_bytes(in, name, v);
    if (in->error != 0)
        return;
    char **list = malloc((n + 1) * sizeof *list + bytes);
    if (list == NULL) {
        json_in_fault(in, "no memory");
        return;
    }
    char *at = (char *)(list + n + 1);
    size_t i = 0;
    const char *key;
    json_t *value;
    json_object_foreach(v, key, value)
    {
        list[i++] = at;
        at = stpcpy(at, key);
        *at++ = '=';
        at = stpcpy(at, json_string_value(value)) + 1;
    }
    list[i] = NULL;
    *ret = list;
}
