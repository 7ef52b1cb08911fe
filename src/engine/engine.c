#include "engine/engine.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/client.h"
#include "engine/grants.h"
#include "engine/listener.h"
#include "engine/metrics_server.h"
#include "engine/pool.h"
#include "engine/sandbox.h"
#include "engine/snapshot_store.h"
#include "engine/template.h"
#include "engine/volumes.h"
#include "libsandbox.h"
#include "sys/jail.h"
#include "sys/notify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKERS = 4,              // threads that look at templates
    JAILER_START_MS = 60000,  // for the greeting and the probe together
    REPROBE_MS = 10000,
};

// ---- start ----

static void give_up(struct engine *e, int status)
{
    timer_cancel(e->loop, &e->deadline);
    loop_stop(e->loop, status);
}

static void on_start_deadline(void *arg)
{
    struct engine *e = arg;
    log_error("jailer_silent", log_u64("waited_ms", JAILER_START_MS));
    give_up(e, EXIT_JAILER_LOST);
}

static int bind_sockets(struct engine *e)
{
    int r = listener_new(e, &e->listener);
    if (r < 0) {
        log_error(
            "bind_failed", log_str("socket", e->config->socket), log_errno(r),
            log_str("hint", r == -EADDRINUSE ? "another engine listens there, or it is not a socket of this engine" : ""));
        return r;
    }
    if (e->config->metrics_socket[0] == '\0')
        return 0;
    r = metrics_server_new(e, &e->metrics_server);
    if (r < 0)
        log_error("bind_failed", log_str("socket", e->config->metrics_socket), log_errno(r));
    return r;
}

static void serve(struct engine *e)
{
    timer_cancel(e->loop, &e->deadline);
    if (bind_sockets(e) < 0) {
        give_up(e, EXIT_FAILURE);
        return;
    }
    if (pool_new(e, &e->pool) < 0) {
        log_error("no_memory", log_str("for", "the pool"));
        give_up(e, EXIT_FAILURE);
        return;
    }
    log_info("ready", log_str("version", ENGINE_VERSION), log_str("socket", e->config->socket));
    int r = notify_state("READY=1");
    if (r < 0)
        log_warn("notify_failed", log_errno(r));
}

static void on_snapshots(void *arg)
{
    struct engine *e = arg;
    if (!e->stopping)
        serve(e);
}

static void on_volumes(void *arg)
{
    struct engine *e = arg;
    if (e->stopping)
        return;
    int r = snapshot_store_new(e, ENGINE_FD_STATE_DIR, on_snapshots, e, &e->snapshots);
    if (r < 0) {
        log_error("no_snapshots", log_errno(r));
        give_up(e, EXIT_FAILURE);
    }
}

static void settle_volumes(struct engine *e)
{
    int r = volumes_new(e, ENGINE_FD_STATE_DIR, on_volumes, e, &e->volumes);
    if (r < 0) {
        log_error("no_volumes", log_errno(r));
        give_up(e, EXIT_FAILURE);
    }
}

static struct tier *keep_verdict(struct engine *e, uint32_t level, const struct driver_answer *answer)
{
    struct tier *tier = tiers_at(&e->tiers, level);
    tier_probed(tier, answer->error == 0, answer->detail[0] != '\0' ? answer->detail : strerror(-answer->error));
    if (tier->available)
        log_info("tier_available", log_str("tier", tier->name));
    return tier;
}

// Its absence is no fault: few machines have what it needs.
static void on_vm_probe(void *arg, const struct driver_answer *answer)
{
    struct engine *e = arg;
    if (e->stopping)
        return;
    struct tier *tier = keep_verdict(e, SANDBOX_ISOLATION_VM, answer);
    if (!tier->available)
        log_info("tier_unavailable", log_str("tier", tier->name), log_str("reason", tier->reason));
    settle_volumes(e);
}

