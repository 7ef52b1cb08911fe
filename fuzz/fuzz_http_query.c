// wire/http_query: parts lie in the bytes they were cut from, and what is decoded is no longer than what it was made of.
#include "wire/http_query.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool good)
{
    if (!good)
        abort();
}

static bool inside(struct http_text part, struct http_text whole)
{
    return part.at >= whole.at && part.at + part.n <= whole.at + whole.n;
}

static void decode(struct http_text text)
{
    char out[64];
    for (int form = 0; form < 2; form++) {
        size_t n = 99;
        int r = http_percent_decode(text, form == 1, out, sizeof out, &n);
        need(r == 0 || r == -EBADMSG || r == -EINVAL || r == -ENAMETOOLONG);
        need(r != 0 || (n <= text.n && n < sizeof out && strlen(out) == n));
        need(r == 0 || n == 99);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_text whole = {(const char *)data, size}, path, query, name, value, params[HTTP_ROUTE_PARAMS_MAX];
    http_target_split(whole, &path, &query);
    need(inside(path, whole) && inside(query, whole) && path.n + query.n + (path.n < size) == size);
    need(path.n == 0 || memchr(path.at, '?', path.n) == NULL);
    decode(path);
    struct http_text rest = query;
    while (http_query_next(&rest, &name, &value)) {
        need(inside(name, query) && inside(value, query));
        need(name.n == 0 || (memchr(name.at, '&', name.n) == NULL && memchr(name.at, '=', name.n) == NULL));
        decode(name);
        decode(value);
    }
    if (http_route_match("/v1/sessions/{id}/exec/{exec_id}", path, params))
        for (int i = 0; i < 2; i++)
            need(inside(params[i], path) && params[i].n > 0 && memchr(params[i].at, '/', params[i].n) == NULL);
    return 0;
}
