#include "engine/sandbox.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/create.h"
#include "engine/grants.h"
#include "engine/guestop.h"
#include "engine/origin.h"
#include "engine/pool.h"
#include "engine/power.h"
#include "engine/snapshot.h"
#include "engine/streams.h"
#include "engine/suspend.h"
#include "engine/volumes.h"
#include "libsandbox.h"

#include <errno.h>
#include <string.h>

#define TO(state) (1u << (state))

static const struct {
    const char *name;
    unsigned next;  // the states that may follow
} states[SANDBOX_STATES] = {
    [SANDBOX_PROVISIONING] = {"provisioning", TO(SANDBOX_READY) | TO(SANDBOX_CLOSING)},
    [SANDBOX_READY] = {"ready", TO(SANDBOX_RUNNING) | TO(SANDBOX_CLOSING)},
    [SANDBOX_RUNNING] = {"running", TO(SANDBOX_PAUSED) | TO(SANDBOX_SUSPENDED) | TO(SANDBOX_CLOSING)},
    [SANDBOX_PAUSED] = {"paused", TO(SANDBOX_RUNNING) | TO(SANDBOX_SUSPENDED) | TO(SANDBOX_CLOSING)},
    [SANDBOX_SUSPENDED] = {"suspended", TO(SANDBOX_RUNNING) | TO(SANDBOX_CLOSING)},
    [SANDBOX_CLOSING] = {"closing", TO(SANDBOX_GONE)},
    [SANDBOX_GONE] = {"gone", 0},
};

const char *sandbox_state_name(enum sandbox_state state)
{
    return states[state].name;
}

bool sandbox_step(struct sandbox *sb, enum sandbox_state to)
{
    if ((states[sb->state].next & TO(to)) == 0) {
        log_error("illegal_state", log_u64("sandbox_id", sb->id), log_str("from", states[sb->state].name),
                  log_str("to", states[to].name));
        return false;
    }
    sb->state = to;
    return true;
}

static bool id_taken(const struct engine *e, uint32_t id)
{
    const struct sandbox *sb;
    TAILQ_FOREACH(sb, &e->sandboxes, all)
    if (sb->id == id)
        return true;
    return false;
}

// Never 0, increasing, and after 2^32 of them none that is in use.
static uint32_t new_id(struct engine *e)
{
    do
        e->last_sandbox_id++;
    while (e->last_sandbox_id == 0 || id_taken(e, e->last_sandbox_id));
    return e->last_sandbox_id;
}

static void on_destroy_deadline(void *arg);

static int make_hostname(char hostname[SANDBOX_HOSTNAME_ROOM])
{
    char digits[SANDBOX_HOSTNAME_ROOM - sizeof "sbx-" + 1];
    int r = random_hex(digits, sizeof digits - 1);
    if (r == 0)
        snprintf(hostname, SANDBOX_HOSTNAME_ROOM, "sbx-%s", digits);
    return r;
}

struct sandbox *sandbox_new(struct engine *e, struct client *owner, struct tier *tier)
{
    struct sandbox *sb = calloc(1, sizeof *sb);
    if (sb == NULL)
        return NULL;
    *sb = (struct sandbox){.engine = e, .id = new_id(e), .tier = tier, .network = NETWORK_INIT};
    if (make_hostname(sb->hostname) < 0) {
        free(sb);
        return NULL;
    }
    TAILQ_INIT(&sb->guestops);
    TAILQ_INIT(&sb->streams);
    TAILQ_INIT(&sb->powers);
    timer_init(&sb->destroy_deadline, on_destroy_deadline, sb);
    timer_init(&sb->grants_due, grants_due, sb);
    TAILQ_INSERT_TAIL(&e->sandboxes, sb, all);
    e->sandbox_count++;
    if (owner != NULL)
        sandbox_adopt(sb, owner);
    return sb;
}

void sandbox_adopt(struct sandbox *sb, struct client *owner)
{
    sb->owner = owner;
    sb->uid = owner->peer.uid;
    TAILQ_INSERT_TAIL(&owner->owned, sb, owned);
    owner->owned_count++;
    sb->engine->owned_count++;
}

struct sandbox *sandbox_find(struct client *c, uint32_t id)
{
    struct sandbox *sb;
    TAILQ_FOREACH(sb, &c->owned, owned)
    if (sb->id == id && !sb->destroying && sb->create == NULL && sb->fork == NULL)
        return sb;
    return NULL;
}

