#include "engine/create.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/egress.h"
#include "engine/fork.h"
#include "engine/grants.h"
#include "engine/network.h"
#include "engine/origin.h"
#include "engine/pool.h"
#include "engine/template.h"
#include "engine/volumes.h"
#include "libsandbox.h"
#include "sys/idna.h"
#include "wire/limits.h"
#include "wire/pb.h"
#include "wire/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_ID_DIGITS = 32 };

struct create {
    TAILQ_ENTRY(create) link;     // in client->creates
    TAILQ_ENTRY(create) waiting;  // in engine->waiting_creates
    struct client *client;
    struct request *request;  // NULL: a fork's
    struct fork *fork;
    struct shape shape;
    struct egress *egress;  // what it may reach; NULL: nothing
    char template_name[TEMPLATE_NAME_MAX + 1];
    char real_name[TEMPLATE_NAME_MAX + 1];  // of the template, once it is loaded: the one above may be an alias
    uint8_t rootfs[DIGEST_LEN];             // likewise
    struct template_waiter waiter;
    uint64_t pool_wait_ms;
    uint64_t begun_ns;
    bool in_queue;  // waits for a slot
    bool has_slot;
    struct timer timer;       // of the wait for a slot, then of the start up to the agent's answer
    struct sandbox *sandbox;  // NULL until one was taken or started
    struct grant_ask ask;     // its grant's; without a profile there is none
    struct run_grant *grant;  // NULL until it was asked for
    struct volume_waiter volume_waiter;
    struct volume_lease *lease;  // the session's volume, until a sandbox has it
    bool waits_for_volume;
    uint64_t give_up_ns;              // end of the wait for volume and slot together; 0: it has not begun
    bool lost_one;                    // a warm sandbox died while it was being configured
    Sandbox__CreateRequest *message;  // its variables, for the configuration
};

#define NO_NETWORK "egress: no sandbox can be given a network: %s; to create one without, set egress_deny_all"

static void run_waiting(struct engine *e);

// ---- the end of a create ----

static void leave_queue(struct create *c)
{
    struct engine *e = c->client->engine;
    timer_cancel(e->loop, &c->timer);
    if (c->in_queue)
        TAILQ_REMOVE(&e->waiting_creates, c, waiting);
    c->in_queue = false;
}

static void leave_slot(struct create *c)
{
    if (c->has_slot)
        c->client->engine->running_creates--;
    c->has_slot = false;
}

// Gives back all that is the create's, and returns its request.  The sandbox, if there is one, is left to the caller.
static struct request *finish(struct create *c)
{
    struct request *r = c->request;
    leave_queue(c);
    c->grant = grant_let_go(c->grant);
    leave_slot(c);
    template_cancel(&c->waiter);
    volume_cancel(&c->volume_waiter);
    volume_release(take_ptr(&c->lease));
    if (c->sandbox != NULL)
        c->sandbox->create = NULL;
    else
        c->client->engine->bare_creates--;
    TAILQ_REMOVE(&c->client->creates, c, link);
    egress_unref(c->egress);
    pb_free(c->message);
    free(c);
    return r;
}

static uint32_t id_of(const struct create *c)
{
    return c->sandbox != NULL ? c->sandbox->id : 0;
}

void create_fail(struct create *c, int code, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct sandbox *sb = c->sandbox;
    struct engine *e = c->client->engine;
    metric_result(e->metrics.creates, code);
    log_info("create_failed", log_u64("sandbox_id", id_of(c)), log_str("template", c->template_name), log_i64("code", code),
             log_str("reason", text));
    struct fork *fork = c->fork;
    struct request *r = finish(c);
    if (sb != NULL)
        sandbox_disown(sb, "its create failed");
    if (fork != NULL)
        fork_failed(fork, code, text);
    else
        request_fail(r, code, "%s", text);
    run_waiting(e);
}

