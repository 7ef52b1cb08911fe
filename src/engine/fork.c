#include "engine/fork.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/snapshot.h"
#include "libsandbox.h"
#include "wire/spec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fork {
    struct engine *engine;
    struct client *client;
    struct request *request;
    struct snapshot *snapshot;  // pinned
    int folder;                 // its files, if it has memory; else -1
    uint64_t begun_ns;
    bool copies;
    unsigned count, pending, ready;
    bool busy;                  // it is on the stack, and must not end
    struct err failure;         // code 0: none
    struct sandbox *sandbox[];  // that run, referenced
};

struct snapshot *fork_snapshot(const struct fork *f)
{
    return f->snapshot;
}

int fork_folder(const struct fork *f)
{
    return f->folder;
}

bool fork_copies(const struct fork *f)
{
    return f->copies;
}

int fork_check_template(const struct fork *f, const uint8_t rootfs[static DIGEST_LEN], struct err *err)
{
    if (memcmp(rootfs, f->snapshot->meta.rootfs, DIGEST_LEN) == 0)
        return 0;
    return err_set(err, SANDBOX_ERR_INVALID_SPEC,
                   "template \"%s\" is no longer what it was when snapshot %s was taken, which stands on it",
                   f->snapshot->meta.template_name, f->snapshot->meta.id);
}

// ---- its end ----

