// wire/route_check: what is forwarded is its own final form, and the route that is named is the first that matches it.
#include "wire/route_check.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int condition)
{
    if (!condition)
        abort();
}

static struct http_text next_line(const uint8_t **at, size_t *left)
{
    const uint8_t *end = *left > 0 ? memchr(*at, '\n', *left) : NULL;
    struct http_text line = {(const char *)*at, end != NULL ? (size_t)(end - *at) : *left};
    size_t used = line.n + (end != NULL ? 1 : 0);
    *at += used;
    *left -= used;
    return line;
}

// Nothing that anybody between here and the API could read in another way.
static void final_form(struct http_text t)
{
    need(t.n > 0 && t.at[0] == '/');
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.at[i];
        need(c > 0x20 && c < 0x7F && strchr("%\\?#;*!'()\"<>[]^`{|}", c) == NULL);
        if (c != '/')
            continue;
        need(i + 1 == t.n ? t.n == 1 : t.at[i + 1] != '/');
        size_t dots = 0;
        while (i + 1 + dots < t.n && t.at[i + 1 + dots] == '.')
            dots++;
        need(dots == 0 || (i + 1 + dots < t.n && t.at[i + 1 + dots] != '/'));
    }
}

// The routes, one a line; an empty line; the method; the target.
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct route_list list;
    list.n = 0;
    for (struct http_text line; size > 0 && (line = next_line(&data, &size)).n > 0;) {
        enum route_problem why = ROUTE_FINE;
        if (route_list_add(&list, line.at, line.n, &why) != 0)
            need(why != ROUTE_FINE);
    }
    struct http_text method = next_line(&data, &size), target = {(const char *)data, size};
    struct route_verdict v = route_check(&list, method, target);
    need(v.reason < ROUTE_REASONS && route_reason_text(v.reason)[0] != '\0');
    if (v.reason != ROUTE_FORWARD) {
        need(v.approved.n == 0);
        return 0;
    }
    need(v.approved.at == target.at && v.approved.n == target.n && v.index < list.n);
    final_form(target);
    need(route_matches(&list.route[v.index], method, target));
    for (unsigned i = 0; i < v.index; i++)
        need(!route_matches(&list.route[i], method, target));
    return 0;
}