void create_cancel(struct create *c)
{
    struct engine *e = c->client->engine;
    struct sandbox *sb = c->sandbox;
    struct fork *fork = c->fork;
    struct request *r = finish(c);
    if (sb != NULL)
        sandbox_disown(sb, fork != NULL ? "its fork was given up" : "its client has gone");
    if (fork != NULL)
        fork_failed(fork, SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection has ended");
    else
        request_fail(r, SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection has ended");
    run_waiting(e);
}

static void fail_in_use(struct create *c)
{
    create_fail(
        c, SANDBOX_ERR_POOL_EXHAUSTED,
        "the volume of this session_key is in use by another sandbox; destroy that one, or allow a longer pool_wait_ms");
}

static void on_timer(void *arg)
{
    struct create *c = arg;
    const struct config *config = c->client->engine->config;
    if (c->waits_for_volume)
        fail_in_use(c);
    else if (c->in_queue)
        create_fail(c, SANDBOX_ERR_POOL_EXHAUSTED,
                    "pool_wait_ms passed while %" PRIu64 " other sandboxes were being started (max_creates)",
                    config->max_creates);
    else
        create_fail(c, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox was not ready within %" PRIu64 " ms; try again",
                    config->start_deadline_ms);
}

// ---- its steps, last one first ----

static bool keep_origin(struct create *c)
{
    struct sandbox *sb = c->sandbox;
    sb->origin = origin_new(sb->engine->snapshots, c->message, &c->shape, c->real_name, c->rootfs, sb->lease != NULL,
                            c->fork != NULL ? fork_snapshot(c->fork) : NULL, c->fork != NULL && fork_copies(c->fork));
    if (sb->origin != NULL)
        c->message = NULL;
    return sb->origin != NULL;
}

static void succeed(struct create *c)
{
    struct sandbox *sb = c->sandbox;
    struct engine *e = sb->engine;
    sb->forked = c->fork != NULL;
    uint64_t took = mono_ns() - c->begun_ns;
    metric_result(e->metrics.creates, SANDBOX_OK);
    e->metrics.create_ns += took;
    log_info("sandbox_created", log_u64("sandbox_id", sb->id), log_str("template", c->template_name),
             log_str("isolation", sb->tier->name), log_str("start", sandbox_start_name(sb)), log_u64("uid", sb->uid),
             log_str("network", network_name(sb->network.kind)), log_u64("egress", c->egress != NULL ? c->egress->n : 0),
             log_u64("us", took / NS_PER_US));
    if (c->fork != NULL) {
        struct fork *fork = sb->fork = c->fork;
        finish(c);
        fork_ready(fork, sb);
        run_waiting(e);
        return;
    }
    struct network_report *report = network_report_new(&sb->network, sb->egress);
    Sandbox__CreateResponse response = SANDBOX__CREATE_RESPONSE__INIT;
    response.sandbox_id = sb->id;
    response.session_token = sb->token;
    response.network = report != NULL ? &report->message : NULL;
    response.isolation = sb->tier->level;
    response.start = (char *)sandbox_start_name(sb);
    response.grant_id = sb->grant_id;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE;
    message.create = &response;
    request_reply(finish(c), &message);
    network_report_free(report);
    run_waiting(e);
}

static void fail_with(struct create *c, const struct err *err)
{
    if (c->request != NULL)
        c->request->not_run = err->not_run;
    create_fail(c, err->code, "%s", err->text);
}

static void make_ready(struct create *c)
{
    struct sandbox *sb = c->sandbox;
    // One from the pool is ready already.
    bool ready = sb->state == SANDBOX_READY || sandbox_step(sb, SANDBOX_READY);
    if (!ready || !sandbox_step(sb, SANDBOX_RUNNING)) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox could not be made ready");
        return;
    }
    if (!keep_origin(c)) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    sb->since_ns = mono_ns();
    sb->grant_id = c->grant != NULL ? grant_id(c->grant) : 0;
    if (c->grant != NULL)
        c->grant = grant_leave(c->grant);
    succeed(c);
}

static void on_granted(void *arg, const struct err *err)
{
    struct create *c = arg;
    if (err->code == 0) {
        make_ready(c);
        return;
    }
    c->grant = NULL;
    fail_with(c, err);
}

void create_configured(struct create *c, uint32_t error_number, const char *message)
{
    struct err err;
    if (error_number != 0) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox's agent could not set it up: %.200s (errno %" PRIu32 ")", message,
                    error_number);
    } else if (c->ask.profile == NULL) {
        make_ready(c);
    } else if ((c->grant = grants_open(c->sandbox, &c->ask, on_granted, c, &err)) == NULL) {
        fail_with(c, &err);
    }
}

