#include "lib/handle.h"

#include "lib/errors.h"
#include "wire/pb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *put_text(char **at, const char *text)
{
    size_t n = strlen(text) + 1;
    char *put = memcpy(*at, text, n);
    *at += n;
    return put;
}

// In one piece, for free().  NULL: no memory.
static sandbox_network_t *copy_network(const Sandbox__Network *from)
{
    size_t lists = (from->n_egress + 1) * sizeof(char *);
    size_t size = sizeof(sandbox_network_t) + lists + strlen(from->guest_address) + 1 + strlen(from->host_address) + 1;
    for (size_t i = 0; i < from->n_egress; i++)
        size += strlen(from->egress[i]) + 1;
    sandbox_network_t *n = calloc(1, size);
    if (n == NULL)
        return NULL;
    const char **entries = (const char **)(n + 1);
    char *at = (char *)entries + lists;
    for (size_t i = 0; i < from->n_egress; i++)
        entries[i] = put_text(&at, from->egress[i]);
    *n = (sandbox_network_t){.egress = entries,
                             .egress_count = from->n_egress,
                             .guest_address = put_text(&at, from->guest_address),
                             .host_address = put_text(&at, from->host_address),
                             .prefix_bits = from->prefix_bits,
                             .broker_port = from->broker_port,
                             .transparent = from->transparent};
    return n;
}

sandbox_handle_t *handle_new(sandbox_conn_t *conn, const Sandbox__CreateResponse *made)
{
    sandbox_handle_t *h = calloc(1, sizeof *h);
    if (h == NULL)
        return NULL;
    if (made->network != NULL && (h->network = copy_network(made->network)) == NULL) {
        free(h);
        return NULL;
    }
    h->conn = conn_ref(conn);
    h->id = made->sandbox_id;
    h->isolation = made->isolation;
    h->grant_id = made->grant_id;
    snprintf(h->start, sizeof h->start, "%s", made->start);
    pthread_mutex_lock(&conn->lock);
    h->next = conn->handles;
    if (h->next != NULL)
        h->next->previous = h;
    conn->handles = h;
    pthread_mutex_unlock(&conn->lock);
    return h;
}

static void unlink_handle(sandbox_handle_t *h)
{
    pthread_mutex_lock(&h->conn->lock);
    if (h->previous != NULL)
        h->previous->next = h->next;
    else
        h->conn->handles = h->next;
    if (h->next != NULL)
        h->next->previous = h->previous;
    pthread_mutex_unlock(&h->conn->lock);
}

void handle_free(sandbox_handle_t *h)
{
    // After fork() the list, and the lock on it, are the parent's.
    if (conn_is_ours(h->conn))
        unlink_handle(h);
    conn_unref(h->conn);
    free(h->network);
    free(h);
}

sandbox_error_t destroy_sandbox(sandbox_conn_t *conn, uint32_t id)
{
    Sandbox__DestroyRequest destroy = SANDBOX__DESTROY_REQUEST__INIT;
    destroy.sandbox_id = id;
    DEFINE_REQUEST(request, DESTROY, destroy, &destroy);
    return conn_call(conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY, NULL);
}

// The ids, because a handle may be freed by its owner meanwhile.
static uint32_t *ids_of_all(sandbox_conn_t *conn, size_t *ret_count)
{
    pthread_mutex_lock(&conn->lock);
    size_t n = 0;
    for (const sandbox_handle_t *h = conn->handles; h != NULL; h = h->next)
        n++;
    uint32_t *ids = calloc(n + 1, sizeof *ids);
    size_t i = 0;
    for (const sandbox_handle_t *h = conn->handles; ids != NULL && h != NULL; h = h->next)
        ids[i++] = h->id;
    pthread_mutex_unlock(&conn->lock);
    *ret_count = n;
    return ids;
}

void handles_destroy_all(sandbox_conn_t *conn)
{
    size_t n;
    uint32_t *ids = ids_of_all(conn, &n);
    struct pending *waiting = ids != NULL ? calloc(n + 1, sizeof *waiting) : NULL;
    size_t sent = 0;
    for (; waiting != NULL && sent < n; sent++) {
        Sandbox__DestroyRequest destroy = SANDBOX__DESTROY_REQUEST__INIT;
        destroy.sandbox_id = ids[sent];
        DEFINE_REQUEST(request, DESTROY, destroy, &destroy);
        if (conn_begin(conn, &request, &waiting[sent]) != SANDBOX_OK)
            break;
    }
    for (size_t i = 0; i < sent; i++)
        conn_finish(conn, &waiting[i], SANDBOX__SERVER_MESSAGE__RESPONSE_DESTROY, NULL);
    free(waiting);
    free(ids);
}

sandbox_error_t sandbox_destroy(sandbox_handle_t *handle)
{
    if (handle == NULL)
        return SANDBOX_OK;
    sandbox_error_t r = conn_closed(handle->conn) ? SANDBOX_OK : destroy_sandbox(handle->conn, handle->id);
    // A connection that is being closed takes its sandboxes along: whoever was first, this one is gone.
    if (r != SANDBOX_OK && conn_closed(handle->conn))
        r = SANDBOX_OK;
    handle_free(handle);
    return r;
}