static void reply(struct fork *f)
{
    cleanup_free Sandbox__CreateResponse *list = calloc(f->count, sizeof *list);
    cleanup_free Sandbox__CreateResponse **pointers = calloc(f->count, sizeof(Sandbox__CreateResponse *));
    if (list == NULL || pointers == NULL) {
        err_set(&f->failure, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    for (unsigned i = 0; i < f->count; i++) {
        sandbox__create_response__init(&list[i]);
        list[i].sandbox_id = f->sandbox[i]->id;
        list[i].session_token = f->sandbox[i]->token;
        list[i].isolation = f->sandbox[i]->tier->level;
        list[i].start = (char *)sandbox_start_name(f->sandbox[i]);
        pointers[i] = &list[i];
        f->sandbox[i]->fork = NULL;
    }
    Sandbox__ForkResponse response = SANDBOX__FORK_RESPONSE__INIT;
    response.n_sandboxes = f->count;
    response.sandboxes = pointers;
    response.memory = f->snapshot->meta.memory;
    Sandbox__ServerMessage message = SANDBOX__SERVER_MESSAGE__INIT;
    message.response_case = SANDBOX__SERVER_MESSAGE__RESPONSE_FORK;
    message.fork = &response;
    request_reply(take_ptr(&f->request), &message);
}

// One that ended by itself meanwhile spoils all.
static void look_for_dead(struct fork *f)
{
    for (unsigned i = 0; i < f->ready && f->failure.code == 0; i++)
        if (f->sandbox[i]->state != SANDBOX_RUNNING)
            err_set(&f->failure, SANDBOX_ERR_GUEST_UNAVAILABLE, "one of the forks ended before all of them ran");
}

static void undo(struct fork *f)
{
    for (unsigned i = 0; i < f->ready; i++) {
        f->sandbox[i]->fork = NULL;
        sandbox_disown(f->sandbox[i], "its fork failed");
    }
    if (f->request != NULL)
        request_fail_err(f->request, &f->failure);
}

static void end(struct fork *f)
{
    look_for_dead(f);
    if (f->failure.code == 0)
        reply(f);
    struct metrics *metrics = &f->engine->metrics;
    metric_result(metrics->forks, f->failure.code);
    if (f->failure.code == 0) {
        metrics->fork_ns += mono_ns() - f->begun_ns;
        metrics->forked += f->count;
        log_info("forked", log_str("snapshot", f->snapshot->meta.id), log_u64("count", f->count), log_bool("copied", f->copies),
                 log_u64("us", (mono_ns() - f->begun_ns) / NS_PER_US));
    } else {
        log_info("fork_failed", log_str("snapshot", f->snapshot->meta.id), log_u64("count", f->count),
                 log_str("reason", f->failure.text));
        undo(f);
    }
    for (unsigned i = 0; i < f->ready; i++)
        sandbox_unref(f->sandbox[i]);
    close_fd(&f->folder);
    snapshot_unpin(f->snapshot);
    free(f);
}

static void end_if_done(struct fork *f)
{
    if (f->pending == 0 && !f->busy)
        end(f);
}

void fork_ready(struct fork *f, struct sandbox *sb)
{
    f->sandbox[f->ready++] = sb;
    sandbox_ref(sb);
    f->pending--;
    end_if_done(f);
}

void fork_failed(struct fork *f, int code, const char *text)
{
    f->pending--;
    if (f->failure.code == 0) {
        err_set(&f->failure, code, "%s", text);
        bool busy = f->busy;
        f->busy = true;
        creates_cancel_fork(f->client, f);
        f->busy = busy;
    }
    end_if_done(f);
}

// ---- its beginning ----

static bool same_name(const ProtobufCBinaryData *a, const struct snapshot_variable *b)
{
    const uint8_t *equals = memchr(a->data, '=', a->len);
    size_t n = (size_t)(equals - a->data) + 1;
    return b->len >= n && memcmp(a->data, b->text, n) == 0;
}

static bool overridden(const Sandbox__ForkRequest *message, const struct snapshot_variable *v)
{
    for (size_t i = 0; i < message->n_env_vars; i++)
        if (same_name(&message->env_vars[i], v))
            return true;
    return false;
}

// The snapshot's variables that are not given anew, and those that are.  Their number.
static size_t merge(const struct snapshot_meta *meta, const Sandbox__ForkRequest *message, ProtobufCBinaryData *ret_vars)
{
    size_t n = 0;
    for (uint32_t i = 0; i < meta->variables; i++)
        if (!overridden(message, &meta->variable[i]))
            ret_vars[n++] = (ProtobufCBinaryData){.len = meta->variable[i].len, .data = (uint8_t *)meta->variable[i].text};
    for (size_t i = 0; i < message->n_env_vars; i++)
        ret_vars[n++] = message->env_vars[i];
    return n;
}

static void launch(struct fork *f, const Sandbox__CreateRequest *create, struct tier *tier)
{
    f->busy = true;
    for (unsigned i = 0; i < f->count; i++) {
        if (f->failure.code != 0)
            f->pending--;
        else if (create_begin_fork(f->client, create, tier, f) < 0)
            fork_failed(f, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
    }
    f->busy = false;
    end_if_done(f);
}

// The caps, and what the engine's settings allow by now.
static int check(const struct client *c, const struct snapshot *s, const Sandbox__CreateRequest *create, unsigned count,
                 struct err *err)
{
    struct engine *e = c->engine;
    const struct spec_limits limits = {.memory_mib_max = e->config->memory_mib_max,
                                       .disk_mib_max = e->config->disk_mib_max,
                                       .vcpus_max = (uint32_t)e->config->vcpus_max};
    static struct host_policy nothing;  // too large for a stack
    int code = spec_check_create(create, &limits, &nothing, err);
    if (code == 0)
        code = create_check_caps(c, count, err);
    if (code != 0)
        return code;
    const struct tier *tier = tiers_at(&e->tiers, s->meta.isolation);
    if (!tier->available)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "snapshot %s is of the tier %s, which does not work here: %s", s->meta.id,
                       tier->name, tier->reason);
    if (s->meta.isolation < e->config->isolation_floor)
        return err_set(err, SANDBOX_ERR_INVALID_SPEC, "snapshot %s is of the tier %s, weaker than the engine's floor",
                       s->meta.id, tier->name);
    return 0;
}

static void begin(struct request *r, struct snapshot *s, const Sandbox__ForkRequest *message)
{
    struct engine *e = r->client->engine;
    cleanup_free ProtobufCBinaryData *vars = calloc(s->meta.variables + message->n_env_vars + 1, sizeof *vars);
    struct fork *f = calloc(1, sizeof *f + message->count * sizeof f->sandbox[0]);
    if (vars == NULL || f == NULL) {
        free(f);
        request_fail(r, SANDBOX_ERR_INTERNAL, "the engine is out of memory");
        return;
    }
    Sandbox__CreateRequest create = SANDBOX__CREATE_REQUEST__INIT;
    create.memory_mib = s->meta.memory_mib;
    create.vcpu_count = s->meta.vcpus;
    create.disk_mib = s->meta.disk_mib;
    create.template_name = s->meta.template_name;
    create.env_vars = vars;
    create.n_env_vars = merge(&s->meta, message, vars);
    struct err err;
    int code = check(r->client, s, &create, message->count, &err);
    if (code != 0) {
        free(f);
        metric_result(e->metrics.forks, code);
        request_fail_err(r, &err);
        return;
    }
    int folder = s->meta.memory ? snapshot_store_folder(s) : -1;
    if (s->meta.memory && folder < 0) {
        free(f);
        metric_result(e->metrics.forks, SANDBOX_ERR_INTERNAL);
        request_fail(r, SANDBOX_ERR_INTERNAL, "the files of snapshot %s cannot be opened: %s", s->meta.id, strerror(-folder));
        return;
    }
    bool little = s->meta.bytes <= e->config->fork_copy_mib << 20;
    *f = (struct fork){.engine = e,
                       .client = r->client,
                       .request = r,
                       .snapshot = s,
                       .folder = folder,
                       .begun_ns = mono_ns(),
                       .copies = s->meta.layers == SNAPSHOT_LAYERS_MAX || (s->meta.layers > 0 && little),
                       .count = message->count,
                       .pending = message->count};
    snapshot_pin(s);
    launch(f, &create, tiers_at(&e->tiers, s->meta.isolation));
}

void fork_begin(struct request *r, const Sandbox__ForkRequest *message)
{
    struct engine *e = r->client->engine;
    struct err err;
    if (spec_check_fork(message, (uint32_t)e->config->max_fork, &err) != 0) {
        metric_result(e->metrics.forks, err.code);
        request_fail_err(r, &err);
        return;
    }
    const char *trouble = snapshot_store_trouble(e->snapshots);
    if (trouble != NULL) {
        request_fail(r, SANDBOX_ERR_INTERNAL, "there are no snapshots: %s", trouble);
        return;
    }
    struct snapshot_owner owner = snapshot_owner_of(r->client);
    struct snapshot *s = snapshot_store_find(e->snapshots, owner.text, message->snapshot_id);
    if (s == NULL) {
        metric_result(e->metrics.forks, SANDBOX_ERR_NOT_FOUND);
        request_fail(r, SANDBOX_ERR_NOT_FOUND, SNAPSHOT_NOT_FOUND);
        return;
    }
    begin(r, s, message);
}
