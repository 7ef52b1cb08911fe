#include "broker/api_call.h"

#include "base/clock.h"
#include "base/log.h"
#include "broker/grant_metrics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct api_call {
    LIST_ENTRY(api_call) all;
    struct broker *broker;
    struct grant *grant;  // NULL: it has ended
    enum { CALL_BODY, CALL_PROBE, CALL_SENT, CALL_ANSWERED } state;
    uint64_t start_ns;
    unsigned route;
    struct http_text target;  // approved, and the very bytes
    struct evbuffer *body;
    uint32_t request_bytes;
    struct api_send *send;
    api_call_fn *fn;
    void *arg;
};

static void send_it(struct api_call *c);

// ---- refusals ----

static const struct {
    unsigned status;
    const char *text, *word;
} refusals[API_REFUSALS] = {
    [API_FINE] = {200, "", ""},
    [API_UNAVAILABLE] = {503, "host api broker unavailable\n", "unavailable"},
    [API_ENDED] = {503, "host api grant has ended\n", "ended"},
    [API_CAPACITY] = {429, "host api broker is at capacity\n", "capacity"},
    [API_BUDGET] = {429, "host api call budget for this run is exhausted\n", "budget"},
    [API_BODY] = {413, "host api request body too large\n", "body"},
    [API_FORBIDDEN] = {403, "forbidden by sandbox capability allowlist\n", "forbidden"},
    [API_ROUTE_BUDGET] = {429, "host api call budget for this route is exhausted\n", "route_budget"},
    [API_SHED] = {503, "host api is shedding load: upstream reported degraded\n", "shed"},
    [API_FAILED] = {502, "host api unavailable\n", "failed"},
};

unsigned api_refusal_status(enum api_refusal why)
{
    return refusals[why].status;
}

const char *api_refusal_text(enum api_refusal why)
{
    return refusals[why].text;
}

// Counts a refusal and writes its line.  `rule` is what the route check says, else "".
static void count_refusal(struct grant *g, enum api_refusal why, const char *rule)
{
    if (why == API_SHED)
        g->shed++;
    else
        g->denied++;
    grant_metrics_count(g->broker->grant_metrics, g->profile, why == API_SHED ? GRANT_COUNT_SHED : GRANT_COUNT_DENIED);
    // A guest can be refused without end; the log is not its to fill.
    if (g->refusals_logged >= GRANT_REFUSALS_LOGGED_MAX)
        return;
    g->refusals_logged++;
    log_info("grant_call", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
             log_str("profile", g->profile->name), log_str("decision", refusals[why].word), log_str("rule", rule),
             log_u64("status", refusals[why].status));
}

// ---- answers ----

static void answer(struct api_call *c, const struct api_answer *a)
{
    c->state = CALL_ANSWERED;
    c->fn(c->arg, a);
}

static void refuse(struct api_call *c, enum api_refusal why, const char *rule)
{
    if (c->grant != NULL && why != API_FAILED)
        count_refusal(c->grant, why, rule);
    answer(c, &(struct api_answer){.status = refusals[why].status, .type = API_REFUSAL_TYPE, .text = refusals[why].text});
}

// ---- life ----

enum api_refusal api_call_begin(struct grant *g, struct api_call **ret)
{
    struct broker *b = g->broker;
    enum api_refusal why = API_FINE;
    if (g->ended)
        why = API_ENDED;
    else if (g->in_flight >= GRANT_IN_FLIGHT_MAX || b->grant_calls >= b->config.grant_calls)
        why = API_CAPACITY;
    else if (g->attempts++ >= g->profile->max_calls)
        why = API_BUDGET;
    struct api_call *c = why == API_FINE ? calloc(1, sizeof *c) : NULL;
    if (why == API_FINE && c == NULL)
        why = API_CAPACITY;
    if (why != API_FINE) {
        count_refusal(g, why, "");
        return why;
    }
    c->broker = b;
    c->grant = g;
    c->start_ns = mono_ns();
    LIST_INSERT_HEAD(&g->calls, c, all);
    g->in_flight++;
    b->grant_calls++;
    *ret = c;
    return API_FINE;
}

static void detach(struct api_call *c)
{
    LIST_REMOVE(c, all);
    c->grant->in_flight--;
    c->grant = NULL;
}

static void log_call(const struct api_call *c, const struct grant_note *n, const char *why)
{
    const struct grant *g = c->grant;
    const struct route *route = &g->profile->allow.route[n->route];
    char text[ROUTE_METHOD_MAX + ROUTE_TEMPLATE_MAX + 2];
    snprintf(text, sizeof text, "%s %.*s", route->method, (int)route->path.n, route->path.at);
    log_info("grant_call", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
             log_str("profile", g->profile->name), log_str("decision", "sent"), log_str("route", text),
             log_u64("upstream_status", n->status), log_bool("delivered", n->delivered), log_str("reason", why),
             log_u64("request_bytes", n->request_bytes), log_u64("response_bytes", n->response_bytes),
             log_u64("latency_us", n->latency_us));
}

static void note(struct api_call *c, unsigned status, bool delivered, size_t bytes, const char *why)
{
    uint64_t us = (mono_ns() - c->start_ns) / NS_PER_US;
    struct grant_note n = {.route = (uint16_t)c->route,
                           .status = (uint16_t)status,
                           .delivered = delivered,
                           .request_bytes = c->request_bytes,
                           .response_bytes = (uint32_t)bytes,
                           .latency_us = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX};
    grant_note(c->grant, &n);
    log_call(c, &n, why);
}

