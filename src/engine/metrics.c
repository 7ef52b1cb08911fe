#include "engine/metrics.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/pool.h"
#include "engine/sandbox.h"
#include "engine/snapshot_store.h"
#include "engine/volumes.h"

#include <inttypes.h>

static const char *const result_names[METRIC_RESULTS] = {
    "ok",          "pool_exhausted",  "invalid_spec",  "daemon_unreachable", "permission_denied",
    "internal",    "session_expired", "session_limit", "session_unknown",    "guest_unavailable",
    "path_denied", "not_found",       "exists",        "too_large",          "guest_io",
    "timeout",
};

static const char *const op_names[METRIC_GUEST_OPS] = {
    [METRIC_EXEC] = "exec",
    [METRIC_READ_FILE] = "read_file",
    [METRIC_WRITE_FILE] = "write_file",
    [METRIC_LIST_DIR] = "list_dir",
    [METRIC_STAT] = "stat",
    [METRIC_MKDIR] = "mkdir",
    [METRIC_REMOVE] = "remove",
    [METRIC_LIST_PROCESSES] = "list_processes",
    [METRIC_SIGNAL_PROCESS] = "signal_process",
};

static const char *const death_names[METRIC_DEATHS] = {
    [METRIC_DEATH_EXIT] = "exit",
    [METRIC_DEATH_OOM] = "oom",
    [METRIC_DEATH_PROTOCOL] = "protocol",
};

void metric_result(uint64_t results[METRIC_RESULTS], int code)
{
    if (code <= 0 && code > -METRIC_RESULTS)
        results[-code]++;
}

static void head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP sandbox_engine_%s %s\n# TYPE sandbox_engine_%s %s\n", name, help, name, type);
}

static void single(struct buf *out, const char *name, const char *type, const char *help, uint64_t value)
{
    head(out, name, type, help);
    buf_printf(out, "sandbox_engine_%s %" PRIu64 "\n", name, value);
}

static void write_creates(const struct metrics *m, struct buf *out)
{
    head(out, "creates_total", "counter", "Creates answered, by result.");
    for (int i = 0; i < METRIC_RESULTS; i++)
        if (i == 0 || m->creates[i] > 0)
            buf_printf(out, "sandbox_engine_creates_total{result=\"%s\"} %" PRIu64 "\n", result_names[i], m->creates[i]);
    head(out, "create_seconds", "summary", "Time from a create request to its success.");
    buf_printf(out, "sandbox_engine_create_seconds_sum %.6f\nsandbox_engine_create_seconds_count %" PRIu64 "\n",
               (double)m->create_ns / (double)NS_PER_S, m->creates[0]);
}

static void write_streams(const struct metrics *m, struct buf *out)
{
    head(out, "streams_total", "counter", "Streams asked for, by result; ok: the client was given its descriptor.");
    for (int i = 0; i < METRIC_RESULTS; i++)
        if (i == 0 || m->streams[i] > 0)
            buf_printf(out, "sandbox_engine_streams_total{result=\"%s\"} %" PRIu64 "\n", result_names[i], m->streams[i]);
}

static void write_guest_ops(const struct metrics *m, struct buf *out)
{
    head(out, "guest_ops_total", "counter", "Guest operations answered; ok: the agent's result was relayed.");
    for (int op = 0; op < METRIC_GUEST_OPS; op++)
        for (int i = 0; i < METRIC_RESULTS; i++)
            if (i == 0 || m->guest_ops[op][i] > 0)
                buf_printf(out, "sandbox_engine_guest_ops_total{op=\"%s\",result=\"%s\"} %" PRIu64 "\n", op_names[op],
                           result_names[i], m->guest_ops[op][i]);
}

static void write_sandboxes(const struct engine *e, struct buf *out)
{
    unsigned count[SANDBOX_STATES];
    sandboxes_count(e, count);
    head(out, "sandboxes", "gauge", "Sandboxes by state; gone: ended, not yet destroyed by its owner.");
    for (int i = 0; i < SANDBOX_STATES; i++)
        buf_printf(out, "sandbox_engine_sandboxes{state=\"%s\"} %u\n", sandbox_state_name(i), count[i]);
    head(out, "sandbox_deaths_total", "counter", "Sandboxes that ended by themselves, by reason.");
    for (int i = 0; i < METRIC_DEATHS; i++)
        buf_printf(out, "sandbox_engine_sandbox_deaths_total{reason=\"%s\"} %" PRIu64 "\n", death_names[i],
                   e->metrics.deaths[i]);
}

static void write_pool(const struct engine *e, struct buf *out)
{
    const struct metrics *m = &e->metrics;
    struct pool_counts counts = e->pool != NULL ? pool_count(e->pool) : (struct pool_counts){0};
    single(out, "pool_hits_total", "counter", "Creates that took a warm sandbox.", m->pool_hits);
    single(out, "pool_misses_total", "counter",
           "Creates that found no warm sandbox when they came; some of them take one that is ready before their turn to start.",
           m->pool_misses);
    single(out, "pool_ready", "gauge", "Warm sandboxes.", counts.ready);
    single(out, "pool_filling", "gauge", "Sandboxes being made warm.", counts.filling);
    head(out, "pool_fill_seconds", "summary", "Time to make a sandbox warm.");
    buf_printf(out, "sandbox_engine_pool_fill_seconds_sum %.6f\nsandbox_engine_pool_fill_seconds_count %" PRIu64 "\n",
               (double)m->pool_fill_ns / (double)NS_PER_S, m->pool_fills);
}

