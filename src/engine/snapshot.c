#include "engine/snapshot.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "engine/origin.h"
#include "engine/power.h"
#include "libsandbox.h"
#include "wire/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// One that is being taken.
struct taking {
    struct sandbox *sandbox;
    struct request *request;
    struct snapshot_store *store;
    uint64_t begun_ns;
    int folder;      // of one with memory, until the driver is asked; else -1
    bool asked;      // the driver was
    bool syncing;    // the guest is
    bool suspended;  // it was told of the pause
    bool kept;       // the driver has answered
    struct timer patience;
    struct snapshot_meta meta;  // its variables point into the sandbox's origin, which is there as long as the sandbox
};

struct snapshot_owner snapshot_owner_of(const struct client *c)
{
    struct snapshot_owner owner;
    snprintf(owner.text, sizeof owner.text, "uid:%" PRIu32, (uint32_t)c->peer.uid);
    return owner;
}

static void fill(Sandbox__Snapshot *out, const struct snapshot_meta *m)
{
    sandbox__snapshot__init(out);
    out->id = (char *)m->id;
    out->source_sandbox_id = m->source;
    out->template_name = (char *)m->template_name;
    out->memory_mib = m->memory_mib;
    out->vcpu_count = m->vcpus;
    out->disk_mib = m->disk_mib;
    out->isolation = m->isolation;
    out->memory = m->memory;
    out->created_at = m->created;
    out->bytes = m->bytes;
    out->pause_us = m->pause_us;
    out->depth = m->memory ? 1 : m->layers;  // memory is always of all since the template
    out->volume_left_out = m->volume_left_out;
    out->unsynced = m->unsynced;
}

// Answers and is true if there can be no snapshots.
static bool in_trouble(struct request *r)
{
    const char *trouble = snapshot_store_trouble(r->client->engine->snapshots);
    if (trouble != NULL)
        request_fail(r, SANDBOX_ERR_INTERNAL, "there are no snapshots: %s", trouble);
    return trouble != NULL;
}

// ---- taking one ----

// The sandbox is free for another; its request is returned, to be answered.
static struct request *end_taking(struct taking *t)
{
    struct request *r = t->request;
    struct sandbox *sb = t->sandbox;
    snapshot_layers_drop(t->store, t->meta.layer, t->meta.layers);
    sb->engine->snapshots_taken--;
    sb->taking = NULL;
    timer_cancel(sb->engine->loop, &t->patience);
    close_fd(&t->folder);
    free(t);
    powers_go_on(sb);
    sandbox_unref(sb);
    return r;
}

// What stood still while it was kept goes on.
static void tell_resumed(struct taking *t, uint64_t pause_us)
{
    struct sandbox *sb = t->sandbox;
    bool told = t->suspended || !t->meta.memory;
    t->suspended = false;
    if (told && sb->state == SANDBOX_RUNNING && sb->line != NULL && agent_line_resume(sb->line, pause_us) < 0)
        log_warn("agent_not_told", log_u64("sandbox_id", sb->id), log_str("of", "a snapshot"));
}

static void fail_taking(struct taking *t, int error, const char *detail)
{
    uint32_t id = t->sandbox->id;
    bool ended = t->sandbox->state >= SANDBOX_CLOSING;
    log_warn("snapshot_failed", log_u64("sandbox_id", id), log_errno(error), log_str("detail", detail));
    if (t->suspended)
        tell_resumed(t, 0);
    if (t->meta.memory)
        snapshot_store_abandon(t->store, t->meta.id);
    struct request *r = end_taking(t);
    if (ended)
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    else if (error == -ENOSPC || error == -EDQUOT)
        request_fail(r, SANDBOX_ERR_INTERNAL,
                     "the host's disk has no room for a snapshot of sandbox %" PRIu32 "; nothing was kept, and it goes on", id);
    else
        request_fail(r, SANDBOX_ERR_INTERNAL, "sandbox %" PRIu32 " could not be kept: %s; it goes on", id, strerror(-error));
}

