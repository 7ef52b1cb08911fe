#include "wire/advice.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- groups ----

static bool good(const struct grant_row *row)
{
    return row->delivered != 0 && row->status >= 200 && row->status < 300;
}

static bool same_route(const struct grant_row *a, const struct grant_row *b)
{
    return strcmp(a->method, b->method) == 0 && strcmp(a->route, b->route) == 0;
}

static bool has_star(const char *route)
{
    return strchr(route, '*') != NULL;  // a template's `*` is always a whole segment
}

// What the rows of a group come to.
struct sum {
    uint32_t calls;
    uint64_t latency_us, slowest_us, bytes;
};

static void add_row(struct sum *sum, const struct grant_row *row)
{
    sum->calls++;
    sum->latency_us += row->latency_us;
    sum->bytes += (uint64_t)row->request_bytes + row->response_bytes;
    if (row->latency_us > sum->slowest_us)
        sum->slowest_us = row->latency_us;
}

static uint32_t count_failed(const struct grant_trace_head *head, const struct grant_row *rows, const struct grant_row *like)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < head->rows; i++)
        n += same_route(&rows[i], like) && !good(&rows[i]);
    return n;
}

static struct advice_finding finding_of(const struct grant_trace_head *head, const struct grant_row *rows,
                                        const struct grant_row *first, const struct sum *sum, enum advice_pattern pattern)
{
    struct advice_finding f = {.pattern = pattern,
                               .at_least = head->dropped > 0,
                               .calls = sum->calls,
                               .failed = count_failed(head, rows, first),
                               .extra_calls = sum->calls - 1,
                               .bytes_moved = sum->bytes};
    uint64_t added =
        pattern == ADVICE_PATTERN_FAN_OUT ? sum->latency_us - sum->slowest_us : sum->latency_us - sum->latency_us / sum->calls;
    f.added_latency_us = added < UINT32_MAX ? (uint32_t)added : UINT32_MAX;
    f.severity = sum->calls >= ADVICE_HIGH     ? ADVICE_SEVERITY_HIGH
                 : sum->calls >= ADVICE_MEDIUM ? ADVICE_SEVERITY_MEDIUM
                                               : ADVICE_SEVERITY_LOW;
    if (pattern == ADVICE_PATTERN_REPEATED_READ && f.severity == ADVICE_SEVERITY_HIGH)
        f.severity = ADVICE_SEVERITY_MEDIUM;
    memcpy(f.method, first->method, sizeof f.method);
    memcpy(f.called, first->route, sizeof f.called);
    return f;
}

// ---- what would help ----

static struct http_text text_of(const char *text)
{
    return (struct http_text){text, strlen(text)};
}

static bool is_in(const struct route_list *list, const char *method, struct http_text path)
{
    for (unsigned i = 0; i < list->n; i++)
        if (strcmp(list->route[i].method, method) == 0 && http_text_equal(list->route[i].path, path))
            return true;
    return false;
}

static void name_better(struct advice_finding *f, enum advice_route kind, const char *method, struct http_text path)
{
    f->route = kind;
    snprintf(f->better_method, sizeof f->better_method, "%s", method);
    snprintf(f->better, sizeof f->better, "%.*s", (int)path.n, path.at);
}

// Of reads only: a write is not the same when it is one of many.
static void route_it(struct advice_finding *f, const struct advice_routes *routes)
{
    if (strcmp(f->method, "GET") != 0)
        return;
    for (unsigned i = 0; i < routes->batches; i++) {
        const struct advice_batch *b = &routes->batch[i];
        if (!http_text_equal(b->item.path, text_of(f->called)))
            continue;
        bool granted = is_in(routes->allow, b->batch.method, b->batch.path);
        name_better(f, granted ? ADVICE_ROUTE_SUGGESTED : ADVICE_ROUTE_GRANT, b->batch.method, b->batch.path);
        return;
    }
    size_t n = strlen(f->called);
    if (n <= 2 || strcmp(f->called + n - 2, "/*") != 0)
        return;
    struct http_text parent = {f->called, n - 2};
    if (is_in(routes->allow, "GET", parent) || is_in(routes->catalog, "GET", parent))
        name_better(f, ADVICE_ROUTE_CANDIDATE, "GET", parent);
}

// ---- the patterns ----

struct findings {
    struct advice_finding *at;
    unsigned n;
};