static void on_probe(void *arg, const struct driver_answer *answer)
{
    struct engine *e = arg;
    if (e->stopping)
        return;
    struct tier *tier = keep_verdict(e, SANDBOX_ISOLATION_CONTAINER, answer);
    if (!tier->available) {
        log_error("tier_unavailable", log_str("tier", tier->name), log_str("reason", tier->reason));
        // A host that was merely too busy, or has been mended, has its tier back without a restart.
        timer_set(e->loop, &e->reprobe, mono_ns() + REPROBE_MS * NS_PER_MS);
    }
    if (e->vm_asked)
        return;
    e->vm_asked = true;
    int r = vm_driver.probe(e->vm, on_vm_probe, e);
    if (r < 0)
        on_vm_probe(e, &(struct driver_answer){.error = r, .detail = "the jailer could not be asked"});
}

static void on_reprobe(void *arg)
{
    struct engine *e = arg;
    if (!e->stopping && container_driver.probe(e->container, on_probe, e) < 0)
        timer_set(e->loop, &e->reprobe, mono_ns() + REPROBE_MS * NS_PER_MS);
}

// Its absence is no fault, either: sandboxes without a policy do not need it.
static void on_network(void *arg, const struct driver_answer *answer)
{
    struct engine *e = arg;
    if (e->stopping)
        return;
    if (answer->error < 0) {
        snprintf(e->network_trouble, sizeof e->network_trouble, "the jailer can make no lines for sandboxes: %s",
                 answer->detail[0] != '\0' ? answer->detail : strerror(-answer->error));
        log_warn("network_unavailable", log_errno(answer->error), log_str("reason", answer->detail));
    }
    int r = container_driver.probe(e->container, on_probe, e);
    if (r < 0) {
        log_error("jailer_refused", log_errno(r), log_str("detail", "it could not be asked for a probe"));
        give_up(e, EXIT_JAILER_LOST);
    }
}

static int prepare_network(struct engine *e)
{
    const struct config *c = e->config;
    const struct driver_answer without = {.error = 0};
    if (c->broker_socket[0] != '\0')
        return container_network(e->container, (uint16_t)c->broker_port, c->synthetic_range.first, c->synthetic_range.bits,
                                 on_network, e);
    on_network(e, &without);
    return 0;
}

const char *engine_network_trouble(struct engine *e)
{
    return e->network_trouble[0] != '\0' ? e->network_trouble : broker_line_trouble(e->broker);
}

static void on_hello(void *arg, const struct driver_answer *answer)
{
    struct engine *e = arg;
    if (e->stopping)
        return;
    int r = answer->error;
    if (r == 0 && answer->handle != JAIL_PROTOCOL_VERSION)
        r = -EPROTONOSUPPORT;
    if (r == 0)
        r = prepare_network(e);
    if (r < 0) {
        log_error("jailer_refused", log_errno(r), log_str("detail", answer->detail));
        give_up(e, EXIT_JAILER_LOST);
    }
}

// Also while stopping: what it would wait for is dead, and nobody will say so any more.
static void on_jailer_lost(void *arg)
{
    give_up(arg, EXIT_JAILER_LOST);
}

static int add_vm_tier(struct engine *e)
{
    const struct vm_config config = {.loop = e->loop,
                                     .workers = e->workers,
                                     .jailer = e->container,
                                     .run_dir = ENGINE_FD_RUN_DIR,
                                     .store = ENGINE_FD_TEMPLATES_DIR,
                                     .state_dir = ENGINE_FD_STATE_DIR,
                                     .kernel = e->config->vm_kernel,
                                     .settle_ms = e->config->stop_deadline_ms / 4 * 3,
                                     .start_ms = e->config->start_deadline_ms,
                                     .answer_ms = e->config->guest_deadline_ms,
                                     .template_memory_mib = e->config->template_memory_mib,
                                     .template_disk_mib = e->config->template_disk_mib};
    int r = vm_driver_new(&config, &e->vm);
    if (r < 0)
        return r;
    struct tier *tier = tiers_at(&e->tiers, SANDBOX_ISOLATION_VM);
    tier->driver = &vm_driver;
    tier->self = e->vm;
    tier_probed(tier, false, "it has not been probed yet");
    return 0;
}