static void on_added(void *arg, int error, struct snapshot *s)
{
    struct taking *t = arg;
    if (error < 0) {
        fail_taking(t, error, "writing its description");
        return;
    }
    log_info("snapshot_taken", log_str("snapshot", s->meta.id), log_u64("sandbox_id", s->meta.source),
             log_u64("bytes", s->meta.bytes), log_u64("pause_us", s->meta.pause_us),
             log_u64("us", (mono_ns() - t->begun_ns) / NS_PER_US));
    struct engine *e = t->sandbox->engine;
    e->metrics.snapshots_taken++;
    e->metrics.snapshot_pause_us += s->meta.pause_us;
    Sandbox__Snapshot snapshot;
    fill(&snapshot, &s->meta);
    Sandbox__SnapshotCreateResponse response = SANDBOX__SNAPSHOT_CREATE_RESPONSE__INIT;
    response.snapshot = &snapshot;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_CREATE;
    message.snapshot_create = &response;
    snapshot_pin(s);
    request_reply(end_taking(t), &message);
    snapshot_unpin(s);
}

static void on_kept(void *arg, const struct driver_answer *answer)
{
    struct taking *t = arg;
    struct sandbox *sb = t->sandbox;
    t->kept = true;
    if (answer->error < 0) {
        fail_taking(t, answer->error, answer->detail);
        return;
    }
    tell_resumed(t, answer->pause_us);
    powers_go_on(sb);
    t->meta.pause_us = answer->pause_us;
    t->meta.bytes = answer->bytes;
    t->meta.created = wall_ns() / NS_PER_S;
    int r = t->request->client == NULL ? -ECANCELED : snapshot_store_add(t->store, &t->meta, on_added, t);
    if (r < 0)
        fail_taking(t, r, "describing it");
}

static int describe(struct taking *t)
{
    const struct sandbox *sb = t->sandbox;
    const struct origin *o = sb->origin;
    struct snapshot_meta *m = &t->meta;
    uint8_t random[8];
    int r = random_bytes(random, sizeof random);
    if (r == 0)
        r = random_bytes(m->layer[0], SNAPSHOT_LAYER_ID);
    if (r < 0)
        return r;
    snapshot_id_make(random, m->id);
    struct snapshot_owner owner = snapshot_owner_of(sb->owner);
    memcpy(m->owner, owner.text, sizeof m->owner);
    memcpy(m->template_name, o->template_name, sizeof m->template_name);
    memcpy(m->rootfs, o->rootfs, sizeof m->rootfs);
    m->isolation = (uint8_t)sb->tier->level;
    m->memory = sb->tier->driver->memory;
    m->volume_left_out = o->has_volume;
    m->source = sb->id;
    m->vcpus = o->vcpus;
    m->memory_mib = o->memory_mib;
    m->disk_mib = o->disk_mib;
    if (!m->memory) {  // else the disk is in its files
        memcpy(m->layer[1], o->layer, o->layers * sizeof m->layer[0]);
        m->layers = o->layers + 1;
    }
    m->variables = (uint32_t)o->message->n_env_vars;
    for (uint32_t i = 0; i < m->variables; i++)
        m->variable[i] =
            (struct snapshot_variable){.text = (const char *)o->message->env_vars[i].data, .len = o->message->env_vars[i].len};
    return 0;
}

// Where memory is kept, so is what a machine's kernel knows of its devices.  Answers and is true if that cannot be.
static bool refused_for_its_parts(const struct sandbox *sb, struct request *r)
{
    if (!sb->tier->driver->memory)
        return false;
    if (sb->origin->has_volume)
        request_fail(r, SANDBOX_ERR_INVALID_SPEC,
                     "sandbox %" PRIu32 " has a session's volume, which others may write to meanwhile; on the tier %s only one "
                     "without can be kept",
                     sb->id, sb->tier->name);
    else if (sb->network.kind != NETWORK_NONE)
        request_fail(r, SANDBOX_ERR_INVALID_SPEC,
                     "sandbox %" PRIu32 " has a network, whose addresses are its own; on the tier %s only one without can be "
                     "kept",
                     sb->id, sb->tier->name);
    return sb->origin->has_volume || sb->network.kind != NETWORK_NONE;
}