static int send_configuration(struct create *c, const struct variables *variables)
{
    char machine_id[MACHINE_ID_DIGITS + 1];
    int r = random_hex(machine_id, MACHINE_ID_DIGITS);
    if (r < 0)
        return r;
    const char *hostname = c->sandbox->hostname;
    char resolver[NETWORK_ADDRESS_ROOM];
    Sandbox__Agent__Configure message = SANDBOX__AGENT__CONFIGURE__INIT;
    message.n_env = variables->n;
    message.env = variables->all;
    message.resolver = network_resolver(&c->sandbox->network, resolver);
    message.machine_id = (ProtobufCBinaryData){.len = MACHINE_ID_DIGITS, .data = (uint8_t *)machine_id};
    message.hostname = (ProtobufCBinaryData){.len = strlen(hostname), .data = (uint8_t *)hostname};
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE;
    command.configure = &message;
    size_t n = protobuf_c_message_get_packed_size(&command.base);
    if (n > AGENT_CONTROL_MAX)
        return -EMSGSIZE;
    cleanup_free uint8_t *bytes = malloc(n);
    if (bytes == NULL)
        return -ENOMEM;
    protobuf_c_message_pack(&command.base, bytes);
    int sent = agent_line_configure(c->sandbox->line, bytes, n);
    explicit_bzero(bytes, n);
    return sent;
}

// Sends the command that makes the sandbox itself.  0 or a negative errno.
static int configure(struct create *c)
{
    struct variables variables;
    int r = variables_of(c->message, &c->sandbox->network, c->sandbox->token, &variables);
    if (r < 0)
        return r;
    r = send_configuration(c, &variables);
    variables_free(&variables);
    return r;
}

void create_booted(struct create *c)
{
    struct engine *e = c->client->engine;
    leave_slot(c);
    run_waiting(e);
}

// False: it could not be, and what is to be done then has been done.
static bool try_configure(struct create *c)
{
    int r = configure(c);
    if (r < 0 && !create_lost(c))  // one from the pool may have died without its end being seen yet
        create_fail(c, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox's agent could not be told its configuration: %s",
                    strerror(-r));
    return r == 0;
}

static void fail_without_network(struct create *c, const char *why)
{
    create_fail(c, SANDBOX_ERR_GUEST_UNAVAILABLE, NO_NETWORK, why != NULL ? why : "the broker has gone");
}

void create_served(struct create *c, int error, const char *detail)
{
    if (error == 0)
        try_configure(c);
    else if (error == -ENOTCONN)
        fail_without_network(c, detail);
    else
        create_fail(c, SANDBOX_ERR_INTERNAL, "the broker does not serve the sandbox: %s (%s)", strerror(-error), detail);
}

void create_started(struct create *c, int error, const char *detail)
{
    if (error < 0) {
        log_error("sandbox_start_failed", log_u64("sandbox_id", c->sandbox->id), log_errno(error), log_str("detail", detail));
        if (error == -EBUSY && c->sandbox->lease != NULL)  // left by a sandbox of an engine that was killed
            create_fail(c, SANDBOX_ERR_POOL_EXHAUSTED, "the session's volume is not free yet; try again");
        else if (error == -EADDRNOTAVAIL)
            create_fail(c, SANDBOX_ERR_POOL_EXHAUSTED, "no address is free for another sandbox with a network: %s", detail);
        else if (c->fork != NULL && (error == -ENOTSUP || error == -EBADMSG))
            create_fail(c, SANDBOX_ERR_INVALID_SPEC, "snapshot %s cannot be used: %s", fork_snapshot(c->fork)->meta.id, detail);
        else if (error == -ENETDOWN)
            fail_without_network(c, detail);
        else
            create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox could not be started: %s (%s)", strerror(-error), detail);
        return;
    }
    if (c->egress == NULL && !try_configure(c))
        return;
    if (c->egress != NULL && sandbox_open_line(c->sandbox) < 0) {
        fail_without_network(c, engine_network_trouble(c->client->engine));
        return;
    }
    if (agent_line_is_up(c->sandbox->line))
        create_booted(c);  // else it is a machine that boots: that follows
}

