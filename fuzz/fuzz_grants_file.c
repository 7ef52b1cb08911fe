// grants.json, which only its operator writes: any text is taken whole or refused with a sentence, and what is taken is within
// its bounds, with an origin that a credential may be sent to and routes that pass the check they are for.
#include "broker/grants.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

static void look_at(const struct profile *p)
{
    need(p->name[0] != '\0' && strlen(p->name) <= BROKER_PROFILE_MAX);
    need(p->tls || (p->host.is_address && ip_classify(&p->host.addr) == IP_LOOPBACK));
    need(p->port != 0 && p->host_field[0] != '\0' && strpbrk(p->host_field, "\r\n /") == NULL);
    need(p->n_callers > 0 && p->max_calls >= 1 && p->max_calls <= GRANT_CALLS_MAX);
    need(!profile_is_for(p, ""));
    for (unsigned i = 0; i < p->allow.n; i++) {
        const struct route *r = &p->allow.route[i];
        struct http_text method = {r->method, strlen(r->method)};
        // A route without a `*` is a call that it allows.
        if (memchr(r->path.at, '*', r->path.n) == NULL)
            need(route_check(&p->allow, method, r->path).reason == ROUTE_FORWARD);
    }
    for (unsigned i = 0; i < p->n_caps; i++)
        need(p->cap[i].route < p->allow.n && p->cap[i].most >= 1 && p->cap[i].most <= GRANT_CALLS_MAX);
    need(p->health == NULL || p->health[0] == '/');
    need(strlen(p->preamble) <= PROFILE_PREAMBLE_MAX);
    need(p->token.kind == TOKEN_NONE || p->token.secret != NULL || p->token.key != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grants *g = NULL;
    struct err err = {0};
    setenv("KEY", "0123456789abcdef0123456789abcdef", 1);
    int r = grants_parse((const char *)data, size, -1, &g, &err);
    need((r == 0) == (g != NULL));
    need(r == 0 || err.text[0] != '\0');
    if (r == 0)
        for (unsigned i = 0; i < grants_count(g); i++) {
            look_at(grants_at(g, i));
            need(grants_find(g, grants_at(g, i)->name) == grants_at(g, i));
        }
    grants_unref(g);
    return 0;
}