static void fan_out(const struct grant_trace_head *head, const struct grant_row *rows, uint32_t first,
                    const struct advice_routes *routes, struct findings *all)
{
    struct sum sum = {0};
    for (uint32_t i = first; i < head->rows; i++)
        if (good(&rows[i]) && same_route(&rows[i], &rows[first]))
            add_row(&sum, &rows[i]);
    if (sum.calls < ADVICE_FAN_OUT || all->n == ADVICE_FINDINGS_MAX)
        return;
    struct advice_finding f = finding_of(head, rows, &rows[first], &sum, ADVICE_PATTERN_FAN_OUT);
    route_it(&f, routes);
    all->at[all->n++] = f;
}

static bool same_read(const struct grant_row *a, const struct grant_row *b)
{
    return good(a) && a->request_bytes == 0 && a->response_bytes == b->response_bytes && same_route(a, b);
}

static void repeated_read(const struct grant_trace_head *head, const struct grant_row *rows, uint32_t first,
                          struct findings *all)
{
    struct sum sum = {0};
    for (uint32_t i = first; i < head->rows; i++)
        if (same_read(&rows[i], &rows[first]))
            add_row(&sum, &rows[i]);
    if (sum.calls >= ADVICE_REPEATED && all->n < ADVICE_FINDINGS_MAX)
        all->at[all->n++] = finding_of(head, rows, &rows[first], &sum, ADVICE_PATTERN_REPEATED_READ);
}

static void look_at(const struct grant_trace_head *head, const struct grant_row *rows, uint32_t i,
                    const struct advice_routes *routes, struct findings *all)
{
    const struct grant_row *row = &rows[i];
    bool star = has_star(row->route);
    if (!good(row) || (!star && (strcmp(row->method, "GET") != 0 || row->request_bytes != 0)))
        return;
    for (uint32_t k = 0; k < i; k++)
        if (star ? good(&rows[k]) && same_route(&rows[k], row) : same_read(&rows[k], row))
            return;  // its group was looked at
    if (star)
        fan_out(head, rows, i, routes, all);
    else
        repeated_read(head, rows, i, all);
}

static int compare(const void *left, const void *right)
{
    const struct advice_finding *a = left, *b = right;
    if (a->severity != b->severity)
        return a->severity > b->severity ? -1 : 1;
    if (a->pattern != b->pattern)
        return a->pattern < b->pattern ? -1 : 1;
    int r = strcmp(a->called, b->called);
    return r != 0 ? r : strcmp(a->method, b->method);
}

unsigned advise(const struct grant_trace_head *head, const struct grant_row *rows, const struct advice_routes *routes,
                struct advice_finding findings[static ADVICE_FINDINGS_MAX])
{
    struct findings all = {.at = findings};
    for (uint32_t i = 0; i < head->rows; i++)
        look_at(head, rows, i, routes, &all);
    qsort(findings, all.n, sizeof findings[0], compare);
    return all.n;
}

// ---- words ----

const char *advice_pattern_name(uint32_t pattern)
{
    return pattern == ADVICE_PATTERN_FAN_OUT ? "fan_out" : "repeated_read";
}

const char *advice_remedy_name(uint32_t pattern)
{
    return pattern == ADVICE_PATTERN_FAN_OUT ? "batch" : "cache";
}

const char *advice_severity_name(uint32_t severity)
{
    return severity == ADVICE_SEVERITY_HIGH ? "high" : severity == ADVICE_SEVERITY_MEDIUM ? "medium" : "low";
}

const char *advice_route_name(uint32_t route)
{
    static const char *const names[] = {"none", "suggested", "grant_route", "candidate"};
    return route < sizeof names / sizeof names[0] ? names[route] : "none";
}

void advice_sentence(const struct advice_finding *f, char text[static ADVICE_TEXT_MAX])
{
    const char *at_least = f->at_least != 0 ? "at least " : "";
    int n = snprintf(text, ADVICE_TEXT_MAX, "%s %s was called %s%" PRIu32 " times%s", f->method, f->called, at_least, f->calls,
                     f->pattern == ADVICE_PATTERN_REPEATED_READ ? " for an answer of the same size" : "");
    if (f->failed > 0)
        n += snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, " (%" PRIu32 " more failed)", f->failed);
    n += snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, "; %s%" PRIu32 " calls could be saved", at_least, f->extra_calls);
    if (f->route == ADVICE_ROUTE_SUGGESTED)
        n += snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, ", with %s %s", f->better_method, f->better);
    else if (f->route == ADVICE_ROUTE_GRANT)
        n += snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, ", if %s %s were granted", f->better_method, f->better);
    else if (f->route == ADVICE_ROUTE_CANDIDATE)
        n += snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, ", if %s %s gives many at once", f->better_method, f->better);
    snprintf(text + n, ADVICE_TEXT_MAX - (size_t)n, ".");
}