// Answers and is false if it cannot be now.
static bool may_take(const struct sandbox *sb, struct request *r)
{
    const struct engine *e = sb->engine;
    struct snapshot_owner owner = snapshot_owner_of(r->client);
    // Those being taken count for everybody, since they will be somebody's.
    uint64_t have = snapshot_store_count(e->snapshots, owner.text) + e->snapshots_taken;
    if (sb->state >= SANDBOX_CLOSING)
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    else if (sb->tier->driver->no_snapshot != NULL)
        request_fail(r, SANDBOX_ERR_INVALID_SPEC, "sandbox %" PRIu32 " is of the tier %s: %s", sb->id, sb->tier->name,
                     sb->tier->driver->no_snapshot);
    else if (sb->state == SANDBOX_SUSPENDED)
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "sandbox %" PRIu32 " is suspended; resume it first", sb->id);
    else if (refused_for_its_parts(sb, r))
        return false;
    else if (sb->taking != NULL)
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "a snapshot of sandbox %" PRIu32 " is being taken; wait for it", sb->id);
    else if (have >= e->config->max_snapshots_per_uid)
        request_fail(r, SANDBOX_ERR_POOL_EXHAUSTED,
                     "this uid has %" PRIu64 " snapshots, the most allowed (max_snapshots_per_uid); delete some", have);
    else
        return true;
    return false;
}

static void ask_driver(struct taking *t)
{
    struct sandbox *sb = t->sandbox;
    const struct driver_snapshot what = {.layer = t->meta.layer[0],
                                         .id = t->meta.memory ? t->meta.id : NULL,
                                         .folder = t->folder,
                                         .paused = sb->state == SANDBOX_PAUSED};
    t->asked = true;
    int r = sb->tier->driver->snapshot(sb->tier->self, sb->handle, &what, on_kept, t);
    close_fd(&t->folder);
    if (r < 0)
        fail_taking(t, r, "the driver could not be asked");
}

// ---- with memory: when, and after the guest was asked ----

static void end_sync(struct taking *t, bool synced)
{
    timer_cancel(t->sandbox->engine->loop, &t->patience);
    t->syncing = false;
    t->meta.unsynced = !synced;
    ask_driver(t);
}

void snapshot_synced(struct sandbox *sb)
{
    if (sb->taking != NULL && sb->taking->syncing)
        end_sync(sb->taking, true);
}

static void on_patience(void *arg)
{
    struct taking *t = arg;
    log_warn("snapshot_unsynced", log_u64("sandbox_id", t->sandbox->id));
    end_sync(t, false);
}

// The deadlines of its commands stand still from here on, and its init knows what a broken line may mean.  One that is paused
// was told before.
static void begin_sync(struct taking *t)
{
    struct sandbox *sb = t->sandbox;
    t->meta.unsynced = true;
    if (sb->state != SANDBOX_RUNNING || sb->line == NULL || agent_line_suspend(sb->line) < 0) {
        ask_driver(t);
        return;
    }
    t->suspended = true;
    t->syncing =
        agent_line_sync(sb->line) == 0 && timer_set(sb->engine->loop, &t->patience, mono_ns() + SYNC_MS * NS_PER_MS) == 0;
    if (!t->syncing)
        ask_driver(t);
}

bool snapshot_has_turn(struct sandbox *sb)
{
    struct taking *t = sb->taking;
    if (t == NULL || !t->meta.memory || t->kept)
        return false;
    if (!t->asked && !t->syncing && sb->state < SANDBOX_CLOSING)
        begin_sync(t);
    return sb->taking != NULL;
}

void snapshot_sandbox_ends(struct sandbox *sb)
{
    if (sb->taking != NULL && sb->taking->meta.memory && !sb->taking->asked)
        fail_taking(sb->taking, -ECANCELED, "it ended before");
}

