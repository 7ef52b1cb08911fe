#include "engine/create.h"

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/template.h"
#include "libsandbox.h"
#include "wire/limits.h"
#include "wire/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_ID_DIGITS = 32, TOKEN_DIGITS = 64, HOSTNAME_RANDOM_DIGITS = 8 };

struct create {
    TAILQ_ENTRY(create) link;  // in engine->waiting_creates
    struct sandbox *sandbox;
    struct request *request;
    uint64_t begun_ns;
    bool has_slot;
    struct timer timer;  // while it waits for a slot, and from the start to the agent's answer
    struct template_waiter waiter;
    char template_name[TEMPLATE_NAME_MAX + 1];
    struct driver_start start;
    char hostname[sizeof "sbx-" + HOSTNAME_RANDOM_DIGITS];
    uint8_t *configure;  // the packed command; it holds the environment and is freed once sent
    size_t configure_len;
};

static void run_waiting(struct engine *e);

// ---- the end of a create ----

// Gives back all that is the create's, and returns its request.
static struct request *finish(struct create *c)
{
    struct engine *e = c->sandbox->engine;
    struct request *r = c->request;
    timer_cancel(e->loop, &c->timer);
    template_cancel(&c->waiter);
    c->sandbox->create = NULL;
    if (c->has_slot)
        e->running_creates--;
    else
        TAILQ_REMOVE(&e->waiting_creates, c, link);
    free(c->configure);
    free(c);
    return r;
}

void create_fail(struct create *c, int code, const char *format, ...)
{
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct sandbox *sb = c->sandbox;
    struct engine *e = sb->engine;
    metric_result(e->metrics.creates, code);
    log_info("create_failed", log_u64("sandbox_id", sb->id), log_i64("code", code), log_str("reason", text));
    struct request *r = finish(c);
    sandbox_disown(sb, "its create failed");
    request_fail(r, code, "%s", text);
    run_waiting(e);
}

void create_cancel(struct create *c)
{
    struct engine *e = c->sandbox->engine;
    request_fail(finish(c), SANDBOX_ERR_DAEMON_UNREACHABLE, "the connection has ended");
    run_waiting(e);
}

static void on_timer(void *arg)
{
    struct create *c = arg;
    const struct config *config = c->sandbox->engine->config;
    if (c->has_slot)
        create_fail(c, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox was not ready within %" PRIu64 " ms; try again",
                    config->start_deadline_ms);
    else
        create_fail(c, SANDBOX_ERR_POOL_EXHAUSTED,
                    "pool_wait_ms passed while %" PRIu64 " other sandboxes were being started (max_creates)",
                    config->max_creates);
}

// ---- its steps, last one first ----

static void succeed(struct create *c, const char token[static TOKEN_DIGITS + 1])
{
    struct sandbox *sb = c->sandbox;
    struct engine *e = sb->engine;
    uint64_t took = mono_ns() - c->begun_ns;
    metric_result(e->metrics.creates, SANDBOX_OK);
    e->metrics.create_ns += took;
    log_info("sandbox_created", log_u64("sandbox_id", sb->id), log_str("template", c->template_name),
             log_str("isolation", sb->tier->name), log_u64("uid", sb->uid), log_u64("us", took / NS_PER_US));
    Sandbox__CreateResponse response = SANDBOX__CREATE_RESPONSE__INIT;
    response.sandbox_id = sb->id;
    response.session_token = (char *)token;
    response.isolation = sb->tier->level;
    response.start = (char *)SANDBOX_START_COLD;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_CREATE;
    message.create = &response;
    request_reply(finish(c), &message);
    run_waiting(e);
}

void create_configured(struct create *c, uint32_t error_number, const char *message)
{
    struct sandbox *sb = c->sandbox;
    char token[TOKEN_DIGITS + 1];
    if (error_number != 0) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox's agent could not set it up: %.200s (errno %" PRIu32 ")", message,
                    error_number);
        return;
    }
    if (random_hex(token, TOKEN_DIGITS) < 0 || !sandbox_step(sb, SANDBOX_READY) || !sandbox_step(sb, SANDBOX_RUNNING)) {
        create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox could not be made ready");
        return;
    }
    sb->since_ns = mono_ns();
    succeed(c, token);
}