// Starts one of its own; it has a slot.
static void start_cold(struct create *c)
{
    struct engine *e = c->client->engine;
    const struct shape *shape = &c->shape;
    pool_give_way(e->pool);
    c->sandbox = sandbox_new(e, c->client, shape->tier);
    if (c->sandbox == NULL) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    e->bare_creates--;
    c->sandbox->create = c;
    struct driver_start start = {.template_handle = shape->template_handle,
                                 .memory_mib = shape->memory_mib,
                                 .vcpus = shape->vcpus,
                                 .disk_mib = shape->disk_mib,
                                 .pids_max = (uint32_t)e->config->pids_max,
                                 .disk_mib_s = (uint32_t)e->config->disk_mib_s,
                                 .disk_iops = (uint32_t)e->config->disk_iops,
                                 .hostname = c->sandbox->hostname,
                                 .network = shape->network};
    if (c->fork != NULL) {
        const struct snapshot_meta *meta = &fork_snapshot(c->fork)->meta;
        start.layers = meta->layer;
        start.layer_count = meta->layers;
        start.copy_layer = fork_copies(c->fork);
        start.snapshot = meta->memory ? meta->id : NULL;
        start.folder = fork_folder(c->fork);
        c->sandbox->inherits = meta->memory;
    }
    c->sandbox->lease = take_ptr(&c->lease);
    if (c->sandbox->lease != NULL)
        start.volume = volume_id(c->sandbox->lease);
    int r = timer_set(e->loop, &c->timer, mono_ns() + e->config->start_deadline_ms * NS_PER_MS);
    if (r == 0)
        r = sandbox_entitle(c->sandbox, c->egress);
    if (r == 0)
        r = sandbox_start(c->sandbox, &start);
    if (r < 0)
        create_started(c, r, "the driver could not be asked");
}

// Takes a warm one if there is one; it is then on its way.
static bool try_pool(struct create *c)
{
    struct engine *e = c->client->engine;
    struct sandbox *sb = pool_take(e->pool, &c->shape, c->template_name);
    if (sb == NULL)
        return false;
    leave_queue(c);
    e->bare_creates--;
    c->sandbox = sb;
    sb->from_pool = true;
    sandbox_adopt(sb, c->client);
    sb->create = c;
    if (sb->tier->driver->claim != NULL)
        sb->tier->driver->claim(sb->tier->self, sb->handle);
    int r = timer_set(e->loop, &c->timer, mono_ns() + e->config->start_deadline_ms * NS_PER_MS);
    if (r == 0)
        r = sandbox_entitle(sb, c->egress);
    create_started(c, r, "the engine is out of memory");
    return true;
}

// In the order they came; but between two of forks, which are many and do not give up, one of the others has its turn.
static struct create *next_waiting(struct engine *e)
{
    struct create *first = TAILQ_FIRST(&e->waiting_creates), *c;
    TAILQ_FOREACH(c, &e->waiting_creates, waiting)
    if (c->fork == NULL)
        break;
    return e->started_for_fork && c != NULL ? c : first;
}

static void run_waiting(struct engine *e)
{
    struct create *c;
    while (!e->stopping && e->running_creates < e->config->max_creates && (c = next_waiting(e)) != NULL) {
        leave_queue(c);
        e->started_for_fork = c->fork != NULL;
        c->has_slot = true;
        e->running_creates++;
        start_cold(c);
    }
}

void creates_offer(struct engine *e, const struct shape *shape)
{
    struct create *c, *next;
    for (c = TAILQ_FIRST(&e->waiting_creates); c != NULL; c = next) {
        next = TAILQ_NEXT(c, waiting);
        if (c->lease == NULL && c->fork == NULL && shape_equal(&c->shape, shape)) {
            try_pool(c);
            return;
        }
    }
}

