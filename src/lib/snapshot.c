#include "base/cleanup.h"
#include "lib/default_conn.h"
#include "lib/encode.h"
#include "lib/errors.h"
#include "lib/handle.h"
#include "wire/pb.h"

#include <stdio.h>
#include <stdlib.h>

enum { LIST_MAX = 1000000 };  // an engine that never ends its list is not believed

// The given connection, or the default one; to be given back with conn_unref.
static sandbox_error_t use_conn(sandbox_conn_t *conn, sandbox_conn_t **ret_conn)
{
    if (conn == NULL)
        return default_conn_ref(ret_conn);
    *ret_conn = conn_ref(conn);
    return SANDBOX_OK;
}

static sandbox_error_t nonsense(void)
{
    return fail(SANDBOX_ERR_INTERNAL, "the engine's answer about a snapshot makes no sense");
}

static sandbox_error_t take(const Sandbox__Snapshot *from, sandbox_snapshot_t *out)
{
    if (from == NULL || from->id[0] == '\0' || strlen(from->id) >= sizeof out->id ||
        strlen(from->template_name) >= sizeof out->template_name)
        return nonsense();
    *out = (sandbox_snapshot_t){.source_sandbox_id = from->source_sandbox_id,
                                .vcpu_count = from->vcpu_count,
                                .isolation = from->isolation,
                                .depth = from->depth,
                                .memory_mib = from->memory_mib,
                                .disk_mib = from->disk_mib,
                                .created_at = from->created_at,
                                .bytes = from->bytes,
                                .pause_us = from->pause_us,
                                .memory = from->memory,
                                .volume_left_out = from->volume_left_out,
                                .unsynced = from->unsynced};
    memcpy(out->id, from->id, strlen(from->id));
    memcpy(out->template_name, from->template_name, strlen(from->template_name));
    return SANDBOX_OK;
}

sandbox_error_t sandbox_snapshot_create(sandbox_handle_t *handle, sandbox_snapshot_t *out_snapshot)
{
    if (handle == NULL || out_snapshot == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, handle == NULL ? "the sandbox handle is NULL" : "out_snapshot is NULL");
    Sandbox__SnapshotCreateRequest create = SANDBOX__SNAPSHOT_CREATE_REQUEST__INIT;
    create.sandbox_id = handle->id;
    DEFINE_REQUEST(request, SNAPSHOT_CREATE, snapshot_create, &create);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_CREATE, &reply);
    if (r == SANDBOX_OK)
        r = take(reply->snapshot_create->snapshot, out_snapshot);
    pb_free(reply);
    return r;
}

// ---- the list ----

struct list {
    sandbox_snapshot_t *all;
    size_t count;
};

static sandbox_error_t append(struct list *list, const Sandbox__SnapshotListResponse *part)
{
    if (part->n_snapshots > LIST_MAX - list->count || (part->more && part->n_snapshots == 0))
        return nonsense();
    sandbox_snapshot_t *more = reallocarray(list->all, list->count + part->n_snapshots + 1, sizeof *more);
    if (more == NULL)
        return fail_memory();
    list->all = more;
    for (size_t i = 0; i < part->n_snapshots; i++) {
        sandbox_error_t r = take(part->snapshots[i], &list->all[list->count]);
        if (r != SANDBOX_OK)
            return r;
        if (list->count > 0 && strcmp(list->all[list->count - 1].id, list->all[list->count].id) >= 0)
            return nonsense();
        list->count++;
    }
    return SANDBOX_OK;
}

static sandbox_error_t list_part(sandbox_conn_t *conn, struct list *list, bool *ret_more)
{
    Sandbox__SnapshotListRequest ask = SANDBOX__SNAPSHOT_LIST_REQUEST__INIT;
    ask.after = list->count > 0 ? list->all[list->count - 1].id : (char *)"";
    DEFINE_REQUEST(request, SNAPSHOT_LIST, snapshot_list, &ask);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_LIST, &reply);
    if (r == SANDBOX_OK)
        r = append(list, reply->snapshot_list);
    if (r == SANDBOX_OK)
        *ret_more = reply->snapshot_list->more;
    pb_free(reply);
    return r;
}

