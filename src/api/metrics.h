// What /metrics says.
#ifndef API_METRICS_H
#define API_METRICS_H

#include "base/buf.h"

#include <stdint.h>

enum { METRICS_ROUTES_MAX = 48, METRICS_CLASSES = 6, METRICS_TEXT_MAX = 64 * 1024 };

struct metrics {
    uint64_t requests[METRICS_ROUTES_MAX + 1][METRICS_CLASSES];  // by route and the status's first digit; 0: no answer
    uint64_t sandboxes_started, sandboxes_failed, sandboxes_reclaimed, sandboxes_evicted, sandboxes_lost;
    uint64_t execs, execs_killed, replays;
    uint64_t file_bytes_in, file_bytes_out;
    uint64_t engine_failures;
    // Now.
    uint64_t execs_running, event_streams, output_held;
};

struct api;

void metrics_request(struct metrics *m, unsigned route, unsigned status);
void metrics_write(const struct api *api, struct buf *out);

#endif
