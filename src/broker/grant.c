#include "broker/grant.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/json_out.h"
#include "base/log.h"
#include "broker/api_call.h"
#include "broker/api_line.h"
#include "broker/decide.h"
#include "broker/grant_metrics.h"
#include "broker/grant_report.h"
#include "broker/guard.h"
#include "broker/mint.h"
#include "broker/pool.h"
#include "broker/sandbox.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

// ---- the list ----

struct grant *grant_find(const struct broker *b, uint32_t sandbox_id, uint32_t grant_id)
{
    struct grant *g;
    LIST_FOREACH(g, &b->grant_list->all, all)
    if (g->sandbox_id == sandbox_id && g->grant_id == grant_id)
        return g;
    return NULL;
}

struct grant *grant_find_token(const struct broker *b, const uint8_t hash[static GRANT_TOKEN_HASH])
{
    struct grant *g;
    LIST_FOREACH(g, &b->grant_list->all, all)
    if ((g->flags & BROKER_GRANT_REMOTE) != 0 && memcmp(g->token_hash, hash, sizeof g->token_hash) == 0)
        return g;
    return NULL;
}

bool grant_overlaps(const struct broker *b, uint32_t sandbox_id, const struct host_policy *policy)
{
    struct grant *g;
    LIST_FOREACH(g, &b->grant_list->all, all)
    if (!g->ended && g->sandbox_id == sandbox_id &&
        decide_overlaps(policy, b->credentials, &g->profile->host, g->profile->port))
        return true;
    return false;
}

// ---- the credential ----

static int make_bearer(struct grant *g)
{
    const struct token *t = &g->profile->token;
    bool lasts = t->kind == TOKEN_NONE || t->kind == TOKEN_STATIC;
    uint64_t now_s = wall_ns() / NS_PER_S;
    uint32_t life_s = lasts ? 0 : mint_life_s(t, g->budget_ms);
    uint32_t spare_s = life_s / 2 < GRANT_BEARER_SPARE_S ? life_s / 2 : GRANT_BEARER_SPARE_S;
    struct buf bearer = BUF_INIT(MINT_BEARER_MAX);
    int r = mint_bearer(g->profile, g->principal, now_s, life_s, &bearer);
    if (r == 0 && buf_text(&bearer) == NULL)
        r = -ENOMEM;
    struct buf old = r == 0 ? g->bearer : bearer;
    if (r == 0) {
        g->bearer = bearer;
        g->bearer_until_s = lasts ? 0 : now_s + life_s - spare_s;
    }
    if (old.data != NULL)
        explicit_bzero(old.data, old.allocated);
    buf_free(&old);
    return r;
}

const char *grant_bearer(struct grant *g)
{
    bool stale = g->bearer_until_s != 0 && wall_ns() / NS_PER_S >= g->bearer_until_s;
    if (stale && make_bearer(g) < 0)
        return NULL;
    return (const char *)g->bearer.data;
}

// ---- opening ----

static void grant_free(struct grant *g)
{
    if (g->bearer.data != NULL)
        explicit_bzero(g->bearer.data, g->bearer.allocated);
    buf_free(&g->bearer);
    route_caps_free(g->own_caps);
    free(g->counter);
    grants_unref(g->file);
    free(g);
}

// The profile that this principal may have; NULL in every other case.
static const struct profile *choose(const struct broker *b, const struct broker_grant *order)
{
    const struct profile *p = grants_find(b->grants, order->profile);
    bool named = p != NULL && profile_is_for(p, order->principal);
    bool needs_subject = named && p->token.kind != TOKEN_NONE && p->token.kind != TOKEN_STATIC;
    return named && !(needs_subject && !mint_subject_ok(order->principal)) ? p : NULL;
}

// What can be said before there is a grant.
static int may_open(struct broker *b, uint32_t sandbox_id, const struct broker_grant *order, const struct api_line *line,
                    const struct profile *p, const char **ret_why)
{
    bool remote = (order->flags & BROKER_GRANT_REMOTE) != 0;
    *ret_why = "no such profile for this principal";
    if (p == NULL)
        return -EACCES;
    *ret_why = "the profile does not allow its use in sessions";
    if ((order->flags & BROKER_GRANT_SESSION) != 0 && !p->allow_in_sessions)
        return -EPERM;
    *ret_why = "a sandbox on another host needs the guard, and guard_listen is not set";
    if (remote && b->guard == NULL)
        return -EOPNOTSUPP;
    *ret_why = "the sandbox has no line";
    if (!remote && line == NULL)
        return -ENOENT;
    *ret_why = "a grant is lent on the sandbox's line already";
    if (!remote && api_line_grant(line) != NULL)
        return -EBUSY;
    *ret_why = "a grant of that id is open";
    if (grant_find(b, sandbox_id, order->grant_id) != NULL)
        return -EEXIST;
    *ret_why = "too many grants are open";
    if (b->grant_list->n == BROKER_SANDBOXES_MAX)
        return -ENOSPC;
    const struct host_policy *policy = sandbox_policy(b, sandbox_id);
    *ret_why = "the sandbox's egress policy leads to this origin with a credential on file";
    return policy != NULL && decide_overlaps(policy, b->credentials, &p->host, p->port) ? -ENOTUNIQ : 0;
}