void create_started(struct create *c, int error, const char *detail)
{
    if (error < 0) {
        log_error("sandbox_start_failed", log_u64("sandbox_id", c->sandbox->id), log_errno(error), log_str("detail", detail));
        create_fail(c, SANDBOX_ERR_INTERNAL, "the sandbox could not be started: %s (%s)", strerror(-error), detail);
        return;
    }
    int r = agent_line_configure(c->sandbox->line, c->configure, c->configure_len);
    free(c->configure);
    c->configure = NULL;
    if (r < 0)
        create_fail(c, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox's agent could not be told its configuration: %s",
                    strerror(-r));
}

static void on_template(void *arg, const struct template_answer *answer)
{
    struct create *c = arg;
    if (answer->code != 0) {
        create_fail(c, answer->code, "%s", answer->text);
        return;
    }
    struct sandbox *sb = c->sandbox;
    struct engine *e = sb->engine;
    c->start.template_handle = answer->handle;
    int r = timer_set(e->loop, &c->timer, mono_ns() + e->config->start_deadline_ms * NS_PER_MS);
    if (r == 0)
        r = sandbox_start(sb, &c->start);
    if (r < 0)
        create_started(c, r, "the driver could not be asked");
}

static void run(struct create *c)
{
    struct engine *e = c->sandbox->engine;
    timer_cancel(e->loop, &c->timer);
    c->has_slot = true;
    e->running_creates++;
    c->waiter.done = on_template;
    c->waiter.arg = c;
    if (template_get(e->templates, c->sandbox->tier, c->template_name, &c->waiter) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

static void run_waiting(struct engine *e)
{
    struct create *c;
    while (e->running_creates < e->config->max_creates && (c = TAILQ_FIRST(&e->waiting_creates)) != NULL) {
        TAILQ_REMOVE(&e->waiting_creates, c, link);
        run(c);
    }
}

// ---- its beginning ----

static int fail_early(struct engine *e, struct request *r, const struct err *err)
{
    metric_result(e->metrics.creates, err->code);
    return request_fail_err(r, err);
}

static unsigned owned_by_uid(const struct engine *e, uid_t uid)
{
    unsigned n = 0;
    const struct sandbox *sb;
    TAILQ_FOREACH(sb, &e->sandboxes, all)
    n += sb->uid == uid;
    return n;
}

static int check_cap(uint64_t have, uint64_t cap, const char *who, const char *name, struct err *err)
{
    if (have < cap)
        return 0;
    return err_set(err, SANDBOX_ERR_POOL_EXHAUSTED, "%s has %" PRIu64 " sandboxes, the most allowed (%s is %" PRIu64 ")", who,
                   have, name, cap);
}

static int check_caps(const struct client *client, const Sandbox__CreateRequest *message, struct err *err)
{
    const struct engine *e = client->engine;
    const struct config *config = e->config;
    int code =
        check_cap(client->owned_count, config->max_owned_per_connection, "this connection", "max_owned_per_connection", err);
    if (code == 0)
        code = check_cap(owned_by_uid(e, client->peer.uid), config->max_owned_per_uid, "this uid", "max_owned_per_uid", err);
    if (code == 0)
        code = check_cap(e->sandbox_count, config->max_sandboxes, "this engine", "max_sandboxes", err);
    if (code == 0 && message->pool_wait_ms == 0 && e->running_creates >= config->max_creates)
        code = err_set(err, SANDBOX_ERR_POOL_EXHAUSTED,
                       "%u sandboxes are being started, the most allowed (max_creates), and pool_wait_ms is 0; try again, or "
                       "allow a wait",
                       e->running_creates);
    return code;
}

// What is valid but cannot be had from this engine.
static int check_offered(const Sandbox__CreateRequest *message, struct err *err)
{
    if (message->session_key.len > 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC,
                       "session volumes are not offered by this engine: leave session_key empty for an ephemeral sandbox");
    if (message->n_egress_allow > 0)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC,
                       "egress_allow: \"%.*s\" is not covered by what this engine allows (allowed_services is empty)",
                       (int)message->egress_allow[0].len, (const char *)message->egress_allow[0].data);
    return 0;
}

static int check(const struct client *client, const Sandbox__CreateRequest *message, struct tier **ret_tier, struct err *err)
{
    struct engine *e = client->engine;
    const struct spec_limits limits = {.memory_mib_max = e->config->memory_mib_max,
                                       .disk_mib_max = e->config->disk_mib_max,
                                       .vcpus_max = (uint32_t)e->config->vcpus_max};
    int code = spec_check_create(message, &limits, err);
    if (code == 0)
        code = check_offered(message, err);
    if (code == 0)
        code = check_caps(client, message, err);
    if (code != 0)
        return code;
    uint32_t floor = message->min_isolation;
    if (floor < e->config->isolation_floor)
        floor = (uint32_t)e->config->isolation_floor;
    *ret_tier = tiers_choose(&e->tiers, floor, err);
    return *ret_tier != NULL ? 0 : err->code;
}

// Packs the command that makes the sandbox itself.  0 or a negative errno.
static int pack_configure(struct create *c, const Sandbox__CreateRequest *message)
{
    char machine_id[MACHINE_ID_DIGITS + 1];
    memcpy(c->hostname, "sbx-", 4);
    int r = random_hex(machine_id, MACHINE_ID_DIGITS);
    if (r == 0)
        r = random_hex(c->hostname + 4, HOSTNAME_RANDOM_DIGITS);
    if (r < 0)
        return r;
    Sandbox__Agent__Configure configure = SANDBOX__AGENT__CONFIGURE__INIT;
    configure.n_env = message->n_env_vars;
    configure.env = message->env_vars;
    configure.machine_id = (ProtobufCBinaryData){.len = MACHINE_ID_DIGITS, .data = (uint8_t *)machine_id};
    configure.hostname = (ProtobufCBinaryData){.len = strlen(c->hostname), .data = (uint8_t *)c->hostname};
    Sandbox__Agent__Command command = SANDBOX__AGENT__COMMAND__INIT;
    command.command_case = SANDBOX__AGENT__COMMAND__COMMAND_CONFIGURE;
    command.configure = &configure;
    c->configure_len = protobuf_c_message_get_packed_size(&command.base);
    if (c->configure_len > AGENT_CONTROL_MAX)
        return -EMSGSIZE;
    c->configure = malloc(c->configure_len);
    if (c->configure == NULL)
        return -ENOMEM;
    protobuf_c_message_pack(&command.base, c->configure);
    return 0;
}

// A create whose sandbox exists and waits for a slot.
static struct create *new_create(struct request *r, const Sandbox__CreateRequest *message, struct tier *tier)
{
    struct engine *e = r->client->engine;
    struct create *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    *c = (struct create){.request = r, .begun_ns = mono_ns()};
    c->sandbox = pack_configure(c, message) == 0 ? sandbox_new(r->client, tier) : NULL;
    if (c->sandbox == NULL) {
        free(c->configure);
        free(c);
        return NULL;
    }
    c->sandbox->create = c;
    timer_init(&c->timer, on_timer, c);
    memcpy(c->template_name, message->template_name, strlen(message->template_name) + 1);
    c->start = (struct driver_start){.memory_mib = message->memory_mib,
                                     .vcpus = message->vcpu_count,
                                     .disk_mib = message->disk_mib != 0 ? message->disk_mib : e->config->disk_mib_default,
                                     .pids_max = (uint32_t)e->config->pids_max,
                                     .hostname = c->hostname};
    TAILQ_INSERT_TAIL(&e->waiting_creates, c, link);
    return c;
}

void create_begin(struct request *r, const Sandbox__CreateRequest *message)
{
    struct engine *e = r->client->engine;
    struct err err;
    struct tier *tier;
    if (check(r->client, message, &tier, &err) != 0) {
        fail_early(e, r, &err);
        return;
    }
    struct create *c = new_create(r, message, tier);
    if (c == NULL) {
        err_set(&err, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        fail_early(e, r, &err);
        return;
    }
    if (timer_set(e->loop, &c->timer, mono_ns() + message->pool_wait_ms * NS_PER_MS) < 0)
        create_fail(c, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    else
        run_waiting(e);
}
