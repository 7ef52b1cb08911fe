// What the engine counts, and its text for Prometheus (exposition format 0.0.4).
#ifndef ENGINE_METRICS_H
#define ENGINE_METRICS_H

#include "base/buf.h"

#include <stdint.h>

struct engine;

enum metric_guest_op {
    METRIC_EXEC,
    METRIC_READ_FILE,
    METRIC_WRITE_FILE,
    METRIC_LIST_DIR,
    METRIC_STAT,
    METRIC_MKDIR,
    METRIC_REMOVE,
    METRIC_LIST_PROCESSES,
    METRIC_SIGNAL_PROCESS,
    METRIC_GUEST_OPS,
};

enum metric_death { METRIC_DEATH_EXIT, METRIC_DEATH_OOM, METRIC_DEATH_PROTOCOL, METRIC_DEATHS };

enum {
    METRIC_RESULTS = 16,  // 0 and the sandbox_error_t codes, by -code
    METRIC_TEXT_MAX = 64 * 1024,
};

struct metrics {
    uint64_t creates[METRIC_RESULTS];
    uint64_t create_ns;  // of those that succeeded
    uint64_t guest_ops[METRIC_GUEST_OPS][METRIC_RESULTS];
    uint64_t streams[METRIC_RESULTS];
    uint64_t deaths[METRIC_DEATHS];  // sandboxes that ended by themselves
    uint64_t pool_hits;
    uint64_t pool_misses;
    uint64_t pool_fills;
    uint64_t pool_fill_ns;
    uint64_t connections;  // accepted so far
    uint64_t refused_uid;
    uint64_t refused_full;
    uint64_t malformed_frames;
    uint64_t dropped_slow;  // clients that did not read their answers
    uint64_t template_verifications;
    uint64_t volumes_made;
    uint64_t snapshots_taken;
    uint64_t snapshot_pause_us;
    uint64_t forks[METRIC_RESULTS];
    uint64_t fork_ns;          // of those that succeeded
    uint64_t forked;           // sandboxes
    uint64_t volumes_expired;  // whose file was deleted because their time had passed
};

// Counts one result of a create or a guest operation; `code` is 0 or a sandbox_error_t.
void metric_result(uint64_t results[METRIC_RESULTS], int code);

// Appends the whole text.
void metrics_write(const struct engine *e, struct buf *out);

#endif