struct api_call *api_call_free(struct api_call *c)
{
    if (c == NULL)
        return NULL;
    c->send = api_send_cancel(c->send);
    if (c->grant != NULL) {
        if (c->state == CALL_SENT)
            note(c, 0, false, 0, "guest_gone");
        if (c->state == CALL_PROBE)
            c->grant->breaker.probing = false;
        detach(c);
    }
    if (c->body != NULL)
        evbuffer_free(c->body);
    c->broker->grant_calls--;
    free(c);
    return NULL;
}

void api_call_grant_ended(struct api_call *c)
{
    bool sent = c->state == CALL_SENT, probing = c->state == CALL_PROBE;
    c->send = api_send_cancel(c->send);
    if (sent)
        note(c, 0, false, 0, "grant_ended");
    if (probing)
        count_refusal(c->grant, API_ENDED, "");
    detach(c);
    if (sent || probing)
        refuse(c, sent ? API_FAILED : API_ENDED, "");
}

void api_call_no_body(struct api_call *c)
{
    if (c->grant != NULL)
        count_refusal(c->grant, API_BODY, "");
    c->state = CALL_ANSWERED;
}

// ---- the upstream ----

static void on_reply(void *arg, struct api_reply *reply)
{
    struct api_call *c = arg;
    c->send = NULL;
    size_t n = evbuffer_get_length(reply->body);
    note(c, reply->status, reply->whole, reply->whole ? n : 0, reply->why);
    if (!reply->whole) {
        refuse(c, API_FAILED, "");
        return;
    }
    breaker_saw(&c->grant->breaker, reply->status, reply->retry_after, mono_ns(), wall_ns() / NS_PER_S);
    answer(c, &(struct api_answer){.status = reply->status, .type = reply->type, .body = reply->body});
}

static void on_probed(void *arg, struct api_reply *reply)
{
    struct api_call *c = arg;
    c->send = NULL;
    unsigned status = reply->whole ? reply->status : 0;
    if (breaker_probed(&c->grant->breaker, status, reply->retry_after, mono_ns(), wall_ns() / NS_PER_S))
        send_it(c);
    else
        refuse(c, API_SHED, "");
}

static bool repeatable(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "PUT") == 0 || strcmp(method, "DELETE") == 0;
}

// Its head, which must have the approved target and nothing else in its place.
static int make_head(struct api_call *c, const char *method, struct http_text target, size_t body, struct buf *head)
{
    int r = api_send_head(c->grant, method, target, body, head);
    return r == 0 && !api_send_head_is(head, target) ? -EBADMSG : r;
}

static void end_head(struct buf *head)
{
    if (head->data != NULL)
        explicit_bzero(head->data, head->allocated);
    buf_free(head);
}

static void send_it(struct api_call *c)
{
    struct grant *g = c->grant;
    const char *method = g->profile->allow.route[c->route].method;
    struct buf head = BUF_INIT(API_HEAD_OUT_MAX);
    int r = make_head(c, method, c->target, c->request_bytes, &head);
    if (r == -EBADMSG) {
        end_head(&head);
        refuse(c, API_FORBIDDEN, "wire target differs");
        return;
    }
    c->state = CALL_SENT;
    c->start_ns = mono_ns();
    if (r == 0)
        c->send = api_send_start(g, &head, c->body, repeatable(method), g->broker->config.api_upstream_ms, on_reply, c);
    end_head(&head);
    if (c->send == NULL) {
        note(c, 0, false, 0, r == -EPERM ? "no_credential" : "busy");
        refuse(c, API_FAILED, "");
    }
}

static void probe(struct api_call *c)
{
    struct grant *g = c->grant;
    struct http_text health = {g->profile->health, strlen(g->profile->health)};
    struct buf head = BUF_INIT(API_HEAD_OUT_MAX);
    c->state = CALL_PROBE;
    if (make_head(c, "GET", health, 0, &head) == 0)
        c->send = api_send_start(g, &head, NULL, true, BREAKER_PROBE_MS, on_probed, c);
    end_head(&head);
    if (c->send == NULL) {
        breaker_probed(&g->breaker, 0, "", mono_ns(), wall_ns() / NS_PER_S);
        refuse(c, API_SHED, "");
    }
}

void api_call_go(struct api_call *c, struct http_text method, struct http_text target, struct evbuffer *body, api_call_fn *fn,
                 void *arg)
{
    struct grant *g = c->grant;
    c->fn = fn;
    c->arg = arg;
    if (g == NULL) {
        refuse(c, API_ENDED, "");
        return;
    }
    struct route_verdict verdict = route_check(&g->profile->allow, method, target);
    if (verdict.reason != ROUTE_FORWARD) {
        refuse(c, API_FORBIDDEN, route_reason_text(verdict.reason));
        return;
    }
    // What was approved is the very buffer that is sent.
    assert(verdict.approved.at == target.at && verdict.approved.n == target.n);
    c->route = verdict.index;
    c->target = verdict.approved;
    c->request_bytes = (uint32_t)evbuffer_get_length(body);
    c->body = evbuffer_new();
    if (c->body == NULL || evbuffer_add_buffer(c->body, body) < 0) {
        refuse(c, API_CAPACITY, "");
        return;
    }
    if (!route_caps_charge(g->caps, g->profile, g->counter, method, target)) {
        refuse(c, API_ROUTE_BUDGET, "");
        return;
    }
    switch (breaker_ask(&g->breaker, g->profile->health != NULL, mono_ns())) {
    case BREAKER_SEND:
        send_it(c);
        break;
    case BREAKER_PROBE:
        probe(c);
        break;
    case BREAKER_SHED:
        refuse(c, API_SHED, "");
        break;
    }
}
