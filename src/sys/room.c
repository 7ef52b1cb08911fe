#include "sys/room.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int choose_way(const struct room_provider *p, const struct room_order *order, enum room_way *ret, struct err *err)
{
    bool guard = order->guard_url[0] != '\0';
    *ret = ROOM_WAY_NONE;
    if (!order->grant)
        return 0;
    if (guard && (p->abilities & ROOM_CAN_EXIT) != 0)
        *ret = (p->abilities & ROOM_CAN_INJECT) != 0 ? ROOM_WAY_INJECTED : ROOM_WAY_TOKEN;
    else if ((p->abilities & ROOM_CAN_DIAL) != 0)
        *ret = ROOM_WAY_RELAY;
    if (*ret != ROOM_WAY_NONE)
        return 0;
    return err_set(err, -EOPNOTSUPP, "a sandbox on %s cannot have a grant: %s", p->name,
                   guard ? "it can neither be given one exit nor be dialled into" : "there is no guard; set guard_url");
}

static bool has_rule(const struct room_policy *policy, const struct room_rule *rule)
{
    for (unsigned i = 0; i < policy->n; i++)
        if (policy->rule[i].port == rule->port && strcasecmp(policy->rule[i].host, rule->host) == 0)
            return true;
    return false;
}

static bool is_within(const struct room_policy *a, const struct room_policy *b)
{
    for (unsigned i = 0; i < a->n; i++)
        if (!has_rule(b, &a->rule[i]))
            return false;
    return true;
}

// In whatever order, and however often one stands there.
static bool same_policy(const struct room_policy *a, const struct room_policy *b)
{
    return a->n <= ROOM_RULES_MAX && b->n <= ROOM_RULES_MAX && is_within(a, b) && is_within(b, a);
}

static int give_token(const struct room_provider *p, void *room, const struct room_order *order, enum room_way way)
{
    if (way != ROOM_WAY_INJECTED && way != ROOM_WAY_TOKEN)
        return 0;
    int r = p->set_variable(room, ROOM_VARIABLE_URL, order->guard_url);
    if (r < 0)
        return r;
    return way == ROOM_WAY_INJECTED ? p->inject(room, order->guard_host, ROOM_GUARD_HEADER, order->guard_token)
                                    : p->set_variable(room, ROOM_VARIABLE_TOKEN, order->guard_token);
}

// Read back last of all, so that nothing above can have changed it.
static int prove_policy(const struct room_provider *p, void *room, const struct room_policy *wanted, struct err *err)
{
    struct room_policy got = {0};
    int r = p->read_policy(room, &got);
    if (r < 0)
        return err_set(err, r, "%s does not say which policy is in force: %s", p->name, strerror(-r));
    for (unsigned i = 0; i < got.n && i < ROOM_RULES_MAX; i++)
        got.rule[i].host[ROOM_HOST_MAX] = '\0';
    if (!same_policy(&got, wanted))
        return err_set(err, -EREMOTEIO,
                       "the policy that %s has in force is not what was ordered: %u rules and not %u, or others", p->name,
                       got.n, wanted->n);
    return 0;
}

static int prepare(const struct room_provider *p, void *room, const struct room_order *order, enum room_way way,
                   struct err *err)
{
    struct room_policy wanted = {0};
    if (way == ROOM_WAY_INJECTED || way == ROOM_WAY_TOKEN) {
        wanted.n = 1;
        wanted.rule[0].port = ROOM_GUARD_PORT;
        snprintf(wanted.rule[0].host, sizeof wanted.rule[0].host, "%s", order->guard_host);
    }
    int r = p->set_policy(room, &wanted);
    if (r == 0)
        r = give_token(p, room, order, way);
    if (r < 0)
        return err_set(err, r, "a sandbox on %s cannot be set up: %s", p->name, strerror(-r));
    r = prove_policy(p, room, &wanted, err);
    if (r < 0)
        return r;
    r = p->start(room);
    return r < 0 ? err_set(err, r, "a sandbox on %s does not start: %s", p->name, strerror(-r)) : 0;
}

int room_open(const struct room_provider *provider, void *arg, const struct room_order *order, void **ret_room,
              enum room_way *ret_way, struct err *err)
{
    enum room_way way;
    void *room = NULL;
    int r = choose_way(provider, order, &way, err);
    if (r < 0)
        return r;
    r = provider->create(arg, &room);
    if (r < 0)
        return err_set(err, r, "a sandbox on %s cannot be created: %s", provider->name, strerror(-r));
    r = prepare(provider, room, order, way, err);
    if (r < 0) {
        provider->destroy(room);
        return r;
    }
    *ret_room = room;
    *ret_way = way;
    return 0;
}