struct sandbox *sandbox_find_running(struct request *r, uint32_t id)
{
    struct sandbox *sb = sandbox_find(r->client, id);
    if (sb == NULL)
        request_fail(r, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX_NOT_YOURS);
    else if (sb->state == SANDBOX_RUNNING)
        return sb;
    else {
        r->not_run = SANDBOX__NOT_RUN__NOT_RUN_ENVIRONMENT;
        if (sb->state == SANDBOX_PAUSED || sb->state == SANDBOX_SUSPENDED)
            request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox %u is %s; resume it first", id,
                         sandbox_state_name(sb->state));
        else
            request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox %u has ended by itself; destroy it and create another", id);
    }
    return NULL;
}

bool sandbox_meets_floor(const struct sandbox *sb, uint32_t floor, struct request *r)
{
    if (sb->tier->level >= floor)
        return true;
    r->not_run = SANDBOX__NOT_RUN__NOT_RUN_ISOLATION;
    request_fail(r, SANDBOX_ERR_INVALID_SPEC, "sandbox %u is of the tier %s, weaker than the floor %s that was asked for",
                 sb->id, sb->tier->name, tiers_at(&sb->engine->tiers, floor)->name);
    return false;
}

// ---- the agent's line ----

// Now it can be configured at once: before that, a warm one is not ready, and one that is asked for keeps its place among those
// that are being started.
static void on_up(void *arg)
{
    struct sandbox *sb = arg;
    if (sb->warm != NULL)
        pool_started(sb->warm, 0, "");
    else if (sb->create != NULL)
        create_booted(sb->create);
}

static void on_configured(void *arg, uint32_t error_number, const char *message)
{
    struct sandbox *sb = arg;
    if (sb->create != NULL)
        create_configured(sb->create, error_number, message);
    else
        sandbox_died(sb, METRIC_DEATH_PROTOCOL, "its agent said it was configured, which nobody had asked for");
}

static void on_pong(void *arg)
{
    struct sandbox *sb = arg;
    sb->unresponsive = false;
}

static void on_identified(void *arg)
{
    suspend_named(arg);
}

static void on_synced(void *arg)
{
    snapshot_synced(arg);
}

static void on_host_api(void *arg, uint32_t error_number, const char *message)
{
    grants_agent_ready(arg, error_number, message);
}

static void on_stream_ended(void *arg, uint64_t id)
{
    streams_ended(arg, id);
}

static void on_line_end(void *arg, int reason)
{
    struct sandbox *sb = arg;
    if (reason == -EPROTO)
        sandbox_died(sb, METRIC_DEATH_PROTOCOL, "its agent sent something it may not");
    else
        sandbox_died(sb, METRIC_DEATH_EXIT, "its agent's line closed");
}

// ---- the end ----

static void free_sandbox(struct sandbox *sb)
{
    struct engine *e = sb->engine;
    timer_cancel(e->loop, &sb->destroy_deadline);
    timer_cancel(e->loop, &sb->grants_due);
    grants_free(sb);
    TAILQ_REMOVE(&e->sandboxes, sb, all);
    e->sandbox_count--;
    egress_unref(sb->egress);
    explicit_bzero(sb->token, sizeof sb->token);
    origin_free(sb->origin);
    free(sb);
    engine_sandbox_gone(e);
}

static void free_if_done(struct sandbox *sb)
{
    if (sb->state == SANDBOX_GONE && sb->owner == NULL && sb->refs == 0)
        free_sandbox(sb);
}

void sandbox_ref(struct sandbox *sb)
{
    sb->refs++;
}

void sandbox_unref(struct sandbox *sb)
{
    sb->refs--;
    free_if_done(sb);
}

static void leave_owner(struct sandbox *sb)
{
    if (sb->owner == NULL)
        return;
    streams_forget(sb);
    TAILQ_REMOVE(&sb->owner->owned, sb, owned);
    sb->owner->owned_count--;
    sb->engine->owned_count--;
    sb->owner = NULL;
}

static void answer_destroy(struct sandbox *sb)
{
    struct request *r = sb->destroy_request;
    if (r == NULL)
        return;
    sb->destroy_request = NULL;
    Sandbox__DestroyResponse response = SANDBOX__DESTROY_RESPONSE__INIT;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY;
    message.destroy = &response;
    request_reply(r, &message);
}

