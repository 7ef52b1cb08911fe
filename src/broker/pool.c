#include "broker/pool.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/queue.h>

struct idle {
    TAILQ_ENTRY(idle) all;
    struct pool *pool;
    struct pool_key key;
    struct bufferevent *bev;
    uint64_t since_ns;
};

struct pool {
    struct broker *broker;
    TAILQ_HEAD(idles, idle) all;  // the oldest first
    unsigned n;
};

static void idle_free(struct idle *i, bool keep)
{
    TAILQ_REMOVE(&i->pool->all, i, all);
    i->pool->n--;
    i->pool->broker->metrics.pooled = i->pool->n;
    if (!keep)
        bufferevent_free(i->bev);
    free(i);
}

// Whatever an idle upstream does, it is of no more use.
static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    idle_free(arg, false);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    (void)what;
    idle_free(arg, false);
}

static bool same(const struct pool_key *a, const struct pool_key *b)
{
    return a->sandbox_id == b->sandbox_id && a->port == b->port && a->serial == b->serial && host_equal(&a->host, &b->host);
}

struct bufferevent *pool_take(struct pool *p, const struct pool_key *key, uint64_t idle_ms)
{
    struct idle *i, *newest = NULL;
    TAILQ_FOREACH(i, &p->all, all) if (same(&i->key, key)) newest = i;
    if (newest == NULL || mono_ns() - newest->since_ns > idle_ms * NS_PER_MS)
        return NULL;
    struct bufferevent *bev = newest->bev;
    bufferevent_setcb(bev, NULL, NULL, NULL, NULL);
    bufferevent_set_timeouts(bev, NULL, NULL);
    idle_free(newest, true);
    p->broker->metrics.reused++;
    return bev;
}

static void make_room(struct pool *p, uint32_t sandbox_id)
{
    unsigned its = 0;
    struct idle *i, *oldest = NULL;
    TAILQ_FOREACH(i, &p->all, all)
    {
        if (i->key.sandbox_id != sandbox_id)
            continue;
        its++;
        if (oldest == NULL)
            oldest = i;
    }
    if (its >= POOL_SANDBOX_MAX)
        idle_free(oldest, false);
    else if (p->n >= POOL_MAX)
        idle_free(TAILQ_FIRST(&p->all), false);
}

void pool_put(struct pool *p, const struct pool_key *key, struct bufferevent *bev)
{
    uint64_t ms = p->broker->config.pool_ms;
    struct idle *i = ms > 0 && evbuffer_get_length(bufferevent_get_input(bev)) == 0 ? calloc(1, sizeof *i) : NULL;
    if (i == NULL) {
        bufferevent_free(bev);
        return;
    }
    make_room(p, key->sandbox_id);
    *i = (struct idle){.pool = p, .key = *key, .bev = bev, .since_ns = mono_ns()};
    TAILQ_INSERT_TAIL(&p->all, i, all);
    p->n++;
    p->broker->metrics.pooled = p->n;
    bufferevent_setcb(bev, on_read, NULL, on_event, i);
    struct timeval t = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};
    bufferevent_set_timeouts(bev, &t, NULL);
    bufferevent_enable(bev, EV_READ);
}

void pool_drop(struct pool *p, uint32_t sandbox_id)
{
    struct idle *i = TAILQ_FIRST(&p->all), *next;
    for (; i != NULL; i = next) {
        next = TAILQ_NEXT(i, all);
        if (i->key.sandbox_id == sandbox_id)
            idle_free(i, false);
    }
}

void pool_drop_serial(struct pool *p, uint64_t serial)
{
    struct idle *i = TAILQ_FIRST(&p->all), *next;
    for (; i != NULL; i = next) {
        next = TAILQ_NEXT(i, all);
        if (i->key.serial == serial)
            idle_free(i, false);
    }
}

int pool_new(struct broker *b, struct pool **ret)
{
    struct pool *p = calloc(1, sizeof *p);
    if (p == NULL)
        return -ENOMEM;
    p->broker = b;
    TAILQ_INIT(&p->all);
    *ret = p;
    return 0;
}

struct pool *pool_free(struct pool *p)
{
    if (p == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&p->all))
        idle_free(TAILQ_FIRST(&p->all), false);
    free(p);
    return NULL;
}
