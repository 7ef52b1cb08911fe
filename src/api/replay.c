#include "api/replay.h"

#include "api/dialects.h"
#include "api/metrics.h"
#include "base/clock.h"
#include "sys/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct replay {
    TAILQ_ENTRY(replay) link;
    struct replays *all;
    uint8_t key[DIGEST_LEN], request[DIGEST_LEN];
    struct exec_job *job;  // NULL: it is answered
    unsigned status;
    char *body;
    size_t n;
    uint64_t since_ns;  // when it began, or was answered
};

struct replays {
    struct api *api;
    TAILQ_HEAD(, replay) list;  // the oldest first
    unsigned n;
    size_t held;
};

const struct dialect *replay_dialect(void)
{
    return &sessions_dialect;
}

int replays_new(struct api *api, struct replays **ret)
{
    struct replays *all = calloc(1, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    all->api = api;
    TAILQ_INIT(&all->list);
    *ret = all;
    return 0;
}

void replay_forget(struct replay *r)
{
    if (r == NULL)
        return;
    struct replays *all = r->all;
    if (r->job != NULL)
        r->job->replay = NULL;
    TAILQ_REMOVE(&all->list, r, link);
    all->n--;
    all->held -= r->n;
    all->api->metrics->output_held -= r->n;
    free(r->body);
    free(r);
}

struct replays *replays_free(struct replays *all)
{
    if (all == NULL)
        return NULL;
    while (!TAILQ_EMPTY(&all->list))
        replay_forget(TAILQ_FIRST(&all->list));
    free(all);
    return NULL;
}

// Not of a command that runs: that would be run again.
static bool may_go(const struct replay *r)
{
    return r->job == NULL || r->job->state == JOB_ENDED;
}

static struct replay *oldest(const struct replays *all)
{
    struct replay *r;
    TAILQ_FOREACH(r, &all->list, link)
    if (may_go(r))
        return r;
    return NULL;
}

static void expire(struct replays *all)
{
    uint64_t now = mono_ns();
    struct replay *r, *next;
    for (r = TAILQ_FIRST(&all->list); r != NULL; r = next) {
        next = TAILQ_NEXT(r, link);
        if (may_go(r) && now - r->since_ns >= all->api->options.replay_s * NS_PER_S)
            replay_forget(r);
    }
}

static bool make_digests(const struct call *call, struct http_text key, const char *body, size_t n, uint8_t of_key[DIGEST_LEN],
                         uint8_t of_request[DIGEST_LEN])
{
    cleanup_buf struct buf text = BUF_INIT(JSON_BODY_MAX + HTTP_TARGET_MAX + 1024);
    buf_append(&text, call->principal.name, strlen(call->principal.name) + 1);
    buf_append(&text, key.at, key.n);
    if (buf_error(&text) < 0 || digest_bytes(text.data, text.len, of_key) < 0)
        return false;
    buf_clear(&text);
    buf_append(&text, call->target, strlen(call->target) + 1);
    buf_append(&text, body, n);
    return buf_error(&text) == 0 && digest_bytes(text.data, text.len, of_request) == 0;
}

enum replay_found replay_find(struct replays *all, const struct call *call, struct http_text key, const char *body, size_t n,
                              struct replay **ret)
{
    uint8_t of_key[DIGEST_LEN], of_request[DIGEST_LEN];
    struct replay *r;
    expire(all);
    if (!make_digests(call, key, body, n, of_key, of_request))
        return REPLAY_FULL;
    TAILQ_FOREACH(r, &all->list, link)
    if (memcmp(r->key, of_key, DIGEST_LEN) == 0) {
        *ret = r;
        if (memcmp(r->request, of_request, DIGEST_LEN) != 0)
            return REPLAY_OTHER;
        all->api->metrics->replays++;
        return r->job != NULL ? REPLAY_RUNNING : REPLAY_ANSWERED;
    }
    if (all->n >= REPLAYS_MAX) {
        replay_forget(oldest(all));
        if (all->n >= REPLAYS_MAX)
            return REPLAY_FULL;
    }
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return REPLAY_FULL;
    r->all = all;
    r->since_ns = mono_ns();
    memcpy(r->key, of_key, DIGEST_LEN);
    memcpy(r->request, of_request, DIGEST_LEN);
    TAILQ_INSERT_TAIL(&all->list, r, link);
    all->n++;
    *ret = r;
    return REPLAY_NEW;
}

struct exec_job *replay_job(const struct replay *r)
{
    return r->job;
}

void replay_set_job(struct replay *r, struct exec_job *job)
{
    r->job = job;
    job->replay = r;
}

void replay_reply(const struct replay *r, struct call *call)
{
    http_add_header(call->x, "Idempotency-Replayed", "true");
    http_reply(call->x, r->status, "application/json", r->body, r->n);
}

void replay_store(struct replay **slot, unsigned status, const void *body, size_t n)
{
    struct replay *r = *slot;
    struct replays *all = r->all;
    *slot = NULL;
    r->job = NULL;
    char *copy = status >= 500 || status == 429 || n > REPLAY_HELD_MAX ? NULL : malloc(n + 1);
    if (copy == NULL) {
        replay_forget(r);
        return;
    }
    memcpy(copy, body, n);
    r->status = status;
    r->body = copy;
    r->n = n;
    r->since_ns = mono_ns();
    all->held += n;
    all->api->metrics->output_held += n;
    TAILQ_REMOVE(&all->list, r, link);
    TAILQ_INSERT_TAIL(&all->list, r, link);
    while (all->held > REPLAY_HELD_MAX)
        replay_forget(oldest(all));
}
