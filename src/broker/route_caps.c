#include "broker/route_caps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct cap_count {
    bool tls;
    char host[ORIGIN_TEXT_MAX + 1];
    char method[ROUTE_METHOD_MAX + 1];
    char *path;  // lower case
    uint32_t used;
};

struct route_caps {
    unsigned n;
    struct cap_count count[ROUTE_CAPS_MAX];
};

int route_caps_new(struct route_caps **ret)
{
    *ret = calloc(1, sizeof **ret);
    return *ret != NULL ? 0 : -ENOMEM;
}

static void forget_from(struct route_caps *c, unsigned first)
{
    while (c->n > first)
        free(c->count[--c->n].path);
}

struct route_caps *route_caps_free(struct route_caps *c)
{
    if (c != NULL)
        forget_from(c, 0);
    free(c);
    return NULL;
}

static bool same(const struct cap_count *count, const struct profile *p, const struct route *route)
{
    return count->tls == p->tls && strcmp(count->host, p->host_field) == 0 && strcmp(count->method, route->method) == 0 &&
           http_text_is((struct http_text){count->path, strlen(count->path)}, route->path);
}

static int find_or_add(struct route_caps *c, const struct profile *p, const struct route *route, unsigned *ret)
{
    for (unsigned i = 0; i < c->n; i++)
        if (same(&c->count[i], p, route)) {
            *ret = i;
            return 0;
        }
    if (c->n == ROUTE_CAPS_MAX)
        return -ENOSPC;
    struct cap_count *count = &c->count[c->n];
    *count = (struct cap_count){.tls = p->tls, .path = strndup(route->path.at, route->path.n)};
    if (count->path == NULL)
        return -ENOMEM;
    memcpy(count->host, p->host_field, sizeof count->host);
    memcpy(count->method, route->method, sizeof count->method);
    *ret = c->n++;
    return 0;
}

int route_caps_map(struct route_caps *c, const struct profile *p, unsigned counter[])
{
    unsigned before = c->n;
    for (unsigned i = 0; i < p->n_caps; i++) {
        int r = find_or_add(c, p, &p->allow.route[p->cap[i].route], &counter[i]);
        if (r < 0) {
            forget_from(c, before);
            return r;
        }
    }
    return 0;
}

bool route_caps_charge(struct route_caps *c, const struct profile *p, const unsigned counter[], struct http_text method,
                       struct http_text target)
{
    for (unsigned i = 0; i < p->n_caps; i++)
        if (route_resembles(&p->allow.route[p->cap[i].route], method, target) && c->count[counter[i]].used >= p->cap[i].most)
            return false;
    for (unsigned i = 0; i < p->n_caps; i++)
        if (route_resembles(&p->allow.route[p->cap[i].route], method, target))
            c->count[counter[i]].used++;
    return true;
}