static int take_caps(struct grant *g, struct api_line *line)
{
    int r = 0;
    if (line == NULL)
        r = route_caps_new(&g->own_caps);
    g->caps = line != NULL ? api_line_caps(line) : g->own_caps;
    g->counter = calloc(g->profile->n_caps + 1, sizeof *g->counter);
    if (r == 0 && g->counter == NULL)
        r = -ENOMEM;
    return r == 0 ? route_caps_map(g->caps, g->profile, g->counter) : r;
}

static int make_token(struct grant *g, struct broker_opened *opened)
{
    char digits[2 * GRANT_TOKEN_HASH + 1];
    if ((g->flags & BROKER_GRANT_REMOTE) == 0)
        return 0;
    int r = random_hex(digits, sizeof digits - 1);
    if (r < 0)
        return r;
    snprintf(opened->guard_token, sizeof opened->guard_token, "crg_%s", digits);
    SHA256((const uint8_t *)opened->guard_token, strlen(opened->guard_token), g->token_hash);
    explicit_bzero(digits, sizeof digits);
    return 0;
}

// JavaScript that gives the client its name in the guest, and what the profile puts before the code.
static int put_preload(const struct profile *p, struct buf *out)
{
    struct json_out j = JSON_OUT_INIT(out);
    buf_append_text(out, "globalThis[");
    json_str(&j, NULL, p->global);
    buf_append_text(out, "] = require('/run/host-api/host_api.js');\n");
    buf_append_text(out, p->preamble);
    return buf_error(out);
}

static int fill(struct grant *g, struct api_line *line, struct broker_opened *opened, struct buf *preload, const char **ret_why)
{
    *ret_why = "the credential cannot be made";
    if (make_bearer(g) < 0)
        return -EPERM;
    *ret_why = "too many capped routes on the line";
    int r = take_caps(g, line);
    if (r < 0)
        return r;
    *ret_why = "no memory";
    r = make_token(g, opened);
    if (r == 0)
        r = put_preload(g->profile, preload);
    opened->max_calls = g->profile->max_calls;
    opened->preload = (uint32_t)preload->len;
    return r;
}

int grant_open(struct broker *b, uint32_t sandbox_id, const struct broker_grant *order, struct api_line *line,
               struct broker_opened *opened, struct buf *preload, struct grant **ret, const char **ret_why)
{
    static uint64_t next_serial = UINT64_C(1) << 63;  // apart from those of credentials
    const struct profile *p = choose(b, order);
    int r = may_open(b, sandbox_id, order, line, p, ret_why);
    if (r < 0)
        return r;
    struct grant *g = calloc(1, sizeof *g);
    if (g == NULL)
        return -ENOMEM;
    *opened = (struct broker_opened){0};
    g->broker = b;
    g->sandbox_id = sandbox_id;
    g->grant_id = order->grant_id;
    g->flags = order->flags;
    g->budget_ms = order->budget_ms;
    g->file = grants_ref(b->grants);
    g->profile = p;
    g->serial = next_serial++;
    g->bearer = BUF_INIT(MINT_BEARER_MAX);
    memcpy(g->principal, order->principal, sizeof g->principal);
    memcpy(g->run, order->run, sizeof g->run);
    r = fill(g, line, opened, preload, ret_why);
    if (r < 0) {
        grant_free(g);
        return r;
    }
    LIST_INSERT_HEAD(&b->grant_list->all, g, all);
    b->grant_list->n++;
    g->line = line;
    if (line != NULL)
        api_line_lend(line, g);
    grant_metrics_count(b->grant_metrics, p, GRANT_COUNT_OPENED);
    *ret = g;
    return 0;
}

// ---- the trace ----

void grant_note(struct grant *g, const struct grant_note *note)
{
    grant_metrics_call(g->broker->grant_metrics, g->profile, &g->profile->allow.route[note->route], note->latency_us);
    if (!note->delivered)
        grant_metrics_count(g->broker->grant_metrics, g->profile, GRANT_COUNT_UNDELIVERED);
    if (g->rows == GRANT_ROWS_MAX)
        g->dropped++;
    else
        g->row[g->rows++] = *note;
}

// ---- the end ----

// Its authority: what is under way is cut off.
static void end_authority(struct grant *g)
{
    struct broker *b = g->broker;
    g->ended = true;
    struct api_call *call;
    while ((call = LIST_FIRST(&g->calls)) != NULL)
        api_call_grant_ended(call);
    if (b->guard != NULL)
        guard_grant_ended(b->guard, g);
    pool_drop_serial(b->pool, g->serial);
    if (g->bearer.data != NULL)
        explicit_bzero(g->bearer.data, g->bearer.allocated);
}

void grants_overtaken(struct broker *b)
{
    struct grant *g;
    LIST_FOREACH(g, &b->grant_list->all, all)
    {
        const struct host_policy *policy = g->ended ? NULL : sandbox_policy(b, g->sandbox_id);
        if (policy == NULL || !decide_overlaps(policy, b->credentials, &g->profile->host, g->profile->port))
            continue;
        end_authority(g);
        log_warn("grant_overtaken", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id),
                 log_str("run", g->run), log_str("profile", g->profile->name),
                 log_str("reason", "the sandbox's egress policy leads to this origin, and a credential is on file now"));
    }
}

void grant_close(struct grant *g, struct buf *trace)
{
    struct broker *b = g->broker;
    if (g->line != NULL)
        api_line_lend(g->line, NULL);
    end_authority(g);
    LIST_REMOVE(g, all);
    b->grant_list->n--;
    grant_report(g, trace);
    grant_free(g);
}
