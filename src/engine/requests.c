#include "engine/requests.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/create.h"
#include "engine/fork.h"
#include "engine/grants.h"
#include "engine/guestop.h"
#include "engine/network.h"
#include "engine/origin.h"
#include "engine/power.h"
#include "engine/sandbox.h"
#include "engine/snapshot.h"
#include "engine/status.h"
#include "engine/streams.h"
#include "engine/volumes.h"
#include "libsandbox.h"
#include "wire/spec.h"

#include <stdlib.h>

// The sandbox a request is about, or NULL after the request was refused.  A sandbox of another connection and one that does
// not exist get the same answer, byte for byte.
static struct sandbox *find_own(struct request *r, uint32_t id)
{
    struct sandbox *sb = sandbox_find(r->client, id);
    if (sb == NULL)
        request_fail(r, SANDBOX_ERR_PERMISSION_DENIED, SANDBOX_NOT_YOURS);
    return sb;
}

static void on_create(struct request *r, const Sandbox__ClientMessage *message)
{
    create_begin(r, message->create);
}

static void on_destroy(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->destroy->sandbox_id);
    if (sb != NULL)
        sandbox_destroy_for(sb, r);
}

static void on_pause(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->pause->sandbox_id);
    if (sb != NULL)
        power_request(sb, r, POWER_PAUSE);
}

static void on_resume(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->resume->sandbox_id);
    if (sb != NULL)
        power_request(sb, r, POWER_RESUME);
}

// ---- inspect ----

struct inspection {
    struct sandbox *sandbox;
    struct request *request;
};

static uint64_t mib_of(uint64_t bytes)
{
    return (bytes + (1 << 20) - 1) >> 20;
}

static void fill(Sandbox__InspectResponse *response, const struct sandbox *sb, const struct driver_stats *stats)
{
    uint64_t faults = stats->page_faults > sb->faults_before ? stats->page_faults - sb->faults_before : 0;
    response->sandbox_id = sb->id;
    response->is_running = sb->state == SANDBOX_RUNNING;
    response->uptime_ms = sandbox_uptime_ns(sb) / NS_PER_MS;
    response->memory_rss_mib = mib_of(stats->memory_bytes);
    response->page_faults = faults > UINT32_MAX ? UINT32_MAX : (uint32_t)faults;
    response->isolation = sb->tier->level;
    response->start = (char *)sandbox_start_name(sb);
    response->memory_private_mib = mib_of(stats->private_bytes);
    response->memory_shared_mib = mib_of(stats->shared_bytes);
    response->snapshot_id = sb->origin->snapshot_id;
    response->state = (char *)sandbox_state_name(sb->state);
    response->memory = sb->forked && sb->tier->driver->memory;
}

static void reply_inspect(struct request *r, const struct sandbox *sb, const struct driver_stats *stats)
{
    Sandbox__InspectResponse response = SANDBOX__INSPECT_RESPONSE__INIT;
    fill(&response, sb, stats);
    struct network_report *report = network_report_new(&sb->network, sb->egress);
    response.network = report != NULL ? &report->message : NULL;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT;
    message.inspect = &response;
    request_reply(r, &message);
    network_report_free(report);
}

static void on_stats(void *arg, const struct driver_answer *answer)
{
    struct inspection *i = arg;
    struct sandbox *sb = i->sandbox;
    struct request *r = i->request;
    free(i);
    if (sb->state >= SANDBOX_CLOSING) {
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    } else if (sb->state == SANDBOX_SUSPENDED) {
        reply_inspect(r, sb, &(struct driver_stats){0});
    } else if (answer->error < 0) {
        log_error("stats_failed", log_u64("sandbox_id", sb->id), log_errno(answer->error), log_str("detail", answer->detail));
        request_fail(r, SANDBOX_ERR_INTERNAL, "the sandbox's counters could not be read");
    } else {
        reply_inspect(r, sb, &answer->stats);
    }
    sandbox_unref(sb);
}

static void on_inspect(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->inspect->sandbox_id);
    if (sb == NULL)
        return;
    if (sb->state >= SANDBOX_CLOSING) {
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox %u has ended by itself; destroy it", sb->id);
        return;
    }
    if (sb->state == SANDBOX_SUSPENDED) {  // nothing of it is in memory
        reply_inspect(r, sb, &(struct driver_stats){0});
        return;
    }
    struct inspection *i = malloc(sizeof *i);
    if (i != NULL)
        *i = (struct inspection){.sandbox = sb, .request = r};
    if (i == NULL || sb->tier->driver->stats(sb->tier->self, sb->handle, on_stats, i) < 0) {
        free(i);
        request_fail(r, SANDBOX_ERR_INTERNAL, "the sandbox's counters could not be asked for");
        return;
    }
    sandbox_ref(sb);
}