static void wait_for_slot(struct create *c)
{
    struct engine *e = c->client->engine;
    TAILQ_INSERT_TAIL(&e->waiting_creates, c, waiting);
    c->in_queue = true;
    if (c->give_up_ns == 0)
        c->give_up_ns = mono_ns() + c->pool_wait_ms * NS_PER_MS;
    // A fork's wait for each other, and each start has its deadline.
    if (c->fork == NULL && timer_set(e->loop, &c->timer, c->give_up_ns) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    else
        run_waiting(e);
}

static void fail_empty(struct create *c)
{
    create_fail(c, SANDBOX_ERR_POOL_EXHAUSTED,
                "no sandbox of this template and size is warm, and pool_wait_ms is 0; try again, or allow a wait");
}

bool create_lost(struct create *c)
{
    if (c->lost_one || !c->sandbox->from_pool)
        return false;
    // It died before anybody had it: one of its own is started instead, or without a wait, another warm one is taken.
    struct sandbox *sb = c->sandbox;
    c->lost_one = true;
    c->sandbox = NULL;
    sb->create = NULL;
    c->client->engine->bare_creates++;
    c->grant = grant_let_go(c->grant);
    timer_cancel(c->client->engine->loop, &c->timer);
    sandbox_disown(sb, "it died in the pool");
    if (c->pool_wait_ms > 0)
        wait_for_slot(c);
    else if (!try_pool(c))
        fail_empty(c);
    return true;
}

static void on_volume(void *arg, const struct volume_answer *answer)
{
    struct create *c = arg;
    c->waits_for_volume = false;
    timer_cancel(c->client->engine->loop, &c->timer);
    if (answer->err != NULL) {
        create_fail(c, answer->err->code, "%s", answer->err->text);
        return;
    }
    c->lease = answer->lease;
    struct engine *e = c->client->engine;
    uint32_t level = volume_tier(c->lease);
    if (level == c->shape.tier->level) {
        wait_for_slot(c);
        return;
    }
    c->shape.tier = tiers_at(&e->tiers, level);
    if (c->shape.network != NETWORK_NONE && !c->shape.tier->driver->network) {
        create_fail(c, SANDBOX_ERR_INVALID_SPEC, "egress: the session's volume is on the tier %s, which has no network",
                    c->shape.tier->name);
        return;
    }
    if (c->ask.profile != NULL && !c->shape.tier->driver->host_api) {
        create_fail(c, SANDBOX_ERR_INVALID_SPEC, "grant_profile: the session's volume is on the tier %s, which has no grants",
                    c->shape.tier->name);
        return;
    }
    if (template_get(e->templates, c->shape.tier, c->template_name, &c->waiter) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

static uint32_t floor_of(const struct engine *e, const Sandbox__CreateRequest *message)
{
    uint32_t least = (uint32_t)e->config->isolation_floor;
    return message->min_isolation > least ? message->min_isolation : least;
}

// As bits 1 << level.
static uint32_t volume_tiers(struct engine *e)
{
    uint32_t tiers = 0;
    for (int i = 0; i < TIERS; i++) {
        const struct tier *tier = &e->tiers.tier[i];
        if (tier->available && tier->driver->volumes)
            tiers |= 1U << tier->level;
    }
    return tiers;
}

// A volume is mounted as a sandbox starts: such a create is never given a warm one.
static void wait_for_volume(struct create *c)
{
    struct engine *e = c->client->engine;
    struct volume_key key = volume_key_of(c->client->peer.uid, c->message->session_key.data, c->message->session_key.len);
    const char *trouble = volumes_trouble(e->volumes);
    if (trouble != NULL) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "there are no session volumes: %s", trouble);
        return;
    }
    if (c->pool_wait_ms == 0 && volumes_busy(e->volumes, &key)) {
        fail_in_use(c);
        return;
    }
    c->volume_waiter.want = (struct volume_want){.ttl_s = c->message->ttl_seconds,
                                                 .max_ttl_s = e->config->workspace_max_ttl_s,
                                                 .size_mib = e->config->volume_mib,
                                                 .tier = c->shape.tier->level,
                                                 .floor = floor_of(e, c->message),
                                                 .tiers = volume_tiers(e),
                                                 .max_volumes = e->config->max_volumes_per_uid};
    c->volume_waiter.done = on_volume;
    c->volume_waiter.arg = c;
    c->waits_for_volume = true;
    // Without a wait it is only the making, which has the time of a start.
    c->give_up_ns = mono_ns() + c->pool_wait_ms * NS_PER_MS;
    uint64_t end = c->pool_wait_ms > 0 ? c->give_up_ns : mono_ns() + e->config->start_deadline_ms * NS_PER_MS;
    if (volume_acquire(e->volumes, &key, &c->volume_waiter) < 0 || timer_set(e->loop, &c->timer, end) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

static void on_template(void *arg, const struct template_answer *answer)
{
    struct create *c = arg;
    if (answer->code != 0) {
        create_fail(c, answer->code, "%s", answer->text);
        return;
    }
    c->shape.template_handle = answer->handle;
    memcpy(c->real_name, answer->name, strlen(answer->name) + 1);
    memcpy(c->rootfs, answer->rootfs, sizeof c->rootfs);
    struct err err;
    if (c->fork != NULL && fork_check_template(c->fork, c->rootfs, &err) != 0) {
        create_fail(c, err.code, "%s", err.text);
        return;
    }
    if (c->fork != NULL) {
        wait_for_slot(c);
        return;
    }
    if (c->lease != NULL) {  // its volume's tier needed a template of its own
        wait_for_slot(c);
        return;
    }
    if (c->message->session_key.len > 0) {
        wait_for_volume(c);
        return;
    }
    if (try_pool(c))
        return;
    if (c->pool_wait_ms == 0)
        fail_empty(c);
    else
        wait_for_slot(c);
}

// ---- its beginning ----

static int fail_early(struct engine *e, struct request *r, const struct err *err)
{
    metric_result(e->metrics.creates, err->code);
    return request_fail_err(r, err);
}

// What counts against a connection's caps: its sandboxes, and its creates that have none yet.
static unsigned client_owned(const struct client *client)
{
    unsigned n = client->owned_count;
    const struct create *c;
    TAILQ_FOREACH(c, &client->creates, link)
    n += c->sandbox == NULL;
    return n;
}

static unsigned owned_by_uid(const struct engine *e, uid_t uid)
{
    unsigned n = 0;
    const struct client *c;
    TAILQ_FOREACH(c, &e->clients, link)
    if (c->peer.uid == uid)
        n += client_owned(c);
    return n;
}

static int check_cap(uint64_t have, unsigned more, uint64_t cap, const char *who, const char *name, struct err *err)
{
    if (have + more <= cap)
        return 0;
    if (more > 1)
        return err_set(err, SANDBOX_ERR_POOL_EXHAUSTED,
                       "%s has %" PRIu64 " sandboxes; with %u more it would have too many (%s is %" PRIu64 ")", who, have, more,
                       name, cap);
    return err_set(err, SANDBOX_ERR_POOL_EXHAUSTED, "%s has %" PRIu64 " sandboxes, the most allowed (%s is %" PRIu64 ")", who,
                   have, name, cap);
}

int create_check_caps(const struct client *client, unsigned more, struct err *err)
{
    const struct engine *e = client->engine;
    const struct config *config = e->config;
    int code = check_cap(client_owned(client), more, config->max_owned_per_connection, "this connection",
                         "max_owned_per_connection", err);
    if (code == 0)
        code =
            check_cap(owned_by_uid(e, client->peer.uid), more, config->max_owned_per_uid, "this uid", "max_owned_per_uid", err);
    // Warm sandboxes give way: they are not counted.
    if (code == 0)
        code = check_cap(e->owned_count + e->bare_creates, more, config->max_sandboxes, "this engine", "max_sandboxes", err);
    return code;
}

// What may be had, but not from this engine, or not now.
static int check_network(struct engine *e, enum network_kind kind, struct err *err)
{
    if (kind == NETWORK_TRANSPARENT && e->config->synthetic_range.bits == 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "egress_transparent: this engine has no synthetic_range");
    if (kind != NETWORK_NONE && e->config->broker_socket[0] == '\0')
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, NO_NETWORK, broker_line_trouble(e->broker));
    const char *trouble = kind != NETWORK_NONE ? engine_network_trouble(e) : NULL;
    return trouble != NULL ? err_set(err, SANDBOX_ERR_GUEST_UNAVAILABLE, NO_NETWORK, trouble) : 0;
}

// What a create will be, where it passes.
struct checked {
    struct tier *tier;
    struct egress *egress;
    enum network_kind network;
    struct grant_ask ask;
};

static int choose_egress(struct engine *e, const Sandbox__CreateRequest *message, const struct host_policy *asked,
                         struct checked *ret, struct err *err)
{
    int code = egress_choose(e->config, message, asked, &ret->egress, err);
    if (code == 0)
        ret->network = egress_network(ret->egress, message);
    return code == 0 ? check_network(e, ret->network, err) : code;
}

static int choose_grant(const struct client *client, const Sandbox__CreateRequest *message, struct checked *ret,
                        struct err *err)
{
    bool given = message->opt_principal_case == SANDBOX__CREATE_REQUEST__OPT_PRINCIPAL_PRINCIPAL;
    int code = grants_principal(client, given, given ? message->principal : "", &ret->ask, err);
    return code == 0 && message->grant_profile[0] != '\0' ? grants_trouble(client->engine, err) : code;
}

static int check(const struct client *client, const Sandbox__CreateRequest *message, struct checked *ret, struct err *err)
{
    static struct host_policy asked;  // too large for a stack
    struct engine *e = client->engine;
    const struct spec_limits limits = {.memory_mib_max = e->config->memory_mib_max,
                                       .disk_mib_max = e->config->disk_mib_max,
                                       .vcpus_max = (uint32_t)e->config->vcpus_max,
                                       .idna = &sys_idna};
    int code = spec_check_create(message, &limits, &asked, err);
    if (code == 0)
        code = choose_egress(e, message, &asked, ret, err);
    if (code == 0)
        code = choose_grant(client, message, ret, err);
    if (code == 0)
        code = create_check_caps(client, 1, err);
    if (code != 0)
        return code;
    const struct tier_wants wants = {.volume = message->session_key.len > 0,
                                     .network = ret->network != NETWORK_NONE,
                                     .host_api = message->grant_profile[0] != '\0'};
    ret->tier = tiers_choose(&e->tiers, floor_of(e, message), wants, err);
    return ret->tier != NULL ? 0 : err->code;
}

static Sandbox__CreateRequest *copy_message(const Sandbox__CreateRequest *message)
{
    size_t n = protobuf_c_message_get_packed_size(&message->base);
    cleanup_free uint8_t *bytes = malloc(n > 0 ? n : 1);
    if (bytes == NULL)
        return NULL;
    protobuf_c_message_pack(&message->base, bytes);
    return (Sandbox__CreateRequest *)pb_unpack(&sandbox__create_request__descriptor, bytes, n);
}

static struct create *new_create(struct client *client, struct request *r, const Sandbox__CreateRequest *message,
                                 const struct checked *checked)
{
    struct engine *e = client->engine;
    struct create *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    *c = (struct create){.client = client,
                         .request = r,
                         .egress = egress_ref(checked->egress),
                         .shape = {.tier = checked->tier,
                                   .network = checked->network,
                                   .memory_mib = message->memory_mib,
                                   .vcpus = message->vcpu_count,
                                   .disk_mib = message->disk_mib != 0 ? message->disk_mib : e->config->disk_mib_default},
                         .pool_wait_ms = message->pool_wait_ms,
                         .begun_ns = mono_ns(),
                         .waiter = {.done = on_template, .arg = c},
                         .message = copy_message(message)};
    if (c->message == NULL) {
        egress_unref(c->egress);
        free(c);
        return NULL;
    }
    memcpy(c->template_name, message->template_name, strlen(message->template_name) + 1);
    c->ask = checked->ask;
    c->ask.profile = c->message->grant_profile[0] != '\0' ? c->message->grant_profile : NULL;
    timer_init(&c->timer, on_timer, c);
    TAILQ_INSERT_TAIL(&client->creates, c, link);
    e->bare_creates++;
    return c;
}

void create_begin(struct request *r, const Sandbox__CreateRequest *message)
{
    struct engine *e = r->client->engine;
    struct err err;
    struct checked checked = {.network = NETWORK_NONE};
    int code = check(r->client, message, &checked, &err);
    struct create *c = code == 0 ? new_create(r->client, r, message, &checked) : NULL;
    egress_unref(checked.egress);
    if (code != 0) {
        fail_early(e, r, &err);
        return;
    }
    if (c == NULL) {
        err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        fail_early(e, r, &err);
        return;
    }
    if (template_get(e->templates, checked.tier, c->template_name, &c->waiter) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

int create_begin_fork(struct client *client, const Sandbox__CreateRequest *message, struct tier *tier, struct fork *fork)
{
    const struct checked checked = {.tier = tier, .network = NETWORK_NONE};
    struct create *c = new_create(client, NULL, message, &checked);
    if (c == NULL)
        return -ENOMEM;
    c->fork = fork;
    if (template_get(client->engine->templates, tier, c->template_name, &c->waiter) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    return 0;
}

void creates_cancel_fork(struct client *client, struct fork *fork)
{
    struct create *c;
    for (;;) {
        TAILQ_FOREACH(c, &client->creates, link)
        if (c->fork == fork)
            break;
        if (c == NULL)
            return;
        create_cancel(c);
    }
}
