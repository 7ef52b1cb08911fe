// What is counted of grants for Prometheus: by profile and, of calls that were sent, by route.  A label is the operator's text,
// never a guest's.
#ifndef BROKER_GRANT_METRICS_H
#define BROKER_GRANT_METRICS_H

#include "base/buf.h"
#include "broker/profile.h"

enum { GRANT_SERIES_MAX = 1024, GRANT_METRICS_TEXT_MAX = 24 * 1024 * 1024 };

struct grant_metrics;

int grant_metrics_new(struct grant_metrics **ret);
struct grant_metrics *grant_metrics_free(struct grant_metrics *m);

enum grant_count { GRANT_COUNT_OPENED, GRANT_COUNT_DENIED, GRANT_COUNT_SHED, GRANT_COUNT_UNDELIVERED, GRANT_COUNTS };

// Beyond GRANT_SERIES_MAX profiles and routes, which only many reloads can bring about, new ones are not counted.
void grant_metrics_count(struct grant_metrics *m, const struct profile *p, enum grant_count what);
void grant_metrics_call(struct grant_metrics *m, const struct profile *p, const struct route *route, uint64_t latency_us);
void grant_metrics_finding(struct grant_metrics *m, const struct profile *p, const struct advice_finding *f);
void grant_metrics_write(const struct grant_metrics *m, struct buf *out);

#endif