// Before the volumes are settled, all are 0.
static void write_volumes(const struct engine *e, struct buf *out)
{
    struct volume_facts f = {.next_ms = INT64_MAX};
    if (e->volumes != NULL)
        f = volumes_facts(e->volumes);
    single(out, "volumes", "gauge", "Session volumes that have not expired.", f.live);
    single(out, "volumes_in_use", "gauge", "Session volumes that a sandbox has.",
           e->volumes != NULL ? volumes_held(e->volumes) : 0);
    single(out, "volumes_limit_bytes", "gauge", "What those that have not expired can grow to together.", f.size_mib << 20);
    single(out, "volumes_next_expiry_seconds", "gauge", "When the first of them expires, in Unix time; 0: there is none.",
           f.next_ms == INT64_MAX ? 0 : (uint64_t)f.next_ms / 1000);
    single(out, "volumes_made_total", "counter", "Session volumes made.", e->metrics.volumes_made);
    single(out, "volumes_expired_total", "counter", "Session volumes deleted because their time had passed.",
           e->metrics.volumes_expired);
}

static void write_network(const struct engine *e, struct buf *out)
{
    const struct broker_line_facts f = broker_line_facts(e->broker);
    single(out, "broker_up", "gauge", "1: sandbox-broker answers.", f.up);
    single(out, "broker_sandboxes", "gauge", "Sandboxes that the broker serves.", f.served);
    single(out, "broker_sandboxes_waiting", "gauge", "Sandboxes that it should serve and does not yet: all is denied to them.",
           f.waiting);
    single(out, "broker_connects_total", "counter", "Times that the broker was reached: the first, and each after a loss.",
           f.connects);
    single(out, "broker_losses_total", "counter", "Times that the broker was lost.", f.losses);
    single(out, "broker_refusals_total", "counter", "Sandboxes that the broker refused to serve.", f.refusals);
}

// Before they are known, there are none.
static void write_snapshots(const struct engine *e, struct buf *out)
{
    const struct metrics *m = &e->metrics;
    uint64_t bytes = 0;
    unsigned count = e->snapshots != NULL ? snapshot_store_total(e->snapshots, &bytes) : 0;
    single(out, "snapshots", "gauge", "Snapshots there are.", count);
    single(out, "snapshot_disk_bytes", "gauge", "What they take on the host's disk.", bytes);
    head(out, "snapshot_pause_seconds", "summary", "For how long sandboxes stood still to be kept.");
    buf_printf(out, "sandbox_engine_snapshot_pause_seconds_sum %.6f\nsandbox_engine_snapshot_pause_seconds_count %" PRIu64 "\n",
               (double)m->snapshot_pause_us / 1e6, m->snapshots_taken);
    head(out, "forks_total", "counter", "Forks answered, by result.");
    for (int i = 0; i < METRIC_RESULTS; i++)
        if (i == 0 || m->forks[i] > 0)
            buf_printf(out, "sandbox_engine_forks_total{result=\"%s\"} %" PRIu64 "\n", result_names[i], m->forks[i]);
    single(out, "forked_sandboxes_total", "counter", "Sandboxes made by forks.", m->forked);
    head(out, "fork_seconds", "summary", "Time of a fork until all of its sandboxes run.");
    buf_printf(out, "sandbox_engine_fork_seconds_sum %.6f\nsandbox_engine_fork_seconds_count %" PRIu64 "\n",
               (double)m->fork_ns / (double)NS_PER_S, m->forks[0]);
}

void metrics_write(const struct engine *e, struct buf *out)
{
    const struct metrics *m = &e->metrics;
    head(out, "build_info", "gauge", "The version, as a label.");
    buf_printf(out, "sandbox_engine_build_info{version=\"%s\"} 1\n", ENGINE_VERSION);
    single(out, "uptime_seconds", "gauge", "Seconds since the start.", (mono_ns() - e->started_ns) / NS_PER_S);
    single(out, "connections", "gauge", "Client connections open.", e->client_count - e->refused_count);
    single(out, "connections_total", "counter", "Client connections accepted.", m->connections);
    head(out, "connections_refused_total", "counter", "Client connections refused, by reason.");
    buf_printf(out, "sandbox_engine_connections_refused_total{reason=\"uid\"} %" PRIu64 "\n", m->refused_uid);
    buf_printf(out, "sandbox_engine_connections_refused_total{reason=\"full\"} %" PRIu64 "\n", m->refused_full);
    single(out, "malformed_frames_total", "counter", "Frames from clients that could not be parsed.", m->malformed_frames);
    single(out, "slow_clients_total", "counter", "Clients dropped because they did not read.", m->dropped_slow);
    single(out, "creates_running", "gauge", "Sandboxes being started.", e->running_creates);
    single(out, "template_verifications_total", "counter", "Templates whose files were hashed.", m->template_verifications);
    write_creates(m, out);
    write_pool(e, out);
    write_volumes(e, out);
    write_network(e, out);
    write_snapshots(e, out);
    write_guest_ops(m, out);
    write_streams(m, out);
    write_sandboxes(e, out);
}
