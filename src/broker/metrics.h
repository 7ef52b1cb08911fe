// What the broker counts, and its text for Prometheus.
#ifndef BROKER_METRICS_H
#define BROKER_METRICS_H

#include "base/buf.h"

#include <stdint.h>

enum decision {
    ALLOWED_CREDENTIALED,
    ALLOWED_ANONYMOUS,
    DENIED_POLICY,        // no entry of the sandbox's policy earns this connection
    DENIED_UNCONFIGURED,  // only a bare * covers the host, and no credential is on file for it
    DENIED_ADDRESS,       // the name leads to an address that is not public
    DENIED_TOKEN,         // no token, or not this sandbox's
    DENIED_MALFORMED,     // not a request that could be judged, or one that says it is too large
    DENIED_BUSY,          // too many connections
    DECISIONS,
};

// "allowed_credentialed" and so on: the value in logs, labels and answers.
const char *decision_name(enum decision d);

enum dns_result { DNS_ANSWERED, DNS_EMPTY, DNS_DENIED, DNS_REFUSED_QUERY, DNS_LIMITED, DNS_FULL, DNS_RESULTS };

enum { STATUSES = 6, METRICS_TEXT_MAX = 16 * 1024 };

struct metrics {
    uint64_t decisions[DECISIONS];
    uint64_t answers[STATUSES];  // by the first digit of the status the guest got
    uint64_t bytes_up, bytes_down;
    uint64_t body_too_large;
    uint64_t upstream_failed;
    uint64_t connections;  // accepted
    uint64_t dials, reused;
    uint64_t dns[DNS_RESULTS];
    uint64_t reloads, reloads_failed;
    // Now.
    uint64_t tunnels, sandboxes, pooled, open;
};

// Without those of grants, which are grant_metrics.h's.
void metrics_write(const struct metrics *m, struct buf *out);

#endif