static sandbox_error_t no_handle(void)
{
    return fail(SANDBOX_ERR_INVALID_SPEC, "the sandbox handle is NULL");
}

sandbox_error_t sandbox_pause(sandbox_handle_t *handle)
{
    if (handle == NULL)
        return no_handle();
    Sandbox__PauseRequest pause = SANDBOX__PAUSE_REQUEST__INIT;
    pause.sandbox_id = handle->id;
    DEFINE_REQUEST(request, PAUSE, pause, &pause);
    return conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_PAUSE, NULL);
}

sandbox_error_t sandbox_resume(sandbox_handle_t *handle)
{
    if (handle == NULL)
        return no_handle();
    Sandbox__ResumeRequest resume = SANDBOX__RESUME_REQUEST__INIT;
    resume.sandbox_id = handle->id;
    DEFINE_REQUEST(request, RESUME, resume, &resume);
    return conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_RESUME, NULL);
}

// What the engine says of this sandbox, for `out` of that name: *ret_reply, to be freed, has it as `inspect`.
static sandbox_error_t ask_about(sandbox_handle_t *handle, const void *out, const char *name,
                                 Sandbox__ServerMessage **ret_reply)
{
    if (handle == NULL)
        return no_handle();
    if (out == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", name);
    Sandbox__InspectRequest inspect = SANDBOX__INSPECT_REQUEST__INIT;
    inspect.sandbox_id = handle->id;
    DEFINE_REQUEST(request, INSPECT, inspect, &inspect);
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_INSPECT, &reply);
    if (r != SANDBOX_OK)
        return r;
    if (reply->inspect->sandbox_id == handle->id) {
        *ret_reply = reply;
        return SANDBOX_OK;
    }
    pb_free(reply);
    return fail(SANDBOX_ERR_INTERNAL, "the engine's answer is about another sandbox");
}

sandbox_error_t sandbox_inspect(sandbox_handle_t *handle, sandbox_status_t *out_status)
{
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = ask_about(handle, out_status, "out_status", &reply);
    if (r != SANDBOX_OK)
        return r;
    const Sandbox__InspectResponse *answer = reply->inspect;
    *out_status = (sandbox_status_t){.sandbox_id = answer->sandbox_id,
                                     .is_running = answer->is_running,
                                     .uptime_ms = answer->uptime_ms,
                                     .memory_rss_mib = answer->memory_rss_mib,
                                     .page_faults = answer->page_faults};
    pb_free(reply);
    return SANDBOX_OK;
}

sandbox_error_t sandbox_details(sandbox_handle_t *handle, sandbox_details_t *out_details)
{
    Sandbox__ServerMessage *reply = NULL;
    sandbox_error_t r = ask_about(handle, out_details, "out_details", &reply);
    if (r != SANDBOX_OK)
        return r;
    const Sandbox__InspectResponse *answer = reply->inspect;
    *out_details = (sandbox_details_t){.sandbox_id = answer->sandbox_id,
                                       .is_running = answer->is_running,
                                       .memory = answer->memory,
                                       .uptime_ms = answer->uptime_ms,
                                       .memory_rss_mib = answer->memory_rss_mib,
                                       .memory_private_mib = answer->memory_private_mib,
                                       .memory_shared_mib = answer->memory_shared_mib,
                                       .page_faults = answer->page_faults};
    snprintf(out_details->state, sizeof out_details->state, "%s", answer->state);
    snprintf(out_details->snapshot_id, sizeof out_details->snapshot_id, "%s", answer->snapshot_id);
    pb_free(reply);
    return SANDBOX_OK;
}

uint32_t sandbox_id(const sandbox_handle_t *handle)
{
    return handle != NULL ? handle->id : 0;
}

sandbox_isolation_t sandbox_isolation(const sandbox_handle_t *handle)
{
    return handle != NULL ? (sandbox_isolation_t)handle->isolation : SANDBOX_ISOLATION_NONE;
}

uint32_t sandbox_grant_id(const sandbox_handle_t *handle)
{
    return handle != NULL ? handle->grant_id : 0;
}

const char *sandbox_start_kind(const sandbox_handle_t *handle)
{
    return handle != NULL ? handle->start : "";
}

const sandbox_network_t *sandbox_network(const sandbox_handle_t *handle)
{
    return handle != NULL ? handle->network : NULL;
}

const char *sandbox_isolation_name(sandbox_isolation_t isolation)
{
    switch (isolation) {
    case SANDBOX_ISOLATION_PROCESS:
        return "process";
    case SANDBOX_ISOLATION_CONTAINER:
        return "container";
    case SANDBOX_ISOLATION_KERNEL:
        return "kernel";
    case SANDBOX_ISOLATION_VM:
        return "vm";
    default:
        return "none";
    }
}
