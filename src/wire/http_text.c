#include "wire/http_text.h"

#include <string.h>

bool http_is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

bool http_is_token(struct http_text t)
{
    for (size_t i = 0; i < t.n; i++)
        if (!http_is_token_char(t.at[i]))
            return false;
    return t.n > 0;
}

bool http_text_equal(struct http_text a, struct http_text b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.at, b.at, a.n) == 0);
}

bool http_text_is(struct http_text a, struct http_text b)
{
    if (a.n != b.n)
        return false;
    for (size_t i = 0; i < a.n; i++)
        if (http_lower(a.at[i]) != http_lower(b.at[i]))
            return false;
    return true;
}

struct http_text http_trim(struct http_text t)
{
    while (t.n > 0 && http_is_space(t.at[0])) {
        t.at++;
        t.n--;
    }
    while (t.n > 0 && http_is_space(t.at[t.n - 1]))
        t.n--;
    return t;
}

bool http_list_next(struct http_text *list, struct http_text *ret_element)
{
    while (list->n > 0) {
        const char *comma = memchr(list->at, ',', list->n);
        size_t n = comma != NULL ? (size_t)(comma - list->at) : list->n;
        struct http_text element = http_trim((struct http_text){list->at, n});
        size_t taken = n + (comma != NULL ? 1 : 0);
        list->at += taken;
        list->n -= taken;
        if (element.n > 0) {
            *ret_element = element;
            return true;
        }
    }
    return false;
}
