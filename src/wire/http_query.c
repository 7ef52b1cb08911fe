#include "wire/http_query.h"

#include <errno.h>
#include <string.h>

void http_target_split(struct http_text target, struct http_text *ret_path, struct http_text *ret_query)
{
    const char *mark = target.n > 0 ? memchr(target.at, '?', target.n) : NULL;
    if (mark == NULL) {
        *ret_path = target;
        *ret_query = (struct http_text){target.at, 0};
        return;
    }
    size_t n = (size_t)(mark - target.at);
    *ret_path = (struct http_text){target.at, n};
    *ret_query = (struct http_text){mark + 1, target.n - n - 1};
}

// The part of `text` before the first `mark`, which is taken off with it.
static struct http_text take_until(struct http_text *text, char mark)
{
    const char *found = text->n > 0 ? memchr(text->at, mark, text->n) : NULL;
    struct http_text part = {text->at, found != NULL ? (size_t)(found - text->at) : text->n};
    size_t gone = part.n + (found != NULL);
    *text = (struct http_text){text->at + gone, text->n - gone};
    return part;
}

bool http_query_next(struct http_text *query, struct http_text *ret_name, struct http_text *ret_value)
{
    while (query->n > 0) {
        struct http_text value = take_until(query, '&');
        if (value.n == 0)
            continue;
        *ret_name = take_until(&value, '=');
        *ret_value = value;
        return true;
    }
    return false;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = http_lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int http_percent_decode(struct http_text in, bool form, char *out, size_t size, size_t *ret_len)
{
    size_t n = 0;
    for (size_t i = 0; i < in.n; i++) {
        char c = in.at[i];
        if (c == '%') {
            int high = i + 2 < in.n ? digit(in.at[i + 1]) : -1, low = i + 2 < in.n ? digit(in.at[i + 2]) : -1;
            if (high < 0 || low < 0)
                return -EBADMSG;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (form && c == '+') {
            c = ' ';
        }
        if (c == '\0')
            return -EINVAL;
        if (n + 1 >= size)
            return -ENAMETOOLONG;
        out[n++] = c;
    }
    if (size == 0)
        return -ENAMETOOLONG;
    out[n] = '\0';
    *ret_len = n;
    return 0;
}

bool http_route_match(const char *route, struct http_text path, struct http_text params[HTTP_ROUTE_PARAMS_MAX])
{
    unsigned count = 0;
    while (*route != '\0') {
        if (*route != '{') {
            if (path.n == 0 || path.at[0] != *route)
                return false;
            route++;
            path = (struct http_text){path.at + 1, path.n - 1};
            continue;
        }
        const char *slash = path.n > 0 ? memchr(path.at, '/', path.n) : NULL;
        size_t n = slash != NULL ? (size_t)(slash - path.at) : path.n;
        if (n == 0 || count == HTTP_ROUTE_PARAMS_MAX)
            return false;
        params[count++] = (struct http_text){path.at, n};
        path = (struct http_text){path.at + n, path.n - n};
        route = strchr(route, '}') + 1;
    }
    return path.n == 0;
}