// Once nothing of it is left on the machine.
static void become_gone(struct sandbox *sb)
{
    if (sb->state != SANDBOX_CLOSING || sb->started || sb->starting || sb->revoking > 0)
        return;
    sandbox_step(sb, SANDBOX_GONE);
    timer_cancel(sb->engine->loop, &sb->destroy_deadline);
    volume_release(take_ptr(&sb->lease));
    if (sb->destroying)
        leave_owner(sb);
    sandbox_ref(sb);  // the answer below may do anything, but not free it
    answer_destroy(sb);
    sandbox_unref(sb);
}

void sandbox_revoked(struct sandbox *sb)
{
    sb->revoking--;
    become_gone(sb);
    sandbox_unref(sb);
}

static void on_revoked(void *arg)
{
    sandbox_revoked(arg);
}

// The broker's copies of the listeners are all there is from here on, until it says that it has closed them.
static void close_network(struct sandbox *sb)
{
    network_close(&sb->network);
    // Both are counted first: the words may come while they are asked for.
    sb->revoking++;
    sandbox_ref(sb);
    if (sb->member.arg != NULL) {
        sb->revoking++;
        sandbox_ref(sb);
        broker_line_remove(sb->engine->broker, &sb->member);
    }
    if (!grants_close(sb))
        sandbox_revoked(sb);
}

void sandbox_close(struct sandbox *sb, const char *why)
{
    if (sb->state >= SANDBOX_CLOSING)
        return;
    sandbox_step(sb, SANDBOX_CLOSING);
    log_info("sandbox_closing", log_u64("sandbox_id", sb->id), log_str("reason", why));
    sandbox_ref(sb);
    guestops_fail(sb, "the sandbox has ended");
    streams_forget(sb);
    snapshot_sandbox_ends(sb);
    suspend_sandbox_ends(sb);
    powers_fail(sb);
    sb->line = agent_line_free(sb->line);
    close_network(sb);
    if (sb->started)
        sb->tier->driver->stop(sb->tier->self, sb->handle);
    become_gone(sb);
    sandbox_unref(sb);
}

void sandbox_disown(struct sandbox *sb, const char *why)
{
    sandbox_ref(sb);
    leave_owner(sb);
    sandbox_close(sb, why);
    sandbox_unref(sb);
}