void snapshot_take(struct sandbox *sb, struct request *r)
{
    if (in_trouble(r) || !may_take(sb, r))
        return;
    struct taking *t = calloc(1, sizeof *t);
    if (t != NULL)
        *t = (struct taking){.sandbox = sb, .request = r, .store = sb->engine->snapshots, .begun_ns = mono_ns(), .folder = -1};
    if (t == NULL || describe(t) < 0) {
        free(t);
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    timer_init(&t->patience, on_patience, t);
    snapshot_layers_hold(t->store, t->meta.layer, t->meta.layers);
    sb->engine->snapshots_taken++;
    sb->taking = t;
    sandbox_ref(sb);
    int error = t->meta.memory ? t->folder = snapshot_store_begin(t->store, t->meta.id) : 0;
    if (error < 0)
        fail_taking(t, error, "making its folder");
    else if (!t->meta.memory)
        ask_driver(t);
    else if (!powers_busy(sb))
        begin_sync(t);
}

// ---- the other requests ----

void snapshot_list(struct request *r, const char *after)
{
    if (in_trouble(r))
        return;
    struct snapshot_store *store = r->client->engine->snapshots;
    struct snapshot_owner owner = snapshot_owner_of(r->client);
    cleanup_free Sandbox__Snapshot *list = calloc(SNAPSHOTS_LISTED, sizeof *list);
    cleanup_free Sandbox__Snapshot **pointers = calloc(SNAPSHOTS_LISTED, sizeof(Sandbox__Snapshot *));
    if (list == NULL || pointers == NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    size_t n = 0;
    const struct snapshot *s = snapshot_store_next(store, owner.text, after);
    for (; s != NULL && n < SNAPSHOTS_LISTED; s = snapshot_store_next(store, owner.text, s->meta.id)) {
        fill(&list[n], &s->meta);
        pointers[n] = &list[n];
        n++;
    }
    Sandbox__SnapshotListResponse response = SANDBOX__SNAPSHOT_LIST_RESPONSE__INIT;
    response.n_snapshots = n;
    response.snapshots = pointers;
    response.more = s != NULL;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_LIST;
    message.snapshot_list = &response;
    request_reply(r, &message);
}

// The client's, or NULL after the request was refused.
static struct snapshot *find_own(struct request *r, const char *id)
{
    struct err err;
    if (in_trouble(r))
        return NULL;
    if (spec_check_snapshot_id(id, &err) != 0) {
        request_fail_err(r, &err);
        return NULL;
    }
    struct snapshot_owner owner = snapshot_owner_of(r->client);
    struct snapshot *s = snapshot_store_find(r->client->engine->snapshots, owner.text, id);
    if (s == NULL)
        request_fail(r, SANDBOX_ERR_NOT_FOUND, SNAPSHOT_NOT_FOUND);
    return s;
}

void snapshot_inspect(struct request *r, const char *id)
{
    const struct snapshot *s = find_own(r, id);
    if (s == NULL)
        return;
    Sandbox__Snapshot snapshot;
    fill(&snapshot, &s->meta);
    Sandbox__SnapshotInspectResponse response = SANDBOX__SNAPSHOT_INSPECT_RESPONSE__INIT;
    response.snapshot = &snapshot;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_INSPECT;
    message.snapshot_inspect = &response;
    request_reply(r, &message);
}

static void on_removed(void *arg, int error)
{
    struct request *r = arg;
    if (error < 0 && error != -ENOENT) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "the snapshot could not be removed: %s", strerror(-error));
        return;
    }
    Sandbox__SnapshotDeleteResponse response = SANDBOX__SNAPSHOT_DELETE_RESPONSE__INIT;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_DELETE;
    message.snapshot_delete = &response;
    request_reply(r, &message);
}

void snapshot_delete(struct request *r, const char *id)
{
    struct snapshot *s = find_own(r, id);
    if (s == NULL)
        return;
    log_info("snapshot_deleted", log_str("snapshot", s->meta.id));
    if (snapshot_store_remove(s, on_removed, r) < 0)
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
}

void snapshot_suspend(struct sandbox *sb, struct request *r)
{
    const struct driver *driver = sb->tier->driver;
    if (sb->state >= SANDBOX_CLOSING)
        request_fail(r, SANDBOX_ERR_GUEST_UNAVAILABLE, "the sandbox has ended");
    else if (driver->no_suspend != NULL)
        request_fail(r, SANDBOX_ERR_INVALID_SPEC, "sandbox %" PRIu32 " is of the tier %s: %s", sb->id, sb->tier->name,
                     driver->no_suspend);
    else if (sb->grants != NULL)
        request_fail(r, SANDBOX_ERR_INVALID_SPEC,
                     "sandbox %" PRIu32
                     " has, or had, a route grant, and with it a line to the host that ends with its machine; "
                     "suspend one without",
                     sb->id);
    else if (!refused_for_its_parts(sb, r))
        power_request(sb, r, POWER_SUSPEND);
}
