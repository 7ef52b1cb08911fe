#include "broker/sandbox.h"

#include "broker/grant.h"
#include "broker/guest.h"
#include "broker/listener.h"
#include "broker/pool.h"
#include "broker/resolver.h"
#include "broker/transparent.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sandbox *find(const struct broker *b, uint32_t id)
{
    struct sandbox *s;
    LIST_FOREACH(s, &b->sandboxes->all, all)
    if (s->id == id)
        return s;
    return NULL;
}

static void sandbox_end(struct sandbox *s)
{
    s->proxy = listener_free(s->proxy);
    s->transparent = listener_free(s->transparent);
    s->resolver = resolver_free(s->resolver);
    struct line *line;
    while ((line = LIST_FIRST(&s->lines)) != NULL)
        line->end(line);
    pool_drop(s->broker->pool, s->id);
    s->names = names_free(s->names);
    explicit_bzero(s->token, sizeof s->token);
    free(s);
}

static int open_transparent(struct sandbox *s, const struct broker_add *add, int fds[static BROKER_FDS_MAX])
{
    int fd = fds[BROKER_FD_TRANSPARENT];
    fds[BROKER_FD_TRANSPARENT] = -1;
    int r = listener_new(s, fd, transparent_accept, &s->transparent);
    if (r == 0)
        r = names_new(add->synthetic, add->synthetic_prefix, &s->names);
    if (r < 0)
        return r;
    int udp = fds[BROKER_FD_DNS_UDP], tcp = fds[BROKER_FD_DNS_TCP];
    fds[BROKER_FD_DNS_UDP] = fds[BROKER_FD_DNS_TCP] = -1;
    return resolver_new(s, udp, tcp, &s->resolver);
}

static int open_all(struct sandbox *s, const struct broker_add *add, int fds[static BROKER_FDS_MAX])
{
    int fd = fds[BROKER_FD_PROXY];
    fds[BROKER_FD_PROXY] = -1;
    int r = listener_new(s, fd, guest_accept, &s->proxy);
    return r == 0 && (s->flags & BROKER_TRANSPARENT) != 0 ? open_transparent(s, add, fds) : r;
}

static int add_checked(struct broker *b, uint32_t id, const struct broker_add *add, const struct host_policy *policy,
                       int fds[static BROKER_FDS_MAX], unsigned *ret_bad)
{
    if (find(b, id) != NULL)
        return -EEXIST;
    if (b->sandboxes->n == BROKER_SANDBOXES_MAX)
        return -ENOSPC;
    if (grant_overlaps(b, id, policy))
        return -ENOTUNIQ;
    for (unsigned i = 0; i < BROKER_FDS_MAX; i++)
        if (fds[i] >= 0 && !listener_fd_ok(fds[i], i != BROKER_FD_DNS_UDP)) {
            *ret_bad = i;
            return -EINVAL;
        }
    struct sandbox *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    *s = (struct sandbox){.broker = b, .id = id, .flags = add->flags, .policy = *policy};
    memcpy(s->token, add->token, sizeof s->token);
    memcpy(s->guest.bytes, add->guest, sizeof add->guest);
    int r = open_all(s, add, fds);
    if (r < 0) {
        sandbox_end(s);
        return r;
    }
    LIST_INSERT_HEAD(&b->sandboxes->all, s, all);
    b->metrics.sandboxes = ++b->sandboxes->n;
    return 0;
}

int sandbox_add(struct broker *b, uint32_t id, const struct broker_add *add, const struct host_policy *policy,
                int fds[static BROKER_FDS_MAX], unsigned *ret_bad)
{
    int r = add_checked(b, id, add, policy, fds, ret_bad);
    for (unsigned i = 0; i < BROKER_FDS_MAX; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
    return r;
}

const struct host_policy *sandbox_policy(const struct broker *b, uint32_t id)
{
    const struct sandbox *s = find(b, id);
    return s != NULL ? &s->policy : NULL;
}

static void forget(struct sandbox *s)
{
    struct broker *b = s->broker;
    LIST_REMOVE(s, all);
    b->metrics.sandboxes = --b->sandboxes->n;
    sandbox_end(s);
}

int sandbox_remove(struct broker *b, uint32_t id)
{
    struct sandbox *s = find(b, id);
    if (s == NULL)
        return -ENOENT;
    forget(s);
    return 0;
}

void sandbox_remove_all(struct broker *b)
{
    struct sandbox *s;
    while ((s = LIST_FIRST(&b->sandboxes->all)) != NULL)
        forget(s);
}

bool sandbox_has_room(const struct sandbox *s)
{
    const struct config *c = &s->broker->config;
    return s->connections < c->sandbox_max_conns && s->broker->connections < c->max_conns;
}

void line_add(struct sandbox *s, struct line *line)
{
    LIST_INSERT_HEAD(&s->lines, line, all);
    s->connections++;
    s->broker->metrics.open = ++s->broker->connections;
}

void line_remove(struct sandbox *s, struct line *line)
{
    LIST_REMOVE(line, all);
    s->connections--;
    s->broker->metrics.open = --s->broker->connections;
}

bool sandbox_token_ok(const struct sandbox *s, const char *token, size_t n)
{
    return n == sizeof s->token && CRYPTO_memcmp(s->token, token, n) == 0;
}