sandbox_error_t sandbox_snapshot_list(sandbox_conn_t *conn, sandbox_snapshot_t **out_snapshots, size_t *out_count)
{
    if (out_snapshots == NULL || out_count == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", out_snapshots == NULL ? "out_snapshots" : "out_count");
    sandbox_conn_t *used = NULL;
    sandbox_error_t r = use_conn(conn, &used);
    if (r != SANDBOX_OK)
        return r;
    struct list list = {0};
    bool more = true;
    while (r == SANDBOX_OK && more)
        r = list_part(used, &list, &more);
    conn_unref(used);
    if (r != SANDBOX_OK) {
        free(list.all);
        return r;
    }
    *out_snapshots = list.all;
    *out_count = list.count;
    return SANDBOX_OK;
}

// ---- one of them ----

sandbox_error_t sandbox_snapshot_inspect(sandbox_conn_t *conn, const char *id, sandbox_snapshot_t *out_snapshot)
{
    if (id == NULL || out_snapshot == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", id == NULL ? "id" : "out_snapshot");
    sandbox_conn_t *used = NULL;
    sandbox_error_t r = use_conn(conn, &used);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__SnapshotInspectRequest inspect = SANDBOX__SNAPSHOT_INSPECT_REQUEST__INIT;
    inspect.id = (char *)id;
    DEFINE_REQUEST(request, SNAPSHOT_INSPECT, snapshot_inspect, &inspect);
    Sandbox__ServerMessage *reply = NULL;
    r = conn_call(used, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_INSPECT, &reply);
    if (r == SANDBOX_OK)
        r = take(reply->snapshot_inspect->snapshot, out_snapshot);
    pb_free(reply);
    conn_unref(used);
    return r;
}

sandbox_error_t sandbox_snapshot_delete(sandbox_conn_t *conn, const char *id)
{
    if (id == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "id is NULL");
    sandbox_conn_t *used = NULL;
    sandbox_error_t r = use_conn(conn, &used);
    if (r != SANDBOX_OK)
        return r;
    Sandbox__SnapshotDeleteRequest gone = SANDBOX__SNAPSHOT_DELETE_REQUEST__INIT;
    gone.id = (char *)id;
    DEFINE_REQUEST(request, SNAPSHOT_DELETE, snapshot_delete, &gone);
    r = conn_call(used, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SNAPSHOT_DELETE, NULL);
    conn_unref(used);
    return r;
}

// ---- forks ----

static void destroy_made(sandbox_conn_t *conn, const Sandbox__ForkResponse *made)
{
    for (size_t i = 0; i < made->n_sandboxes; i++)
        destroy_sandbox(conn, made->sandboxes[i]->sandbox_id);
}

static sandbox_error_t adopt(sandbox_conn_t *conn, const Sandbox__ForkResponse *made, uint32_t count, sandbox_handle_t **out)
{
    if (made->n_sandboxes != count) {
        destroy_made(conn, made);
        return fail(SANDBOX_ERR_INTERNAL, "the engine made %zu forks, not %u; they were destroyed", made->n_sandboxes, count);
    }
    cleanup_free sandbox_handle_t **handles = calloc(count, sizeof *handles);
    uint32_t n = 0;
    while (handles != NULL && n < count && (handles[n] = handle_new(conn, made->sandboxes[n])) != NULL)
        n++;
    if (n == count) {
        memcpy(out, handles, count * sizeof *handles);
        return SANDBOX_OK;
    }
    while (n > 0)
        handle_free(handles[--n]);
    destroy_made(conn, made);
    return fail_memory();
}

static sandbox_error_t send_fork(sandbox_conn_t *conn, Sandbox__ForkRequest *fork, sandbox_handle_t **out_handles)
{
    DEFINE_REQUEST(request, FORK, fork, fork);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_FORK, &reply);
    if (r == SANDBOX_OK)
        r = adopt(conn, reply->fork, fork->count, out_handles);
    pb_free(reply);
    return r;
}

sandbox_error_t sandbox_fork(sandbox_conn_t *conn, const char *snapshot_id, const sandbox_fork_spec_t *spec, uint32_t count,
                             sandbox_handle_t **out_handles)
{
    static const sandbox_fork_spec_t nothing;
    if (snapshot_id == NULL || out_handles == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", snapshot_id == NULL ? "snapshot_id" : "out_handles");
    if (spec == NULL)
        spec = &nothing;
    sandbox_error_t r = check_variables(spec->env_vars);
    if (r == SANDBOX_OK)
        r = check_reserved(spec->reserved, sizeof spec->reserved / sizeof spec->reserved[0], "sandbox_fork_spec_t");
    if (r != SANDBOX_OK)
        return r;
    Sandbox__ForkRequest fork = SANDBOX__FORK_REQUEST__INIT;
    fork.snapshot_id = (char *)snapshot_id;
    fork.count = count;
    cleanup_free ProtobufCBinaryData *env = NULL;
    r = bytes_of_list(spec->env_vars, "env_vars", &env, &fork.n_env_vars);
    fork.env_vars = env;
    sandbox_conn_t *used = NULL;
    if (r == SANDBOX_OK)
        r = use_conn(conn, &used);
    if (r != SANDBOX_OK)
        return r;
    r = send_fork(used, &fork, out_handles);
    conn_unref(used);
    return r;
}

// ---- suspend, and what is known of a sandbox ----

sandbox_error_t sandbox_suspend(sandbox_handle_t *handle)
{
    if (handle == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "the sandbox handle is NULL");
    Sandbox__SuspendRequest suspend = SANDBOX__SUSPEND_REQUEST__INIT;
    suspend.sandbox_id = handle->id;
    DEFINE_REQUEST(request, SUSPEND, suspend, &suspend);
    return conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_SUSPEND, NULL);
}