void sandbox_died(struct sandbox *sb, enum metric_death kind, const char *why)
{
    if (sb->state >= SANDBOX_CLOSING)
        return;
    sb->died = true;
    sb->death = kind;
    log_warn("sandbox_died", log_u64("sandbox_id", sb->id), log_str("reason", why));
    sandbox_ref(sb);
    if (sb->warm != NULL)
        pool_lost(sb->warm);
    if (sb->create != NULL && create_lost(sb->create))
        ;
    else if (sb->create != NULL)
        create_fail(sb->create, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox ended before it was ready: %s", why);
    else
        sandbox_close(sb, "it ended by itself");
    sandbox_unref(sb);
}

void sandbox_exited(void *sandbox, const struct driver_exit *how)
{
    struct sandbox *sb = sandbox;
    sandbox_ref(sb);
    sb->started = false;  // there is nothing to stop any more
    if (suspend_left(sb)) {
        sandbox_unref(sb);
        return;
    }
    if (how->oom)
        sandbox_died(sb, METRIC_DEATH_OOM, "its memory was full");
    else
        sandbox_died(sb, METRIC_DEATH_EXIT,
                     how->reason != NULL ? how->reason
                     : how->by_signal    ? "its agent was killed"
                                         : "its agent ended");
    if (sb->died)
        sb->engine->metrics.deaths[how->oom ? METRIC_DEATH_OOM : sb->death]++;
    log_info("sandbox_gone", log_u64("sandbox_id", sb->id), log_bool("by_itself", sb->died),
             log_str("ended_by", how->by_signal ? "signal" : "exit"), log_u64("status", (uint64_t)how->status),
             log_bool("oom", how->oom), log_str("reason", how->reason != NULL ? how->reason : ""));
    become_gone(sb);
    sandbox_unref(sb);
}

// ---- the line out ----

int sandbox_entitle(struct sandbox *sb, struct egress *egress)
{
    sb->egress = egress_ref(egress);
    return random_hex(sb->token, BROKER_TOKEN_DIGITS);
}

static void on_served(void *arg, int error, const char *detail)
{
    struct sandbox *sb = arg;
    create_served(sb->create, error, detail);
}

int sandbox_open_line(struct sandbox *sb)
{
    sb->member = (struct broker_member){.sandbox_id = sb->id,
                                        .egress = sb->egress,
                                        .network = &sb->network,
                                        .token = sb->token,
                                        .added = on_served,
                                        .removed = on_revoked,
                                        .arg = sb};
    return broker_line_add(sb->engine->broker, &sb->member);
}

// ---- the start ----

static int take_line(struct sandbox *sb, int control, int dial_socket)
{
    static const struct agent_line_handler handler = {
        .on_up = on_up,
        .on_configured = on_configured,
        .on_pong = on_pong,
        .on_synced = on_synced,
        .on_identified = on_identified,
        .on_stream_ended = on_stream_ended,
        .on_host_api = on_host_api,
        .on_end = on_line_end,
    };
    cleanup_fd int fd = control, dial = dial_socket;
    int r = agent_line_new(sb->engine->loop, fd, dial, &handler, sb, &sb->line);
    if (r == 0) {
        take_fd(&fd);
        take_fd(&dial);
    }
    if (r == 0 && sb->inherits)
        agent_line_inherits(sb->line);
    if (r == 0 && sb->restored)
        r = agent_line_identify(
            sb->line, &(struct agent_identity){.hostname = sb->hostname, .network = &sb->network, .volume = sb->lease != NULL});
    return r;
}

static void on_start(void *arg, const struct driver_answer *answer)
{
    struct sandbox *sb = arg;
    int control = answer->control, dial = answer->dial;
    struct network network = answer->network;
    int r = answer->error;
    sb->starting = false;
    if (r == 0) {
        sb->started = true;
        sb->handle = answer->handle;
        sb->restored = answer->restored;
        sb->since_ns = mono_ns();
    }
    if (sb->state == SANDBOX_CLOSING) {  // given up meanwhile
        close_fd(&control);
        close_fd(&dial);
        network_close(&network);
        if (sb->started)
            sb->tier->driver->stop(sb->tier->self, sb->handle);
        become_gone(sb);
    } else {
        if (r == 0) {
            sb->network = network;
            r = take_line(sb, control, dial);
        }
        if (sb->suspending != NULL)
            suspend_started(sb, r, answer->detail);
        else if (sb->warm == NULL)
            create_started(sb->create, r, answer->detail);
        else if (r < 0 || answer->waits || agent_line_is_up(sb->line))
            pool_started(sb->warm, r, answer->detail);
    }
    sandbox_unref(sb);
}

int sandbox_start(struct sandbox *sb, struct driver_start *what)
{
    what->owner = sb;
    int r = sb->tier->driver->start(sb->tier->self, what, on_start, sb);
    if (r < 0)
        return r;
    sb->starting = true;
    sandbox_ref(sb);
    return 0;
}

// ---- destroy ----

static void on_destroy_deadline(void *arg)
{
    struct sandbox *sb = arg;
    struct request *r = sb->destroy_request;
    sb->destroy_request = NULL;
    log_error("sandbox_stuck", log_u64("sandbox_id", sb->id));
    if (r != NULL)
        request_fail(r, SANDBOX_ERR_INTERNAL, "sandbox %u was killed, but not all of it ended within %llu ms", sb->id,
                     (unsigned long long)sb->engine->config->stop_deadline_ms);
}

void sandbox_destroy_for(struct sandbox *sb, struct request *r)
{
    sb->destroying = true;
    sb->destroy_request = r;
    sandbox_ref(sb);
    if (sb->state == SANDBOX_GONE) {
        leave_owner(sb);
        answer_destroy(sb);
    } else {
        timer_set(sb->engine->loop, &sb->destroy_deadline, mono_ns() + sb->engine->config->stop_deadline_ms * NS_PER_MS);
        sandbox_close(sb, "destroyed");
    }
    sandbox_unref(sb);
}

// ---- facts ----

const char *sandbox_start_name(const struct sandbox *sb)
{
    return sb->forked ? "fork" : sb->from_pool ? "pool" : sb->restored ? "restored" : "cold";
}

uint64_t sandbox_uptime_ns(const struct sandbox *sb)
{
    return sb->state == SANDBOX_PAUSED || sb->state == SANDBOX_SUSPENDED ? sb->ran_ns : mono_ns() - sb->since_ns;
}

void sandboxes_count(const struct engine *e, unsigned count[SANDBOX_STATES])
{
    memset(count, 0, SANDBOX_STATES * sizeof count[0]);
    const struct sandbox *sb;
    TAILQ_FOREACH(sb, &e->sandboxes, all)
    count[sb->state]++;
}