static int start(struct engine *e)
{
    int r = container_new(e->loop, ENGINE_FD_JAILER, sandbox_exited, on_jailer_lost, e, &e->container);
    if (r < 0)
        return r;
    struct tier *tier = tiers_at(&e->tiers, SANDBOX_ISOLATION_CONTAINER);
    tier->driver = &container_driver;
    tier->self = e->container;
    tier_probed(tier, false, "it has not been probed yet");
    r = workers_new(e->loop, WORKERS, &e->workers);
    if (r == 0)
        r = add_vm_tier(e);
    if (r == 0)
        r = broker_line_new(e->loop, ENGINE_FD_RUN_DIR, e->config->broker_socket, &e->broker);
    if (r == 0)
        broker_line_on_up(e->broker, grants_broker_up, e);
    if (r == 0)
        r = templates_new(e, ENGINE_FD_TEMPLATES_DIR, &e->templates);
    if (r == 0)
        r = timer_set(e->loop, &e->deadline, mono_ns() + JAILER_START_MS * NS_PER_MS);
    return r == 0 ? container_hello(e->container, on_hello, e) : r;
}

int engine_new(struct loop *loop, const struct config *config, struct engine **ret_engine)
{
    struct engine *e = calloc(1, sizeof *e);
    if (e == NULL)
        return -ENOMEM;
    *e = (struct engine){.loop = loop, .config = config, .started_ns = mono_ns()};
    TAILQ_INIT(&e->clients);
    TAILQ_INIT(&e->sandboxes);
    TAILQ_INIT(&e->waiting_creates);
    tiers_init(&e->tiers);
    timer_init(&e->deadline, on_start_deadline, e);
    timer_init(&e->reprobe, on_reprobe, e);
    int r = start(e);
    if (r < 0) {
        engine_free(e);
        return r;
    }
    *ret_engine = e;
    return 0;
}

// ---- end ----

static void close_clients(struct engine *e)
{
    while (!TAILQ_EMPTY(&e->clients))
        client_close(TAILQ_FIRST(&e->clients));
}

struct engine *engine_free(struct engine *e)
{
    if (e == NULL)
        return NULL;
    e->stopping = true;
    timer_cancel(e->loop, &e->deadline);
    timer_cancel(e->loop, &e->reprobe);
    e->listener = listener_free(e->listener);
    e->metrics_server = metrics_server_free(e->metrics_server);
    close_clients(e);
    e->pool = pool_free(e->pool);
    vm_driver_stop(e->vm);
    e->workers = workers_free(e->workers);
    broker_line_close(e->broker);
    e->container = container_free(e->container);  // ends every sandbox that is left
    e->vm = vm_driver_free(e->vm);
    e->broker = broker_line_free(e->broker);
    e->templates = templates_free(e->templates);
    e->volumes = volumes_free(e->volumes);
    e->snapshots = snapshot_store_free(e->snapshots);
    free(e);
    return NULL;
}

static void on_stop_deadline(void *arg)
{
    struct engine *e = arg;
    log_error("stop_deadline", log_u64("sandboxes_left", e->sandbox_count));
    loop_stop(e->loop, EXIT_SUCCESS);
}

void engine_sandbox_gone(struct engine *e)
{
    if (e->stopping && e->sandbox_count == 0)
        loop_stop(e->loop, EXIT_SUCCESS);
}

void engine_stop(struct engine *e)
{
    if (e->stopping)
        return;
    e->stopping = true;
    log_info("stopping", log_u64("sandboxes", e->sandbox_count));
    notify_state("STOPPING=1");
    e->listener = listener_free(e->listener);
    timer_cancel(e->loop, &e->deadline);
    timer_init(&e->deadline, on_stop_deadline, e);
    if (timer_set(e->loop, &e->deadline, mono_ns() + e->config->stop_deadline_ms * NS_PER_MS) < 0)
        loop_stop(e->loop, EXIT_SUCCESS);
    close_clients(e);
    pool_stop(e->pool);
    engine_sandbox_gone(e);
}
