#include "engine/status.h"

#include "base/clock.h"
#include "base/json_out.h"
#include "engine/engine.h"
#include "engine/pool.h"
#include "engine/sandbox.h"
#include "engine/snapshot_store.h"
#include "engine/template.h"
#include "engine/volumes.h"

#include <unistd.h>

static void write_tiers(struct engine *e, struct json_out *j)
{
    json_open(j, "tiers", '[');
    for (int i = 0; i < TIERS; i++) {
        const struct tier *tier = &e->tiers.tier[i];
        json_open(j, NULL, '{');
        json_str(j, "name", tier->name);
        json_bool(j, "available", tier->available);
        if (!tier->available) {
            json_str(j, "reason", tier->reason);
            json_str(j, "fix", tier->fix);
        }
        json_close(j, '}');
    }
    json_close(j, ']');
    const struct tier *best = tiers_choose(&e->tiers, 0, (struct tier_wants){0}, NULL);
    json_str(j, "default_tier", best != NULL ? best->name : NULL);
}

static void write_sandboxes(const struct engine *e, struct json_out *j)
{
    unsigned count[SANDBOX_STATES];
    sandboxes_count(e, count);
    json_open(j, "sandboxes", '{');
    for (int i = 0; i < SANDBOX_STATES; i++)
        json_u64(j, sandbox_state_name(i), count[i]);
    json_close(j, '}');
}

static void write_volumes(const struct engine *e, struct json_out *j)
{
    const char *trouble = volumes_trouble(e->volumes);
    struct volume_facts f = volumes_facts(e->volumes);
    json_open(j, "volumes", '{');
    json_str(j, "trouble", trouble);
    json_u64(j, "count", f.live);
    json_u64(j, "in_use", volumes_held(e->volumes));
    json_u64(j, "limit_bytes", f.size_mib << 20);
    json_u64(j, "made", e->metrics.volumes_made);
    json_u64(j, "expired", e->metrics.volumes_expired);
    json_u64(j, "next_expiry", f.next_ms == INT64_MAX ? 0 : (uint64_t)f.next_ms / 1000);
    json_close(j, '}');
}

static void write_network(struct engine *e, struct json_out *j)
{
    const struct broker_line_facts f = broker_line_facts(e->broker);
    json_open(j, "network", '{');
    json_str(j, "trouble", engine_network_trouble(e));
    json_bool(j, "broker_up", f.up);
    json_str(j, "broker_socket", e->config->broker_socket);
    json_u64(j, "served", f.served);
    json_u64(j, "waiting", f.waiting);
    json_u64(j, "connects", f.connects);
    json_u64(j, "losses", f.losses);
    json_u64(j, "refusals", f.refusals);
    json_u64(j, "allowed_services", e->config->allowed_services.n);
    json_u64(j, "egress_ceiling", e->config->egress_ceiling.n);
    json_close(j, '}');
}

static void write_snapshots(const struct engine *e, struct json_out *j)
{
    uint64_t bytes = 0;
    unsigned count = snapshot_store_total(e->snapshots, &bytes);
    json_open(j, "snapshots", '{');
    json_str(j, "trouble", snapshot_store_trouble(e->snapshots));
    json_u64(j, "count", count);
    json_u64(j, "bytes", bytes);
    json_u64(j, "taken", e->metrics.snapshots_taken);
    json_u64(j, "forked", e->metrics.forked);
    json_close(j, '}');
}

static void write_limits(const struct config *c, struct json_out *j)
{
    json_open(j, "limits", '{');
    json_u64(j, "max_connections", c->max_connections);
    json_u64(j, "max_owned_per_connection", c->max_owned_per_connection);
    json_u64(j, "max_owned_per_uid", c->max_owned_per_uid);
    json_u64(j, "max_sandboxes", c->max_sandboxes);
    json_u64(j, "max_creates", c->max_creates);
    json_u64(j, "max_guest_ops_per_connection", c->max_guest_ops_per_connection);
    json_u64(j, "memory_mib_max", c->memory_mib_max);
    json_u64(j, "vcpus_max", c->vcpus_max);
    json_u64(j, "disk_mib_default", c->disk_mib_default);
    json_u64(j, "disk_mib_max", c->disk_mib_max);
    json_u64(j, "pids_max", c->pids_max);
    json_u64(j, "start_deadline_ms", c->start_deadline_ms);
    json_u64(j, "guest_deadline_ms", c->guest_deadline_ms);
    json_u64(j, "exec_grace_ms", c->exec_grace_ms);
    json_u64(j, "max_volumes_per_uid", c->max_volumes_per_uid);
    json_u64(j, "max_snapshots_per_uid", c->max_snapshots_per_uid);
    json_u64(j, "max_fork", c->max_fork);
    json_u64(j, "fork_copy_mib", c->fork_copy_mib);
    json_u64(j, "volume_mib", c->volume_mib);
    json_u64(j, "workspace_max_ttl_s", c->workspace_max_ttl_s);
    json_close(j, '}');
}

void status_write(struct engine *e, struct buf *out)
{
    struct json_out j = JSON_OUT_INIT(out);
    json_open(&j, NULL, '{');
    json_str(&j, "version", ENGINE_VERSION);
    json_u64(&j, "uptime_s", (mono_ns() - e->started_ns) / NS_PER_S);
    json_u64(&j, "pid", (uint64_t)getpid());
    write_tiers(e, &j);
    json_open(&j, "templates_loaded", '[');
    templates_list(e->templates, &j);
    json_close(&j, ']');
    write_sandboxes(e, &j);
    json_open(&j, "pool", '[');
    if (e->pool != NULL)
        pool_list(e->pool, &j);
    json_close(&j, ']');
    write_volumes(e, &j);
    write_network(e, &j);
    write_snapshots(e, &j);
    json_u64(&j, "connections", e->client_count - e->refused_count);
    write_limits(e->config, &j);
    json_close(&j, '}');
}