static void on_guest(struct request *r, const Sandbox__ClientMessage *message)
{
    guestop_begin(r, message->guest);
}

// One that a request was waiting for does not come here (exec_input.h).
static void on_guest_input(struct request *r, const Sandbox__ClientMessage *message)
{
    request_fail(r, SANDBOX_ERR_INVALID_SPEC,
                 "no guest request with this request_id waits for more of its stdin: it is sent at once behind an exec whose "
                 "stdin_rest says how much comes");
}

static void on_stream(struct request *r, const Sandbox__ClientMessage *message)
{
    stream_begin(r, message->stream);
}

static void on_status(struct request *r, const Sandbox__ClientMessage *message)
{
    (void)message;
    cleanup_buf struct buf json = BUF_INIT(STATUS_JSON_MAX);
    status_write(r->client->engine, &json);
    const char *text = buf_text(&json);
    if (text == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the status could not be written");
        return;
    }
    Sandbox__StatusResponse response = SANDBOX__STATUS_RESPONSE__INIT;
    response.json = (char *)text;
    Sandbox__ServerMessage reply = SANDBOX__SERVER_MESSAGE__INIT;
    reply.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_STATUS;
    reply.status = &response;
    request_reply(r, &reply);
}

static void on_session_renew(struct request *r, const Sandbox__ClientMessage *message)
{
    const Sandbox__SessionRenewRequest *renew = message->session_renew;
    struct err err;
    if (spec_check_session_key(renew->session_key, &err) != 0) {
        request_fail_err(r, &err);
        return;
    }
    struct volume_key key = volume_key_of(r->client->peer.uid, renew->session_key.data, renew->session_key.len);
    volume_renew(r->client->engine->volumes, r, &key, renew->extra_seconds);
}

static void on_snapshot_create(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->snapshot_create->sandbox_id);
    if (sb != NULL)
        snapshot_take(sb, r);
}

static void on_snapshot_list(struct request *r, const Sandbox__ClientMessage *message)
{
    snapshot_list(r, message->snapshot_list->after);
}

static void on_snapshot_inspect(struct request *r, const Sandbox__ClientMessage *message)
{
    snapshot_inspect(r, message->snapshot_inspect->id);
}

static void on_snapshot_delete(struct request *r, const Sandbox__ClientMessage *message)
{
    snapshot_delete(r, message->snapshot_delete->id);
}

static void on_fork(struct request *r, const Sandbox__ClientMessage *message)
{
    fork_begin(r, message->fork);
}

static void on_suspend(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->suspend->sandbox_id);
    if (sb != NULL)
        snapshot_suspend(sb, r);
}

static void on_grant_trace(struct request *r, const Sandbox__ClientMessage *message)
{
    struct sandbox *sb = find_own(r, message->grant_trace->sandbox_id);
    if (sb != NULL)
        grants_answer_trace(sb, r, message->grant_trace);
}

static void (*const handlers[])(struct request *r, const Sandbox__ClientMessage *message) = {
    [SANDBOX__CLIENT_MESSAGE__REQUEST_CREATE] = on_create,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_DESTROY] = on_destroy,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_PAUSE] = on_pause,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_RESUME] = on_resume,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_INSPECT] = on_inspect,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST] = on_guest,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_STATUS] = on_status,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SESSION_RENEW] = on_session_renew,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_STREAM] = on_stream,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_GUEST_INPUT] = on_guest_input,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_CREATE] = on_snapshot_create,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_LIST] = on_snapshot_list,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_INSPECT] = on_snapshot_inspect,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SNAPSHOT_DELETE] = on_snapshot_delete,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_FORK] = on_fork,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_SUSPEND] = on_suspend,
    [SANDBOX__CLIENT_MESSAGE__REQUEST_GRANT_TRACE] = on_grant_trace,
};

void requests_dispatch(struct request *r, const Sandbox__ClientMessage *message)
{
    size_t which = (size_t)message->request_case;
    if (which < sizeof handlers / sizeof handlers[0] && handlers[which] != NULL)
        handlers[which](r, message);
    else {
        r->not_run = SANDBOX__NOT_RUN__NOT_RUN_PROTOCOL;
        request_fail(r, SANDBOX_ERR_INVALID_SPEC, "the message holds no request that this engine knows");
    }
}
