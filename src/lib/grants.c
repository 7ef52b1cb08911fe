#include "lib/errors.h"
#include "lib/handle.h"
#include "wire/advice.h"
#include "wire/grant_trace.h"
#include "wire/pb.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS_MAX = GRANT_ROWS_MAX + ADVICE_FINDINGS_MAX };

// The answers with the parts of one trace; what is made of them is one block, so its size must be known first.
struct parts {
    Sandbox__ServerMessage *reply[ITEMS_MAX];
    size_t n, calls, findings;
};

static void free_parts(struct parts *p)
{
    for (size_t i = 0; i < p->n; i++)
        pb_free(p->reply[i]);
    free(p);
}

static sandbox_error_t ask(sandbox_handle_t *handle, uint32_t grant_id, struct parts *p)
{
    for (bool more = true; more;) {
        Sandbox__GrantTraceRequest trace = SANDBOX__GRANT_TRACE_REQUEST__INIT;
        trace.sandbox_id = handle->id;
        trace.grant_id = grant_id;
        trace.after = (uint32_t)(p->calls + p->findings);
        DEFINE_REQUEST(request, GRANT_TRACE, grant_trace, &trace);
        sandbox_error_t r = conn_call(handle->conn, &request, SANDBOX__SERVER_MESSAGE__RESPONSE_GRANT_TRACE, &p->reply[p->n]);
        if (r != SANDBOX_OK)
            return r;
        const Sandbox__GrantTraceResponse *part = p->reply[p->n++]->grant_trace;
        p->calls += part->n_rows;
        p->findings += part->n_findings;
        more = part->more;
        bool empty = part->n_rows + part->n_findings == 0;
        if (p->calls > GRANT_ROWS_MAX || p->findings > ADVICE_FINDINGS_MAX || (more && (empty || p->n == ITEMS_MAX)))
            return fail(SANDBOX_ERR_INTERNAL, "the engine's trace is longer than any");
    }
    return SANDBOX_OK;
}

// The texts of the parts, copied behind each other; with `at` NULL they are only counted.
struct pen {
    char *at;
    size_t size;
};

static const char *put(struct pen *pen, const char *text)
{
    size_t n = strlen(text) + 1;
    pen->size += n;
    if (pen->at == NULL)
        return NULL;
    char *copy = memcpy(pen->at, text, n);
    pen->at += n;
    return copy;
}

static void put_call(struct pen *pen, const Sandbox__GrantRow *from, sandbox_grant_call_t *to)
{
    sandbox_grant_call_t made = {.method = put(pen, from->method),
                                 .route = put(pen, from->route),
                                 .sequence = from->sequence,
                                 .status = from->status,
                                 .request_bytes = from->request_bytes,
                                 .response_bytes = from->response_bytes,
                                 .latency_us = from->latency_us,
                                 .delivered = from->delivered};
    if (to != NULL)
        *to = made;
}

static void put_finding(struct pen *pen, const Sandbox__GrantFinding *from, sandbox_grant_finding_t *to)
{
    sandbox_grant_finding_t made = {.pattern = put(pen, from->pattern),
                                    .severity = put(pen, from->severity),
                                    .remedy = put(pen, from->remedy),
                                    .method = put(pen, from->method),
                                    .route = put(pen, from->route),
                                    .suggested_method = put(pen, from->suggested_method),
                                    .suggested_route = put(pen, from->suggested_route),
                                    .detail = put(pen, from->detail),
                                    .calls = from->calls,
                                    .extra_calls = from->extra_calls,
                                    .added_latency_us = from->added_latency_us,
                                    .at_least = from->at_least,
                                    .bytes_moved = from->bytes_moved};
    if (to != NULL)
        *to = made;
}

static const char *put_parts(struct pen *pen, const struct parts *p, sandbox_grant_call_t *call,
                             sandbox_grant_finding_t *finding)
{
    for (size_t i = 0; i < p->n; i++) {
        const Sandbox__GrantTraceResponse *part = p->reply[i]->grant_trace;
        for (size_t k = 0; k < part->n_rows; k++)
            put_call(pen, part->rows[k], call != NULL ? call++ : NULL);
        for (size_t k = 0; k < part->n_findings; k++)
            put_finding(pen, part->findings[k], finding != NULL ? finding++ : NULL);
    }
    return put(pen, p->reply[0]->grant_trace->profile);
}

static sandbox_grant_trace_t *assemble(const struct parts *p)
{
    struct pen pen = {0};
    put_parts(&pen, p, NULL, NULL);
    size_t calls = p->calls * sizeof(sandbox_grant_call_t), findings = p->findings * sizeof(sandbox_grant_finding_t);
    sandbox_grant_trace_t *trace = calloc(1, sizeof *trace + calls + findings + pen.size);
    if (trace == NULL)
        return NULL;
    sandbox_grant_finding_t *finding = (sandbox_grant_finding_t *)(trace + 1);
    sandbox_grant_call_t *call = (sandbox_grant_call_t *)(finding + p->findings);
    pen.at = (char *)(call + p->calls);
    const Sandbox__GrantTraceResponse *first = p->reply[0]->grant_trace;
    *trace = (sandbox_grant_trace_t){.grant_id = first->grant_id,
                                     .lost = first->lost,
                                     .attempts = first->calls,
                                     .denied = first->denied,
                                     .shed = first->shed,
                                     .dropped = first->dropped,
                                     .call = call,
                                     .call_count = p->calls,
                                     .finding = finding,
                                     .finding_count = p->findings};
    trace->profile = put_parts(&pen, p, call, finding);
    return trace;
}

sandbox_error_t sandbox_grant_trace(sandbox_handle_t *handle, uint32_t grant_id, sandbox_grant_trace_t **out_trace)
{
    if (handle == NULL || out_trace == NULL)
        return fail(SANDBOX_ERR_INVALID_SPEC, "%s is NULL", handle == NULL ? "the sandbox handle" : "out_trace");
    struct parts *p = calloc(1, sizeof *p);
    if (p == NULL)
        return fail_memory();
    sandbox_error_t r = ask(handle, grant_id, p);
    sandbox_grant_trace_t *trace = r == SANDBOX_OK ? assemble(p) : NULL;
    if (r == SANDBOX_OK && trace == NULL)
        r = fail_memory();
    free_parts(p);
    if (r == SANDBOX_OK)
        *out_trace = trace;
    return r;
}

void sandbox_grant_trace_free(sandbox_grant_trace_t *trace)
{
    free(trace);
}
