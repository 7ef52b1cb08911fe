#include "broker/grant_metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t bounds_us[] = {1000,   5000,   10000,   25000,   50000,   100000,
                                     250000, 500000, 1000000, 2500000, 5000000, 10000000};
static const char *const bounds[] = {"0.001", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10"};
enum { BOUNDS = sizeof bounds / sizeof bounds[0], LABELS_MAX = BROKER_PROFILE_MAX + ROUTE_TEMPLATE_MAX + 96 };

_Static_assert(sizeof bounds_us / sizeof bounds_us[0] == BOUNDS, "a text for each bound");

// A label set and what is counted under it.
struct series {
    char *labels;
    uint64_t bucket[BOUNDS], count, sum_us;
};

struct family {
    struct series *at;
    unsigned n;
};

struct grant_metrics {
    struct family calls, counts[GRANT_COUNTS], findings;
    unsigned n;
};

int grant_metrics_new(struct grant_metrics **ret)
{
    *ret = calloc(1, sizeof **ret);
    return *ret != NULL ? 0 : -ENOMEM;
}

static void family_end(struct family *f)
{
    for (unsigned i = 0; i < f->n; i++)
        free(f->at[i].labels);
    free(f->at);
}

struct grant_metrics *grant_metrics_free(struct grant_metrics *m)
{
    if (m == NULL)
        return NULL;
    family_end(&m->calls);
    family_end(&m->findings);
    for (unsigned i = 0; i < GRANT_COUNTS; i++)
        family_end(&m->counts[i]);
    free(m);
    return NULL;
}

static struct series *find(struct grant_metrics *m, struct family *f, const char *labels)
{
    for (unsigned i = 0; i < f->n; i++)
        if (strcmp(f->at[i].labels, labels) == 0)
            return &f->at[i];
    if (m->n == GRANT_SERIES_MAX)
        return NULL;
    struct series *more = realloc(f->at, (f->n + 1) * sizeof *more);
    if (more == NULL)
        return NULL;
    f->at = more;
    f->at[f->n] = (struct series){.labels = strdup(labels)};
    if (f->at[f->n].labels == NULL)
        return NULL;
    m->n++;
    return &f->at[f->n++];
}

void grant_metrics_count(struct grant_metrics *m, const struct profile *p, enum grant_count what)
{
    char labels[LABELS_MAX];
    snprintf(labels, sizeof labels, "profile=\"%s\"", p->name);
    struct series *s = find(m, &m->counts[what], labels);
    if (s != NULL)
        s->count++;
}

void grant_metrics_call(struct grant_metrics *m, const struct profile *p, const struct route *route, uint64_t latency_us)
{
    char labels[LABELS_MAX];
    snprintf(labels, sizeof labels, "profile=\"%s\",method=\"%s\",route=\"%.*s\"", p->name, route->method, (int)route->path.n,
             route->path.at);
    struct series *s = find(m, &m->calls, labels);
    if (s == NULL)
        return;
    s->count++;
    s->sum_us += latency_us;
    for (unsigned i = 0; i < BOUNDS; i++)
        s->bucket[i] += latency_us <= bounds_us[i];
}

void grant_metrics_finding(struct grant_metrics *m, const struct profile *p, const struct advice_finding *f)
{
    char labels[LABELS_MAX];
    snprintf(labels, sizeof labels, "profile=\"%s\",pattern=\"%s\",severity=\"%s\",remedy=\"%s\",route=\"%s\"", p->name,
             advice_pattern_name(f->pattern), advice_severity_name(f->severity), advice_remedy_name(f->pattern),
             advice_route_name(f->route));
    struct series *s = find(m, &m->findings, labels);
    if (s != NULL)
        s->count++;
}

// ---- text ----

static void put_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP broker_%s %s\n# TYPE broker_%s %s\n", name, help, name, type);
}

static void put_counts(const struct family *f, struct buf *out, const char *name, const char *help)
{
    if (f->n > 0)
        put_head(out, name, "counter", help);
    for (unsigned i = 0; i < f->n; i++)
        buf_printf(out, "broker_%s{%s} %" PRIu64 "\n", name, f->at[i].labels, f->at[i].count);
}

static void put_histogram(const struct series *s, struct buf *out)
{
    for (unsigned i = 0; i < BOUNDS; i++)
        buf_printf(out, "broker_grant_call_seconds_bucket{%s,le=\"%s\"} %" PRIu64 "\n", s->labels, bounds[i], s->bucket[i]);
    buf_printf(out, "broker_grant_call_seconds_bucket{%s,le=\"+Inf\"} %" PRIu64 "\n", s->labels, s->count);
    buf_printf(out, "broker_grant_call_seconds_sum{%s} %" PRIu64 ".%06" PRIu64 "\n", s->labels, s->sum_us / 1000000,
               s->sum_us % 1000000);
    buf_printf(out, "broker_grant_call_seconds_count{%s} %" PRIu64 "\n", s->labels, s->count);
}

void grant_metrics_write(const struct grant_metrics *m, struct buf *out)
{
    static const struct {
        const char *name, *help;
    } texts[GRANT_COUNTS] = {
        [GRANT_COUNT_OPENED] = {"grants_opened_total", "Grants, by profile."},
        [GRANT_COUNT_DENIED] = {"grant_calls_denied_total", "Calls of guests that were refused."},
        [GRANT_COUNT_SHED] = {"grant_calls_shed_total", "Calls that were not sent as the API had said that it has too many."},
        [GRANT_COUNT_UNDELIVERED] = {"grant_calls_undelivered_total",
                                     "Calls that were sent and whose answer was not delivered."},
    };
    for (unsigned i = 0; i < GRANT_COUNTS; i++)
        put_counts(&m->counts[i], out, texts[i].name, texts[i].help);
    put_counts(&m->findings, out, "grant_findings_total", "What the advisor found in traces.");
    if (m->calls.n > 0)
        put_head(out, "grant_call_seconds", "histogram", "Calls that were sent, by profile and route.");
    for (unsigned i = 0; i < m->calls.n; i++)
        put_histogram(&m->calls.at[i], out);
}
