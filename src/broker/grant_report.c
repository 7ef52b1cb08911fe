#include "broker/grant_report.h"

#include "base/log.h"
#include "broker/grant_metrics.h"

#include <stdlib.h>
#include <string.h>

struct report {
    struct grant_trace_head head;
    struct grant_row rows[GRANT_ROWS_MAX];
    struct advice_finding findings[ADVICE_FINDINGS_MAX];
};

static void write_out(const struct grant *g, struct report *r)
{
    r->head = (struct grant_trace_head){
        .rows = g->rows, .calls = g->attempts, .denied = g->denied, .shed = g->shed, .dropped = g->dropped};
    for (unsigned i = 0; i < g->rows; i++) {
        const struct grant_note *n = &g->row[i];
        const struct route *route = &g->profile->allow.route[n->route];
        struct grant_row *row = &r->rows[i];
        row->sequence = i + 1;
        row->status = n->status;
        row->delivered = n->delivered;
        row->request_bytes = n->request_bytes;
        row->response_bytes = n->response_bytes;
        row->latency_us = n->latency_us;
        memcpy(row->method, route->method, sizeof route->method);
        memcpy(row->route, route->path.at, route->path.n);
    }
}

// ---- advice ----

struct totals {
    uint32_t findings, fixable, ungranted, candidates;
    uint64_t extra_calls, latency_us, bytes;
};

static void log_finding(const struct grant *g, const struct advice_finding *f)
{
    char text[ADVICE_TEXT_MAX];
    advice_sentence(f, text);
    log_info("grant_finding", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
             log_str("profile", g->profile->name), log_str("pattern", advice_pattern_name(f->pattern)),
             log_str("severity", advice_severity_name(f->severity)), log_str("route", advice_route_name(f->route)),
             log_str("detail", text));
}

static struct totals look_through(const struct grant *g, const struct report *r, unsigned n)
{
    struct totals t = {.findings = n};
    for (unsigned i = 0; i < n; i++) {
        const struct advice_finding *f = &r->findings[i];
        t.fixable += f->route == ADVICE_ROUTE_SUGGESTED;
        t.ungranted += f->route == ADVICE_ROUTE_GRANT;
        t.candidates += f->route == ADVICE_ROUTE_CANDIDATE;
        t.extra_calls += f->extra_calls;
        t.latency_us += f->added_latency_us;
        t.bytes += f->bytes_moved;
        grant_metrics_finding(g->broker->grant_metrics, g->profile, f);
        if (g->profile->retention == ADVICE_KEEP_DETAILED)
            log_finding(g, f);
    }
    return t;
}

static void give_advice(const struct grant *g, struct report *r)
{
    const struct profile *p = g->profile;
    if (p->advice == ADVICE_OFF || r->head.rows == 0)
        return;
    const struct advice_routes routes = {&p->allow, &p->catalog, p->batch, p->n_batches};
    unsigned n = advise(&r->head, r->rows, &routes, r->findings);
    struct totals t = look_through(g, r, n);
    if (p->retention != ADVICE_KEEP_NONE)
        log_info("grant_advice", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
                 log_str("profile", p->name), log_u64("findings", t.findings), log_u64("agent_fixable", t.fixable),
                 log_u64("ungranted_routes", t.ungranted), log_u64("candidate_routes", t.candidates),
                 log_u64("extra_calls", t.extra_calls), log_u64("added_latency_ms", t.latency_us / 1000),
                 log_u64("bytes_moved", t.bytes), log_bool("at_least", g->dropped > 0));
    // The caller is shown what it can do something about, and nothing else.
    for (unsigned i = 0; i < n && p->advice == ADVICE_CALLER; i++)
        if (r->findings[i].route == ADVICE_ROUTE_SUGGESTED)
            r->findings[r->head.findings++] = r->findings[i];
}

void grant_report(const struct grant *g, struct buf *trace)
{
    log_info("grant_closed", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id), log_str("run", g->run),
             log_str("profile", g->profile->name), log_u64("host_calls", g->attempts), log_u64("host_calls_denied", g->denied),
             log_u64("host_calls_dropped", g->dropped), log_u64("host_calls_shed", g->shed));
    struct report *r = calloc(1, sizeof *r);
    if (r == NULL) {
        log_error("grant_trace_lost", log_u64("sandbox_id", g->sandbox_id), log_u64("grant_id", g->grant_id));
        return;
    }
    write_out(g, r);
    give_advice(g, r);
    if (trace != NULL) {
        buf_append(trace, &r->head, sizeof r->head);
        buf_append(trace, r->rows, r->head.rows * sizeof r->rows[0]);
        buf_append(trace, r->findings, r->head.findings * sizeof r->findings[0]);
    }
    free(r);
}
